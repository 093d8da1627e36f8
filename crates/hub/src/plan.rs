//! A configuration as far as a command needs it, up to one that is known to build.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use pabal_adapter_rest::Ingress;
use pabal_config::{AdapterNames, Config, Faults, Loaded, LogFormat, StoreConfig, TlsConfig};
use pabal_core::{
    Adapter, Clock, ConfigError, EndpointName, Finding, Retention, Secret, SecretReference,
    Secrets, State, Store, SystemClock,
};
use pabal_engine::{Destination, Source};

use crate::{
    compose::Composer,
    logging, out,
    state::{EndpointState, NoState},
    tls,
};

/// What is to be run.
pub(crate) struct Plan {
    config: Config,
    adapters: Vec<Arc<dyn Adapter>>,
    ingress: Ingress,
    node: String,
    place: PathBuf,
    ignored: Vec<PathBuf>,
}

/// What an endpoint without authentication does.
const IN: &str = "takes messages from";
const OUT: &str = "hands its messages to";

/// How much of a configuration is read and checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// `hub.toml`, which says where the hub is. No partner's file is opened.
    Hub,
    /// All files. Nothing is built of them, and no secret of a partner is needed.
    Files,
    /// Everything: all parts are built once, to see that they can be.
    Parts,
}

impl Plan {
    /// Reads and checks, offline.
    ///
    /// # Errors
    /// [`Faults`]: all faults at once.
    pub(crate) fn load(
        dir: &Path,
        profile: Option<&str>,
        adapters: Vec<Arc<dyn Adapter>>,
        ingress: Ingress,
        depth: Depth,
    ) -> Result<Self> {
        let names = AdapterNames::of(adapters.iter().map(|adapter| &**adapter));
        // What is not text is no setting of ours, and no secret either.
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let Loaded { config, mut faults, ignored } = match depth {
            Depth::Hub => {
                let config = pabal_config::load_hub(dir, profile, environment)?;
                Loaded { config, faults: Faults::default(), ignored: Vec::new() }
            }
            Depth::Files | Depth::Parts => {
                pabal_config::load_all(dir, profile, environment, &names)
            }
        };
        let node = config.hub.node.clone().unwrap_or_else(|| machine(&config.hub.name));
        let place = match &config.hub.store {
            StoreConfig::Sqlite(path) => path.clone(),
            // By names: two hubs side by side, or two nodes that run from one directory, do not get
            // into each other's way.
            _ => config.hub.files.join(format!("{}.{node}", config.hub.name)),
        };
        let plan = Self { config, adapters, ingress, node, place, ignored };
        if depth == Depth::Parts {
            // Also of what could be read beside other faults: all are told at once.
            faults = faults.iter().chain(&plan.faults()).cloned().collect();
        }
        if faults.is_empty() { Ok(plan) } else { Err(faults.into()) }
    }

    /// All parts, without a store: good for looking at what is at the other end of them.
    ///
    /// # Errors
    /// All faults of all parts.
    pub(crate) fn parts(
        &self,
        clock: &Arc<dyn Clock>,
    ) -> Result<(Vec<Source>, Vec<Destination>), Faults> {
        let state = |_: &EndpointName| Arc::new(NoState) as Arc<dyn State>;
        Composer::new(&self.config, Some(&self.adapters), clock, &state).build()
    }

    /// What only shows when the parts are built; they are dropped again.
    fn faults(&self) -> Faults {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let mut faults = self.parts(&clock).err().unwrap_or_default();
        let hub = &self.config.hub;
        let mut refuse = |key: &str, error: ConfigError| {
            let position = hub.position.below(key);
            faults.extend([self.config.fault_at(&position, &error)]);
        };
        if let StoreConfig::Postgres { url, listen, .. } = &hub.store {
            let urls = [("store.postgres", Some(url)), ("store.postgres.listen", listen.as_ref())];
            for (key, reference) in urls {
                if let Some(Err(error)) =
                    reference.map(|reference| self.config.secrets.get("", reference))
                {
                    refuse(key, error);
                }
            }
        }
        if let Some(reference) = &hub.admin.token
            && let Err(error) = self.config.secrets.get("", reference)
        {
            refuse("admin.token", error);
        }
        if let Some(Err(error)) = self.tls().map(acceptor) {
            refuse("http.tls", ConfigError::new("", format!("{error:#}")));
        }
        if let Err(error) = logging::check(&hub.log.filter) {
            let error = ConfigError::new("", format!("the log filter cannot be read: {error}"));
            refuse("log.filter", error.help("e.g. \"info\" or \"warn,pabal_engine=debug\""));
        }
        faults
    }

