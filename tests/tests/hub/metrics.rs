//! Every metric is caused once and read back.

use std::collections::{BTreeMap, BTreeSet};

use pabal_tests::{Answer, Hub, Metrics, Partner, client, until};

use crate::support::{FAST, TOWN, drained, takes_all};

const WELFARE: [(&str, &str); 1] = [("destination", "welfare/orders")];
const TAX: [(&str, &str); 1] = [("destination", "tax/orders")];
const SOURCE: [(&str, &str); 1] = [("source", "town/orders")];

/// `welfare/orders` takes `order.*`, `tax/orders` takes `tax.*`; a 409 is a duplicate at both.
async fn hub(welfare: &Partner, tax: &Partner) -> Hub {
    let file = |partner: &Partner, takes: &str| {
        takes_all(partner, FAST, "status = { \"409\" = \"duplicate\" }")
            .replace("takes = [\"*\"]", &format!("takes = [\"{takes}\"]"))
    };
    Hub::setup()
        .partner("town", TOWN)
        .partner("welfare", &file(welfare, "order.*"))
        .partner("tax", &file(tax, "tax.*"))
        .start()
        .await
}

/// Hands over `body` of this type under a key; the status.
async fn hand_over(hub: &Hub, id: &str, message_type: &str, key: &str, body: &str) -> u16 {
    let headers = [("ce-type", message_type), ("ce-partitionkey", key)];
    hub.hand_over("town/orders", id, &headers, body.to_owned()).await.status
}

/// A value that must be there: every series is, from the start.
fn value(metrics: &Metrics, name: &str, labels: &[(&str, &str)]) -> f64 {
    metrics.value(name, labels).unwrap_or_else(|| panic!("no {name} {labels:?}"))
}

fn attempts(metrics: &Metrics, of: &str, outcome: &str) -> f64 {
    value(metrics, "pabal_attempts_total", &[("destination", of), ("outcome", outcome)])
}

#[tokio::test]
async fn what_comes_in_is_counted_by_source() {
    let (welfare, tax) = (Partner::start().await, Partner::start().await);
    let hub = hub(&welfare, &tax).await;
    let read = async || {
        let metrics = hub.metrics().await;
        ["accepted", "duplicates", "conflicts", "refused"]
            .map(|what| value(&metrics, &format!("pabal_inbox_{what}_total"), &SOURCE))
    };
    assert_eq!(read().await, [0.0; 4], "all are there before anything happens");
    assert_eq!(hand_over(&hub, "1", "order.placed", "a", "{}").await, 202);
    assert_eq!(hand_over(&hub, "2", "order.placed", "a", "{}").await, 202);
    assert_eq!(read().await, [2.0, 0.0, 0.0, 0.0]);
    assert_eq!(hand_over(&hub, "1", "order.placed", "a", "{}").await, 200);
    assert_eq!(read().await, [2.0, 1.0, 0.0, 0.0]);
    assert_eq!(hand_over(&hub, "1", "order.placed", "a", "[]").await, 409);
    assert_eq!(read().await, [2.0, 1.0, 1.0, 0.0]);
    let dead = [("endpoint", "town/orders")];
    assert_eq!(value(&hub.metrics().await, "pabal_dead_letters", &dead), 1.0);
    // It may not address.
    let headers = [("ce-destination", "welfare/orders")];
    let refused = hub.hand_over("town/orders", "3", &headers, "{}").await;
    assert_eq!(refused.status / 100, 4);
    assert_eq!(read().await, [2.0, 1.0, 1.0, 1.0]);

    assert_eq!(hand_over(&hub, "4", "nobody.cares", "a", "{}").await, 202);
    let metrics = hub.metrics().await;
    assert_eq!(value(&metrics, "pabal_unrouted_total", &SOURCE), 1.0);
    assert_eq!(value(&metrics, "pabal_unrouted_messages", &[]), 1.0);
    hub.cli_with_input(&["send", "order.placed", "-"], b"{}").await.ok();
    let own = [("source", "hub/cli")];
    assert_eq!(value(&hub.metrics().await, "pabal_inbox_accepted_total", &own), 1.0);
}

