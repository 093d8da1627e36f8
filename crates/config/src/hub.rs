//! `hub.toml`: what concerns the hub itself.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytesize::ByteSize;
use figment::{
    Figment, Metadata, Profile, Provider,
    providers::Serialized,
    value::{Dict, Map as Profiles, Value as FigmentValue},
};
use pabal_core::{Retention, SecretReference};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Fault, Position,
    known::Table,
    parse::Parser,
    place::Layers,
    retention::RetentionToml,
    store::{self, StoreConfig, StoreToml},
};

/// What concerns the hub itself.
#[derive(Debug, Clone)]
pub struct HubConfig {
    /// Its name, which goes into every message id and so must never change.
    pub name: String,
    /// Where everything is kept.
    pub store: StoreConfig,
    /// Where this node's own small files are, such as its token; on SQLite they lie beside the
    /// database instead.
    pub files: PathBuf,
    /// The listener for partners.
    pub http: HttpConfig,
    /// The listener for operators.
    pub admin: AdminConfig,
    /// The operators' time zone (IANA name).
    pub timezone: String,
    /// The largest body a source may hand over unless it says otherwise, in bytes.
    pub body_bytes_max: usize,
    /// How long work in hand may take to end at a stop.
    pub grace: Duration,
    /// This node's name, for people; without one it is the machine's.
    pub node: Option<String>,
    /// Where many nodes share the store: one that was not heard of for so long loses what it holds.
    pub lease: Duration,
    /// For how long what is over is kept.
    pub retention: Retention,
    /// What is logged, and how.
    pub log: LogConfig,
    /// Where the settings stand.
    pub position: Position,
}

/// The listener for partners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// Address and port.
    pub listen: SocketAddr,
    /// With TLS.
    pub tls: Option<TlsConfig>,
}

/// Certificates, as paths that can be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// The certificate chain (PEM).
    pub cert: PathBuf,
    /// Its private key (PEM).
    pub key: PathBuf,
    /// Whose certificates partners may show (PEM).
    pub client_ca: Option<PathBuf>,
}

/// The listener for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminConfig {
    /// Address and port.
    pub listen: SocketAddr,
    /// The token callers show; without one the hub makes a token file.
    pub token: Option<SecretReference>,
}

/// What is logged, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// The form of a line.
    pub format: LogFormat,
    /// Which lines, e.g. `info` or `warn,pabal=debug`.
    pub filter: String,
}

/// The form of a log line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines.
    Json,
}

const LEASE_MIN: Duration = Duration::from_secs(2);
const LEASE_MAX: Duration = Duration::from_secs(600);

/// The file's form. Every table has defaults, so that a value set aside for a fault makes no second
/// one.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct HubToml {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    store: StoreToml,
    files: PathBuf,
    http: HttpToml,
    admin: AdminToml,
    timezone: String,
    body_max: ByteSize,
    #[serde(with = "humantime_serde")]
    grace: Duration,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    #[serde(with = "humantime_serde")]
    lease: Duration,
    retention: RetentionToml,
    log: LogToml,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct HttpToml {
    listen: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<TlsToml>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TlsToml {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct AdminToml {
    listen: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<SecretReference>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LogToml {
    format: LogFormat,
    filter: String,
}

impl Default for HubToml {
    fn default() -> Self {
        Self {
            name: None,
            store: StoreToml::default(),
            files: "var".into(),
            http: HttpToml::default(),
            admin: AdminToml::default(),
            timezone: "Asia/Seoul".to_owned(),
            body_max: ByteSize::b(pabal_core::BODY_BYTES_MAX as u64),
            grace: Duration::from_secs(10),
            node: None,
            lease: Duration::from_secs(15),
            retention: RetentionToml::default(),
            log: LogToml::default(),
        }
    }
}

impl Default for HttpToml {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 8080)), tls: None }
    }
}

impl Default for AdminToml {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 8081)), token: None }
    }
}

impl Default for LogToml {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: "info".to_owned() }
    }
}

/// Tables of which exactly one key may be set: an overlay replaces them whole.
const ONE_OF: [&[&str]; 2] = [&["store"], &["admin", "token"]];

/// The settings of the environment: `PABAL_` and a path whose parts are joined by `__`.
pub(crate) fn variables(environment: &[(String, String)]) -> Vec<(Vec<String>, String, String)> {
    let settings = environment.iter().filter_map(|(name, value)| {
        let path = name.strip_prefix("PABAL_").filter(|path| path.contains("__"))?;
        let path = path.split("__").map(str::to_ascii_lowercase).collect();
        Some((path, name.clone(), value.clone()))
    });
    settings.collect()
}

/// One layer of the environment for figment.
struct Variables(Dict);

impl Provider for Variables {
    fn metadata(&self) -> Metadata {
        Metadata::named("environment")
    }
    fn data(&self) -> figment::Result<Profiles<Profile, Dict>> {
        Ok(Profile::Default.collect(self.0.clone()))
    }
}

/// Defaults, then the files from the lowest up, then the environment.
fn merged(layers: &Layers, variables: &[(Vec<String>, String, String)]) -> Result<Value, String> {
    let defaults = serde_json::to_value(HubToml::default()).map_err(|e| e.to_string())?;
    let mut all: Vec<Value> = vec![defaults];
    all.extend(layers.files.iter().map(|file| Value::Object(file.value())));
    let mut environment = Dict::new();
    for (path, _, text) in variables {
        // What is not a TOML value by itself is a string.
        let value: FigmentValue = match text.parse() {
            Ok(value) => value,
            Err(infallible) => match infallible {},
        };
        insert(&mut environment, path, value);
    }
    all.push(serde_json::to_value(&environment).unwrap_or_default());
    for one_of in ONE_OF {
        if let Some(last) = all.iter().rposition(|layer| at(layer, one_of).is_some()) {
            all[..last].iter_mut().for_each(|layer| remove(layer, one_of));
        }
    }
    let environment_is_last = all.pop().is_some();
    debug_assert!(environment_is_last);
    let files = all
        .iter()
        .fold(Figment::new(), |figment, layer| figment.merge(Serialized::defaults(layer)));
    files.merge(Variables(environment)).extract().map_err(|e| e.to_string())
}

