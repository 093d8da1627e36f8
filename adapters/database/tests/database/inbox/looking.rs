//! What a look finds, and what settings are refused.

use pabal_core::Severity;
use serde_json::{Value, json};

use super::application::{ALL, Application, Kind};
use crate::support::*;

/// What is worse than a note.
async fn look(application: &Application, settings: Value) -> Vec<String> {
    let mut found = sender(&application.url(), settings).probe().await;
    found.retain(|it| it.severity != Severity::Note && !it.what.contains("fsync"));
    found.iter().map(|it| format!("{:?}: {}", it.severity, it.what)).collect()
}

#[tokio::test]
async fn a_look_runs_nothing_and_finds_nothing_where_all_is_well() {
    for kind in ALL {
        let application = Application::new(kind).await;
        let settings = json!({
            "apply": ["INSERT INTO application (no, amount) VALUES (:key, :body.amount)",
                      "UPDATE application SET memo = :body WHERE no = :key"],
            "version_table": "inbox_version",
        });
        assert_eq!(look(&application, settings).await, Vec::<String>::new(), "{kind:?}");
        assert_eq!(application.count("application").await, "0");
        let notes = sender(&application.url(), json!({})).probe().await;
        let notes: Vec<_> = notes.iter().filter(|it| it.severity == Severity::Note).collect();
        assert_eq!(notes.len(), 2, "{kind:?}: {notes:?}");
    }
}

#[tokio::test]
async fn a_look_finds_what_is_missing_and_what_the_account_may_not() {
    for kind in ALL {
        let application = Application::new(kind).await;
        let settings = json!({ "apply": [
            "INSERT INTO aplication (no) VALUES (:key)",
            "INSERT INTO application (number) VALUES (:key)",
            "INSERT INTO application (no) VALUES (:key)",
            "INSERT IN application (no) VALUES (:key)",
        ], "version_query": "SELECT version FROM applications" });
        let found = look(&application, settings.clone()).await;
        let told = |part: &str| found.iter().any(|line| line.contains(part));
        for key in ["`apply.0`", "`apply.1`", "`apply.3`", "`version_query`"] {
            assert!(told(key), "{kind:?} {key}: {found:?}");
        }
        assert!(!told("`apply.2`") && found.len() == 4, "{kind:?}: {found:?}");

        application.run("ALTER TABLE inbox RENAME TO elsewhere").await;
        assert!(
            look(&application, json!({})).await[0].starts_with("Fault: `inbox` would be refused")
        );
        application.run("ALTER TABLE elsewhere RENAME TO inbox").await;
        if kind == Kind::Sqlite {
            continue;
        }
        let delete = json!({ "apply": "DELETE FROM application WHERE no = :key" });
        let found = look(&application, delete).await;
        assert!(found[0].starts_with("Fault: `apply` would be refused"), "{kind:?}: {found:?}");
    }
}

#[tokio::test]
async fn a_look_finds_an_inbox_that_would_not_know_repeats() {
    let postgres = Application::new(Kind::Postgres).await;
    postgres.run("ALTER TABLE inbox DROP CONSTRAINT inbox_pkey").await;
    assert!(look(&postgres, json!({})).await[0].contains("no unique or exclusion constraint"));

    let mysql = Application::new(Kind::MySql).await;
    mysql.run("ALTER TABLE inbox DROP PRIMARY KEY, ADD PRIMARY KEY (seq)").await;
    assert!(look(&mysql, json!({})).await[0].contains("`id` is not the primary key"));
    mysql.run("ALTER TABLE inbox_version ENGINE = MyISAM").await;
    let found = look(&mysql, json!({ "version_table": "inbox_version" })).await;
    assert!(
        found.iter().any(|it| it.contains("`inbox_version` is a table of MyISAM")),
        "{found:?}"
    );

    let sqlite = Application::new(Kind::Sqlite).await;
    sqlite.run("CREATE TABLE bag AS SELECT * FROM inbox").await;
    assert!(look(&sqlite, json!({ "inbox": "bag" })).await[0].contains("ON CONFLICT"));
}

#[tokio::test]
async fn on_postgresql_a_look_finds_types_that_never_go_together() {
    let application = Application::new(Kind::Postgres).await;
    let apply = "UPDATE application SET ref = :id, amount = :type, version = :version, \
                 memo = :body.x WHERE no = :key";
    let found = look(&application, json!({ "apply": apply })).await;
    assert_eq!(
        found,
        [
            "Fault: `apply` wants :id as bigint, which it never is",
            "Fault: `apply` wants :type as numeric, which it never is",
        ]
    );
    let found = sender(&application.url(), json!({ "apply": apply })).probe().await;
    let types =
        "the server takes :body.x text, :id bigint, :key text, :type numeric, :version bigint";
    assert!(found.iter().any(|it| it.what == types), "{found:?}");
}

#[tokio::test]
async fn an_unreachable_database_is_a_fault_without_its_password() {
    for url in [
        "postgres://u:s3cret@127.0.0.1:1/a",
        "mysql://u:s3cret@127.0.0.1:1/a",
        "sqlite:/no/such.db",
    ] {
        let sender = sender(url, json!({}));
        let found = sender.probe().await;
        assert!(found[0].what.starts_with("no connection to the database"), "{found:?}");
        assert!(!format!("{found:?} {sender:?}").contains("s3cret"));
        let verdict = send(&*sender, &of("1", "k", "{}")).await;
        assert_eq!(words(std::slice::from_ref(&verdict)), ["unreachable"], "{verdict:?}");
        assert!(!format!("{verdict:?}").contains("s3cret"));
    }
}

#[test]
fn all_faults_of_the_settings_are_told_at_once() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _in_it = runtime.enter();
    let settings = json!({
        "inbox": "in box", "batch": 0, "timeout": "1h", "notify": "x",
        "version_table": "v", "version_query": "SELECT version FROM t WHERE no = :kye",
        "apply": ["COMMIT", "SELECT :applicant; SELECT 2", "SELECT :name"],
        "parameters": { "name": ".a | .b", "key": ".key" },
    });
    let mut told: Vec<_> = faults("sqlite:x.db", settings)
        .into_iter()
        .map(|fault| fault.split_once(':').unwrap().0.to_owned())
        .collect();
    told.sort();
    assert_eq!(
        told,
        [
            "apply.0",
            "apply.1",
            "apply.2",
            "batch",
            "inbox",
            "notify",
            "parameters.key",
            "parameters.name",
            "timeout",
            "version_query",
            "version_query",
        ]
    );
    assert_eq!(faults("sqlite:x.db", json!({ "aply": 1 }))[0], "aply: unknown key `aply`");
    assert!(faults("oracle://x", json!({}))[0].contains("is not the URL of a database"));
}
