//! A hub's life: started, asked, killed, started again, stopped.

use pabal_tests::{Answer, Gate, Hub, HubSetup, Partner};
use serde_json::json;

/// `town/orders` hands over, `welfare/orders` takes everything.
fn two_partners(welfare: &Partner) -> HubSetup {
    let destination = format!(
        "name = \"Welfare\"\n[destination.orders]\ntakes = [\"*\"]\n\
         [destination.orders.rest]\nurl = \"{}\"\n",
        welfare.url("/orders")
    );
    Hub::setup()
        .partner("town", "name = \"Town\"\n[source.orders.rest]\nauth = \"none\"\n")
        .partner("welfare", &destination)
}

#[tokio::test]
async fn what_was_acknowledged_outlives_a_kill_in_mid_send_and_comes_with_the_same_id_and_bytes() {
    let partner = Partner::start().await;
    let gate = Gate::new();
    partner.next([Answer::status(200).behind(&gate)]);
    let mut hub = two_partners(&partner).start().await;

    let body = r#"{"amount": 1.0, "n": 12345678901234567890123}"#;
    let key = [("ce-partitionkey", "a")];
    let first = hub.hand_over("town/orders", "1", &key, body).await;
    let second = hub.hand_over("town/orders", "2", &key, body).await;
    assert_eq!((first.status, second.status), (202, 202));
    partner.wait_for(1).await;
    hub.kill9().await;
    assert!(hub.try_hand_over("town/orders", "3", &key, body).await.is_err());
    hub.start().await;

    let requests = partner.wait_for_taken(2).await;
    let ids: Vec<_> = requests.iter().map(|request| request.message_id().unwrap()).collect();
    assert_eq!(ids[0], ids[1], "the send that was cut comes again");
    assert_ne!(ids[1], ids[2]);
    assert!(requests.iter().all(|request| request.body == body));
    assert_eq!(hub.hand_over("town/orders", "1", &key, body).await.status, 200, "a repeat");
}

#[tokio::test]
async fn a_hub_answers_its_operators_and_stops_when_asked() {
    let partner = Partner::start().await;
    partner.otherwise(Answer::status(404));
    let mut hub = two_partners(&partner).start().await;
    hub.hand_over("town/orders", "1", &[], "{}").await;
    let labels = [("endpoint", "welfare/orders")];
    hub.wait_for_metric("pabal_dead_letters", &labels, |dead| dead == 1.0).await;

    let told = hub.api_get("/api/v1/status").await;
    assert!(told.to_string().contains("welfare/orders"), "{told}");
    let status = hub.cli(&["status", "--json"]).await.json();
    assert!(status.to_string().contains("welfare/orders"), "{status}");
    let unknown = hub.api_post("/api/v1/links/no/one/pause", &json!({ "by": "test" })).await;
    assert_eq!(unknown.status, 404, "{}", unknown.text());

    hub.restart().await;
    hub.wait_for_metric("pabal_dead_letters", &labels, |dead| dead == 1.0).await;
    assert!(hub.terminate().await.success());
    let without_hub = hub.cli(&["status", "--json"]).await.json();
    assert!(without_hub.to_string().contains("welfare/orders"), "{without_hub}");
}
