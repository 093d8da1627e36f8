//! The one table of a destination or source that is named after an adapter, and the answer rule in
//! it, which is not the adapter's.

use pabal_core::{Settings, nearest};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    AdapterConfig, AnswerConfig, AnswerFormat, Else, Fault, Position,
    known::{self, Table},
    parse::Parser,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerToml {
    #[serde(default)]
    format: AnswerFormat,
    charset: Option<String>,
    success: Option<String>,
    duplicate: Option<String>,
    retry: Option<String>,
    dead: Option<String>,
    #[serde(default, rename = "else")]
    otherwise: Else,
}

/// Takes the one adapter table out of an endpoint's table, and the answer rule out of that. If there
/// is none that can be used, which is reported, the adapter has no name.
pub(crate) fn take(
    fields: &mut Map<String, Value>,
    side: Table,
    position: &Position,
    parser: &mut Parser<'_>,
) -> (AdapterConfig, Option<Map<String, Value>>) {
    let unusable = |position: &Position| AdapterConfig {
        name: String::new(),
        settings: Settings(Value::Null),
        position: position.clone(),
    };
    // A table under an unknown key was meant to be an adapter's, unless it is a key's near miss.
    let mut misspelt = false;
    fields.retain(|key, value| {
        let known = side.keys().contains(&key.as_str()) || parser.adapters.contains(key);
        if known || !value.is_object() {
            return true;
        }
        let elsewhere = nearest(key, side.keys()).is_some();
        let adapters: Vec<&str> = parser.adapters.names().collect();
        if elsewhere && nearest(key, &adapters).is_none() {
            return true;
        }
        let help = match nearest(key, &adapters) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("there are: {}", adapters.join(", ")),
        };
        let fault = Fault::at_key(&position.child(key), format!("there is no adapter `{key}`"));
        parser.faults.push(fault.help(help));
        misspelt = true;
        false
    });
    let names: Vec<String> =
        fields.keys().filter(|key| parser.adapters.contains(key)).cloned().collect();
    let mut tables: Vec<_> = names
        .into_iter()
        .filter_map(|name| fields.remove(&name).map(|table| (name, table)))
        .collect();
    if tables.len() > 1 {
        let list =
            tables.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(" and ");
        let second = position.child(&tables[1].0);
        let fault = Fault::at_key(&second, format!("two adapter tables, {list}"));
        parser
            .faults
            .push(fault.help(
                "keep one; another way to the same partner is another destination or source",
            ));
        return (unusable(position), None);
    }
    let Some((name, table)) = tables.pop() else {
        if !misspelt {
            let adapters: Vec<_> = parser.adapters.names().collect();
            let fault = Fault::at_key(position, "no adapter table says how");
            let kind = known::side(side).unwrap_or_default();
            parser.faults.push(fault.help(format!(
                "add [{kind}.{}.NAME] with NAME one of: {}",
                parser.endpoint,
                adapters.join(", ")
            )));
        }
        return (unusable(position), None);
    };
    let position = position.child(&name);
    let Value::Object(mut table) = table else {
        parser.faults.push(Fault::at_key(&position, format!("`{name}` is not a table")));
        return (unusable(&position), None);
    };
    let mut fine = true;
    let answer = match (side, table.remove("answer")) {
        (Table::Destination, Some(Value::Object(answer))) => Some(answer),
        (Table::Destination, Some(_)) => {
            let fault = Fault::at_key(&position.child("answer"), "`answer` is not a table");
            parser.faults.push(fault.help("write answer = { success = \"…\" }"));
            None
        }
        (_, Some(_)) => {
            let fault = Fault::at_key(&position.child("answer"), "unknown key `answer`");
            parser.faults.push(fault.help("`answer` belongs in a destination's adapter table"));
            None
        }
        (_, None) => None,
    };
    let own = parser.adapters.keys(&name, side == Table::Destination).to_vec();
    for key in table.keys() {
        let right = known::misplaced_in_adapter(key, side, &parser.endpoint);
        if let (false, Some(right)) = (own.contains(key), right) {
            let fault = Fault::at_key(&position.child(key), format!("unknown key `{key}`"));
            parser.faults.push(fault.help(right));
            fine = false;
        }
    }
    let settings = Value::Object(table);
    fine &= parser.literal_secrets(&settings, &position);
    if !fine {
        return (unusable(&position), answer);
    }
    (AdapterConfig { name, settings: Settings(settings), position }, answer)
}

/// Reads an answer rule.
pub(crate) fn answer(
    fields: Map<String, Value>,
    position: Position,
    parser: &mut Parser<'_>,
) -> Option<AnswerConfig> {
    let read: AnswerToml = parser.table(fields, Table::Answer, &position)?;
    Some(AnswerConfig {
        format: read.format,
        charset: read.charset,
        success: position.jq("success", read.success),
        duplicate: position.jq("duplicate", read.duplicate),
        retry: position.jq("retry", read.retry),
        dead: position.jq("dead", read.dead),
        otherwise: read.otherwise,
        position,
    })
}
