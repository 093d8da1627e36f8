//! Finds the files, lays overlays over them, and puts the plan together.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use pabal_core::{EndpointName, nearest};

use crate::{
    AdapterNames, Config, ConfigSecrets, Fault, Faults, hub, parse::Parser, partner,
    partner::Partner, place::Layers, retention::days, source::SourceFile,
};

/// The source of what the command line hands over, which no file names.
const COMMAND_LINE: &str = "hub/cli";

/// What was read: if there are faults, `config` is what could be read all the same, good for finding
/// what else is wrong and for nothing else.
#[derive(Debug)]
pub struct Loaded {
    /// What could be read.
    pub config: Config,
    /// All faults of all files.
    pub faults: Faults,
    /// Files among the partners' that are not read, because of their names.
    pub ignored: Vec<PathBuf>,
}

impl Loaded {
    /// The configuration, if nothing is wrong with it.
    ///
    /// # Errors
    /// All faults of all files.
    pub fn whole(self) -> Result<Config, Faults> {
        if self.faults.is_empty() { Ok(self.config) } else { Err(self.faults) }
    }
}

/// Reads the configuration in `directory`, with the overlays of `profile` and the settings in
/// `environment` on top.
///
/// # Errors
/// All faults of all files.
pub fn load(
    directory: &Path,
    profile: Option<&str>,
    environment: impl IntoIterator<Item = (String, String)>,
    adapters: &AdapterNames,
) -> Result<Config, Faults> {
    load_all(directory, profile, environment, adapters).whole()
}

/// Reads `hub.toml` alone, likewise: no partner's file is opened.
///
/// # Errors
/// All faults of the file.
pub fn load_hub(
    directory: &Path,
    profile: Option<&str>,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Config, Faults> {
    let none = AdapterNames::default();
    read_all(directory, profile, environment.into_iter().collect(), &none, false).whole()
}

/// Likewise, with what could be read beside the faults.
pub fn load_all(
    directory: &Path,
    profile: Option<&str>,
    environment: impl IntoIterator<Item = (String, String)>,
    adapters: &AdapterNames,
) -> Loaded {
    read_all(directory, profile, environment.into_iter().collect(), adapters, true)
}

fn read_all(
    directory: &Path,
    profile: Option<&str>,
    environment: Vec<(String, String)>,
    adapters: &AdapterNames,
    with_partners: bool,
) -> Loaded {
    let mut faults = Faults::default();
    let files = find(directory, profile, with_partners, &mut faults);
    let mut parser = Parser { adapters, faults: &mut faults, endpoint: String::new() };
    let whole = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let hub = match files.hub {
        Some(layers) => hub::read(layers, &whole, &environment, &mut parser),
        None => hub::stand_in(&whole),
    };
    let body_bytes_max = hub.body_bytes_max;
    let mut all = Partner::default();
    let mut partners = Vec::new();
    for (id, layers) in files.partners {
        let read = partner::read(&id, layers, body_bytes_max, &mut parser);
        partners.extend(read.partner);
        all.sources.extend(read.sources);
        all.destinations.extend(read.destinations);
        all.source_names.extend(read.source_names);
        all.references.extend(read.references);
        all.links.extend(read.links);
    }
    all.sources.sort_by(|a, b| a.name.cmp(&b.name));
    all.destinations.sort_by(|a, b| a.name.cmp(&b.name));
    check_references(&all, &mut faults);
    check_link_ids(&all, &mut faults);
    check_windows(&all, hub.retention.inbox, &mut faults);
    let config = Config {
        dir: directory.to_owned(),
        hub,
        partners,
        sources: all.sources,
        destinations: all.destinations,
        secrets: Arc::new(ConfigSecrets::new(directory, environment)),
    };
    Loaded { config, faults: faults.sorted(), ignored: files.ignored }
}

/// What was found in the directory.
struct Files {
    hub: Option<Layers>,
    partners: BTreeMap<String, Layers>,
    ignored: Vec<PathBuf>,
}

fn find(
    directory: &Path,
    profile: Option<&str>,
    with_partners: bool,
    faults: &mut Faults,
) -> Files {
    let mut overlays = 0;
    let base = directory.join("hub.toml");
    let mut hub = Layers::default();
    match base.try_exists() {
        Ok(true) => hub.files.extend(read(&base, faults)),
        _ => faults.push(
            Fault::of_file(&base, "there is no such file")
                .help("name the configuration directory with --config DIR"),
        ),
    }
    let whole = hub.files.len() == 1;
    if let Some(profile) = profile {
        let overlay = directory.join(format!("hub.{profile}.toml"));
        if overlay.exists() {
            overlays += 1;
            hub.files.extend(read(&overlay, faults));
        }
    }
    let folder = directory.join("partners");
    let (found, ignored) = toml_files(&folder, faults);
    overlays += found.iter().filter(|(stem, _)| overlay_of(stem, profile).is_some()).count();
    let any_toml = !found.is_empty();
    let partners = match with_partners {
        true => read_partners(&folder, found, profile, faults),
        false => BTreeMap::new(),
    };
    if with_partners && !ignored.is_empty() && !any_toml {
        let names = ignored.iter().filter_map(|path| path.file_name());
        let names: Vec<_> = names.map(|name| name.to_string_lossy()).collect();
        let message = format!("none of the files here ends in .toml: {}", names.join(", "));
        faults.push(Fault::of_file(&folder, message).help("each agency is one file, NAME.toml"));
    }
    if let (Some(profile), 0) = (profile, overlays) {
        faults.push(
            Fault::of_file(directory, format!("no file belongs to the profile `{profile}`")).help(
                format!("its files are called hub.{profile}.toml and partners/NAME.{profile}.toml"),
            ),
        );
    }
    Files { hub: whole.then_some(hub), partners, ignored }
}

/// The base a file lies over, if it is an overlay of this profile.
fn overlay_of<'a>(stem: &'a str, profile: Option<&str>) -> Option<&'a str> {
    stem.split_once('.').filter(|(_, of)| Some(*of) == profile).map(|(base, _)| base)
}

