//! Whatever happens, no output holds a secret.

use std::{fs, fs::Permissions, os::unix::fs::PermissionsExt};

use pabal_tests::{Answer, Hub, Partner, Ran, client, free_port, until};

use crate::support::{FAST, TOWN, dead_letters};

/// Every secret there is. Long enough to be a webhook's key, and unlike anything else.
const WORD: &str = "Zwergpinscher7Quittenmus9Xylophon";

/// Base64, without a crate for it.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = |chunk: &[u8]| {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let digit = |at: usize| char::from(DIGITS[(bits >> (18 - 6 * at) & 63) as usize]);
        (0..4).map(|at| if at <= chunk.len() { digit(at) } else { '=' }).collect::<String>()
    };
    bytes.chunks(3).map(digits).collect()
}

/// The word, and what of its Base64 is the same whatever stands around it: it may begin at any of
/// three places in a group.
fn needles() -> Vec<String> {
    let mut needles = vec![WORD.to_owned(), WORD.to_lowercase()];
    for before in 0..3 {
        let padded = [vec![b'x'; before], WORD.as_bytes().to_vec()].concat();
        let encoded = base64(&padded);
        // Without what its neighbours have a part in.
        let (first, last) = ((before * 8).div_ceil(6), padded.len() * 8 / 6);
        needles.push(encoded[first..last].to_owned());
        needles.push(encoded[first..last].replace('+', "-").replace('/', "_"));
    }
    needles
}

/// All that was seen, with where.
#[derive(Default)]
struct Seen(Vec<(String, String)>);

impl Seen {
    fn add(&mut self, what: impl Into<String>, text: impl Into<String>) {
        self.0.push((what.into(), text.into()));
    }

    fn ran(&mut self, ran: &Ran) {
        self.add(format!("{} (stdout)", ran.command), &ran.stdout);
        self.add(format!("{} (stderr)", ran.command), &ran.stderr);
    }

    fn hold(&self, more: &[String]) {
        for (what, text) in &self.0 {
            for needle in needles().iter().chain(more) {
                let lower = text.to_lowercase().contains(&WORD.to_lowercase());
                assert!(!lower && !text.contains(needle.as_str()), "{what}: {needle}\n{text}");
            }
        }
    }
}

/// The search finds what it looks for, in any form.
#[test]
fn the_search_finds_the_word_in_every_form() {
    for (around, text) in [
        ("plain", format!("x{WORD}y")),
        ("basic", base64(format!("user:{WORD}").as_bytes())),
        ("basic 2", base64(format!("us:{WORD}\n").as_bytes())),
        ("basic 3", base64(format!("use:{WORD}").as_bytes())),
        ("alone", base64(WORD.as_bytes())),
    ] {
        assert!(needles().iter().any(|needle| text.contains(needle)), "{around}: {text}");
    }
    assert_eq!(base64(b"user:pw"), "dXNlcjpwdw==");
}

/// A partner's file for each way to show who we are; `at` is where it goes.
fn destination(at: &str, auth: &str) -> String {
    format!(
        "name = \"D\"\n[destination.orders]\ntakes = [\"*\"]\n{FAST}\n[destination.orders.rest]\n\
         url = \"{at}\"\ntimeout = \"2s\"\n{auth}\n"
    )
}

