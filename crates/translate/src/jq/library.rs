//! What an expression may call: jq's own functions without those that see more than the message,
//! and loops that count their steps.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, Ordering},
};

use jaq_core::{
    Bind, Compiler, DataT, Error, Lut, Native,
    box_iter::box_once,
    data::HasLut,
    load::{self, Arena, File, Loader, parse::Def},
    native::{bome, v},
};
use jaq_json::{Num, Val};

use super::{JqError, JqErrorKind, bounded, check, guard};
use crate::Json;

/// jaq's type of a compiled expression, on our data.
pub(super) type Filter = jaq_core::Filter<Data>;

/// What native functions see beside values.
#[derive(Debug)]
pub(super) struct Data;

impl DataT for Data {
    type V<'a> = Val;
    type Data<'a> = Shared<'a>;
}

/// The functions, and the steps left.
pub(super) type Shared<'a> = (&'a Lut<Data>, &'a Steps<'a>);

impl<'a> HasLut<'a, Data> for Shared<'a> {
    fn lut(&self) -> &'a Lut<Data> {
        self.0
    }
}

/// How many more rounds the loops of one run may take.
#[derive(Debug)]
pub(super) struct Steps<'a> {
    left: Cell<u32>,
    steps_max: u32,
    cancelled: &'a AtomicBool,
}

impl<'a> Steps<'a> {
    pub(super) fn new(steps_max: u32, cancelled: &'a AtomicBool) -> Self {
        Self { left: Cell::new(steps_max), steps_max, cancelled }
    }

    fn take(&self) -> Result<Val, Error<Val>> {
        // Once they are spent they stay spent, so that a loop which catches errors ends too.
        self.left.set(self.left.get().saturating_sub(1));
        match self.check() {
            Ok(()) => Ok(Val::Null),
            Err(error) => Err(Error::str(error.message)),
        }
    }

    pub(super) fn check(&self) -> Result<(), JqError> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(JqError::new(JqErrorKind::Budget, "took too long"));
        }
        if self.left.get() == 0 {
            return Err(JqError::new(
                JqErrorKind::Budget,
                format!("loops more than {} times", self.steps_max),
            ));
        }
        Ok(())
    }
}

/// Functions of jq that see or change more than the message.
const REMOVED: [&str; 13] = [
    "env",
    "halt",
    "halt_error",
    "now",
    "localtime",
    "strflocaltime",
    "debug",
    "debug_empty",
    "stderr",
    "stderr_empty",
    "input",
    "inputs",
    "input_line_number",
];

/// Loops of jq's library that are written again below.
const REPLACED: [(&str, usize); 5] =
    [("repeat", 1), ("recurse", 1), ("while", 2), ("until", 2), ("tonumber", 0)];

/// The loops, each with a step that is counted. `step_` yields one value and never changes a path.
const LOOPS: &str = "
def repeat(f): def rec: f, (step_ as $step | rec); rec;
def recurse(f): def rec: ., (step_ as $step | f | rec); rec;
def while(cond; update): def rec: if cond then ., (step_ as $step | update | rec) else {}[] end; rec;
def until(cond; update): def rec: if cond then . else step_ as $step | update | rec end; rec;
def range($from; $to; $by): range_($from; $to; $by) | (step_ as $step | .);
";

/// The compiled expression, and whether it is plainly bounded.
pub(super) fn compile(text: &str, vars: &[&str]) -> Result<(Filter, bool), JqError> {
    if text.len() > check::TEXT_BYTES_MAX {
        return Err(JqError::new(
            JqErrorKind::TooComplex,
            format!("longer than {} bytes", check::TEXT_BYTES_MAX),
        ));
    }
    // The parser and the compiler recurse over the text.
    let compiled = std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("pabal-jq-compile".to_owned())
            .stack_size(COMPILE_STACK_BYTES)
            .spawn_scoped(scope, || compile_here(text, vars))
            .map(|thread| thread.join())
    });
    match compiled {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(JqError::new(JqErrorKind::Syntax, "the compiler cannot handle it")),
        Err(error) => {
            Err(JqError::new(JqErrorKind::Busy, format!("no thread to compile it on: {error}")))
        }
    }
}

/// The expression itself, as a definition.
const MAIN: &str = "main_";

const COMPILE_STACK_BYTES: usize = 64 * 1024 * 1024;

