//! Accept: verdicts, identity, routing.

use std::sync::Arc;

use pabal_core::{DeadReason, MessageQuery, Reason, SendError};
use pabal_engine::{MissingId, OnInvalid, Source};

use crate::kit::{Kit, Partner, act, hand_over, message, name, ok, text};

#[tokio::test(flavor = "multi_thread")]
async fn every_caller_gets_its_own_verdict_after_the_commit() {
    let mut kit = Kit::new().await;
    let engine = kit.start().await;
    let inbox = engine.inbox(&name("city/orders")).unwrap();
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..400_u32 {
        let (inbox, store) = (Arc::clone(&inbox), Arc::clone(&kit.store));
        callers.spawn(async move {
            // Each hundredth repeats another, each hundred-and-first has other content.
            let id = if n % 100 < 2 { "shared".into() } else { n.to_string() };
            let body = if n % 100 == 1 { "other" } else { "same" };
            let verdict = inbox.send(&[message(&id, None, body)]).await.remove(0);
            if let Ok(receipt) = &verdict {
                let id = receipt.remote_id.as_ref().unwrap().parse().unwrap();
                assert!(store.message(id).await.unwrap().is_some(), "told before it was stored");
            }
            (n, verdict)
        });
    }
    let mut conflicts = 0;
    let mut shared = 0;
    while let Some(ended) = callers.join_next().await {
        let (n, verdict) = ended.unwrap();
        match verdict {
            Ok(receipt) if n % 100 < 2 => shared += usize::from(!receipt.duplicate),
            Ok(receipt) => assert!(!receipt.duplicate),
            Err(SendError::Permanent { reason: Reason::Conflict, .. }) => conflicts += 1,
            Err(error) => panic!("{n}: {error}"),
        }
    }
    assert_eq!((shared, conflicts), (1, 4));
    // The same conflict several times in one commit is kept once.
    assert!((1..=4).contains(&kit.dead().await.len()));
}

#[tokio::test]
async fn ids_of_two_sources_and_two_origins_are_never_the_same_message() {
    let mut kit = Kit::new().await;
    kit.setup.sources.push(Source::new(name("bank/orders"), None));
    let partner = Partner::new(|_, _| ok());
    kit.to("tax/all", &partner);
    let engine = kit.start().await;
    for source in ["city/orders", "bank/orders"] {
        for origin in ["/a", "/b"] {
            let mut message = message("1", None, &format!("{source}{origin}"));
            message.origin.source = origin.into();
            let inbox = engine.inbox(&name(source)).unwrap();
            assert!(!inbox.send(&[message]).await.remove(0).unwrap().duplicate);
        }
    }
    partner.wait(4).await;
    let ids: std::collections::HashSet<_> = partner.messages().iter().map(|m| m.id).collect();
    assert_eq!(ids.len(), 4);
    // The authenticated source is the hub's own, whatever the message says of its origin.
    for message in partner.messages() {
        assert_eq!(text(&message), format!("{}{}", message.source, message.origin.source));
    }
}

#[tokio::test]
async fn a_refused_or_unreadable_message_holds_no_claim_on_its_id() {
    let mut kit = Kit::new().await;
    kit.setup.sources[0].body_bytes_max = 10;
    let mut keeping = Source::new(name("bank/files"), None);
    (keeping.body_bytes_max, keeping.on_invalid) = (10, OnInvalid::Keep);
    kit.setup.sources.push(keeping);
    let engine = kit.start().await;
    for (source, refused) in [("city/orders", true), ("bank/files", false)] {
        let inbox = engine.inbox(&name(source)).unwrap();
        let bad = inbox.send(&[message("7", None, "far too large")]).await.remove(0);
        let reason = match bad {
            Err(SendError::Permanent { reason, .. }) => Some(reason),
            _ => None,
        };
        assert_eq!(reason, refused.then_some(Reason::TooLarge), "{source}");
        assert_eq!(kit.dead().await.len(), usize::from(!refused));
        let good = inbox.send(&[message("7", None, "good")]).await.remove(0).unwrap();
        assert!(!good.duplicate);
    }
    // The good one closed what was set aside under its id.
    assert!(kit.dead().await.is_empty());
}

#[tokio::test]
async fn what_is_refused_is_kept_where_the_origin_cannot_be_told() {
    let mut kit = Kit::new().await;
    kit.setup.sources[0].body_bytes_max = 10;
    let engine = kit.start().await;
    let one_way = |id: &str, body: &'static str| {
        let mut message = message(id, None, body);
        message.arrival.one_way = true;
        message
    };
    let batch = [
        one_way("1", "far too large"),
        one_way("2", "first"),
        one_way("2", "second"),
        one_way("", "x"),
    ];
    for verdict in engine.inbox(&name("city/orders")).unwrap().send(&batch).await {
        verdict.unwrap();
    }
    // Too large, another content under a known id, no id.
    assert_eq!(kit.dead().await.len(), 3);
}

