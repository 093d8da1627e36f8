//! After an unclean end: who killed the process?

use std::sync::Arc;

use pabal_core::DeadReason;
use pabal_engine::Engine;

use crate::kit::{Kit, Partner, Step, hand_over, message, ok, text};

/// Ends an engine as `kill -9` would: nothing is written, nothing is released.
fn kill(runtime: tokio::runtime::Runtime, engine: Engine) {
    runtime.shutdown_background();
    drop(engine);
}

#[test]
fn the_message_that_kills_the_process_is_found_and_no_other_is_blamed() {
    let main = tokio::runtime::Runtime::new().unwrap();
    let mut kit = main.block_on(Kit::new());
    let mut deaths = 0;
    loop {
        let life = tokio::runtime::Runtime::new().unwrap();
        // The process dies whenever `poison` is sent: the call never returns.
        let partner = Partner::new(|m, _| if text(m) == "poison" { Step::Hold } else { ok() });
        // A restart brings the store up again on the same file.
        kit = life.block_on(kit.again());
        kit.to("tax/all", &partner);
        let engine = life.block_on(kit.start());
        if deaths == 0 {
            life.block_on(hand_over(
                &engine,
                ["a", "poison", "b"].map(|body| message(body, Some(body), body)),
            ));
            life.block_on(hand_over(&engine, [message("c", Some("poison"), "c")]));
        }
        let dead = life.block_on(async {
            tokio::select! {
                () = kit.seen.wait("dead", 1) => true,
                () = came(&partner, "poison") => false,
            }
        });
        if dead {
            life.block_on(async {
                // The others went in an earlier life, or go now.
                let letters = kit.dead().await;
                assert_eq!(letters.len(), 1);
                assert_eq!(letters[0].reason, DeadReason::KilledProcess);
                assert_eq!(letters[0].key.as_deref(), Some("poison"));
                kit.store.discard(&[letters[0].id], &crate::kit::act()).await.unwrap();
                engine.wake();
                came(&partner, "c").await;
                engine.stop().await;
            });
            break;
        }
        deaths += 1;
        assert!(deaths <= 4, "the guilty one is still at large");
        kill(life, engine);
    }
    assert_eq!(deaths, 4);
}

async fn came(partner: &Arc<Partner>, body: &str) {
    let mut count = 1;
    while !partner.came().contains(&body.to_owned()) {
        partner.wait(count).await;
        count = partner.came().len() + 1;
    }
}
