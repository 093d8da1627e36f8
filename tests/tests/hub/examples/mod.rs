//! The services of docs/examples: applications in Rust, Python and JavaScript that are killed between
//! their statements.

mod book;
mod citizens;

use std::fs;

use pabal_tests::{Postgres, Service, built, interpreter, repository, until};

use self::{book::Written, citizens::Citizens};

/// Kills at random moments.
const DEATHS: usize = 6;
/// Kills at each of [`MOMENTS`].
const REPEATS: usize = 2;
const CITIZENS: usize = 8;

/// Where a transaction is held while the service is killed, by a trigger that waits for an advisory
/// lock of this number: so the services need nothing in them for tests.
const MOMENTS: [(u8, &str); 3] = [
    (1, "the form is written, its message not"),
    (2, "both are written, nothing is committed"),
    (3, "the commit is under way, and nobody will hear of its end"),
];
const HOLD: &str = "
    CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_advisory_xact_lock_shared(TG_ARGV[0]::bigint); RETURN NEW; END $$;
    CREATE TRIGGER hold_1 BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION hold(1);
    CREATE TRIGGER hold_2 AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION hold(2);
    CREATE CONSTRAINT TRIGGER hold_3 AFTER INSERT ON outbox DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION hold(3);";

fn file(path: &str) -> String {
    fs::read_to_string(repository(path)).unwrap()
}

/// A database with the tables that the examples' page says to make, and what the service's role
/// may do there.
async fn database() -> Postgres {
    let postgres = Postgres::shared().await;
    postgres
        .ask(&format!(
            "SET ROLE owner;\n{}\n{}\n{HOLD}\n\
             GRANT SELECT, INSERT, UPDATE ON application TO runtime;\n\
             GRANT INSERT ON outbox TO runtime;",
            file("docs/examples/application.sql"),
            file("migrations/app-side/postgres/outbox.sql"),
        ))
        .await;
    postgres
}

async fn form_and_message_are_one(service: Service) {
    let postgres = database().await;
    let mut service = service.variable("DATABASE_URL", &postgres.runtime());
    service.start().await;
    let citizens = Citizens::start(CITIZENS, &service.url("/applications"));
    for death in 1..=DEATHS {
        let more = fastrand::usize(1..40);
        citizens.wait_for_more(more).await;
        service.kill9().await;
        eprintln!("kill {death}: after {more} more answers");
        service.start().await;
    }
    for (number, moment) in MOMENTS {
        for _ in 0..REPEATS {
            citizens.wait_for_more(1).await;
            let lock = format!("SELECT pg_advisory_lock({number})");
            let held = postgres.session_after(&lock).await;
            let waiting = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
                           WHERE d.datname = current_database() AND locktype = 'advisory' \
                           AND NOT granted";
            until(moment, async || (postgres.ask(waiting).await != "0").then_some(())).await;
            service.kill9().await;
            drop(held);
            service.start().await;
        }
        eprintln!("{REPEATS} kills while {moment}");
    }
    citizens.wait_for_more(CITIZENS).await;
    let citizens = citizens.stop().await;

    let written = Written::read(&postgres).await;
    written.holds_what_was_answered(&citizens);
    written.has_a_message_for_each_version();
}

#[tokio::test]
async fn a_service_in_rust_killed_at_any_moment_has_a_message_for_each_change_and_no_other() {
    let binary = built("pabal-example-rust-axum");
    let service = Service::new(binary, &[], &repository("docs/examples/rust-axum"));
    form_and_message_are_one(service).await;
}

#[tokio::test]
async fn a_service_in_python_killed_at_any_moment_has_a_message_for_each_change_and_no_other() {
    let folder = repository("docs/examples/python-sqlalchemy");
    let service = Service::new(interpreter(), &["app.py"], &folder);
    form_and_message_are_one(service.variable("PYTHONDONTWRITEBYTECODE", "1")).await;
}

#[tokio::test]
async fn a_service_in_javascript_killed_at_any_moment_has_a_message_for_each_change_and_no_other() {
    let folder = repository("docs/examples/node-pg");
    let modules = folder.join("node_modules/pg");
    assert!(modules.exists(), "{} is not there: run `cargo xtask prepare`", modules.display());
    form_and_message_are_one(Service::new("node", &["app.js"], &folder)).await;
}
