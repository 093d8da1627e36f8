//! From a checked configuration to the parts an engine runs. All faults of all parts are found at
//! once, each with file and line.

use std::sync::Arc;

use async_trait::async_trait;
use pabal_config::{
    AnswerConfig, AnswerFormat, Config, DestinationConfig, Fault, Faults, HotCacheConfig,
    IdentifyConfig, JqText, MissingId, OnInvalid, Position, SourceConfig, StoreConfig,
};
use pabal_core::{
    Adapter, AnswerRule, Clock, ConfigError, Context, EndpointName, HotCache, Limits, Message,
    SendError, Sender, State, Verdict,
};
use pabal_engine::{Destination, InProcess, Source, WayOut};
use pabal_hot_cache_redis::RedisCache;
use pabal_translate::{
    AnswerTexts, Charset, Identify, IdentifyTexts, JqAnswerRule, JqError, JqPredicate, NoRule,
};

use crate::COMMAND_LINE;

/// What parts are built from.
pub(crate) struct Composer<'a> {
    pub(crate) config: &'a Config,
    /// None: what is built carries nothing, and serves operators' verbs alone.
    pub(crate) adapters: Option<&'a [Arc<dyn Adapter>]>,
    pub(crate) clock: &'a Arc<dyn Clock>,
    /// The small durable values of an endpoint.
    pub(crate) state: &'a dyn Fn(&EndpointName) -> Arc<dyn State>,
    /// All faults found so far.
    faults: Vec<Fault>,
}

impl<'a> Composer<'a> {
    pub(crate) fn new(
        config: &'a Config,
        adapters: Option<&'a [Arc<dyn Adapter>]>,
        clock: &'a Arc<dyn Clock>,
        state: &'a dyn Fn(&EndpointName) -> Arc<dyn State>,
    ) -> Self {
        Self { config, adapters, clock, state, faults: Vec::new() }
    }

    /// Builds everything; nothing is opened by it.
    ///
    /// # Errors
    /// All faults of all parts.
    pub(crate) fn build(mut self) -> Result<(Vec<Source>, Vec<Destination>), Faults> {
        let config = self.config;
        let mut sources: Vec<Source> =
            config.sources.iter().filter_map(|source| self.source(source)).collect();
        sources.extend(command_line());
        let destinations = config
            .destinations
            .iter()
            .filter_map(|destination| self.destination(destination))
            .collect();
        if self.faults.is_empty() {
            Ok((sources, destinations))
        } else {
            Err(self.faults.into_iter().collect())
        }
    }

    fn source(&mut self, source: &SourceConfig) -> Option<Source> {
        let identify = source.identify.as_ref().map(|identify| self.identify(identify));
        let context = Context {
            body_bytes_max: source.body_bytes_max,
            ..self.context(&source.name, &source.adapter, Arc::new(NoRule))
        };
        let receiver = match self.adapters {
            None => None,
            Some(adapters) => match self.adapter(adapters, &source.adapter)?.receiver(context) {
                Ok(receiver) => Some(receiver.into()),
                Err(errors) => {
                    self.refuse(&source.adapter.position, errors);
                    return None;
                }
            },
        };
        let hot_cache = match &source.hot_cache {
            // Without adapters nothing comes in.
            Some(cache) if self.adapters.is_some() => Some(self.hot_cache(cache, source)?),
            _ => None,
        };
        // A missing `identify` is fine; one that does not compile is a fault by now.
        let reader = match identify {
            None => None,
            Some(reader) => Some(reader?),
        };
        Some(Source {
            reader: reader.map(|reader| Arc::new(reader) as _),
            on_invalid: match source.on_invalid {
                OnInvalid::Refuse => pabal_engine::OnInvalid::Refuse,
                OnInvalid::Keep => pabal_engine::OnInvalid::Keep,
            },
            missing_id: match source.identify.as_ref().map(|identify| identify.missing) {
                None | Some(MissingId::Refuse) => pabal_engine::MissingId::Refuse,
                Some(MissingId::Content) => pabal_engine::MissingId::Content,
                Some(MissingId::None) => pabal_engine::MissingId::Random,
            },
            may_address: source.may_address,
            body_bytes_max: source.body_bytes_max,
            hot_cache,
            ..Source::new(source.name.clone(), receiver)
        })
    }