fn compile_here(text: &str, vars: &[&str]) -> Result<(Filter, bool), JqError> {
    let term = check::check(text)?;
    let bounded = bounded::is_bounded(&term);
    let removed = |name: &str| REMOVED.contains(&name);
    let replaced = |name: &str, arity: usize| REPLACED.contains(&(name, arity));
    let loops = load::parse(LOOPS, |p| p.defs()).unwrap_or_default();
    // First, because a definition sees only those before it.
    let definitions = loops
        .into_iter()
        .chain(jaq_core::defs().filter(|d| !replaced(d.name, d.args.len())))
        .chain(jaq_std::defs().filter(|d| !removed(d.name)))
        .chain(jaq_json::defs().filter(|d| !replaced(d.name, d.args.len())));
    let functions = jaq_core::funs::<Data>()
        .map(|(name, args, native)| match name {
            "range" => ("range_", args, native),
            _ => (name, args, native),
        })
        .chain(jaq_std::funs().filter(|(name, ..)| !removed(name)))
        .chain(jaq_json::funs().filter(|(name, ..)| *name != "fromjson"))
        .chain(own());
    // What was checked and guarded is what runs: the text itself is not parsed again.
    let main = Def { name: MAIN, args: Vec::new(), body: guard::guard(term) };
    let arena = Arena::default();
    let modules = Loader::new(definitions.map(shorter).chain([main]))
        .load(&arena, File { path: (), code: MAIN })
        .map_err(|_| JqError::new(JqErrorKind::Syntax, "cannot be compiled"))?;
    let names: Vec<String> = vars.iter().map(|name| format!("${name}")).collect();
    let filter = Compiler::default()
        .with_funs(functions)
        .with_global_vars(names.iter().map(String::as_str))
        .compile(modules)
        .map_err(|errors| {
            let first = errors.iter().flat_map(|(_, errors)| errors).next();
            match first {
                Some((name, undefined)) => unknown(text, name, undefined),
                None => JqError::new(JqErrorKind::Syntax, "cannot be compiled"),
            }
        })?;
    Ok((filter, bounded))
}

/// The same definition beside those that live no longer than the text.
fn shorter<'t>(definition: Def<&'static str>) -> Def<&'t str> {
    definition
}

fn unknown(text: &str, name: &str, undefined: &jaq_core::compile::Undefined) -> JqError {
    use jaq_core::compile::Undefined;
    let message = match undefined {
        Undefined::Filter(_) if REMOVED.contains(&name) => {
            format!("`{name}` is not available: what a rule yields depends on the message alone")
        }
        Undefined::Filter(arguments) => match arguments {
            0 => format!("there is no function `{name}`"),
            1 => format!("there is no function `{name}` with 1 argument"),
            n => format!("there is no function `{name}` with {n} arguments"),
        },
        Undefined::Var => format!("there is no variable `{name}`"),
        other => format!("there is no {} `{name}`", other.as_str()),
    };
    JqError::new(JqErrorKind::Unknown, message).at(text, name)
}

type Function = (&'static str, Box<[Bind]>, Native<Data>);

/// Functions of our own.
fn own() -> [Function; 5] {
    [
        ("step_", v(0), Native::new(|cv| bome(cv.0.data().1.take()))),
        (
            guard::PRODUCT,
            v(2),
            Native::new(|mut cv| {
                let right = cv.0.pop_var();
                let left = cv.0.pop_var();
                bome(product(left, right))
            }),
        ),
        (guard::SIZED, v(0), Native::new(|cv| bome(sized(cv.1)))),
        // The original takes more than JSON and recurses as deep as the text says.
        (
            "fromjson",
            v(0),
            Native::new(|cv| {
                bome(as_text(&cv.1).and_then(|text| {
                    Json::parse(text.as_bytes())
                        .map(|json| json.0)
                        .map_err(|e| Error::str(format_args!("fromjson: {e}")))
                }))
            }),
        ),
        ("tonumber", v(0), Native::new(|cv| box_once(to_number(cv.1).map_err(Into::into)))),
    ]
}

/// The longest text, in bytes, and the longest list that an expression may make.
const TEXT_MAX: usize = 64 * 1024 * 1024;
const LIST_MAX: usize = 4 * 1024 * 1024;

fn too_large() -> Error<Val> {
    Error::str("makes a text or list that is too large")
}

fn sized(value: Val) -> Result<Val, Error<Val>> {
    let fits = match &value {
        Val::TStr(bytes) | Val::BStr(bytes) => bytes.len() <= TEXT_MAX,
        Val::Arr(items) => items.len() <= LIST_MAX,
        _ => true,
    };
    if fits { Ok(value) } else { Err(too_large()) }
}

/// A text times a number is that many copies of it.
fn product(left: Val, right: Val) -> Result<Val, Error<Val>> {
    if let (Val::TStr(text) | Val::BStr(text), Val::Num(number))
    | (Val::Num(number), Val::TStr(text) | Val::BStr(text)) = (&left, &right)
    {
        let copies = match number {
            Num::Int(copies) => usize::try_from(*copies).unwrap_or(0),
            Num::BigInt(_) => usize::MAX,
            Num::Float(_) | Num::Dec(_) => 0,
        };
        if text.len().saturating_mul(copies) > TEXT_MAX {
            return Err(too_large());
        }
    }
    left * right
}

fn as_text(value: &Val) -> Result<String, Error<Val>> {
    match value {
        Val::TStr(bytes) => std::str::from_utf8(bytes).map(str::to_owned).map_err(Error::str),
        _ => Err(Error::typ(value.clone(), "string")),
    }
}

/// Digit for digit; leading zeros are allowed, as many partners write them.
fn to_number(value: Val) -> Result<Val, Error<Val>> {
    if matches!(value, Val::Num(_)) {
        return Ok(value);
    }
    let text = as_text(&value)?;
    let (sign, digits) = match text.trim().strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.trim()),
    };
    let mut plain = digits;
    while let Some(rest) =
        plain.strip_prefix('0').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    {
        plain = rest;
    }
    match Json::parse(format!("{sign}{plain}").as_bytes()) {
        Ok(Json(number @ Val::Num(_))) => Ok(number),
        _ => Err(Error::str(format_args!("cannot parse {value} as a number"))),
    }
}