    /// What is no fault, and yet to be told.
    pub(crate) fn notes(&self) -> Vec<String> {
        let ignored = self
            .ignored
            .iter()
            .map(|path| format!("{} is not read: its name does not end in .toml", path.display()));
        let open = self.open_to_anybody().into_iter().map(|(endpoint, does)| {
            format!(
                "{endpoint} {does} anybody who reaches {}: auth = \"none\" is only right on loopback",
                self.http()
            )
        });
        ignored.chain(open).collect()
    }

    /// What the files leave open and no look at the other side can tell, by partner or source.
    pub(crate) fn open_questions(&self) -> Vec<(String, Finding)> {
        let nobody = self.config.partners.iter().filter(|partner| partner.contacts.is_empty());
        let nobody = nobody.map(|partner| {
            let what = "an alarm about its links names nobody to call";
            let help = "contacts = [{ name = \"…\", phone = \"…\" }] in its file";
            (partner.id.clone(), Finding::note(what).help(help))
        });
        let endless = self.config.sources.iter().filter(|it| it.redelivery_window.is_none());
        let endless = endless.map(|source| {
            let what = format!(
                "nobody says for how long it hands the same message over again; its ids are \
                 remembered for {}",
                out::span(self.retention().inbox)
            );
            let help = "redelivery_window = \"7d\", as the origin's own side has it";
            (source.name.to_string(), Finding::note(what).help(help))
        });
        nobody.chain(endless).collect()
    }

    /// What anybody on the network can hand over to or fetch from.
    fn open_to_anybody(&self) -> Vec<(EndpointName, &'static str)> {
        if self.http().ip().is_loopback() {
            return Vec::new();
        }
        let sources = self.config.sources.iter().map(|it| (&it.name, &it.adapter, IN));
        let destinations = self.config.destinations.iter().map(|it| (&it.name, &it.adapter, OUT));
        let open = sources.chain(destinations).filter(|(_, adapter, _)| {
            adapter.settings.0.get("auth").is_some_and(|auth| *auth == "none")
        });
        open.map(|(name, _, does)| (name.clone(), does)).collect()
    }

    /// Builds all parts. Without a store nothing of them can be run. `idle`: without senders and
    /// receivers, and so without their secrets.
    pub(crate) fn build(
        &self,
        store: &Arc<dyn Store>,
        clock: &Arc<dyn Clock>,
        idle: bool,
    ) -> Result<(Vec<Source>, Vec<Destination>)> {
        let state = |name: &EndpointName| {
            Arc::new(EndpointState::new(store.clone(), name.clone())) as Arc<dyn State>
        };
        let adapters = (!idle).then_some(self.adapters.as_slice());
        Ok(Composer::new(&self.config, adapters, clock, &state).build()?)
    }

    /// `pabal config show`
    pub(crate) fn show(&self, json: bool) -> Result<()> {
        if json {
            return out::json(&self.config.effective());
        }
        out::line(self.config.effective_toml().trim_end());
        Ok(())
    }

    pub(crate) fn start_logging(&self) {
        let log = &self.config.hub.log;
        logging::start(&log.filter, log.format == LogFormat::Json);
        for path in &self.ignored {
            tracing::warn!(file = %path.display(), "not read: its name does not end in .toml");
        }
        for (endpoint, does) in self.open_to_anybody() {
            tracing::warn!(
                alert = true, %endpoint, address = %self.http(),
                "it {does} anybody on the network: auth = \"none\" is only right on loopback"
            );
        }
    }

