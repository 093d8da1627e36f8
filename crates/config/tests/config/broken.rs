//! Broken configurations, each with the whole text an operator reads.

use pabal_core::ConfigError;

use crate::{Directory, HUB, WELFARE};

/// A snapshot of the faults of a hub and one partner.
macro_rules! snapshot {
    ($name:ident, $hub:expr, $partner:expr) => {
        #[test]
        fn $name() {
            let files = [("hub.toml", $hub), ("partners/welfare.toml", $partner)];
            insta::assert_snapshot!(Directory::with(&files).faults());
        }
    };
}

snapshot!(
    a_mistyped_key_names_the_nearest,
    HUB,
    r#"name = "Welfare"
[destination.applications]
takes = ["*"]
max_retires = 3
ordr = "key"
[destination.applications.rest]
url = "http://127.0.0.1:9001/"
"#
);

snapshot!(
    a_key_of_the_hub_in_other_words_names_ours,
    "name = \"central\"\nstorage-backend = \"sqlite\"\nbody-max = \"1 MiB\"\nhttp = { lisen = \"127.0.0.1:1\" }\nclaim_check = { url = \"file:x\" }\n",
    WELFARE
);

snapshot!(
    a_key_under_the_wrong_table_says_where_it_belongs,
    HUB,
    r#"name = "Welfare"
[destination.applications]
takes = ["*"]
url = "http://127.0.0.1:9001/"
attempts = 3
[destination.applications.rest]
url = "http://127.0.0.1:9001/"
retry = { attempts = 3 }
order = "none"
[source.decisions]
version = ".seq"
[source.decisions.rest]
auth = "none"
may_address = true
"#
);

snapshot!(
    a_value_of_the_wrong_type_is_shown,
    HUB,
    r#"name = "Welfare"
[destination.applications]
takes = "application.*"
order = "keys"
retry = { attempts = "many", first = "1 parsec" }
concurrency = 5000
rate = "20/fortnight"
[destination.applications.rest]
url = "http://127.0.0.1:9001/"
answer = { format = "xml", success = 1 }
"#
);

snapshot!(
    values_that_make_no_sense_are_faults,
    "name = \"Central Hub\"\ntimezone = \"Asia/Soul\"\nadmin = { listen = \"127.0.0.1:8080\" }\nbody_max = \"0 B\"\n",
    r#"name = ""
[destination.applications]
takes = []
concurrency = 0
rate = "0/s"
retry = { attempts = 0, first = "2h", max = "1h" }
breaker = { failures = 0, probe_first = "0s" }
[destination.applications.rest]
url = "http://127.0.0.1:9001/"
"#
);

snapshot!(
    two_adapter_tables_are_one_too_many_and_none_is_too_few,
    HUB,
    r#"name = "Welfare"
[destination.applications]
takes = ["*"]
[destination.applications.rest]
url = "http://127.0.0.1:9001/"
[destination.applications.pigeon]
coop = "north"
[destination.decisions]
takes = ["*"]
"#
);

snapshot!(
    an_unknown_adapter_names_the_nearest,
    HUB,
    r#"name = "Welfare"
[destination.applications]
takes = ["*"]
[destination.applications.rset]
url = "http://127.0.0.1:9001/"
[source.decisions.carrier]
coop = "south"
"#
);

snapshot!(
    a_bad_name_is_refused,
    HUB,
    r#"name = "Welfare"
[destination."New Applications"]
takes = ["*"]
[destination."New Applications".rest]
url = "http://127.0.0.1:9001/"
[source."../x".rest]
auth = "none"
"#
);

snapshot!(
    an_unknown_source_names_the_nearest,
    HUB,
    r#"name = "Welfare"
[destination.applications]
takes = ["*"]
from = ["welfare/decision", "hub/cli", "decisions"]
[destination.applications.rest]
url = "http://127.0.0.1:9001/"
[source.decisions.rest]
auth = "none"
"#
);