#[tokio::test]
async fn every_outcome_of_an_attempt_is_counted_by_destination() {
    let (welfare, tax) = (Partner::start().await, Partner::start().await);
    let hub = hub(&welfare, &tax).await;
    let outcomes = ["delivered", "duplicate", "unreachable", "transient", "permanent"];
    let read =
        |metrics: &Metrics| outcomes.map(|outcome| attempts(metrics, "welfare/orders", outcome));
    assert_eq!(read(&hub.metrics().await), [0.0; 5]);
    welfare.next([500, 200, 409, 401, 404].map(Answer::status));
    let steps = [
        // The second attempt gets through.
        [1.0, 0.0, 0.0, 1.0, 0.0],
        [1.0, 1.0, 0.0, 1.0, 0.0],
        // The place is closed, and then refuses it.
        [1.0, 1.0, 1.0, 1.0, 1.0],
    ];
    for (number, expected) in steps.into_iter().enumerate() {
        hand_over(&hub, &number.to_string(), "order.placed", "a", "{}").await;
        let last = until("the next outcome", async || {
            let seen = read(&hub.metrics().await);
            (seen.iter().sum::<f64>() >= expected.iter().sum()).then_some(seen)
        })
        .await;
        assert_eq!(last, expected);
    }
    let metrics = hub.metrics().await;
    assert!(outcomes.iter().all(|outcome| attempts(&metrics, "tax/orders", outcome) == 0.0));
    // Two were delivered, after two attempts and one.
    let of = |name: &str| value(&metrics, name, &WELFARE);
    assert_eq!(of("pabal_delivery_attempts_count"), 2.0);
    assert_eq!(of("pabal_delivery_attempts_sum"), 3.0);
    let buckets =
        |le: &str| value(&metrics, "pabal_delivery_attempts_bucket", &[WELFARE[0], ("le", le)]);
    assert_eq!((buckets("1"), buckets("2"), buckets("+Inf")), (1.0, 2.0, 2.0));
    assert_eq!(of("pabal_delivery_seconds_count"), 2.0);
    assert!(of("pabal_delivery_seconds_sum") > 0.0);
}

#[tokio::test]
async fn what_waits_is_held_is_dead_and_which_destination_is_closed_can_be_read() {
    let (welfare, tax) = (Partner::start().await, Partner::start().await);
    welfare.next([Answer::status(404)]);
    tax.otherwise(Answer::status(401));
    let mut hub = hub(&welfare, &tax).await;
    let read =
        async |name: &str, labels: &[(&str, &str)]| value(&hub.metrics().await, name, labels);
    for destination in [&WELFARE, &TAX] {
        assert_eq!(read("pabal_lease_held", destination).await, 1.0);
        assert_eq!(read("pabal_outbox_oldest_age_seconds", destination).await, 0.0);
    }
    // A dead letter holds its key, with two behind it.
    for id in ["1", "2", "3"] {
        hand_over(&hub, id, "order.placed", "a", "{}").await;
    }
    hub.wait_for_metric("pabal_outbox_held", &WELFARE, |held| held == 2.0).await;
    assert_eq!(read("pabal_outbox_waiting", &WELFARE).await, 2.0);
    assert_eq!(read("pabal_keys_held", &WELFARE).await, 1.0);
    assert_eq!(read("pabal_dead_letters", &[("endpoint", "welfare/orders")]).await, 1.0);
    // What is held may not go out, so it does not age.
    assert_eq!(read("pabal_outbox_oldest_age_seconds", &WELFARE).await, 0.0);
    assert_eq!(read("pabal_breaker_state", &WELFARE).await, 0.0);

    hand_over(&hub, "4", "tax.paid", "a", "{}").await;
    hub.wait_for_metric("pabal_breaker_state", &TAX, |state| state == 1.0).await;
    let age = "pabal_outbox_oldest_age_seconds";
    let seen = hub.wait_for_metric(age, &TAX, |seconds| seconds > 0.0).await;
    hub.wait_for_metric(age, &TAX, |seconds| seconds > seen).await;
    tax.otherwise(Answer::status(200));
    hub.wait_for_metric("pabal_breaker_state", &TAX, |state| state == 0.0).await;
    hub.cli(&["dead-letters", "discard", "--all", "--yes"]).await.ok();
    drained(&hub, &["welfare/orders", "tax/orders"]).await;
    hub.restart().await;
    let metrics = hub.metrics().await;
    for name in ["pabal_outbox_waiting", "pabal_outbox_held", "pabal_keys_held", age] {
        assert_eq!(value(&metrics, name, &WELFARE), 0.0, "{name}");
    }
    assert_eq!(value(&metrics, "pabal_dead_letters", &[]), 0.0);
}