fn insert(table: &mut Dict, path: &[String], value: FigmentValue) {
    match path {
        [] => {}
        [key] => {
            table.insert(key.clone(), value);
        }
        [key, rest @ ..] => {
            let mut inner = match table.remove(key) {
                Some(FigmentValue::Dict(_, inner)) => inner,
                _ => Dict::new(),
            };
            insert(&mut inner, rest, value);
            table.insert(key.clone(), FigmentValue::from(inner));
        }
    }
}

fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| value.get(key))
}

fn remove(value: &mut Value, path: &[&str]) {
    match path {
        [] => {}
        [key] => {
            value.as_object_mut().map(|fields| fields.remove(*key));
        }
        [key, rest @ ..] => {
            if let Some(inner) = value.get_mut(key) {
                remove(inner, rest);
            }
        }
    }
}

/// Reads the layers as the hub's settings.
pub(crate) fn read(
    mut layers: Layers,
    directory: &Path,
    environment: &[(String, String)],
    parser: &mut Parser<'_>,
) -> HubConfig {
    let variables = variables(environment);
    let merged = merged(&layers, &variables);
    layers.variables = variables.into_iter().map(|(path, name, _)| (path, name)).collect();
    let position = Position::new(&Arc::new(layers), &[]);
    let mut fields = match merged {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => Map::new(),
        Err(error) => {
            parser.faults.push(Fault::at_key(&position, error));
            return planned(HubToml::default(), directory, position);
        }
    };
    // Before anything reads it, so that no message can quote it.
    let admin = fields.get_mut("admin").and_then(Value::as_object_mut);
    let literal = admin.and_then(|admin| {
        let is_text = admin.get("token").is_some_and(|token| !token.is_object());
        is_text.then(|| admin.remove("token"))
    });
    if literal.is_some() {
        parser.faults.push(Fault::literal_secret(&position.below("admin.token")));
    }
    store::take_faults(&mut fields, &position, parser);
    let faults_before = parser.count();
    let hub: HubToml = parser.table(fields, Table::Hub, &position).unwrap_or_default();
    check(&hub, parser.count() == faults_before, &position, parser);
    planned(hub, directory, position)
}

/// What types cannot say. If the file is not `whole`, what is missing may only be mistyped.
fn check(hub: &HubToml, whole: bool, position: &Position, parser: &mut Parser<'_>) {
    let mut wrong = |key: &str, message: &str, help: &str| {
        let fault = Fault::at_value(&position.below(key), message);
        parser.faults.push(fault.help(help));
    };
    match &hub.name {
        Some(name) if is_name(name) => {}
        Some(_) => {
            wrong("name", "not a name", "1 to 64 lower-case letters, digits, `-` or `_`");
        }
        None if !whole => {}
        None => wrong(
            "name",
            "`name` is missing",
            "add name = \"…\"; it goes into every message id, so choose it once and never change it",
        ),
    }
    if jiff::tz::TimeZone::get(&hub.timezone).is_err() {
        wrong("timezone", "no such time zone", "write an IANA name, e.g. \"Asia/Seoul\"");
    }
    if hub.body_max.as_u64() == 0 {
        wrong("body_max", "no body would be small enough", "the default is \"16 MiB\"");
    }
    hub.store.check(&mut wrong);
    hub.retention.check(&mut wrong);
    if hub.node.as_ref().is_some_and(|node| !is_name(node)) {
        wrong("node", "not a name", "1 to 64 lower-case letters, digits, `-` or `_`");
    }
    if !(LEASE_MIN..=LEASE_MAX).contains(&hub.lease) {
        wrong(
            "lease",
            "not between 2 seconds and 10 minutes",
            "a node that is gone is replaced after this time; the default is \"15s\"",
        );
    }
    if hub.http.listen == hub.admin.listen && hub.http.listen.port() != 0 {
        wrong("admin.listen", "the same address as http.listen", "give each its own port");
    }
}

/// What stands in for a file that cannot be read, while the faults of the others are looked for.
pub(crate) fn stand_in(directory: &Path) -> HubConfig {
    planned(HubToml::default(), directory, Position::new(&Arc::default(), &[]))
}

/// The settings as plain data, with paths that can be opened.
fn planned(hub: HubToml, directory: &Path, position: Position) -> HubConfig {
    let parent = directory.parent().unwrap_or(directory);
    HubConfig {
        name: hub.name.unwrap_or_default(),
        store: hub.store.planned(parent),
        files: parent.join(hub.files),
        http: HttpConfig {
            listen: hub.http.listen,
            tls: hub.http.tls.map(|tls| TlsConfig {
                cert: directory.join(tls.cert),
                key: directory.join(tls.key),
                client_ca: tls.client_ca.map(|path| directory.join(path)),
            }),
        },
        admin: AdminConfig { listen: hub.admin.listen, token: hub.admin.token },
        timezone: hub.timezone,
        body_bytes_max: usize::try_from(hub.body_max.as_u64()).unwrap_or(usize::MAX),
        grace: hub.grace,
        node: hub.node,
        lease: hub.lease,
        retention: hub.retention.planned(),
        log: LogConfig { format: hub.log.format, filter: hub.log.filter },
        position,
    }
}

fn is_name(name: &str) -> bool {
    pabal_core::EndpointName::new(name, "x").is_ok()
}
