//! Who gets which message.

use std::fs;

use pabal_tests::{Hub, Partner, Request};
use serde_json::json;

use crate::support::{FAST, TOWN, drained, takes_all};

fn bodies(partner: &Partner) -> Vec<String> {
    partner.requests().iter().map(Request::text).collect()
}

#[tokio::test]
async fn three_subscribers_each_get_one_copy_and_an_addressed_message_reaches_only_its_own() {
    let partners = [Partner::start().await, Partner::start().await, Partner::start().await];
    let hub = Hub::setup()
        .partner("town", TOWN)
        .partner("a", &takes_all(&partners[0], FAST, ""))
        .partner("b", &takes_all(&partners[1], FAST, ""))
        .partner("c", &takes_all(&partners[2], FAST, ""))
        .start()
        .await;
    hub.hand_over("town/orders", "1", &[], "\"to all\"").await.expect_status(202);
    hub.hand_over("town/orders", "1", &[], "\"to all\"").await.expect_status(200);
    let addressed = ["send", "test.message", "--to", "b/orders", "--id", "2", "-"];
    hub.cli_with_input(&addressed, b"\"to one\"").await.ok();
    drained(&hub, &["a/orders", "b/orders", "c/orders"]).await;
    assert_eq!(bodies(&partners[0]), ["\"to all\""]);
    assert_eq!(bodies(&partners[2]), ["\"to all\""]);
    let mut both = bodies(&partners[1]);
    both.sort();
    assert_eq!(both, ["\"to all\"", "\"to one\""]);
    let ids: Vec<_> = partners.iter().map(|partner| partner.requests()[0].clone()).collect();
    assert!(ids.iter().all(|request| request.message_id() == ids[0].message_id()));

    let nowhere = ["send", "test.message", "--to", "d/orders", "-"];
    let refused = hub.cli_with_input(&nowhere, b"{}").await;
    refused.exits_with(1);
    assert!(refused.stderr.contains("b/orders"), "it names those there are: {}", refused.stderr);
    // A partner may not address: its source does not say so.
    let headers = [("ce-destination", "b/orders")];
    let refused = hub.hand_over("town/orders", "3", &headers, "{}").await;
    assert_eq!(refused.status / 100, 4, "{}", refused.text());
}

#[tokio::test]
async fn a_message_nobody_takes_is_kept_and_goes_to_a_partner_whose_file_comes_later() {
    let (welfare, tax) = (Partner::start().await, Partner::start().await);
    let file = |partner: &Partner, takes: &str| {
        takes_all(partner, FAST, "").replace("takes = [\"*\"]", &format!("takes = [\"{takes}\"]"))
    };
    let mut hub = Hub::setup()
        .partner("town", TOWN)
        .partner("welfare", &file(&welfare, "application.*"))
        .start()
        .await;
    let taxes = [("ce-type", "tax.paid")];
    for id in ["1", "2"] {
        let reply = hub.hand_over("town/orders", id, &taxes, format!("{{\"n\": {id}}}")).await;
        assert_eq!(reply.status, 202);
    }
    let status = hub.cli(&["status", "--json"]).await.json();
    assert_eq!(status["unrouted"], 2);
    let waiting = hub.cli(&["messages", "find", "--unrouted", "--json"]).await.json();
    assert_eq!(waiting.as_array().unwrap().len(), 2);
    // As long as nobody takes it, asking again changes nothing.
    let asked = hub.cli(&["messages", "reroute", "--all", "--yes", "--json"]).await.json();
    assert_eq!(asked["routed"], 0);

    fs::write(hub.config().join("partners/tax.toml"), file(&tax, "tax.*")).unwrap();
    hub.restart().await;
    let status = hub.cli(&["status", "--json"]).await.json();
    assert_eq!(status["unrouted"], 2, "a new file alone moves nothing");
    let one = waiting[1]["id"].as_str().unwrap();
    let asked = hub.cli(&["messages", "reroute", one, "--json"]).await.json();
    assert_eq!(asked["routed"], 1);
    tax.wait_for_taken(1).await;
    let asked = hub.cli(&["messages", "reroute", "--all", "--yes", "--json"]).await.json();
    assert_eq!(asked["routed"], 1);
    drained(&hub, &["tax/orders"]).await;
    assert_eq!(bodies(&tax), ["{\"n\": 1}", "{\"n\": 2}"]);
    assert_eq!(bodies(&welfare), Vec::<String>::new());
    assert_eq!(hub.cli(&["status", "--json"]).await.json()["unrouted"], 0);
}

#[tokio::test]
async fn conditions_on_the_content_decide_who_gets_what_and_one_that_cannot_be_evaluated_is_no_no()
{
    let (existing, large, all) =
        (Partner::start().await, Partner::start().await, Partner::start().await);
    let with =
        |partner: &Partner, when: &str| takes_all(partner, &format!("when = '{when}'\n{FAST}"), "");
    let hub = Hub::setup()
        .partner("town", TOWN)
        .partner("existing", &with(&existing, r#".status == "존재""#))
        .partner("large", &with(&large, r#"(.amount > 100) and $message.type == "test.message""#))
        .partner("all", &takes_all(&all, FAST, ""))
        .start()
        .await;
    let handed_over = [
        r#"{"status": "존재", "amount": 5}"#,
        r#"{"status": "폐지", "amount": 500}"#,
        r#"{"status": "존재", "amount": 101}"#,
    ];
    for (id, body) in handed_over.iter().enumerate() {
        let headers = [("ce-partitionkey", "k")];
        hub.hand_over("town/orders", &id.to_string(), &headers, *body).await.expect_status(202);
    }
    let destinations = ["existing/orders", "large/orders", "all/orders"];
    drained(&hub, &destinations).await;
    assert_eq!(bodies(&existing), [handed_over[0], handed_over[2]]);
    assert_eq!(bodies(&large), [handed_over[1], handed_over[2]]);
    assert_eq!(bodies(&all), handed_over);

    // Not an object: `.status` of it is an error, which must not pass for "no".
    hub.hand_over("town/orders", "odd", &[], "[1]").await.expect_status(202);
    drained(&hub, &destinations).await;
    assert_eq!(bodies(&all).last().unwrap(), "[1]");
    let dead = crate::support::dead_letters(&hub).await;
    let mut at: Vec<_> = dead.iter().map(|one| (&one["endpoint"], &one["kind"])).collect();
    at.sort_by_key(|(endpoint, _)| endpoint.to_string());
    assert_eq!(
        at,
        [
            (&json!("existing/orders"), &json!("routing")),
            (&json!("large/orders"), &json!("routing")),
        ]
    );
}
