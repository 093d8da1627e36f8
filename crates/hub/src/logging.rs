//! What goes to the log: standard error, as text or JSON lines.

use tracing_subscriber::EnvFilter;

/// Libraries only warn, whatever the general level, unless the filter names them.
const LIBRARIES: &str = "sqlx=warn,hyper=warn,hyper_util=warn,h2=warn,rustls=warn,reqwest=warn";
const DEFAULT_FILTER: &str = "info";

/// Starts logging; a second call changes nothing. A filter that cannot be read falls back to the
/// default, and says so.
pub(crate) fn start(filter: &str, json: bool) {
    let (parsed, fault) = match with_libraries(filter) {
        Ok(parsed) => (parsed, None),
        Err(error) => (default_filter(), Some(error)),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(parsed).with_writer(std::io::stderr);
    let started = if json {
        builder.json().flatten_event(true).try_init()
    } else {
        builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init()
    };
    if started.is_ok()
        && let Some(error) = fault
    {
        tracing::warn!(%error, filter, "the log filter cannot be read; using the default");
    }
}

/// Writes the log into a file instead: the demo's screen is its own.
pub(crate) fn start_in_file(path: &std::path::Path) -> anyhow::Result<()> {
    let file = std::fs::File::create(path)
        .map_err(|error| anyhow::anyhow!("cannot write {}: {error}", path.display()))?;
    // One that was started before, as in a test, stays.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(default_filter())
        .with_ansi(false)
        .with_writer(std::sync::Mutex::new(file))
        .try_init();
    Ok(())
}

/// Whether a filter can be read.
pub(crate) fn check(filter: &str) -> Result<(), String> {
    with_libraries(filter).map(|_| ()).map_err(|error| error.to_string())
}

fn with_libraries(filter: &str) -> Result<EnvFilter, tracing_subscriber::filter::ParseError> {
    EnvFilter::try_new(format!("{LIBRARIES},{filter}"))
}

fn default_filter() -> EnvFilter {
    with_libraries(DEFAULT_FILTER).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_cannot_be_read_is_told() {
        assert_eq!(check("warn,pabal_engine=debug"), Ok(()));
        for bad in ["bad=,=", "info,=", "loud=very"] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
