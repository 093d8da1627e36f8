//! What is refused before an expression is compiled: text that is not jq, nesting that could
//! overflow a stack, and definitions that call themselves, since those can end the process.

use jaq_core::{
    load::{
        self, Lexer, Parser,
        lex::{StrPart, Tok, Token},
        parse::{BinaryOp, Def, Pattern, Term},
    },
    path::Part,
};

use super::{JqError, JqErrorKind};

/// The longest expression, in bytes.
pub(super) const TEXT_BYTES_MAX: usize = 64 * 1024;
/// How deep an expression may nest.
const NESTING_MAX: usize = 200;
/// How many tokens an expression may have: the parser recurses over them.
const TOKENS_MAX: usize = 10_000;

/// Checks the text by itself, before its names are looked up.
pub(super) fn check(text: &str) -> Result<Term<&str>, JqError> {
    check_brackets(text)?;
    let tokens = Lexer::new(text).lex().map_err(|e| lex_error(text, &e))?;
    if tokens.iter().map(count).sum::<usize>() > TOKENS_MAX {
        return Err(JqError::new(
            JqErrorKind::TooComplex,
            format!("more than {TOKENS_MAX} words and signs"),
        ));
    }
    check_prefixes(&tokens)?;
    let term = Parser::new(&tokens).parse(|p| p.term()).map_err(|errors| {
        match errors.into_iter().next() {
            Some((expected, token)) => {
                parse_error(text, expected.as_str(), Token::opt_as_str(token, text))
            }
            None => JqError::new(JqErrorKind::Syntax, "not jq"),
        }
    })?;
    Walk { text, open: Vec::new() }.term(&term, 0)?;
    Ok(term)
}

/// The lexer recurses into brackets. Those in strings and comments count too, which only makes the
/// limit a little lower.
fn check_brackets(text: &str) -> Result<(), JqError> {
    let mut depth = 0_usize;
    for (offset, byte) in text.bytes().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > NESTING_MAX {
            return Err(too_deep().at(text, &text[offset..]));
        }
    }
    Ok(())
}