/// The answer that gives back everything it was asked, with this status.
fn echo(partner: &Partner, status: u16) {
    partner.decide(move |request| {
        let mut back = format!("{} {}\n", request.method, request.path);
        for (name, value) in &request.headers {
            back.push_str(&format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
        }
        Some(Answer::status(status).body(back))
    });
}

const SOURCES: &str = "\
name = \"In\"
[source.bearer.rest]
auth = { bearer = { env = \"ALL\" } }
type = \"t\"
[source.basic.rest]
auth = { basic = { user = \"user\", password = { file = \"secrets/all\" } } }
type = \"t\"
[source.header.rest]
auth = { header = { name = \"x-api-key\", value = { env = \"ALL\" } } }
type = \"t\"
keep_headers = [\"x-office\"]
[source.hook.rest]
auth = { standard_webhooks = [{ env = \"HOOK\" }] }
type = \"t\"
";

/// What can be asked of a hub, running or not.
async fn ask_everything(hub: &Hub, seen: &mut Seen) {
    let found = hub.cli(&["messages", "find", "--json"]).await;
    let mut ids: Vec<String> = Vec::new();
    for message in found.json().as_array().unwrap() {
        ids.push(message["id"].as_str().unwrap().to_owned());
    }
    seen.ran(&found);
    for command in [
        &["check"][..],
        &["check", "--json"],
        &["config", "show"],
        &["config", "show", "--json"],
        &["status"],
        &["status", "--json"],
        &["messages", "find"],
        &["dead-letters", "list"],
        &["dead-letters", "list", "--json"],
        &["dead-letters", "list", "--each"],
        &["dead-letters", "replay", "--all", "--dry-run"],
        &["pause", "refuses/orders", "--json"],
        &["resume", "refuses/orders"],
        &["send", "t", "no-such-file"],
        &["migrate"],
        &["run"],
    ] {
        // Some are to fail.
        if command[0] != "run" || hub.pid().is_some() {
            seen.ran(&hub.cli(command).await);
        }
    }
    for id in &ids {
        seen.ran(&hub.cli(&["messages", "show", id, "--body"]).await);
        seen.ran(&hub.cli(&["messages", "show", id, "--body", "--json"]).await);
    }
    for dead in dead_letters(hub).await {
        let id = dead["id"].to_string();
        seen.ran(&hub.cli(&["dead-letters", "show", &id, "--body"]).await);
        seen.ran(&hub.cli(&["dead-letters", "show", &id, "--body", "--json"]).await);
    }
}

#[tokio::test]
async fn no_secret_is_in_any_output_whatever_fails() {
    let authority = rcgen::generate_simple_self_signed(["hub.example".to_owned()]).unwrap();
    let key = authority.signing_key.serialize_pem();
    let key_lines: Vec<String> =
        key.lines().filter(|line| !line.starts_with("---")).map(str::to_owned).collect();
    let partners: Vec<Partner> = {
        let mut partners = Vec::new();
        for _ in 0..5 {
            partners.push(Partner::start().await);
        }
        partners
    };
    let [refuses, fails, closed, redirects, plain] = &partners[..] else { unreachable!() };
    echo(refuses, 422);
    echo(fails, 500);
    echo(closed, 401);
    let elsewhere = plain.url("/login");
    redirects.otherwise(Answer::status(302).header("location", &elsewhere));
    let nobody = format!("http://127.0.0.1:{}/", free_port());
    let no_tls = plain.url("/").replace("http:", "https:");
    let bearer = "auth = { bearer = { env = \"ALL\" } }";
    let basic = "auth = { basic = { user = \"user\", password = { env = \"ALL\" } } }";
    let header = "auth = { header = { name = \"x-key\", value = { file = \"secrets/all\" } } }";
    let sign = "sign = { standard_webhooks = [{ env = \"HOOK\" }] }";
    let tls = "tls = { cert = \"cert.pem\", key = { file = \"secrets/key\" } }";
    let hub_toml = "\
name = \"test\"
store = { sqlite = \"{database}\" }
http = { listen = \"{http}\" }
admin = { listen = \"{admin}\", token = { env = \"ALL\" } }
log = { filter = \"debug,sqlx=debug,hyper=trace,hyper_util=trace,h2=trace,rustls=trace,reqwest=trace\" }
";
    let hook = format!("whsec_{}", base64(WORD.as_bytes()));
    let mut hub = Hub::setup()
        .whole_hub_toml(hub_toml)
        .token(WORD)
        .variable("ALL", WORD)
        .variable("HOOK", &hook)
        .file("secrets/all", WORD)
        .file("secrets/key", &key)
        .file("cert.pem", authority.cert.pem())
        .partner("in", SOURCES)
        .partner("refuses", &destination(&refuses.url("/"), bearer))
        .partner("fails", &destination(&fails.url("/"), &format!("{header}\n{sign}")))
        .partner("closed", &destination(&closed.url("/"), basic))
        .partner("redirects", &destination(&redirects.url("/"), bearer))
        .partner("nobody", &destination(&nobody, basic))
        .partner("notls", &destination(&no_tls, &format!("{bearer}\n{tls}")))
        .prepare();
    for secret in ["all", "key"] {
        let path = hub.config().join("secrets").join(secret);
        fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    }
    hub.start().await;

    let mut seen = Seen::default();
    let with = |name: &'static str, value: String| {
        vec![(name, value), ("idempotency-key", "1".to_owned())]
    };
    let basic_of =
        |password: &str| format!("Basic {}", base64(format!("user:{password}").as_bytes()));
    let near = format!("{WORD}x");
    let calls = [
        ("bearer", with("authorization", format!("Bearer {WORD}")), 202),
        ("bearer", with("authorization", format!("Bearer {near}")), 401),
        ("basic", with("authorization", basic_of(WORD)), 202),
        ("basic", with("authorization", basic_of(&near)), 401),
        ("header", with("x-api-key", WORD.to_owned()), 202),
        ("header", with("x-api-key", near.clone()), 401),
        ("hook", with("webhook-signature", format!("v1,{}", base64(WORD.as_bytes()))), 401),
    ];
    for (source, headers, status) in &calls {
        let headers: Vec<(&str, &str)> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let reply = hub.post(&format!("/in/in/{source}"), &headers, "{}").await;
        assert_eq!(reply.status, *status, "{source}: {}", reply.text());
        seen.add(format!("answer of {source}"), format!("{:?}\n{}", reply.headers, reply.text()));
    }
    // Everything has failed in its own way, more than once where that is tried again.
    for (partner, times) in [(refuses, 3), (fails, 6), (closed, 3), (redirects, 3)] {
        partner.wait_for(times).await;
    }
    let all_tried = async || {
        let status = hub.api_get("/api/v1/status").await;
        let all = status["destinations"].as_array().unwrap().clone();
        let held = all.iter().filter(|one| !one["tripped"].is_null()).count();
        (held >= 4).then_some(())
    };
    until("the unreachable ones to be held", all_tried).await;
    assert!(partners[4].requests().is_empty(), "credentials followed a redirect");

    ask_everything(&hub, &mut seen).await;
    for path in ["status", "messages", "dead-letters", "dead-letters/groups", "messages/x"] {
        let request = client().get(hub.admin_url(&format!("/api/v1/{path}"))).bearer_auth(WORD);
        seen.add(path, request.send().await.unwrap().text().await.unwrap());
        let request = client().get(hub.admin_url(&format!("/api/v1/{path}"))).bearer_auth(&near);
        let refused = request.send().await.unwrap();
        assert_eq!(refused.status(), 401);
        seen.add(path, refused.text().await.unwrap());
    }
    seen.add("/metrics", hub.metrics().await.0);
    assert!(hub.terminate().await.success());
    ask_everything(&hub, &mut seen).await;
    assert!(hub.log().contains("DEBUG"), "it logged at debug level");
    seen.add("log", hub.log());
    // Nor is it in what is kept.
    for entry in fs::read_dir(hub.folder().join("var")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        seen.add(path.display().to_string(), String::from_utf8_lossy(&bytes));
    }
    seen.hold(&key_lines);
    // The partners did get it, so there was something to be found.
    assert!(refuses.requests()[0].header("authorization").unwrap().contains(WORD));
    assert!(fails.requests()[0].header("x-key").unwrap().contains(WORD));
}

#[tokio::test]
async fn a_secret_where_none_may_stand_is_refused_without_being_quoted() {
    let hub = |hub_toml: &str, partner: &str| {
        Hub::setup()
            .hub_toml(hub_toml)
            .variable("ALL", WORD)
            .variable("BROKEN", &format!("{WORD}\nx: y"))
            .partner("town", TOWN)
            .partner("welfare", partner)
            .file("secrets/all", WORD)
            .file("cert.pem", WORD)
            .prepare()
    };
    let url = "http://127.0.0.1:9/";
    let of = |more: &str| destination(url, more);
    let mut seen = Seen::default();
    for (hub_toml, partner) in [
        ("", of(&format!("auth = {{ bearer = \"{WORD}\" }}"))),
        ("", of(&format!("auth = {{ basic = {{ user = \"u\", password = \"{WORD}\" }} }}"))),
        ("", of(&format!("auth = {{ basic = {{ user = \"u\", pasword = \"{WORD}\" }} }}"))),
        ("", of(&format!("auth = {{ header = {{ name = \"x\", value = \"{WORD}\" }} }}"))),
        ("", of(&format!("sign = {{ standard_webhooks = [\"{WORD}\"] }}"))),
        ("", of("sign = { standard_webhooks = [{ env = \"BROKEN\" }] }")),
        ("", of("auth = { bearer = { env = \"BROKEN\" } }")),
        ("", of("tls = { cert = \"cert.pem\", key = { file = \"secrets/all\" } }")),
        ("", of(&format!("tls = {{ key = \"{WORD}\" }}"))),
        ("", of(&format!("token = \"{WORD}\""))),
        ("", destination(&format!("http://u:{WORD}@127.0.0.1:9/"), "")),
        ("pasword = \"Zwergpinscher7Quittenmus9Xylophon\"", of("")),
        ("[admim]\ntoken = \"Zwergpinscher7Quittenmus9Xylophon\"", of("")),
    ] {
        let hub = hub(hub_toml, &partner);
        for command in [&["check"][..], &["check", "--json"], &["run"], &["config", "show"]] {
            let ran = hub.cli(command).await;
            if command[0] != "config" {
                ran.exits_with(2);
            }
            seen.ran(&ran);
        }
    }
    seen.hold(&[]);
}