snapshot!(
    what_is_not_toml_says_where,
    "name = \"central\"\nstore = { sqlite = \"var/pabal.db\"\n",
    "name = \"Welfare\n[destination.applications]\n"
);

snapshot!(
    a_secret_in_the_file_is_a_fault_that_does_not_repeat_it,
    "name = \"central\"\nadmin = { token = \"hunter2\" }\n",
    r#"name = "Welfare"
[destination.applications]
takes = ["*"]
[destination.applications.rest]
url = "http://user:hunter2@127.0.0.1:9001/"
auth = { bearer = "hunter2" }
[destination.other]
takes = ["*"]
pasword = "hunter2"
[destination.other.rest]
url = "http://127.0.0.1:9001/"
auth = { basic = { user = "hub", password = "hunter2" } }
"#
);

#[test]
fn faults_of_all_files_come_at_once() {
    let directory = Directory::with(&[
        ("hub.toml", "nam = \"central\"\nlog = { format = \"yaml\" }\n"),
        ("partners/welfare.toml", &WELFARE.replace("takes = ", "id = \"IF-1\"\ntaks = ")),
        ("partners/tax.toml", &WELFARE.replace("takes = ", "id = \"IF-1\"\ntakes = ")),
        ("partners/Police Office.toml", WELFARE),
        ("partners/hub.toml", WELFARE),
    ]);
    insta::assert_snapshot!(directory.faults());
}

#[test]
fn two_links_with_one_number_are_a_fault() {
    let numbered = WELFARE.replace("takes = ", "id = \"IF-1\"\ntakes = ");
    let files = [
        ("hub.toml", HUB),
        ("partners/tax.toml", numbered.as_str()),
        ("partners/welfare.toml", numbered.as_str()),
    ];
    insta::assert_snapshot!(Directory::with(&files).faults());
}