fn read_partners(
    directory: &Path,
    found: Vec<(String, PathBuf)>,
    profile: Option<&str>,
    faults: &mut Faults,
) -> BTreeMap<String, Layers> {
    let mut partners: BTreeMap<String, Layers> = BTreeMap::new();
    let mut overlays = Vec::new();
    for (stem, path) in found {
        match stem.split_once('.') {
            None if EndpointName::new(&stem, "x").is_err() || stem == "hub" => {
                let (why, help) = match stem.as_str() {
                    "hub" => ("that is the hub itself", "name the file after the agency"),
                    _ => ("not a name", "1 to 64 lower-case letters, digits, `-` or `_`"),
                };
                let message = format!("a partner cannot be called `{stem}`: {why}");
                faults.push(Fault::of_file(&path, message).help(help));
            }
            None => {
                if let Some(file) = read(&path, faults) {
                    partners.entry(stem).or_default().files.push(file);
                }
            }
            Some(_) => {
                overlays.extend(overlay_of(&stem, profile).map(|base| (base.to_owned(), path)));
            }
        }
    }
    for (base, path) in overlays {
        let exists = directory.join(format!("{base}.toml")).exists();
        match (read(&path, faults), partners.get_mut(&base)) {
            (Some(file), Some(layers)) => layers.files.push(file),
            (Some(_), None) if !exists => {
                let fault = Fault::of_file(
                    &path,
                    format!("there is no {base}.toml that it could lie over"),
                );
                faults.push(fault);
            }
            _ => {}
        }
    }
    partners
}

/// Stem and path of every TOML file, and the files that are none, both in the order of their names.
/// No directory means no partners.
fn toml_files(directory: &Path, faults: &mut Faults) -> (Vec<(String, PathBuf)>, Vec<PathBuf>) {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return (Vec::new(), Vec::new());
        }
        Err(error) => {
            faults.push(Fault::of_file(directory, format!("cannot be read: {error}")));
            return (Vec::new(), Vec::new());
        }
    };
    let (mut files, mut others) = (Vec::new(), Vec::new());
    for entry in entries {
        match entry {
            Ok(entry) => {
                let path = entry.path();
                let name = entry.file_name().to_string_lossy().into_owned();
                match name.strip_suffix(".toml") {
                    // Hidden files are other programs'.
                    _ if name.starts_with('.') => {}
                    Some(stem) => files.push((stem.to_owned(), path)),
                    None if path.is_file() => others.push(path),
                    None => {}
                }
            }
            Err(error) => {
                faults.push(Fault::of_file(directory, format!("cannot be read: {error}")))
            }
        }
    }
    files.sort();
    others.sort();
    (files, others)
}

fn read(path: &Path, faults: &mut Faults) -> Option<SourceFile> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            faults.push(Fault::of_file(path, format!("cannot be read: {error}")));
            return None;
        }
    };
    match SourceFile::parse(path, text.clone()) {
        Ok(file) => Some(file),
        Err((message, span)) => {
            faults.push(Fault::syntax(path, &text, &message, span));
            None
        }
    }
}

/// `from` must name sources that exist.
fn check_references(all: &Partner, faults: &mut Faults) {
    for (source, position) in &all.references {
        if all.source_names.contains(source) || source.as_str() == COMMAND_LINE {
            continue;
        }
        let names: Vec<&str> = all.source_names.iter().map(EndpointName::as_str).collect();
        let help = match nearest(source.as_str(), &names) {
            Some(near) => format!("did you mean `{near}`?"),
            None if names.is_empty() => "no file has a source".to_owned(),
            None => format!("there are: {}", names.join(", ")),
        };
        let fault = Fault::at_value(position, format!("there is no source `{source}`"));
        faults.push(fault.help(help));
    }
}

/// A repeat that comes when its id is forgotten would be taken as new.
fn check_windows(all: &Partner, inbox: Duration, faults: &mut Faults) {
    for source in &all.sources {
        if let Some(window) = source.redelivery_window.filter(|window| *window > inbox) {
            let position = source.position.child("redelivery_window");
            let message = format!(
                "{} is longer than `retention.inbox`, {}: a repeat in between would be taken twice",
                days(window),
                days(inbox)
            );
            let fault = Fault::at_value(&position, message);
            faults.push(fault.help("make `retention.inbox` in hub.toml at least as long"));
        }
    }
}

/// A link number is worth something only if it names one link.
fn check_link_ids(all: &Partner, faults: &mut Faults) {
    let mut seen: BTreeMap<&str, &EndpointName> = BTreeMap::new();
    for (id, name, position) in &all.links {
        match seen.get(id.as_str()) {
            Some(other) => {
                let message = format!("`{id}` is the id of `{other}` too");
                faults.push(Fault::at_value(position, message).help("give each link its own id"));
            }
            None => {
                seen.insert(id, name);
            }
        }
    }
}
