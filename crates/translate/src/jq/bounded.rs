//! Which expressions are plainly bounded: each part looks at the input at most once and makes
//! nothing larger of it, so that a thread and a deadline would only cost time.

use jaq_core::{
    load::{
        lex::StrPart,
        parse::{BinaryOp, Term},
    },
    path::Part,
};

/// Deeper ones run on a big stack.
const NESTING_MAX: usize = 30;

/// Functions that take at most one pass over their input and yield at most one value, with the
/// number of their arguments.
const FUNCTIONS: [(&str, usize); 15] = [
    ("true", 0),
    ("false", 0),
    ("null", 0),
    ("empty", 0),
    ("not", 0),
    ("length", 0),
    ("type", 0),
    ("tonumber", 0),
    ("tostring", 0),
    ("ascii_downcase", 0),
    ("ascii_upcase", 0),
    ("has", 1),
    ("startswith", 1),
    ("endswith", 1),
    ("select", 1),
];

/// No loops, no definitions, no products, nothing that yields more than one value.
pub(super) fn is_bounded(term: &Term<&str>) -> bool {
    within(term, NESTING_MAX)
}

fn within(term: &Term<&str>, nesting: usize) -> bool {
    let Some(nesting) = nesting.checked_sub(1) else {
        return false;
    };
    let inner = |term: &Term<&str>| within(term, nesting);
    match term {
        Term::Id | Term::Num(_) | Term::Var(_) => true,
        Term::Str(None, parts) => parts.iter().all(|part| !matches!(part, StrPart::Term(_))),
        Term::Neg(term) => inner(term),
        Term::BinOp(left, operator, right) => {
            let plain = matches!(
                operator,
                BinaryOp::Pipe(None)
                    | BinaryOp::Alt
                    | BinaryOp::Or
                    | BinaryOp::And
                    | BinaryOp::Cmp(_)
            );
            plain && inner(left) && inner(right)
        }
        Term::IfThenElse(branches, otherwise) => {
            branches.iter().all(|(condition, then)| inner(condition) && inner(then))
                && otherwise.iter().all(|term| inner(term))
        }
        Term::Call(name, arguments) => {
            FUNCTIONS.contains(&(*name, arguments.len())) && arguments.iter().all(inner)
        }
        Term::Path(start, path) => {
            inner(start)
                && path.0.iter().all(|(part, _)| match part {
                    Part::Index(term) => inner(term),
                    // `.[]` yields many values; a slice copies.
                    Part::Range(..) => false,
                })
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use jaq_core::load::{Lexer, Parser};

    use super::*;

    fn bounded(text: &str) -> bool {
        let tokens = Lexer::new(text).lex().unwrap();
        is_bounded(&Parser::new(&tokens).parse(|p| p.term()).unwrap())
    }

    #[test]
    fn what_rules_mostly_are_needs_no_thread() {
        for text in [
            r#".region == "11""#,
            r#".a.b["c"]?.d // "x""#,
            r#"$message.type | startswith("decision.")"#,
            r#".status == 200 and (.body.code == "0000" | not)"#,
            "if .a then .b else null end",
        ] {
            assert!(bounded(text), "{text}");
        }
    }

    #[test]
    fn what_loops_grows_or_goes_deep_needs_one() {
        for text in [
            ".[] == 1",
            "[.a]",
            ".a + .a",
            ".a * 9",
            "1, 2",
            "repeat(1)",
            "range(9)",
            "..",
            "def f: 1; f",
            "reduce .[] as $x (0; .)",
            "\"\\(.)\"",
            "@json \"\"",
            ". as $x | $x",
            "contains(.a)",
            ".a |= 1",
            "test(\"a\")",
            ".[1:]",
            "label $x | 1",
            "try 1",
        ] {
            assert!(!bounded(text), "{text}");
        }
        assert!(!bounded(&("not | ".repeat(40) + "not")));
    }
}
