//! Puts guards around what makes large values: a product of a text and a number that came in a
//! message must not take all memory.

use jaq_core::{
    load::{
        lex::StrPart,
        parse::{BinaryOp, Def, Pattern, Term},
    },
    ops::Math,
    path::{Part, Path},
};

/// Multiplies its arguments, unless the result would be too large.
pub(super) const PRODUCT: &str = "product_";
/// Passes its input on, unless that is too large.
pub(super) const SIZED: &str = "sized_";
/// Cannot be written by anybody else: names in jq have no space.
const OPERAND: &str = "$the operand";

/// The same expression with guards.
pub(super) fn guard<'t>(term: Term<&'t str>) -> Term<&'t str> {
    let boxed = |term: Box<Term<&'t str>>| Box::new(guard(*term));
    match term {
        Term::Str(format, parts) => {
            let grows = parts.iter().any(|part| matches!(part, StrPart::Term(_)));
            let parts = parts.into_iter().map(|part| match part {
                StrPart::Term(term) => StrPart::Term(guard(term)),
                other => other,
            });
            let text = Term::Str(format, parts.collect());
            if grows { sized(text) } else { text }
        }
        Term::Arr(Some(items)) => sized(Term::Arr(Some(boxed(items)))),
        Term::Obj(fields) => Term::Obj(
            fields
                .into_iter()
                .map(|(key, value)| match key {
                    // A key of its own form keeps it.
                    key @ (Term::Str(..) | Term::Var(_)) => (key, value.map(guard)),
                    key => (guard(key), value.map(guard)),
                })
                .collect(),
        ),
        Term::Neg(inner) => Term::Neg(boxed(inner)),
        Term::BinOp(left, BinaryOp::Math(Math::Mul), right) => {
            Term::Call(PRODUCT, vec![guard(*left), guard(*right)])
        }
        Term::BinOp(left, BinaryOp::Math(Math::Add), right) => {
            let add = BinaryOp::Math(Math::Add);
            sized(Term::BinOp(boxed(left), add, boxed(right)))
        }
        // `a *= b` is `b as $x | a |= . * $x`; so with `+=`.
        Term::BinOp(left, BinaryOp::UpdateMath(math @ (Math::Mul | Math::Add)), right) => {
            let operand = Box::new(Term::Var(OPERAND));
            let changed = guard(Term::BinOp(Box::new(Term::Id), BinaryOp::Math(math), operand));
            let update = Term::BinOp(boxed(left), BinaryOp::Update, Box::new(changed));
            let bind = BinaryOp::Pipe(Some(Pattern::Var(OPERAND)));
            Term::BinOp(boxed(right), bind, Box::new(update))
        }
        Term::BinOp(left, BinaryOp::Pipe(Some(bound)), right) => {
            let bind = BinaryOp::Pipe(Some(pattern(bound)));
            Term::BinOp(boxed(left), bind, boxed(right))
        }
        Term::BinOp(left, operator, right) => Term::BinOp(boxed(left), operator, boxed(right)),
        Term::Label(name, inner) => Term::Label(name, boxed(inner)),
        Term::Fold(name, source, bound, arguments) => {
            let arguments = arguments.into_iter().map(guard).collect();
            Term::Fold(name, boxed(source), pattern(bound), arguments)
        }
        Term::TryCatch(body, handler) => Term::TryCatch(boxed(body), handler.map(boxed)),
        Term::IfThenElse(branches, otherwise) => {
            let branches = branches.into_iter().map(|(c, then)| (guard(c), guard(then)));
            Term::IfThenElse(branches.collect(), otherwise.map(boxed))
        }
        Term::Def(definitions, rest) => {
            let definitions = definitions
                .into_iter()
                .map(|definition| Def { body: guard(definition.body), ..definition });
            Term::Def(definitions.collect(), boxed(rest))
        }
        Term::Call(name, arguments) => Term::Call(name, arguments.into_iter().map(guard).collect()),
        Term::Path(start, path) => {
            let parts = path.0.into_iter().map(|(part, option)| match part {
                Part::Index(term) => (Part::Index(guard(term)), option),
                Part::Range(from, to) => (Part::Range(from.map(guard), to.map(guard)), option),
            });
            Term::Path(boxed(start), Path(parts.collect()))
        }
        leaf @ (Term::Id
        | Term::Recurse
        | Term::Num(_)
        | Term::Arr(None)
        | Term::Break(_)
        | Term::Var(_)) => leaf,
    }
}

fn pattern(bound: Pattern<&str>) -> Pattern<&str> {
    match bound {
        Pattern::Var(_) => bound,
        Pattern::Arr(items) => Pattern::Arr(items.into_iter().map(pattern).collect()),
        Pattern::Obj(fields) => {
            let fields = fields.into_iter().map(|(key, inner)| match key {
                key @ (Term::Str(..) | Term::Var(_)) => (key, pattern(inner)),
                key => (guard(key), pattern(inner)),
            });
            Pattern::Obj(fields.collect())
        }
    }
}

fn sized(term: Term<&str>) -> Term<&str> {
    let check = Term::Call(SIZED, Vec::new());
    Term::BinOp(Box::new(term), BinaryOp::Pipe(None), Box::new(check))
}