    /// The hub's name.
    pub(crate) fn hub(&self) -> &str {
        &self.config.hub.name
    }

    /// This node's name.
    pub(crate) fn node(&self) -> String {
        self.node.clone()
    }

    /// Of everything that must be the same on every node.
    pub(crate) fn hash(&self) -> String {
        self.config.plan_hash()
    }

    pub(crate) fn store(&self) -> &StoreConfig {
        &self.config.hub.store
    }

    /// The database file; or what stands for it, where the files lie by which the command line finds
    /// a running hub.
    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    pub(crate) fn lease(&self) -> Duration {
        self.config.hub.lease
    }

    pub(crate) fn retention(&self) -> &Retention {
        &self.config.hub.retention
    }

    /// The value of a secret of hub.toml, which stands under `key`.
    ///
    /// # Errors
    /// [`Faults`], with file and line.
    pub(crate) fn secret(&self, key: &str, reference: &SecretReference) -> Result<Secret> {
        self.config.secrets.get("", reference).map_err(|error| {
            let position = self.config.hub.position.below(key);
            Faults::from_iter([self.config.fault_at(&position, &error)]).into()
        })
    }

    pub(crate) fn http(&self) -> SocketAddr {
        self.config.hub.http.listen
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        self.config.hub.admin.listen
    }

    pub(crate) fn tls(&self) -> Option<&TlsConfig> {
        self.config.hub.http.tls.as_ref()
    }

    /// The admin token, if the configuration names one.
    pub(crate) fn token(&self) -> Result<Option<Secret>> {
        let reference = self.config.hub.admin.token.as_ref();
        reference.map(|reference| self.secret("admin.token", reference)).transpose()
    }

    pub(crate) fn ingress(&self) -> &Ingress {
        &self.ingress
    }

    pub(crate) fn grace(&self) -> Duration {
        self.config.hub.grace
    }

    pub(crate) fn sources(&self) -> Vec<EndpointName> {
        self.config.sources.iter().map(|source| source.name.clone()).collect()
    }

    pub(crate) fn destinations(&self) -> Vec<EndpointName> {
        let destinations = self.config.destinations.iter();
        destinations.map(|destination| destination.name.clone()).collect()
    }
}

/// This machine's name, or something that stands for it.
fn machine(hub: &str) -> String {
    // A service may see nothing of /proc but processes.
    let files = ["/proc/sys/kernel/hostname", "/etc/hostname"].into_iter();
    let mut names = files.filter_map(|file| std::fs::read_to_string(file).ok());
    let name = names.find(|name| !name.trim().is_empty() && !name.contains('/'));
    name.map_or_else(|| hub.to_owned(), |name| name.trim().to_owned())
}