#[test]
fn what_an_adapter_finds_is_brought_to_its_line() {
    let partner = r#"name = "Welfare"
[destination.applications]
takes = ["*"]
when = '.region = "11"'
[destination.applications.rest]
method = "PUSH"
headers = { X-Api = "http://u:hunter2@h/" }
auth = { basic = { user = 7, password = "hunter2-by-another-way" } }
tls = { key = "hunter2" }
"#;
    // The second secret is typed by the adapter alone, so nothing before it can know.
    let partner = partner.replace("password", "pass");
    let files = [("hub.toml", HUB), ("partners/welfare.toml", partner.as_str())];
    let directory = Directory::with(&files);
    let config = directory.load().unwrap();
    let destination = &config.destinations[0];
    let choices = "is not one of the choices";
    let table = &destination.adapter.position;
    let faults: pabal_config::Faults = [
        ConfigError::new("", "`url` is missing").help("add `url = …` to this table"),
        ConfigError::new("method", format!("`PUSH` {choices}")).help("one of: POST, PUT"),
        ConfigError::new("headers.X-Api", "http://u:hunter2@h/ is not a header"),
        ConfigError::new("auth.basic.user", "invalid type: integer `7`, expected a string"),
        ConfigError::new("auth.basic.pass", format!("`hunter2-by-another-way` {choices}"))
            .help("one of: env, file"),
        ConfigError::new("tls.key", format!("`hunter2` {choices}")).help("one of: env, file"),
        ConfigError::new("auth.bearer", "environment variable TOKEN is not set"),
    ]
    .iter()
    .map(|error| config.fault_at(table, error))
    .chain([config.fault_at(
        &destination.when.as_ref().unwrap().position,
        &ConfigError::new("", "expected an expression, found `=` (at character 9)"),
    )])
    .collect();
    let text = directory.plain(&faults);
    assert!(!text.contains("hunter2"), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn a_fault_in_an_overlay_or_the_environment_names_it() {
    let directory = Directory::with(&[
        ("hub.toml", HUB),
        ("hub.prod.toml", "grace = \"soon\"\n"),
        ("partners/welfare.toml", WELFARE),
        ("partners/welfare.prod.toml", "[destination.applications]\nconcurrency = 0\n"),
        ("partners/tax.prod.toml", "name = \"Tax\"\n"),
    ]);
    let environment = [
        ("PABAL_HTTP__LISTEN", "localhost"),
        ("PABAL_HTTP__LISEN", "127.0.0.1:1"),
        ("PABAL_ADMIN__TOKEN", "hunter2"),
        ("PABAL_ADMIN_TOKEN", "not a setting"),
    ];
    let faults = directory.load_with(Some("prod"), &environment).unwrap_err();
    insta::assert_snapshot!(directory.plain(&faults));
}

#[test]
fn a_missing_directory_or_a_mistyped_profile_is_a_fault() {
    let directory = Directory::with(&[("hub.toml", HUB)]);
    let missing = directory.path().join("elsewhere");
    let faults = pabal_config::load(&missing, None, [], &crate::adapters()).unwrap_err();
    let profile = directory.load_with(Some("prdo"), &[]).unwrap_err();
    insta::assert_snapshot!(format!(
        "{}\n\n{}",
        directory.plain(&faults),
        directory.plain(&profile)
    ));
}

#[test]
fn what_could_be_read_is_there_beside_the_faults_for_others_to_look_at() {
    let broken =
        WELFARE.replace("takes = [", "when = \".[\"\nordr = 1\nconcurrency = \"x\"\ntakes = [");
    let files = [
        ("hub.toml", "name = \"central\"\ngrace = 7\n"),
        ("partners/tax.toml", WELFARE),
        ("partners/welfare.toml", &broken.replace("auth = ", "auht = ")),
        ("partners/police.toml", "name = "),
    ];
    let directory = Directory::with(&files);
    let loaded = pabal_config::load_all(&directory.path(), None, [], &crate::adapters());
    assert_eq!(loaded.faults.iter().count(), 4, "{}", loaded.faults);
    let names: Vec<_> = loaded.config.destinations.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["tax/applications", "welfare/applications"]);
    assert_eq!(loaded.config.destinations[1].when.as_ref().unwrap().text, ".[");
    assert_eq!(loaded.config.sources.len(), 2);
    assert!(loaded.whole().is_err());
}

#[test]
fn files_that_are_no_toml_are_named_and_a_folder_of_nothing_else_is_a_fault() {
    let other = ("partners/welfare.yaml", "name: Welfare\n");
    let mixed = Directory::with(&[("hub.toml", HUB), ("partners/tax.toml", WELFARE), other]);
    let loaded = pabal_config::load_all(&mixed.path(), None, [], &crate::adapters());
    assert_eq!(loaded.ignored, [mixed.path().join("partners/welfare.yaml")]);
    assert!(loaded.faults.is_empty());
    let faults = Directory::with(&[("hub.toml", HUB), other]).faults();
    assert!(faults.contains("none of the files here ends in .toml: welfare.yaml"), "{faults}");
}

#[test]
fn the_hub_alone_is_read_whatever_stands_in_the_partners_files() {
    let directory = Directory::with(&[
        ("hub.toml", HUB),
        ("partners/welfare.toml", "nonsense"),
        ("partners/welfare.prod.toml", "nonsense"),
    ]);
    for profile in [None, Some("prod")] {
        let config = pabal_config::load_hub(&directory.path(), profile, []).unwrap();
        assert_eq!(config.hub.name, "central");
    }
    assert!(pabal_config::load_hub(&directory.path(), Some("prdo"), []).is_err());
}

#[test]
fn a_destination_has_as_many_lanes_as_can_have_something_to_do() {
    for (line, message) in [
        ("lanes = 0", "0 is not between 1 and 256"),
        ("lanes = 257", "257 is not between 1 and 256"),
        ("lanes = \"many\"", "string \"many\""),
        ("order = \"all\"\nlanes = 2", "with order = \"all\" there is one lane"),
    ] {
        let partner = WELFARE.replace("takes", &format!("{line}\ntakes"));
        let files = [("hub.toml", HUB), ("partners/welfare.toml", partner.as_str())];
        let faults = Directory::with(&files).load().unwrap_err();
        let fault = faults.iter().next().unwrap();
        assert_eq!(fault.key, "destination.applications.lanes", "{faults}");
        assert!(fault.message.contains(message) && fault.line_column.is_some(), "{faults}");
    }
}

#[test]
fn what_a_store_and_its_nodes_cannot_be_is_refused_and_no_url_is_quoted() {
    let cases = [
        ("store = { postgres = \"postgres://u:s3cret@h/d\" }", "store.postgres", "secret"),
        (
            "store = { postgres = { env = \"U\", listen = \"postgres://u:s3cret@h/d\" } }",
            "store.postgres.listen",
            "secret",
        ),
        ("store = { postgres = { connections = 4 } }", "store.postgres", "not one place"),
        (
            "store = { postgres = { env = \"U\", connections = 1 } }",
            "store.postgres.connections",
            "not between 2 and 500",
        ),
        ("store = \"postgres://u:s3cret@h/d\"", "store", "secret"),
        (
            "store = { postgres = { env = \"postgres://u:s3cret@h/d\" } }",
            "store.postgres.env",
            "secret",
        ),
        (
            "store = { postgres = { url = \"postgres://u:s3cret@h/d\" } }",
            "store.postgres.url",
            "known here: env, file, listen, connections",
        ),
        ("store = { postgre = \"postgres://u:s3cret@h/d\" }", "store", "did you mean `postgres`?"),
        ("retention = { history = \"0s\" }", "retention.history", "a moment"),
        ("retention = { history = \"200y\" }", "retention.history", "a hundred years"),
        ("lease = \"11m\"", "lease", "10 minutes"),
        ("lease = \"1s\"", "lease", "not between 2 seconds"),
        ("node = \"A B\"", "node", "not a name"),
        ("retention = { bodies = \"100d\" }", "retention.inbox", "shorter than `bodies`"),
        ("retention = { bodys = \"1d\" }", "retention.bodys", "unknown key"),
    ];
    for (line, key, message) in cases {
        let directory = Directory::with(&[("hub.toml", &format!("{HUB}{line}\n"))]);
        let faults = directory.load().unwrap_err();
        let text = faults.to_string();
        assert!(text.contains(message) && !text.contains("s3cret"), "{line}: {text}");
        assert!(faults.iter().any(|fault| fault.key == key), "{line}: {text}");
    }
}

#[test]
fn a_hot_cache_is_in_one_place_and_says_where() {
    for (line, key, message) in [
        ("{ messages = 1000, redis = { env = \"U\" } }", ".redis", "there is one cache"),
        ("{ messages = 1000, keep = \"1h\" }", ".keep", "only Redis forgets by time"),
        ("{ redis = { env = \"U\" }, keep = \"10ms\" }", ".keep", "remember nothing"),
        ("{ redis = \"redis://u:s3cret@h/0\" }", ".redis", "secret"),
        ("{ messages = 0 }", ".messages", "zero"),
        ("{ mesages = 10 }", ".mesages", "did you mean `messages`?"),
        ("{}", "", "says nothing of where"),
    ] {
        let table = format!("[source.decisions]\nhot_cache = {line}\n[source.decisions.rest]");
        let partner = WELFARE.replace("[source.decisions.rest]", &table);
        let files = [("hub.toml", HUB), ("partners/welfare.toml", partner.as_str())];
        let faults = Directory::with(&files).load().unwrap_err();
        let text = faults.to_string();
        assert!(text.contains(message) && !text.contains("s3cret"), "{line}: {text}");
        let key = format!("source.decisions.hot_cache{key}");
        assert!(faults.iter().any(|fault| fault.key == key), "{line}: {text}");
    }
}