#[tokio::test]
async fn three_subscribers_each_get_one_copy_and_an_addressed_message_reaches_exactly_one() {
    let mut kit = Kit::new().await;
    kit.setup.sources[0].may_address = true;
    let partners: Vec<_> = (0..3).map(|_| Partner::new(|_, _| ok())).collect();
    for (n, partner) in partners.iter().enumerate() {
        kit.to(&format!("agency{n}/in"), partner);
    }
    let engine = kit.start().await;
    hand_over(&engine, [message("all", None, "all")]).await;
    let mut addressed = message("one", None, "one");
    addressed.destination = Some("agency1/in".into());
    hand_over(&engine, [addressed]).await;
    kit.seen.wait("delivered", 4).await;
    engine.stop().await;
    assert_eq!(partners[0].came(), ["all"]);
    let mut came = partners[1].came();
    came.sort();
    assert_eq!(came, ["all", "one"]);
    assert_eq!(partners[2].came(), ["all"]);
}

#[tokio::test]
async fn a_source_addresses_only_where_it_may_and_only_what_exists() {
    let mut kit = Kit::new().await;
    let mut trusted = Source::new(name("hub/cli"), None);
    trusted.may_address = true;
    kit.setup.sources.push(trusted);
    kit.to("tax/all", &Partner::new(|_, _| ok()));
    let engine = kit.start().await;
    for (source, destination) in
        [("city/orders", "tax/all"), ("hub/cli", "tax/none"), ("hub/cli", "nonsense")]
    {
        let mut message = message("1", None, "x");
        message.destination = Some(destination.into());
        let verdict = engine.inbox(&name(source)).unwrap().send(&[message]).await.remove(0);
        assert!(matches!(verdict, Err(SendError::Permanent { .. })), "{source} {destination}");
    }
}

#[tokio::test]
async fn a_message_nobody_takes_is_kept_and_can_be_routed_later() {
    let mut kit = Kit::new().await;
    let engine = kit.start().await;
    hand_over(&engine, (0..3).map(|n| message(&n.to_string(), Some("k"), &n.to_string()))).await;
    engine.stop().await;
    assert_eq!(kit.store.unrouted().await.unwrap(), 3);
    // A new agency subscribes.
    let partner = Partner::new(|_, _| ok());
    kit.to("tax/late", &partner);
    let engine = kit.start().await;
    assert_eq!(engine.reroute(None, &act()).await.unwrap(), 3);
    assert_eq!(engine.reroute(None, &act()).await.unwrap(), 0);
    partner.wait(3).await;
    assert_eq!(partner.came(), ["0", "1", "2"]);
    assert_eq!(kit.store.unrouted().await.unwrap(), 0);
}

#[tokio::test]
async fn a_message_redelivered_too_often_is_kept_unread_and_can_be_taken_by_hand() {
    let mut kit = Kit::new().await;
    let engine = kit.start().await;
    let mut poison = message("p", None, "poison");
    poison.arrival.redeliveries = 5;
    hand_over(&engine, [poison]).await;
    let dead = kit.dead().await;
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].reason, DeadReason::Unread);
    assert!(kit.store.messages(&MessageQuery::default()).await.unwrap().is_empty());
    let report = engine.replay(&[dead[0].id], &act()).await.unwrap();
    assert_eq!((report.taken, report.refused.len()), (1, 0));
    assert!(kit.dead().await.is_empty());
    assert_eq!(kit.store.messages(&MessageQuery::default()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_message_that_runs_in_a_circle_is_stopped() {
    let mut kit = Kit::new().await;
    let engine = kit.start().await;
    let mut message = message("1", None, "x");
    message.arrival.hops = 16;
    let verdict = engine.inbox(&name("city/orders")).unwrap().send(&[message]).await.remove(0);
    let error = verdict.unwrap_err().to_string();
    assert!(error.contains("circle"), "{error}");
}

#[tokio::test]
async fn a_message_without_an_id_is_refused_unless_its_source_says_otherwise() {
    let mut kit = Kit::new().await;
    for (source, missing) in [("a/content", MissingId::Content), ("a/random", MissingId::Random)] {
        let mut source = Source::new(name(source), None);
        source.missing_id = missing;
        kit.setup.sources.push(source);
    }
    let engine = kit.start().await;
    let mut repeated = Vec::new();
    for source in ["city/orders", "a/content", "a/random"] {
        let mut message = message("", None, "x");
        message.origin.id = None;
        let inbox = engine.inbox(&name(source)).unwrap();
        let first = inbox.send(std::slice::from_ref(&message)).await.remove(0);
        let second = inbox.send(&[message]).await.remove(0);
        repeated.push(first.and(second).map(|receipt| receipt.duplicate).ok());
    }
    assert_eq!(repeated, [None, Some(true), Some(false)]);
}
