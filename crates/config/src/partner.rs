//! `partners/<id>.toml`: everything about one agency.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use bytesize::ByteSize;
use pabal_core::{
    BreakerPolicy, EndpointName, OnDead, Order, RetryPolicy, SecretReference, TypePattern,
};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::{Map, Value};

use crate::{
    Contact, DestinationConfig, Fault, HotCacheConfig, IdentifyConfig, MissingId, OnInvalid,
    PartnerConfig, Position, Rate, SourceConfig, adapter_table,
    known::Table,
    parse::Parser,
    place::{Layers, lay_over},
};

/// What one partner's file holds; what is wrong is left out and reported.
#[derive(Debug, Default)]
pub(crate) struct Partner {
    pub(crate) partner: Option<PartnerConfig>,
    pub(crate) sources: Vec<SourceConfig>,
    pub(crate) destinations: Vec<DestinationConfig>,
    /// Every source the file names, also those with faults: others may refer to them.
    pub(crate) source_names: Vec<EndpointName>,
    /// Every source that some `from` names, and where.
    pub(crate) references: Vec<(EndpointName, Position)>,
    /// Every link number, whose it is, and where.
    pub(crate) links: Vec<(String, EndpointName, Position)>,
}

impl Partner {
    /// Takes down what is checked across files, whatever else is wrong with the table.
    fn note(&mut self, name: &EndpointName, table: &Map<String, Value>, position: &Position) {
        if let Some(id) = table.get("id").and_then(Value::as_str) {
            self.links.push((id.to_owned(), name.clone(), position.child("id")));
        }
        let from = table.get("from").and_then(Value::as_array);
        for (index, source) in from.into_iter().flatten().enumerate() {
            if let Some(Ok(source)) = source.as_str().map(str::parse) {
                let position = position.child("from").child(&index.to_string());
                self.references.push((source, position));
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PartnerToml {
    name: Option<String>,
    #[serde(default)]
    contacts: Vec<Contact>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DestinationToml {
    id: Option<String>,
    title: Option<String>,
    #[serde(default)]
    takes: Vec<TypePattern>,
    #[serde(default)]
    from: Vec<String>,
    when: Option<String>,
    #[serde(default)]
    order: Order,
    on_dead: Option<OnDead>,
    #[serde(default)]
    retry: RetryPolicy,
    #[serde(default)]
    breaker: BreakerPolicy,
    #[serde(default = "lanes", deserialize_with = "read_lanes")]
    lanes: u16,
    #[serde(default = "concurrency", deserialize_with = "read_concurrency")]
    concurrency: usize,
    rate: Option<Rate>,
}

fn concurrency() -> usize {
    16
}

fn lanes() -> u16 {
    1
}

/// A lane without a slot would never have anything to do.
fn read_lanes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    let number = i64::deserialize(deserializer)?;
    match u16::try_from(number) {
        Ok(lanes) if (1..=pabal_core::SLOTS).contains(&lanes) => Ok(lanes),
        _ => Err(D::Error::custom(format!("{number} is not between 1 and {}", pabal_core::SLOTS))),
    }
}

const CONCURRENCY_MAX: i64 = 1024;

fn read_concurrency<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let number = i64::deserialize(deserializer)?;
    match usize::try_from(number) {
        Ok(within) if (1..=CONCURRENCY_MAX).contains(&number) => Ok(within),
        _ => Err(D::Error::custom(format!("{number} is not between 1 and {CONCURRENCY_MAX}"))),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceToml {
    id: Option<String>,
    title: Option<String>,
    #[serde(default)]
    read: ReadToml,
    #[serde(default)]
    on_invalid: OnInvalid,
    #[serde(default)]
    may_address: bool,
    body_max: Option<ByteSize>,
    #[serde(default, with = "humantime_serde")]
    redelivery_window: Option<Duration>,
    hot_cache: Option<HotCacheToml>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HotCacheToml {
    messages: Option<NonZeroUsize>,
    redis: Option<SecretReference>,
    #[serde(default, with = "humantime_serde")]
    keep: Option<Duration>,
}

/// How long Redis remembers a message, unless the source says otherwise.
const HOT_CACHE_KEEP: Duration = Duration::from_secs(60 * 60);

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct ReadToml {
    identify: Option<IdentifyToml>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IdentifyToml {
    id: Option<String>,
    #[serde(rename = "type")]
    message_type: Option<String>,
    key: Option<String>,
    version: Option<String>,
    correlation: Option<String>,
    #[serde(default)]
    missing: MissingId,
}

/// Reads the layers as one partner.
pub(crate) fn read(
    id: &str,
    layers: Layers,
    body_bytes_max: usize,
    parser: &mut Parser<'_>,
) -> Partner {
    let mut fields = merged(&layers, parser);
    let position = Position::new(&Arc::new(layers), &[]);
    let mut partner = Partner::default();
    let mut endpoints = |kind: &str| match fields.remove(kind) {
        None => Map::new(),
        Some(Value::Object(tables)) => tables,
        Some(_) => {
            let fault = Fault::at_key(&position.child(kind), format!("`{kind}` is not a table"));
            parser.faults.push(fault.help(format!("write [{kind}.NAME]")));
            Map::new()
        }
    };
    let (destinations, sources) = (endpoints("destination"), endpoints("source"));
    parser.endpoint = "NAME".to_owned();
    let faults_before = parser.count();
    if let Some(read) = parser.table::<PartnerToml>(fields, Table::Partner, &position) {
        match read.name.filter(|name| !name.trim().is_empty()) {
            Some(name) => {
                partner.partner =
                    Some(PartnerConfig { id: id.to_owned(), name, contacts: read.contacts });
            }
            // It may only be mistyped, which is told by now.
            None if parser.count() > faults_before => {}
            None => {
                let fault = Fault::at_key(&position.child("name"), "`name` is missing");
                parser
                    .faults
                    .push(fault.help("add name = \"…\" at the top: what people call this agency"));
            }
        }
    }
    for (name, table) in destinations {
        let position = position.child("destination").child(&name);
        if let Some((name, table)) = endpoint(id, &name, table, &position, parser) {
            partner.note(&name, &table, &position);
            partner.destinations.extend(destination(name, table, position, parser));
        }
    }
    for (name, table) in sources {
        let position = position.child("source").child(&name);
        if let Some((name, table)) = endpoint(id, &name, table, &position, parser) {
            partner.note(&name, &table, &position);
            partner.source_names.push(name.clone());
            partner.sources.extend(source(name, table, position, body_bytes_max, parser));
        }
    }
    partner
}

/// The overlay on the base, with its adapter tables in place of the base's.
fn merged(layers: &Layers, parser: &Parser<'_>) -> Map<String, Value> {
    let mut merged = Map::new();
    for file in &layers.files {
        let over = file.value();
        for kind in ["destination", "source"] {
            let Some(tables) = over.get(kind).and_then(Value::as_object) else {
                continue;
            };
            for (name, table) in tables {
                let has_adapter = table
                    .as_object()
                    .is_some_and(|table| table.keys().any(|key| parser.adapters.contains(key)));
                let under = merged
                    .get_mut(kind)
                    .and_then(|tables: &mut Value| tables.get_mut(name))
                    .and_then(Value::as_object_mut);
                if let (true, Some(under)) = (has_adapter, under) {
                    under.retain(|key, _| !parser.adapters.contains(key));
                }
            }
        }
        lay_over(&mut merged, over);
    }
    merged
}

fn endpoint(
    partner: &str,
    name: &str,
    table: Value,
    position: &Position,
    parser: &mut Parser<'_>,
) -> Option<(EndpointName, Map<String, Value>)> {
    parser.endpoint = name.to_owned();
    let Value::Object(table) = table else {
        parser.faults.push(Fault::at_key(position, "not a table"));
        return None;
    };
    match EndpointName::new(partner, name) {
        Ok(full) => Some((full, table)),
        Err(_) => {
            let fault = Fault::at_key(
                position,
                format!("`{}` is not a name", pabal_core::shorten(name, 70)),
            );
            parser.faults.push(fault.help("1 to 64 lower-case letters, digits, `-` or `_`"));
            None
        }
    }
}

fn destination(
    name: EndpointName,
    mut fields: Map<String, Value>,
    position: Position,
    parser: &mut Parser<'_>,
) -> Option<DestinationConfig> {
    let (adapter, answer) = adapter_table::take(&mut fields, Table::Destination, &position, parser);
    let answer = answer
        .and_then(|answer| adapter_table::answer(answer, adapter.position.child("answer"), parser));
    let faults_before = parser.count();
    let read: DestinationToml = parser.table(fields, Table::Destination, &position)?;
    let whole = parser.count() == faults_before;
    let from: Vec<EndpointName> = read
        .from
        .iter()
        .enumerate()
        .filter_map(|(index, text)| match text.parse() {
            Ok(name) => Some(name),
            Err(_) => {
                let position = position.child("from").child(&index.to_string());
                let fault = Fault::at_value(&position, "not the name of a source");
                parser.faults.push(fault.help("write partner/name, e.g. \"welfare/decisions\""));
                None
            }
        })
        .collect();
    check(&read, whole, &position, parser);
    Some(DestinationConfig {
        name,
        id: read.id,
        title: read.title,
        takes: read.takes,
        from,
        when: position.jq("when", read.when),
        order: read.order,
        on_dead: read.on_dead.unwrap_or_else(|| OnDead::default_for(read.order)),
        retry: read.retry,
        breaker: read.breaker,
        lanes: read.lanes,
        concurrency: read.concurrency,
        rate: read.rate,
        adapter,
        answer,
        position,
    })
}

/// What types cannot say. If the table is not `whole`, what is missing may only be mistyped.
fn check(read: &DestinationToml, whole: bool, position: &Position, parser: &mut Parser<'_>) {
    let mut wrong = |key: &str, message: String, help: &str| {
        let fault = Fault::at_value(&position.below(key), message);
        parser.faults.push(fault.help(help));
    };
    let nothing = read.takes.is_empty() && whole;
    if nothing || read.takes.iter().any(|pattern| pattern.0.is_empty()) {
        wrong(
            "takes",
            "it takes no message at all".to_owned(),
            "list the types it takes, e.g. takes = [\"application.*\"]; \"*\" is every type",
        );
    }
    if read.order == Order::All && read.lanes > 1 {
        wrong(
            "lanes",
            "with order = \"all\" there is one lane: one message goes at a time".to_owned(),
            "leave it out, or choose order = \"key\"",
        );
    }
    if read.retry.attempts == 0 {
        wrong("retry.attempts", "there is always a first attempt".to_owned(), "the least is 1");
    }
    if read.retry.first.is_zero() || read.retry.first > read.retry.max {
        wrong(
            "retry.first",
            "not between zero and `max`".to_owned(),
            "waits double from `first` up to `max`",
        );
    }
    if read.breaker.failures == 0 || read.breaker.refusals == 0 {
        let key = if read.breaker.failures == 0 { "breaker.failures" } else { "breaker.refusals" };
        wrong(key, "it would open before anything failed".to_owned(), "the least is 1");
    }
    if read.breaker.probe_first.is_zero() || read.breaker.probe_first > read.breaker.probe_max {
        wrong(
            "breaker.probe_first",
            "not between zero and `probe_max`".to_owned(),
            "pauses double from `probe_first` up to `probe_max`",
        );
    }
}

fn source(
    name: EndpointName,
    mut fields: Map<String, Value>,
    position: Position,
    body_bytes_max: usize,
    parser: &mut Parser<'_>,
) -> Option<SourceConfig> {
    let (adapter, _) = adapter_table::take(&mut fields, Table::Source, &position, parser);
    let read: SourceToml = parser.table(fields, Table::Source, &position)?;
    let own_max = read.body_max.map(|size| usize::try_from(size.as_u64()).unwrap_or(usize::MAX));
    if own_max == Some(0) {
        let fault = Fault::at_value(&position.child("body_max"), "no body would be small enough");
        parser.faults.push(fault.help("leave it out for the hub's own limit"));
    }
    let identify = read.read.identify.map(|identify| {
        let position = position.below("read.identify");
        IdentifyConfig {
            id: position.jq("id", identify.id),
            message_type: position.jq("type", identify.message_type),
            key: position.jq("key", identify.key),
            version: position.jq("version", identify.version),
            correlation: position.jq("correlation", identify.correlation),
            missing: identify.missing,
            position,
        }
    });
    let hot_cache =
        read.hot_cache.and_then(|read| hot_cache(read, &position.child("hot_cache"), parser));
    Some(SourceConfig {
        name,
        id: read.id,
        title: read.title,
        identify,
        on_invalid: read.on_invalid,
        may_address: read.may_address,
        body_bytes_max: own_max.unwrap_or(body_bytes_max),
        redelivery_window: read.redelivery_window,
        hot_cache,
        adapter,
        position,
    })
}

fn hot_cache(
    read: HotCacheToml,
    position: &Position,
    parser: &mut Parser<'_>,
) -> Option<HotCacheConfig> {
    let fault = match (read.messages, read.redis, read.keep) {
        (Some(messages), None, None) => return Some(HotCacheConfig::Messages(messages)),
        (None, Some(url), keep) => {
            let keep = keep.unwrap_or(HOT_CACHE_KEEP);
            if keep >= Duration::from_secs(1) {
                return Some(HotCacheConfig::Redis { url, keep });
            }
            Fault::at_value(&position.child("keep"), "it would remember nothing")
                .help("the least is a second; longer than repeats take to come is enough")
        }
        (Some(_), None, Some(_)) => {
            Fault::at_key(&position.child("keep"), "only Redis forgets by time")
                .help("in this process the oldest go once there are `messages` of them")
        }
        (Some(_), Some(_), _) => Fault::at_key(&position.child("redis"), "there is one cache")
            .help("either `messages` (in this process) or `redis`"),
        (None, None, _) => Fault::at_key(position, "it says nothing of where").help(
            "hot_cache = { messages = 100000 } in this process, or \
             { redis = { env = \"REDIS_URL\" }, keep = \"1h\" }",
        ),
    };
    parser.faults.push(fault);
    None
}