#[tokio::test]
async fn metrics_need_the_token_and_keep_the_rules_of_the_text_format() {
    let (welfare, tax) = (Partner::start().await, Partner::start().await);
    welfare.next([Answer::status(404)]);
    let hub = hub(&welfare, &tax).await;
    hand_over(&hub, "1", "order.placed", "a", "{}").await;
    hub.wait_for_metric("pabal_dead_letters", &[], |dead| dead == 1.0).await;
    let without = client().get(hub.admin_url("/metrics")).send().await.unwrap();
    assert_eq!(without.status(), 401);
    let request = client().get(hub.admin_url("/metrics")).bearer_auth(hub.token());
    let reply = request.send().await.unwrap();
    let kind = reply.headers()["content-type"].to_str().unwrap().to_owned();
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    check_format(&reply.text().await.unwrap(), &[]);
    // Nor does the partners' listener have them.
    let partners = client().get(hub.url("/metrics")).bearer_auth(hub.token()).send().await.unwrap();
    assert_eq!(partners.status(), 404);
}

/// The rules of the Prometheus text format 0.0.4, and those of names that `promtool check metrics`
/// applies; `more`: names beside those that every hub has.
pub(crate) fn check_format(text: &str, more: &[&str]) {
    assert!(text.ends_with('\n'), "the last line ends");
    let mut families: BTreeMap<&str, &str> = BTreeMap::new();
    let mut helps = BTreeSet::new();
    let mut series = BTreeSet::new();
    let mut buckets: BTreeMap<String, Vec<(String, f64)>> = BTreeMap::new();
    let mut counts: BTreeMap<String, f64> = BTreeMap::new();
    let mut current = "";
    for line in text.lines().filter(|line| *line != "# EOF") {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(helps.insert(name), "{name}: two helps");
            assert!(!help.trim().is_empty(), "{name}: no help");
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(families.insert(name, kind).is_none(), "{name}: in two groups");
            assert!(helps.contains(name), "{name}: a help before its type");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}: counters, no others");
            let right = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(name.chars().all(right), "{name}");
            current = name;
            continue;
        }
        assert!(!line.starts_with('#') && !line.is_empty(), "{line:?}");
        let (id, number) = line.rsplit_once(' ').unwrap();
        let number: f64 = number.parse().unwrap();
        assert!(series.insert(id), "{id}: twice");
        let (name, labels) = id.split_once('{').unwrap_or((id, ""));
        let kind = families[current];
        match name.strip_prefix(current) {
            Some("") => assert_ne!(kind, "histogram", "{line}"),
            Some("_bucket") => {
                let (others, le) = labels.split_once("le=\"").unwrap();
                let le = le.trim_end_matches(['}', '"']).to_owned();
                let of = format!("{current}{{{}", others.trim_end_matches(','));
                buckets.entry(of).or_default().push((le, number));
            }
            Some("_count") => {
                counts.insert(format!("{current}{{{}", labels.trim_end_matches('}')), number);
            }
            Some("_sum") => assert_eq!(kind, "histogram", "{line}"),
            _ => panic!("{line}: does not belong to {current}"),
        }
    }
    assert!(!buckets.is_empty());
    for (of, buckets) in buckets {
        assert!(buckets.is_sorted_by(|one, next| one.1 <= next.1), "{of}: buckets add up");
        let (le, all) = buckets.last().unwrap();
        assert_eq!((le.as_str(), Some(all)), ("+Inf", counts.get(&of)), "{of}");
    }
    // All of the names that the documentation has.
    let names = [
        "pabal_outbox_waiting",
        "pabal_outbox_held",
        "pabal_keys_held",
        "pabal_outbox_oldest_age_seconds",
        "pabal_dead_letters",
        "pabal_unrouted_messages",
        "pabal_attempts_total",
        "pabal_stale_dropped_total",
        "pabal_delivery_attempts",
        "pabal_delivery_seconds",
        "pabal_breaker_state",
        "pabal_lease_held",
        "pabal_inbox_accepted_total",
        "pabal_inbox_duplicates_total",
        "pabal_inbox_conflicts_total",
        "pabal_inbox_refused_total",
        "pabal_unrouted_total",
    ];
    for name in names.iter().chain(more) {
        assert!(families.remove(name).is_some(), "{name} is missing");
    }
    assert_eq!(families, BTreeMap::new(), "and each of them is caused above");
}
