//! A log that can be looked into.

use std::sync::Arc;

use pabal_core::{Clock, SystemClock};
use tokio::sync::watch;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt};

use crate::support::LIMIT;

/// What was logged.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<watch::Sender<Vec<String>>>);

impl Log {
    /// Keeps what this thread logs, as long as the guard lives.
    pub(crate) fn keep() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::registry().with(log.clone());
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// Waits until something with this text was told as an alert.
    pub(crate) async fn alerts(&self, text: &str) {
        let mut lines = self.0.subscribe();
        let alerted = |lines: &Vec<String>| {
            lines.iter().any(|line| line.contains("alert=true") && line.contains(text))
        };
        let clock: &dyn Clock = &SystemClock;
        if clock.timeout(LIMIT, lines.wait_for(alerted)).await.is_none() {
            panic!("no alert with {text:?} in {:#?}", self.0.borrow());
        }
    }

    /// All that was logged.
    pub(crate) fn text(&self) -> String {
        self.0.borrow().join("\n")
    }

    /// How many alerts there were with this text.
    pub(crate) fn count(&self, text: &str) -> usize {
        let lines = self.0.borrow();
        lines.iter().filter(|line| line.contains("alert=true") && line.contains(text)).count()
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!(" {}={value:?}", field.name()));
    }
}

impl<S: tracing::Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &tracing::Event<'_>, _: LayerContext<'_, S>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);

        self.0.send_modify(|lines| lines.push(line.0));
    }
}
