//! What a running hub says, as it says it.

use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    sync::watch,
};

use crate::within;

/// All lines of all runs of one hub, standard output and standard error together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(watch::Sender<String>);

impl Log {
    /// Takes in every line of `stream` until it ends.
    pub(crate) fn follow(&self, stream: impl AsyncRead + Send + Unpin + 'static) {
        let log = self.0.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(stream).split(b'\n');
            while let Ok(Some(line)) = lines.next_segment().await {
                let line = String::from_utf8_lossy(&line);
                log.send_modify(|text| {
                    text.push_str(&line);
                    text.push('\n');
                });
            }
        });
    }

    pub(crate) fn text(&self) -> String {
        self.0.borrow().clone()
    }

    pub(crate) async fn wait_for(&self, part: &str) {
        let mut log = self.0.subscribe();
        let seen = log.wait_for(|text| text.contains(part));
        // The sender is `self`.
        let _ = within(&format!("a log line with {part:?}"), seen).await;
    }

    /// The last lines, for a test that failed.
    pub(crate) fn tail(&self, lines_max: usize) -> String {
        let text = self.0.borrow();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(lines_max)..].join("\n")
    }
}