/// What the partners' listener shakes hands with.
pub(crate) fn acceptor(files: &TlsConfig) -> Result<tokio_rustls::TlsAcceptor> {
    tls::acceptor(&files.cert, &files.key, files.client_ca.as_deref())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use pabal_adapter_rest::{PullAdapter, RestAdapter};

    use super::*;

    /// A structural fault, one of an adapter, of a secret and of jq, each in another place.
    const PARTNER: &str = r#"name = "Tax"
[destination.cases]
takes = ["case.*"]
ordr = "key"
when = ".["
[destination.cases.rest]
url = "ftp://127.0.0.1/"
[destination.copies]
takes = "*"
[destination.copies.rest]
url = "http://127.0.0.1:9/"
auth = { bearer = { env = "NOBODY_SET_THIS" } }
[source.cases.rest]
auth = "none"
"#;

    fn load(hub: &str, partner: &str, depth: Depth) -> Result<Plan> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("partners")).unwrap();
        fs::write(dir.path().join("hub.toml"), hub).unwrap();
        fs::write(dir.path().join("partners/tax.toml"), partner).unwrap();
        fs::write(dir.path().join("partners/tax.yaml"), "").unwrap();
        let ingress = Ingress::new();
        let rest = Arc::new(RestAdapter::new(ingress.clone()));
        let pull = Arc::new(PullAdapter::new(ingress.clone()));
        Plan::load(dir.path(), None, vec![rest, pull], ingress, depth)
    }

    #[test]
    fn all_faults_of_all_kinds_come_at_once() {
        let hub = "name = \"central\"\ngrce = \"1s\"\nlog = { filter = \"bad=,=\" }\n";
        let error = load(hub, PARTNER, Depth::Parts).err().unwrap();
        let faults = error.downcast_ref::<Faults>().unwrap();
        let keys: Vec<&str> = faults.iter().map(|fault| fault.key.as_str()).collect();
        let expected = [
            "grce",
            "log.filter",
            "destination.cases.ordr",
            "destination.cases.when",
            "destination.cases.rest.url",
            "destination.copies.takes",
            "destination.copies.rest.auth.bearer",
        ];
        assert_eq!(keys, expected, "{faults}");
    }

    #[test]
    fn what_means_nothing_where_the_partner_fetches_is_a_fault() {
        let partner = r#"name = "Tax"
[destination.cases]
takes = ["case.*"]
rate = "5/s"
lanes = 2
concurrency = 3
breaker = { failures = 3 }
[destination.cases.pull]
auth = { standard_webhooks = [{ env = "NOBODY_SET_THIS" }] }
lease = "1ms"
batch_max = 0
answer = { success = "true" }
[destination.others]
takes = ["case.*"]
rate = "5/s"
[destination.others.pull]
auth = "none"
answer = { success = "true" }
[source.cases.pull]
auth = "none"
"#;
        let error = load("name = \"central\"\n", partner, Depth::Parts).err().unwrap();
        let faults = error.downcast_ref::<Faults>().unwrap();
        let keys: Vec<&str> = faults.iter().map(|fault| fault.key.as_str()).collect();
        let expected = [
            "destination.cases.pull.auth",
            "destination.cases.pull.lease",
            "destination.cases.pull.batch_max",
            "destination.others.rate",
            "destination.others.pull.answer",
            "source.cases.pull",
        ];
        assert_eq!(keys, expected, "{faults}");
        let one = partner.replace("pull]\nauth = { standard_webhooks = [{ env = \"NOBODY_SET_THIS\" }] }\nlease = \"1ms\"\nbatch_max = 0\n", "pull]\nauth = \"none\"\n");
        let error = load("name = \"central\"\n", &one, Depth::Parts).err().unwrap();
        let faults = error.downcast_ref::<Faults>().unwrap();
        let keys: Vec<&str> = faults.iter().map(|fault| fault.key.as_str()).collect();
        let of_cases: Vec<_> =
            keys.iter().filter(|key| key.starts_with("destination.cases")).collect();
        assert_eq!(of_cases.len(), 5, "{faults}");
    }

    #[test]
    fn only_who_builds_needs_the_partners_secrets_and_the_hub_alone_not_even_their_files() {
        let hub = "name = \"central\"\n";
        let sound = PARTNER.replace("ordr = \"key\"\nwhen = \".[\"\n", "").replace("ftp", "http");
        let sound = sound.replace("takes = \"*\"", "takes = [\"*\"]");
        assert!(load(hub, &sound, Depth::Parts).is_err());
        load(hub, &sound, Depth::Files).unwrap();
        load(hub, "nonsense", Depth::Hub).unwrap();
    }

    #[test]
    fn a_source_open_to_the_network_and_a_file_that_is_not_read_are_told() {
        let partner = "name = \"Tax\"\n[source.cases.rest]\nauth = \"none\"\n\
            [destination.cases]\ntakes = [\"*\"]\n[destination.cases.pull]\nauth = \"none\"\n";
        let notes = |hub: &str| load(hub, partner, Depth::Parts).unwrap().notes();
        let near = notes("name = \"central\"\n");
        assert!(near.len() == 1 && near[0].contains("tax.yaml"), "{near:?}");
        let far = notes("name = \"central\"\nhttp = { listen = \"0.0.0.0:8080\" }\n");
        assert!(far[1].starts_with("tax/cases takes messages from anybody"), "{far:?}");
        assert!(far[2].starts_with("tax/cases hands its messages to anybody"), "{far:?}");
    }
}
