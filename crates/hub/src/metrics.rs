//! What the hub counts. Every series is there from the start at zero, so that an alert on a first
//! failure fires.

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicU64},
};

use pabal_core::{EndpointCounts, EndpointName, Timestamp, Vitals};
use pabal_engine::{DestinationStatus, Event, HealthStatus, Hint, Observer};
use prometheus_client::{
    encoding::{EncodeLabelSet, prometheus_text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// What an attempt may end as.
const OUTCOMES: [&str; 6] =
    ["delivered", "duplicate", "stale", "unreachable", "transient", "permanent"];
const ATTEMPT_BUCKETS: [f64; 8] = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0];
const SECOND_BUCKETS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 60.0, 600.0, 3_600.0, 43_200.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfSource {
    source: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfDestination {
    destination: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfEndpoint {
    endpoint: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOutcome {
    destination: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfHint {
    source: String,
    hint: &'static str,
}

type PerDestination<M> = Family<OfDestination, M>;
type Whole = Gauge<i64, AtomicI64>;
type Real = Gauge<f64, AtomicU64>;
type Distribution = Family<OfDestination, Histogram, fn() -> Histogram>;

/// All counters, gauges and histograms; told by the engine, read at `/metrics`.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    sources: Vec<EndpointName>,
    destinations: Vec<EndpointName>,
    waiting: PerDestination<Whole>,
    held: PerDestination<Whole>,
    keys_held: PerDestination<Whole>,
    oldest: PerDestination<Real>,
    dead: Family<OfEndpoint, Whole>,
    unrouted_now: Whole,
    attempts: Family<OfOutcome, Counter>,
    stale: PerDestination<Counter>,
    delivery_attempts: Distribution,
    delivery_seconds: Distribution,
    breaker: PerDestination<Whole>,
    lease: PerDestination<Whole>,
    accepted: Family<OfSource, Counter>,
    duplicates: Family<OfSource, Counter>,
    /// Only of sources that have a hot cache.
    hints: Family<OfHint, Counter>,
    conflicts: Family<OfSource, Counter>,
    refused: Family<OfSource, Counter>,
    unrouted: Family<OfSource, Counter>,
    plan_differs: Whole,
    store: StoreMetrics,
}

/// No label at all.
type Plain = [(String, String); 0];

/// How the store is. Families without labels: what a store does not have is not shown.
#[derive(Debug, Default)]
struct StoreMetrics {
    listening: Family<Plain, Whole>,
    relistened: Family<Plain, Counter>,
    oldest_transaction: Family<Plain, Real>,
    days_ahead: Family<Plain, Whole>,
}

impl StoreMetrics {
    fn set(&self, vitals: &Vitals) {
        if let Some(listening) = vitals.listening {
            self.listening.get_or_create(&[]).set(i64::from(listening));
            let counter = self.relistened.get_or_create(&[]);
            counter.inc_by(vitals.relistened.saturating_sub(counter.get()));
        }
        if let Some(seconds) = vitals.oldest_transaction {
            self.oldest_transaction.get_or_create(&[]).set(seconds);
        }
        if let Some(days) = vitals.days_ahead {
            self.days_ahead.get_or_create(&[]).set(days);
        }
    }
}

impl Metrics {
    /// For these sources and destinations; `shared`: on a store that other nodes may work on, too.
    pub(crate) fn new(
        sources: Vec<EndpointName>,
        destinations: Vec<EndpointName>,
        shared: bool,
    ) -> Arc<Self> {
        let mut metrics = Self {
            registry: Registry::default(),
            sources,
            destinations,
            waiting: Family::default(),
            held: Family::default(),
            keys_held: Family::default(),
            oldest: Family::default(),
            dead: Family::default(),
            unrouted_now: Gauge::default(),
            attempts: Family::default(),
            stale: Family::default(),
            delivery_attempts: Family::new_with_constructor(|| Histogram::new(ATTEMPT_BUCKETS)),
            delivery_seconds: Family::new_with_constructor(|| Histogram::new(SECOND_BUCKETS)),
            breaker: Family::default(),
            lease: Family::default(),
            accepted: Family::default(),
            duplicates: Family::default(),
            hints: Family::default(),
            conflicts: Family::default(),
            refused: Family::default(),
            unrouted: Family::default(),
            plan_differs: Gauge::default(),
            store: StoreMetrics::default(),
        };
        metrics.register();
        if shared {
            metrics.register_shared();
        }
        metrics.start_at_zero();
        Arc::new(metrics)
    }

    fn register(&mut self) {
        // The library ends each help text with a period, and each counter's name with `_total`.
        let registry = &mut self.registry;
        registry.register("pabal_outbox_waiting", "Deliveries not settled", self.waiting.clone());
        registry.register(
            "pabal_outbox_held",
            "Deliveries behind a dead letter that holds their key",
            self.held.clone(),
        );
        registry.register("pabal_keys_held", "Keys held by a dead letter", self.keys_held.clone());
        registry.register(
            "pabal_outbox_oldest_age_seconds",
            "Time since the oldest delivery that may go out was accepted",
            self.oldest.clone(),
        );
        registry.register("pabal_dead_letters", "Dead letters", self.dead.clone());
        registry.register(
            "pabal_unrouted_messages",
            "Messages that wait because nobody takes them",
            self.unrouted_now.clone(),
        );
        registry.register("pabal_attempts", "Attempts by outcome", self.attempts.clone());
        registry.register(
            "pabal_stale_dropped",
            "Messages the other side dropped because it holds a newer version of their key",
            self.stale.clone(),
        );
        registry.register(
            "pabal_delivery_attempts",
            "Attempts it took until the other side held a message",
            self.delivery_attempts.clone(),
        );
        registry.register(
            "pabal_delivery_seconds",
            "Time from accepting a message to the receipt of the other side",
            self.delivery_seconds.clone(),
        );
        registry.register(
            "pabal_breaker_state",
            "Whether the destination is held and probed: 0 open for traffic, 1 held",
            self.breaker.clone(),
        );
        registry.register(
            "pabal_lease_held",
            "Lanes of the destination that this node holds",
            self.lease.clone(),
        );
        registry.register(
            "pabal_inbox_accepted",
            "Messages stored for the first time",
            self.accepted.clone(),
        );
        registry.register(
            "pabal_inbox_duplicates",
            "Messages that came again",
            self.duplicates.clone(),
        );
        registry.register(
            "pabal_hot_cache",
            "Arrivals looked up in the hot cache: repeat (nothing was written), wrong or unseen",
            self.hints.clone(),
        );
        registry.register(
            "pabal_inbox_conflicts",
            "Known ids that came with other content",
            self.conflicts.clone(),
        );
        registry.register(
            "pabal_inbox_refused",
            "Arrivals refused to their origin",
            self.refused.clone(),
        );
        registry.register("pabal_unrouted", "Messages that nobody took", self.unrouted.clone());
    }

    /// What there is to be told only where nodes share a store.
    fn register_shared(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "pabal_plan_differs",
            "Live nodes that run another configuration than this one",
            self.plan_differs.clone(),
        );
        registry.register(
            "pabal_store_listening",
            "Whether this node hears at once of what other nodes write",
            self.store.listening.clone(),
        );
        registry.register(
            "pabal_store_relistened",
            "How often it had to listen anew since it started",
            self.store.relistened.clone(),
        );
        registry.register(
            "pabal_store_oldest_transaction_seconds",
            "Age of the oldest open transaction of the database, which holds up its clean-up",
            self.store.oldest_transaction.clone(),
        );
        registry.register(
            "pabal_store_days_ahead",
            "For how many days ahead there is room for what arrives",
            self.store.days_ahead.clone(),
        );
    }

    fn start_at_zero(&self) {
        for source in &self.sources {
            let label = of_source(source);
            for family in
                [&self.accepted, &self.duplicates, &self.conflicts, &self.refused, &self.unrouted]
            {
                drop(family.get_or_create(&label));
            }
            drop(self.dead.get_or_create(&of_endpoint(source)));
        }
        for destination in &self.destinations {
            let label = of_destination(destination);
            for family in [&self.waiting, &self.held, &self.keys_held, &self.breaker, &self.lease] {
                drop(family.get_or_create(&label));
            }
            drop(self.oldest.get_or_create(&label));
            drop(self.stale.get_or_create(&label));
            drop(self.delivery_attempts.get_or_create(&label));
            drop(self.delivery_seconds.get_or_create(&label));
            drop(self.dead.get_or_create(&of_endpoint(destination)));
            for outcome in OUTCOMES {
                drop(self.attempts.get_or_create(&of_outcome(destination, outcome)));
            }
        }
    }

    /// The text for Prometheus, with what stands in the store now.
    pub(crate) fn render(
        &self,
        counts: &[EndpointCounts],
        unrouted: u64,
        statuses: &[DestinationStatus],
        vitals: &Vitals,
        now: Timestamp,
    ) -> Result<String, std::fmt::Error> {
        self.store.set(vitals);
        // A breaker that was open before a restart is told by no event.
        for status in statuses {
            let held = matches!(status.health, HealthStatus::Held { .. });
            self.breaker.get_or_create(&of_destination(&status.destination)).set(held.into());
        }
        // The store only names endpoints that have anything, and may know some that are no longer
        // configured.
        let mut endpoints: Vec<&EndpointName> = self.destinations.iter().collect();
        endpoints.extend(counts.iter().filter(|c| c.waiting > 0).map(|c| &c.endpoint));
        for endpoint in endpoints {
            let count = counts.iter().find(|count| count.endpoint == *endpoint);
            let label = of_destination(endpoint);
            let set = |family: &PerDestination<Whole>, value: Option<u64>| {
                family.get_or_create(&label).set(whole(value.unwrap_or(0)));
            };
            set(&self.waiting, count.map(|count| count.waiting));
            set(&self.held, count.map(|count| count.held));
            set(&self.keys_held, count.map(|count| count.keys_held));
            let age = count
                .and_then(|count| count.oldest)
                .map_or(0.0, |oldest| now.duration_since(oldest).as_secs_f64().max(0.0));
            self.oldest.get_or_create(&label).set(age);
        }
        let known = self.sources.iter().chain(&self.destinations);
        for endpoint in known.chain(counts.iter().map(|count| &count.endpoint)) {
            let dead = counts.iter().find(|count| count.endpoint == *endpoint);
            self.dead
                .get_or_create(&of_endpoint(endpoint))
                .set(whole(dead.map_or(0, |count| count.dead)));
        }
        self.unrouted_now.set(whole(unrouted));
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Observer for Metrics {
    fn observe(&self, event: Event<'_>) {
        match event {
            Event::Accepted { source, destinations, .. } => {
                self.accepted.get_or_create(&of_source(source)).inc();
                if destinations == 0 {
                    self.unrouted.get_or_create(&of_source(source)).inc();
                }
            }
            Event::Duplicate { source, .. } => {
                self.duplicates.get_or_create(&of_source(source)).inc();
            }
            Event::HotCache { source, hint } => {
                let hint = match hint {
                    Hint::Repeat => "repeat",
                    Hint::Wrong => "wrong",
                    Hint::Unseen => "unseen",
                };
                let source = source.to_string();
                self.hints.get_or_create(&OfHint { source, hint }).inc();
            }
            Event::Conflict { source, .. } => {
                self.conflicts.get_or_create(&of_source(source)).inc();
            }
            Event::Refused { source, .. } => {
                self.refused.get_or_create(&of_source(source)).inc();
            }
            Event::Attempt { destination, outcome, .. } => {
                self.attempts.get_or_create(&of_outcome(destination, outcome)).inc();
                if outcome == "stale" {
                    self.stale.get_or_create(&of_destination(destination)).inc();
                }
            }
            Event::Delivered { destination, attempts, age, .. } => {
                let label = of_destination(destination);
                self.delivery_attempts.get_or_create(&label).observe(f64::from(attempts));
                self.delivery_seconds.get_or_create(&label).observe(age.as_secs_f64());
            }
            Event::Breaker { destination, cause } => {
                self.breaker
                    .get_or_create(&of_destination(destination))
                    .set(i64::from(cause.is_some()));
            }
            Event::PlansDiffer { nodes } => {
                self.plan_differs.set(i64::try_from(nodes).unwrap_or(i64::MAX));
            }
            Event::Lane { destination, held } => {
                let gauge = self.lease.get_or_create(&of_destination(destination));
                if held {
                    gauge.inc()
                } else {
                    gauge.dec()
                };
            }
            // Dead letters are counted from the store, which also knows those of yesterday.
            Event::SetAside { .. } | Event::Dead { .. } | Event::SettledBefore { .. } => {}
        }
    }
}

fn of_source(name: &EndpointName) -> OfSource {
    OfSource { source: name.to_string() }
}

fn of_destination(name: &EndpointName) -> OfDestination {
    OfDestination { destination: name.to_string() }
}

fn of_endpoint(name: &EndpointName) -> OfEndpoint {
    OfEndpoint { endpoint: name.to_string() }
}

fn of_outcome(name: &EndpointName, outcome: &'static str) -> OfOutcome {
    OfOutcome { destination: name.to_string(), outcome }
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pabal_core::MessageId;

    use super::*;

    #[test]
    fn every_series_is_there_at_zero_and_moves_with_what_happens() {
        let source: EndpointName = "p/in".parse().unwrap();
        let destination: EndpointName = "q/out".parse().unwrap();
        let metrics = Metrics::new(vec![source.clone()], vec![destination.clone()], true);
        let now = Timestamp::UNIX_EPOCH + Duration::from_secs(100);
        let before = metrics.render(&[], 0, &[], &Vitals::default(), now).unwrap();
        for line in [
            "pabal_outbox_waiting{destination=\"q/out\"} 0",
            "pabal_outbox_oldest_age_seconds{destination=\"q/out\"} 0.0",
            "pabal_dead_letters{endpoint=\"p/in\"} 0",
            "pabal_attempts_total{destination=\"q/out\",outcome=\"unreachable\"} 0",
            "pabal_inbox_conflicts_total{source=\"p/in\"} 0",
            "pabal_unrouted_total{source=\"p/in\"} 0",
            "pabal_delivery_seconds_count{destination=\"q/out\"} 0",
            "pabal_breaker_state{destination=\"q/out\"} 0",
            "pabal_stale_dropped_total{destination=\"q/out\"} 0",
        ] {
            assert!(before.contains(line), "{line} is not in\n{before}");
        }
        let message = MessageId::UNASSIGNED;
        metrics.observe(Event::Accepted { source: &source, message, destinations: 0 });
        metrics.observe(Event::Conflict { source: &source, message });
        metrics.observe(Event::Delivered {
            destination: &destination,
            message,
            attempts: 3,
            age: Duration::from_secs(2),
        });
        metrics.observe(Event::Attempt {
            destination: &destination,
            message,
            outcome: "stale",
            spent: false,
            duration: Duration::ZERO,
        });
        metrics.observe(Event::Breaker { destination: &destination, cause: Some("HTTP 503") });
        metrics.observe(Event::Lane { destination: &destination, held: true });
        let counts = EndpointCounts {
            endpoint: destination,
            waiting: 7,
            held: 2,
            keys_held: 1,
            oldest: Some(Timestamp::UNIX_EPOCH + Duration::from_secs(40)),
            dead: 1,
        };
        let after = metrics.render(&[counts], 5, &[], &Vitals::default(), now).unwrap();
        for line in [
            "pabal_outbox_waiting{destination=\"q/out\"} 7",
            "pabal_outbox_oldest_age_seconds{destination=\"q/out\"} 60.0",
            "pabal_dead_letters{endpoint=\"q/out\"} 1",
            "pabal_inbox_conflicts_total{source=\"p/in\"} 1",
            "pabal_unrouted_total{source=\"p/in\"} 1",
            "pabal_unrouted_messages 5",
            "pabal_stale_dropped_total{destination=\"q/out\"} 1",
            "pabal_delivery_attempts_sum{destination=\"q/out\"} 3.0",
            "pabal_breaker_state{destination=\"q/out\"} 1",
            "pabal_lease_held{destination=\"q/out\"} 1",
        ] {
            assert!(after.contains(line), "{line} is not in\n{after}");
        }
    }
}