/// Words that open another level of the parser's recursion each, with nothing between them.
fn check_prefixes(tokens: &[Token<&str>]) -> Result<(), JqError> {
    let mut run = 0_usize;
    for token in tokens {
        match token.0 {
            "-" | "try" | "if" | "reduce" | "foreach" => run += 1,
            _ => run = 0,
        }
        if run > NESTING_MAX {
            return Err(too_deep());
        }
        match &token.1 {
            Tok::Block(inner) => check_prefixes(inner)?,
            Tok::Str(parts) => {
                for part in parts {
                    if let StrPart::Term(term) = part {
                        check_prefixes(std::slice::from_ref(term))?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn too_deep() -> JqError {
    JqError::new(JqErrorKind::TooComplex, format!("nests deeper than {NESTING_MAX}"))
}

fn count(token: &Token<&str>) -> usize {
    1 + match &token.1 {
        Tok::Block(tokens) => tokens.iter().map(count).sum(),
        Tok::Str(parts) => parts
            .iter()
            .map(|part| match part {
                StrPart::Term(token) => count(token),
                _ => 1,
            })
            .sum(),
        _ => 0,
    }
}

fn lex_error(text: &str, errors: &[load::lex::Error<&str>]) -> JqError {
    match errors.first() {
        Some((expected, rest)) => {
            let found =
                rest.chars().next().map_or_else(|| "the end".to_owned(), |c| format!("`{c}`"));
            let message = format!("expected {}, found {found}", expected.as_str());
            JqError::new(JqErrorKind::Syntax, message).at(text, rest)
        }
        None => JqError::new(JqErrorKind::Syntax, "not jq"),
    }
}

fn parse_error(text: &str, expected: &str, found: &str) -> JqError {
    if matches!(text.split_whitespace().next(), Some("import" | "include")) {
        return JqError::new(JqErrorKind::Syntax, "modules cannot be imported or included")
            .at(text, text.trim_start());
    }
    let expected = match expected {
        "term" => "an expression",
        "nothing" => "the end",
        other => other,
    };
    let shown = found
        .chars()
        .next()
        .map_or_else(|| "the end".to_owned(), |_| format!("`{}`", pabal_core::shorten(found, 30)));
    let error = JqError::new(JqErrorKind::Syntax, format!("expected {expected}, found {shown}"));
    if found.is_empty() { error.at(text, &text[text.len()..]) } else { error.at(text, found) }
}

/// A walk over an expression that knows which definitions it is inside of.
struct Walk<'t> {
    text: &'t str,
    /// The definitions around this place, and those beside it that came before; a name and its
    /// number of arguments, and whether calling it here would be calling itself.
    open: Vec<(&'t str, usize, bool)>,
}

impl<'t> Walk<'t> {
    fn term(&mut self, term: &Term<&'t str>, depth: usize) -> Result<(), JqError> {
        if depth > NESTING_MAX {
            return Err(too_deep());
        }
        let depth = depth + 1;
        match term {
            Term::Id | Term::Recurse | Term::Num(_) | Term::Var(_) | Term::Break(_) => Ok(()),
            Term::Str(_, parts) => parts.iter().try_for_each(|part| match part {
                StrPart::Term(term) => self.term(term, depth),
                _ => Ok(()),
            }),
            Term::Arr(items) => items.iter().try_for_each(|item| self.term(item, depth)),
            Term::Obj(fields) => fields.iter().try_for_each(|(key, value)| {
                self.term(key, depth)?;
                value.iter().try_for_each(|value| self.term(value, depth))
            }),
            Term::Neg(inner) | Term::Label(_, inner) => self.term(inner, depth),
            Term::BinOp(left, operator, right) => {
                self.term(left, depth)?;
                if let BinaryOp::Pipe(Some(pattern)) = operator {
                    self.pattern(pattern, depth)?;
                }
                self.term(right, depth)
            }
            Term::Fold(_, source, pattern, arguments) => {
                self.term(source, depth)?;
                self.pattern(pattern, depth)?;
                arguments.iter().try_for_each(|term| self.term(term, depth))
            }
            Term::TryCatch(body, handler) => {
                self.term(body, depth)?;
                handler.iter().try_for_each(|term| self.term(term, depth))
            }
            Term::IfThenElse(branches, otherwise) => {
                for (condition, then) in branches {
                    self.term(condition, depth)?;
                    self.term(then, depth)?;
                }
                otherwise.iter().try_for_each(|term| self.term(term, depth))
            }
            Term::Def(definitions, rest) => {
                let outside = self.open.len();
                for definition in definitions {
                    self.definition(definition, depth)?;
                }
                self.term(rest, depth)?;
                self.open.truncate(outside);
                Ok(())
            }
            Term::Call(name, arguments) => {
                self.call(name, arguments.len())?;
                arguments.iter().try_for_each(|term| self.term(term, depth))
            }
            Term::Path(start, path) => {
                self.term(start, depth)?;
                path.0.iter().try_for_each(|(part, _)| match part {
                    Part::Index(term) => self.term(term, depth),
                    Part::Range(from, to) => {
                        from.iter().chain(to).try_for_each(|term| self.term(term, depth))
                    }
                })
            }
        }
    }

    fn pattern(&mut self, pattern: &Pattern<&'t str>, depth: usize) -> Result<(), JqError> {
        if depth > NESTING_MAX {
            return self.term(&Term::Id, depth);
        }
        match pattern {
            Pattern::Var(_) => Ok(()),
            Pattern::Arr(items) => items.iter().try_for_each(|item| self.pattern(item, depth + 1)),
            Pattern::Obj(fields) => fields.iter().try_for_each(|(key, value)| {
                self.term(key, depth)?;
                self.pattern(value, depth + 1)
            }),
        }
    }

    /// A definition sees itself, those around it and those before it. So any way from it back to
    /// itself begins with its own name in its own text.
    fn definition(&mut self, definition: &Def<&'t str>, depth: usize) -> Result<(), JqError> {
        let outside = self.open.len();
        let arity = definition.args.len();
        self.open.push((definition.name, arity, true));
        for argument in &definition.args {
            self.open.push((argument, 0, false));
        }
        self.term(&definition.body, depth)?;
        self.open.truncate(outside);
        self.open.push((definition.name, arity, false));
        Ok(())
    }

    fn call(&self, name: &'t str, arity: usize) -> Result<(), JqError> {
        let nearest = self.open.iter().rev().find(|(n, a, _)| *n == name && *a == arity);
        match nearest {
            Some((.., true)) => Err(JqError::new(
                JqErrorKind::Recursive,
                format!(
                    "`{name}` calls itself, which is not allowed; use recurse, until, while, reduce or foreach"
                ),
            )
            .at(self.text, name)),
            _ => Ok(()),
        }
    }
}
