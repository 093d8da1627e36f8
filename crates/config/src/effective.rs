//! What the configuration comes to, with the defaults filled in: for `pabal config show`.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::{
    AnswerConfig, Config, DestinationConfig, HotCacheConfig, IdentifyConfig, JqText, SourceConfig,
    StoreConfig, redact, retention::days,
};

impl Config {
    /// Everything that is in effect. Secrets show where they are, never what.
    #[must_use]
    pub fn effective(&self) -> Value {
        self.tree(|settings| redact::printable(settings, false))
    }

    /// Everything, with adapters' settings as `show` gives them.
    fn tree(&self, show: fn(&Value) -> Value) -> Value {
        let hub = &self.hub;
        let store = match &hub.store {
            StoreConfig::Sqlite(path) => json!({ "sqlite": path }),
            StoreConfig::Postgres { url, listen, connections } => {
                let mut postgres = json!(url);
                postgres["listen"] = json!(listen);
                postgres["connections"] = json!(connections);
                json!({ "postgres": postgres })
            }
        };
        let retention = &hub.retention;
        let tls = hub
            .http
            .tls
            .as_ref()
            .map(|tls| json!({ "cert": tls.cert, "key": tls.key, "client_ca": tls.client_ca }));
        let mut all = json!({
            "hub": {
                "name": hub.name,
                "node": hub.node,
                "store": store,
                "files": hub.files,
                "lease": time(hub.lease),
                "retention": {
                    "bodies": days(retention.bodies),
                    "history": days(retention.history),
                    "inbox": days(retention.inbox),
                    "dead_letters": days(retention.dead_letters),
                },
                "http": { "listen": hub.http.listen.to_string(), "tls": tls },
                "admin": { "listen": hub.admin.listen.to_string(), "token": hub.admin.token },
                "timezone": hub.timezone,
                "body_max": size(hub.body_bytes_max),
                "grace": time(hub.grace),
                "log": { "format": hub.log.format, "filter": hub.log.filter },
            },
            "partners": self.partners.iter().map(|partner| {
                let settings = json!({
                    "name": partner.name,
                    "contacts": partner.contacts,
                    "destination": named(self.destinations.iter()
                        .filter(|d| d.name.partner() == partner.id)
                        .map(|d| (d.name.name(), destination(d, show)))),
                    "source": named(self.sources.iter()
                        .filter(|s| s.name.partner() == partner.id)
                        .map(|s| (s.name.name(), source(s, show)))),
                });
                (partner.id.clone(), settings)
            }).collect::<Map<_, _>>(),
        });
        drop_nulls(&mut all);
        all
    }

    /// SHA-256, in hex, of what must be the same on every node of a hub: not where this one listens,
    /// logs or stores. Settings are hashed as they stand, so that a difference shows that no print
    /// does; of a secret that is where it stands, not what it is.
    #[must_use]
    pub fn plan_hash(&self) -> String {
        let all = self.tree(Value::clone);
        let hub =
            ["name", "timezone", "lease", "retention", "body_max"].map(|key| &all["hub"][key]);
        let hash = Sha256::digest(json!([hub, all["partners"]]).to_string());
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The same as TOML.
    #[must_use]
    pub fn effective_toml(&self) -> String {
        // A tree of strings, numbers, lists and tables always is TOML.
        toml::to_string_pretty(&self.effective()).unwrap_or_default()
    }
}

fn named<'a>(endpoints: impl Iterator<Item = (&'a str, Value)>) -> Map<String, Value> {
    endpoints.map(|(name, value)| (name.to_owned(), value)).collect()
}

fn destination(destination: &DestinationConfig, show: fn(&Value) -> Value) -> Value {
    let mut adapter = show(&destination.adapter.settings.0);
    if let (Some(fields), Some(rule)) = (adapter.as_object_mut(), &destination.answer) {
        fields.insert("answer".to_owned(), answer(rule));
    }
    json!({
        "id": destination.id,
        "title": destination.title,
        "takes": destination.takes,
        "from": destination.from,
        "when": jq(&destination.when),
        "order": destination.order,
        "on_dead": destination.on_dead,
        "retry": destination.retry,
        "breaker": destination.breaker,
        "lanes": destination.lanes,
        "concurrency": destination.concurrency,
        "rate": destination.rate.map(|rate| rate.to_string()),
        &destination.adapter.name: adapter,
    })
}

fn source(source: &SourceConfig, show: fn(&Value) -> Value) -> Value {
    let adapter = show(&source.adapter.settings.0);
    json!({
        "id": source.id,
        "title": source.title,
        "read": source.identify.as_ref().map(|rules| json!({ "identify": identify(rules) })),
        "on_invalid": source.on_invalid,
        "may_address": source.may_address,
        "body_max": size(source.body_bytes_max),
        "redelivery_window": source.redelivery_window.map(days),
        "hot_cache": source.hot_cache.as_ref().map(hot_cache),
        &source.adapter.name: adapter,
    })
}

fn hot_cache(cache: &HotCacheConfig) -> Value {
    match cache {
        HotCacheConfig::Messages(messages) => json!({ "messages": messages }),
        HotCacheConfig::Redis { url, keep } => {
            json!({ "redis": url, "keep": time(*keep) })
        }
    }
}

fn answer(rule: &AnswerConfig) -> Value {
    json!({
        "format": rule.format,
        "charset": rule.charset,
        "success": jq(&rule.success),
        "duplicate": jq(&rule.duplicate),
        "retry": jq(&rule.retry),
        "dead": jq(&rule.dead),
        "else": rule.otherwise,
    })
}

fn identify(rules: &IdentifyConfig) -> Value {
    json!({
        "id": jq(&rules.id),
        "type": jq(&rules.message_type),
        "key": jq(&rules.key),
        "version": jq(&rules.version),
        "correlation": jq(&rules.correlation),
        "missing": rules.missing,
    })
}

fn jq(text: &Option<JqText>) -> Option<&str> {
    text.as_ref().map(|text| text.text.as_str())
}

/// Exact, in the largest unit that divides it.
fn size(bytes: usize) -> String {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
    let unit = units.iter().find(|(_, size)| bytes.is_multiple_of(*size));
    unit.map_or_else(String::new, |(unit, size)| format!("{} {unit}", bytes / size))
}

fn time(duration: std::time::Duration) -> String {
    humantime::format_duration(duration).to_string()
}

/// TOML has no null: what is not set is not there.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, inner| !inner.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}