    fn hot_cache(
        &mut self,
        cache: &HotCacheConfig,
        source: &SourceConfig,
    ) -> Option<Arc<dyn HotCache>> {
        let (url, keep) = match cache {
            HotCacheConfig::Messages(messages) => {
                return Some(Arc::new(InProcess::holding(*messages)));
            }
            HotCacheConfig::Redis { url, keep } => (url, *keep),
        };
        let secret = self.config.secrets().get("redis", url);
        let made = secret.and_then(|secret| {
            RedisCache::new(&secret, &self.config.hub.name, keep, Arc::clone(self.clock)).map_err(
                |error| {
                    let what = format!("what {url} holds is not the URL of a Redis server");
                    ConfigError::new("redis", what).help(error.to_string())
                },
            )
        });
        match made {
            Ok(cache) => Some(Arc::new(cache)),
            Err(error) => {
                self.refuse(&source.position.below("hot_cache"), [error]);
                None
            }
        }
    }

    fn destination(&mut self, destination: &DestinationConfig) -> Option<Destination> {
        let when = destination.when.as_ref().map(|text| self.predicate(text));
        let answer = match &destination.answer {
            None => Some(Arc::new(NoRule) as Arc<dyn AnswerRule>),
            Some(answer) => self.answer(answer),
        };
        let rule = answer.clone().unwrap_or_else(|| Arc::new(NoRule));
        let context = self.context(&destination.name, &destination.adapter, rule);
        let way = match self.adapters {
            None => WayOut::Sent(Arc::new(NoSender)),
            Some(adapters) => {
                let adapter = self.adapter(adapters, &destination.adapter)?;
                let way = match adapter.pickup(&context) {
                    Ok(Some(pickup)) => Ok(WayOut::Fetched(pickup.into())),
                    Ok(None) => adapter.sender(context).map(|it| WayOut::Sent(it.into())),
                    Err(errors) => Err(errors),
                };
                way.map_err(|errors| self.refuse(&destination.adapter.position, errors)).ok()?
            }
        };
        if matches!(way, WayOut::Fetched(_)) {
            self.refuse(&destination.position, without_meaning(destination));
        }
        let when = match when {
            None => None,
            Some(predicate) => Some(Arc::new(predicate?) as _),
        };
        answer?;
        Some(Destination {
            name: destination.name.clone(),
            takes: destination.takes.clone(),
            from: destination.from.clone(),
            when,
            order: destination.order,
            on_dead: destination.on_dead,
            retry: destination.retry.clone(),
            breaker: destination.breaker.clone(),
            lanes: destination.lanes,
            concurrency: destination.concurrency,
            rate: destination.rate.map(|rate| f64::from(rate.count) / rate.per.as_secs_f64()),
            way,
            writer: None,
        })
    }

    fn context(
        &self,
        name: &EndpointName,
        adapter: &pabal_config::AdapterConfig,
        answer: Arc<dyn AnswerRule>,
    ) -> Context {
        Context {
            name: name.clone(),
            settings: adapter.settings.clone(),
            secrets: self.config.secrets(),
            clock: self.clock.clone(),
            state: (self.state)(name),
            answer,
            alongside: matches!(self.config.hub.store, StoreConfig::Postgres { .. }),
            body_bytes_max: self.config.hub.body_bytes_max,
        }
    }

    fn adapter(
        &mut self,
        adapters: &[Arc<dyn Adapter>],
        table: &pabal_config::AdapterConfig,
    ) -> Option<Arc<dyn Adapter>> {
        let found = adapters.iter().find(|adapter| adapter.name() == table.name);
        if found.is_none() && !table.name.is_empty() {
            let error = ConfigError::new("", format!("there is no adapter `{}` here", table.name));
            self.refuse(&table.position, [error]);
        }
        found.cloned()
    }

    fn predicate(&mut self, text: &JqText) -> Option<JqPredicate> {
        JqPredicate::compile(&text.text)
            .map_err(|error| self.refuse(&text.position, [explain("", &error)]))
            .ok()
    }

