//! A configuration that can be run: read, checked, and known to build.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use pabal_adapter_rest::Ingress;
use pabal_config::{AdapterNames, Config, Faults, LogFormat, StoreConfig, TlsConfig};
use pabal_core::{
    Adapter, Clock, ConfigError, EndpointName, Secret, Secrets, State, Store, SystemClock,
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
    database: PathBuf,
}

impl Plan {
    /// Reads and checks everything, offline; the inner error is all faults at once.
    pub(crate) fn load(
        dir: &Path,
        profile: Option<&str>,
        adapters: Vec<Arc<dyn Adapter>>,
        ingress: Ingress,
    ) -> Result<Result<Self, Faults>> {
        let names = AdapterNames::of(adapters.iter().map(|adapter| &**adapter));
        // What is not text is no setting of ours, and no secret either.
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let config = match pabal_config::load(dir, profile, environment, &names) {
            Ok(config) => config,
            Err(faults) => return Ok(Err(faults)),
        };
        let database = match &config.hub.store {
            StoreConfig::Sqlite(path) => path.clone(),
            other => anyhow::bail!("this program has no store for {other:?}"),
        };
        let plan = Self { config, adapters, ingress, database };
        let faults = plan.faults();
        Ok(if faults.is_empty() { Ok(plan) } else { Err(faults) })
    }

    /// What only shows when the parts are built; they are dropped again.
    fn faults(&self) -> Faults {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let state = |_: &EndpointName| Arc::new(NoState) as Arc<dyn State>;
        let built = Composer::new(&self.config, &self.adapters, &clock, &state).build();
        let mut faults = built.err().unwrap_or_default();
        let hub = &self.config.hub;
        let mut refuse = |key: &str, error: ConfigError| {
            let position = hub.position.below(key);
            faults.extend([self.config.fault_at(&position, &error)]);
        };
        if let Some(reference) = &hub.admin.token
            && let Err(error) = self.config.secrets.get("", reference)
        {
            refuse("admin.token", error);
        }
        if let Some(Err(error)) = self.tls().map(acceptor) {
            refuse("http.tls", ConfigError::new("", format!("{error:#}")));
        }
        faults
    }

    /// Builds all parts. Without a store nothing of them can be run.
    pub(crate) fn build(
        &self,
        store: &Arc<dyn Store>,
        clock: &Arc<dyn Clock>,
    ) -> Result<(Vec<Source>, Vec<Destination>)> {
        let state = |name: &EndpointName| {
            Arc::new(EndpointState::new(store.clone(), name.clone())) as Arc<dyn State>
        };
        // It was fine a moment ago: a secret's file may be gone since.
        Composer::new(&self.config, &self.adapters, clock, &state)
            .build()
            .context("the configuration is no longer fine")
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
    }

    /// The hub's name.
    pub(crate) fn hub(&self) -> &str {
        &self.config.hub.name
    }

    /// This machine's name, or something that stands for it.
    pub(crate) fn node(&self) -> String {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        match name.trim() {
            "" => self.hub().to_owned(),
            name => name.to_owned(),
        }
    }

    pub(crate) fn database(&self) -> &Path {
        &self.database
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
        let secret = reference.map(|reference| self.config.secrets.get("admin.token", reference));
        Ok(secret.transpose()?)
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

/// What the partners' listener shakes hands with.
pub(crate) fn acceptor(files: &TlsConfig) -> Result<tokio_rustls::TlsAcceptor> {
    tls::acceptor(&files.cert, &files.key, files.client_ca.as_deref())
}
