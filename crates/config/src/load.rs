//! Finds the files, lays overlays over them, and puts the plan together.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use pabal_core::{BODY_BYTES_MAX, EndpointName};

use crate::{
    AdapterNames, Config, ConfigSecrets, Fault, Faults, hub, parse::Parser, partner,
    partner::Partner, place::Layers, source::SourceFile,
};

/// The source of what the command line hands over, which no file names.
const COMMAND_LINE: &str = "hub/cli";

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
    let environment: Vec<_> = environment.into_iter().collect();
    let mut faults = Faults::default();
    let files = find(directory, profile, &mut faults);
    let mut parser = Parser { adapters, faults: &mut faults, endpoint: String::new() };
    let whole = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let hub = files.hub.and_then(|layers| hub::read(layers, &whole, &environment, &mut parser));
    let body_bytes_max = hub.as_ref().map_or(BODY_BYTES_MAX, |hub| hub.body_bytes_max);
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
    match hub {
        Some(hub) if faults.is_empty() => Ok(Config {
            dir: directory.to_owned(),
            hub,
            partners,
            sources: all.sources,
            destinations: all.destinations,
            secrets: Arc::new(ConfigSecrets::new(directory, environment)),
        }),
        _ => Err(faults.sorted()),
    }
}

/// What was found in the directory.
struct Files {
    hub: Option<Layers>,
    partners: BTreeMap<String, Layers>,
}

fn find(directory: &Path, profile: Option<&str>, faults: &mut Faults) -> Files {
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
    let (partners, partner_overlays) = find_partners(&directory.join("partners"), profile, faults);
    overlays += partner_overlays;
    if let (Some(profile), 0) = (profile, overlays) {
        faults.push(
            Fault::of_file(directory, format!("no file belongs to the profile `{profile}`")).help(
                format!("its files are called hub.{profile}.toml and partners/NAME.{profile}.toml"),
            ),
        );
    }
    Files { hub: whole.then_some(hub), partners }
}

fn find_partners(
    directory: &Path,
    profile: Option<&str>,
    faults: &mut Faults,
) -> (BTreeMap<String, Layers>, usize) {
    let mut partners: BTreeMap<String, Layers> = BTreeMap::new();
    let mut overlays = Vec::new();
    for (stem, path) in toml_files(directory, faults) {
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
            Some((base, of)) if Some(of) == profile => overlays.push((base.to_owned(), path)),
            Some(_) => {}
        }
    }
    let count = overlays.len();
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
    (partners, count)
}

/// Stem and path of every TOML file, in the order of their names. No directory means no partners.
fn toml_files(directory: &Path, faults: &mut Faults) -> Vec<(String, PathBuf)> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            faults.push(Fault::of_file(directory, format!("cannot be read: {error}")));
            return Vec::new();
        }
    };
    let mut files = Vec::new();
    for entry in entries {
        match entry {
            Ok(entry) => {
                let path = entry.path();
                let name = entry.file_name().to_string_lossy().into_owned();
                if let Some(stem) = name.strip_suffix(".toml").filter(|stem| !stem.starts_with('.'))
                {
                    files.push((stem.to_owned(), path));
                }
            }
            Err(error) => {
                faults.push(Fault::of_file(directory, format!("cannot be read: {error}")))
            }
        }
    }
    files.sort();
    files
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
        let help = match crate::known::nearest(source.as_str(), &names) {
            Some(near) => format!("did you mean `{near}`?"),
            None if names.is_empty() => "no file has a source".to_owned(),
            None => format!("there are: {}", names.join(", ")),
        };
        let fault = Fault::at_value(position, format!("there is no source `{source}`"));
        faults.push(fault.help(help));
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
