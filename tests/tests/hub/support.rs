//! Partner files that many tests share.

use pabal_tests::{Hub, HubSetup, Partner};

/// A partner that hands over at `town/orders`.
pub(crate) const TOWN: &str = "name = \"Town\"\n[source.orders.rest]\nauth = \"none\"\n";

/// Retries and probes come fast, so that no test waits for them.
pub(crate) const FAST: &str = "\
retry = { attempts = 12, first = \"20ms\", max = \"200ms\" }
breaker = { probe_first = \"20ms\", probe_max = \"200ms\" }
";

/// A partner with the destination `orders`, which takes everything at `partner`; `more` are lines
/// of its table, `rest` of the adapter's.
pub(crate) fn takes_all(partner: &Partner, more: &str, rest: &str) -> String {
    format!(
        "name = \"Takes all\"\n[destination.orders]\ntakes = [\"*\"]\n{more}\n\
         [destination.orders.rest]\nurl = \"{}\"\n{rest}\n",
        partner.url("/orders")
    )
}

/// `town/orders` hands over, `welfare/orders` takes everything and is tried again fast.
pub(crate) fn town_to(welfare: &Partner) -> HubSetup {
    Hub::setup().partner("town", TOWN).partner("welfare", &takes_all(welfare, FAST, ""))
}

/// Waits until nothing waits at these destinations.
pub(crate) async fn drained(hub: &Hub, destinations: &[&str]) {
    for destination in destinations {
        let labels = [("destination", *destination)];
        hub.wait_for_metric("pabal_outbox_waiting", &labels, |waiting| waiting == 0.0).await;
    }
}

/// All dead letters, one by one.
pub(crate) async fn dead_letters(hub: &Hub) -> Vec<serde_json::Value> {
    let told = hub.cli(&["dead-letters", "list", "--each", "--limit", "1000", "--json"]).await;
    told.json().as_array().unwrap().clone()
}
