//! The configuration that is shipped is one that works.

use std::path::Path;

#[test]
fn the_shipped_configuration_has_no_fault_and_needs_nothing_set() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config");
    let directory = directory.canonicalize().unwrap();
    let config = pabal_config::load(&directory, None, [], &crate::adapters())
        .unwrap_or_else(|faults| panic!("{faults}"));
    assert!(config.partners.len() >= 2 && !config.sources.is_empty());
    assert!(config.destinations.iter().any(|destination| destination.when.is_some()));
    // Nothing leaves the machine, and nobody from outside comes in.
    assert!(
        config.hub.http.listen.ip().is_loopback() && config.hub.admin.listen.ip().is_loopback()
    );
    let text = config.effective_toml();
    for url in text.split("://").skip(1) {
        assert!(url.starts_with("127.0.0.1:"), "{url}");
    }
    assert!(!text.contains("env = "));
}