    fn identify(&mut self, identify: &IdentifyConfig) -> Option<Identify> {
        let texts = IdentifyTexts {
            id: own(identify.id.as_ref()),
            message_type: own(identify.message_type.as_ref()),
            key: own(identify.key.as_ref()),
            version: own(identify.version.as_ref()),
            correlation: own(identify.correlation.as_ref()),
            missing: match identify.missing {
                MissingId::Refuse => pabal_translate::MissingId::Refuse,
                MissingId::Content => pabal_translate::MissingId::Content,
                MissingId::None => pabal_translate::MissingId::None,
            },
        };
        Identify::compile(&texts).map_err(|errors| self.refuse_jq(&identify.position, &errors)).ok()
    }

    fn answer(&mut self, answer: &AnswerConfig) -> Option<Arc<dyn AnswerRule>> {
        let charset = match answer.charset.as_deref().map(Charset::for_label) {
            None => Charset::UTF_8,
            Some(Ok(charset)) => charset,
            Some(Err(error)) => {
                let error = ConfigError::new("charset", error.to_string());
                self.refuse(&answer.position, [error]);
                Charset::UTF_8
            }
        };
        let texts = AnswerTexts {
            format: match answer.format {
                AnswerFormat::Json => pabal_translate::AnswerFormat::Json,
                AnswerFormat::Text => pabal_translate::AnswerFormat::Text,
            },
            charset,
            success: own(answer.success.as_ref()),
            duplicate: own(answer.duplicate.as_ref()),
            retry: own(answer.retry.as_ref()),
            dead: own(answer.dead.as_ref()),
            otherwise: match answer.otherwise {
                pabal_config::Else::Retry => pabal_translate::Else::Retry,
                pabal_config::Else::Dead => pabal_translate::Else::Dead,
            },
        };
        match JqAnswerRule::compile(&texts) {
            Ok(rule) => Some(Arc::new(rule)),
            Err(errors) => {
                self.refuse_jq(&answer.position, &errors);
                None
            }
        }
    }

    fn refuse_jq(&mut self, position: &Position, errors: &[(&'static str, JqError)]) {
        let errors: Vec<_> = errors.iter().map(|(key, error)| explain(key, error)).collect();
        self.refuse(position, errors);
    }

    fn refuse(&mut self, position: &Position, errors: impl IntoIterator<Item = ConfigError>) {
        let config = self.config;
        self.faults.extend(errors.into_iter().map(|error| config.fault_at(position, &error)));
    }
}

/// What is set for a destination that nobody sends to, and would do nothing.
fn without_meaning(destination: &DestinationConfig) -> Vec<ConfigError> {
    let plain = Destination::new(destination.name.clone(), &[], Arc::new(NoSender));
    let answer = format!("{}.answer", destination.adapter.name);
    let set = [
        ("rate", destination.rate.is_some()),
        ("lanes", destination.lanes != plain.lanes),
        ("concurrency", destination.concurrency != plain.concurrency),
        ("breaker", destination.breaker != plain.breaker),
        (&answer, destination.answer.is_some()),
    ];
    let fault = |(key, _): (&str, bool)| {
        let fault = ConfigError::new(key, "nothing is sent here: the partner fetches its messages");
        fault.help("leave it out: who fetches sets the pace and says what became of each message")
    };
    set.into_iter().filter(|(_, set)| *set).map(fault).collect()
}

/// Stands in for every sender while no hub runs.
#[derive(Debug)]
struct NoSender;

#[async_trait]
impl Sender for NoSender {
    fn limits(&self) -> Limits {
        Limits { batch_max: 1, batch_bytes_max: 0, message_bytes_max: 0 }
    }

    fn wire_size(&self, _message: &Message) -> usize {
        0
    }

    async fn send(&self, batch: &[Message]) -> Vec<Verdict> {
        batch.iter().map(|_| Err(SendError::NotSent)).collect()
    }
}

/// What the command line hands over comes from here: it may address, and an id is optional.
fn command_line() -> Option<Source> {
    Some(Source {
        may_address: true,
        missing_id: pabal_engine::MissingId::Random,
        ..Source::new(COMMAND_LINE.parse().ok()?, None)
    })
}

fn own(text: Option<&JqText>) -> Option<String> {
    text.map(|text| text.text.clone())
}

fn explain(key: &str, error: &JqError) -> ConfigError {
    let place = match error.position {
        Some((1, column)) => format!(" (column {column} of the expression)"),
        Some((line, column)) => format!(" (line {line}, column {column} of the expression)"),
        None => String::new(),
    };
    ConfigError::new(key, format!("{}{place}", error.message))
}
