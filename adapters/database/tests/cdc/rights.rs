//! Accounts that may do little, and ways in.

use std::sync::Arc;

use pabal_conformance::postgres::{OWNER, RUNTIME, Server};

use crate::{
    hub::Hub,
    log::Log,
    support::{Application, insert, until},
};

#[tokio::test]
async fn the_documented_account_relays_and_changes_nothing() {
    let server = Server::start(&[]);
    let application = Application::documented(&server);
    let [early, late] =
        ["00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-00000000000b"];
    application.commit(early);
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    application.streaming().await;
    application.commit(late);
    hub.has(2).await;
    assert_eq!(hub.ids(), [early, late]);
    assert!(hub.messages().iter().all(|message| message.arrival.one_way), "nobody could be told");
    application.confirmed().await;
    assert_eq!(application.database.ask("SELECT DISTINCT status FROM outbox"), "NEW");
    relay.stop().await;
    // With the rest of what is documented, rows are marked.
    application
        .database
        .ask("GRANT UPDATE (status, retry_count, last_error, sent_at) ON outbox TO pabal_cdc");
    let relay = application.relay(&hub);
    application.commit("00000000-0000-4000-8000-00000000000c");
    hub.has(3).await;
    until(&application.database, "SELECT count(*) FROM outbox WHERE status = 'SENT'", "3").await;
    relay.stop().await;
}

#[tokio::test]
async fn an_account_that_may_only_read_and_replicate_is_enough() {
    let (log, _guard) = Log::keep();
    let application = Application::new(Server::shared());
    let url = application.database.url(RUNTIME);
    let application = application.at(url);
    application.database.ask(&format!(
        "ALTER ROLE {RUNTIME} REPLICATION; GRANT USAGE ON SCHEMA public TO {RUNTIME}; \
         GRANT SELECT ON outbox TO {RUNTIME}"
    ));
    application.commit("before");
    let hub = Arc::new(Hub::refusing("bad"));
    let relay = application.relay(&hub);
    // It may not make the publication, and says who may, and how.
    log.alerts("CREATE PUBLICATION").await;
    application.database.ask(&format!(
        "SET ROLE {OWNER}; CREATE PUBLICATION {} FOR TABLE outbox WITH (publish = 'insert')",
        application.slot
    ));
    hub.has(1).await;
    application.commit("after");
    hub.has(2).await;
    assert_eq!(hub.ids(), ["before", "after"]);
    // What is refused cannot be marked: somebody is told which row it is.
    application.database.ask(&insert("bad"));
    log.alerts("bad").await;
    application.confirmed().await;
    assert_eq!(application.database.ask("SELECT DISTINCT status FROM outbox"), "NEW");
    relay.stop().await;
}

#[tokio::test]
async fn a_look_finds_what_stands_in_the_way_and_makes_nothing() {
    let application = Application::new(Server::shared());
    let url = application.database.url(RUNTIME);
    let stranger = application.at(url);
    let found = stranger.probe().await;
    for what in [
        "Fault: this account may not read the table outbox",
        "Fault: this account may not replicate",
        "Fault: there is no publication",
        "Warning: nothing limits what a slot makes the server keep",
        "Note: the slot",
    ] {
        assert!(found.iter().any(|line| line.starts_with(what)), "{what}: {found:#?}");
    }
    let made = "SELECT (SELECT count(*) FROM pg_publication) + (SELECT count(*) FROM \
                pg_replication_slots WHERE database = current_database())";
    assert_eq!(stranger.database.ask(made), "0");
    // A table that the publication lacks.
    stranger.database.ask(&format!(
        "CREATE TABLE other (n int); CREATE PUBLICATION {} FOR TABLE other",
        stranger.slot
    ));
    let found = stranger.probe().await;
    assert!(found.iter().any(|line| line.contains("has no table outbox")), "{found:#?}");
    // Without a stream it may go on by polling.
    let falling_back = stranger.cdc("fall_back", true.into());
    let found = falling_back.probe().await;
    assert!(!found.iter().any(|line| line.starts_with("Fault")), "{found:#?}");
}

#[tokio::test]
async fn an_account_that_may_not_replicate_says_so() {
    let (log, _guard) = Log::keep();
    let application = Application::new(Server::shared());
    let url = application.database.url(RUNTIME);
    let application = application.at(url);
    application.database.ask(&format!(
        "GRANT SELECT ON outbox TO {RUNTIME}; \
         CREATE PUBLICATION {} FOR TABLE outbox WITH (publish = 'insert')",
        application.slot
    ));
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    log.alerts("REPLICATION").await;
    relay.stop().await;
}
