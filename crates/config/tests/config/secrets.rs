//! Secrets are looked up, and never shown.

use std::path::Path;

use base64::{Engine, prelude::BASE64_STANDARD};
use pabal_config::ConfigSecrets;
use pabal_core::{ConfigError, SecretReference, Secrets};

use crate::{Directory, HUB};

/// Unlike anything else in an output.
const WORD: &str = "xq7-unique-secret-word";

fn never_in(text: &str) {
    assert!(!text.contains(WORD), "{text}");
    // All three ways base64 may cut it.
    for skip in 0..3 {
        let encoded = BASE64_STANDARD.encode(&WORD[skip..]);
        assert!(!text.contains(&encoded[..encoded.len() - 4]), "{text}");
    }
}

const PARTNER: &str = r#"name = "Welfare"
[destination.applications]
takes = ["*"]
[destination.applications.rest]
url = "http://hub:xq7-unique-secret-word@127.0.0.1:9001/"
headers = { Authorization = "Basic xq7-unique-secret-word" }
auth = { basic = { user = "hub", password = { env = "WORD" } } }
[source.decisions.rest]
auth = { bearer = { file = "secret" } }
"#;

#[test]
fn a_secret_is_in_no_output() {
    let directory = Directory::with(&[
        ("hub.toml", "name = \"central\"\nadmin = { token = { env = \"WORD\" } }\n"),
        ("partners/welfare.toml", PARTNER),
        ("secret", &format!("{WORD}\n")),
    ]);
    let config = directory.load_with(None, &[("WORD", WORD)]).unwrap();
    let env = config.secrets.get("token", &SecretReference::Env("WORD".into())).unwrap();
    let file = config.secrets.get("bearer", &SecretReference::File("secret".into())).unwrap();
    assert_eq!((env.expose(), file.expose()), (WORD, WORD));
    never_in(&format!("{env:?} {file:?} {:?} {:#?}", config.secrets, config.hub));
    never_in(&format!("{config:?}"));
    never_in(&config.effective_toml());
    never_in(&config.effective().to_string());
    assert!(config.effective_toml().contains("env = \"WORD\""));
    let position = &config.destinations[0].adapter.position;
    for key in ["url", "headers.Authorization", "auth.basic.password", "auth"] {
        let error = ConfigError::new(key, format!("invalid value: string \"{WORD}\", expected x"));
        let error = if key == "url" { ConfigError::new(key, "no such scheme") } else { error };
        let fault = config.fault_at(position, &error);
        never_in(&format!("{fault} {fault:?}"));
    }
}

#[test]
fn a_secret_in_the_wrong_place_is_in_no_fault() {
    let broken = format!(
        r#"name = "Welfare"
token = "{WORD}"
[destination.applications]
takes = ["*"]
secret = "{WORD}"
passphrase = {{ word = "{WORD}" }}
[destination.applications.rest]
url = 7
auth = {{ bearer = "{WORD}" }}
[destination.applications.retry]
tokn = "{WORD}"
[source.decisions.rest]
auth = {{ basic = {{ user = "{WORD}", password = "{WORD}" }} }}
token = "{WORD}
"#
    );
    for text in [broken.clone(), broken.replace("token = \"xq7-unique-secret-word\n", "")] {
        let hub = format!("name = \"central\"\nadmin = {{ token = \"{WORD}\" }}\n");
        let directory = Directory::with(&[("hub.toml", &hub), ("partners/welfare.toml", &text)]);
        let faults = directory
            .load_with(None, &[("PABAL_ADMIN__TOKEN__VALUE", WORD), ("PABAL_HTTP__PASSWORD", WORD)])
            .unwrap_err();
        never_in(&format!("{faults} {faults:?}"));
    }
}

#[test]
fn a_secret_that_cannot_be_had_names_its_place() {
    let directory = Directory::with(&[("hub.toml", HUB), ("empty", "\n"), ("two", "a\r\nb\r\n")]);
    let secrets = ConfigSecrets::new(
        directory.path(),
        [("NOTHING", ""), ("LINE", "a\r\n"), ("END", "\n")]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    let env = |name: &str| secrets.get("k", &SecretReference::Env(name.into()));
    let file = |name: &str| secrets.get("k", &SecretReference::File(name.into()));
    let text = |error: ConfigError| directory.plain(&error);
    assert_eq!(text(env("MISSING").unwrap_err()), "k: environment variable MISSING is not set");
    assert_eq!(text(env("NOTHING").unwrap_err()), "k: environment variable NOTHING is empty");
    assert!(text(file("missing").unwrap_err()).starts_with("k: file "));
    assert!(text(file("empty").unwrap_err()).ends_with("empty is empty"));
    // Only the line end is taken off.
    assert_eq!(env("LINE").unwrap().expose(), "a");
    assert!(text(env("END").unwrap_err()).ends_with("END is empty"));
    assert_eq!(file("two").unwrap().expose(), "a\r\nb");
    assert_eq!(secrets.path(Path::new("/etc/x")), Path::new("/etc/x"));
}
