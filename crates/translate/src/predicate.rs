//! `when`: a condition on a message, written in jq.

use pabal_core::{Predicate, RuleError, View};

use crate::{Jq, JqError, JqErrorKind, envelope::Parsed};

/// A jq expression over the canonical JSON and `$message` that must yield exactly one boolean.
#[derive(Debug)]
pub struct JqPredicate(Jq);

impl JqPredicate {
    /// Compiles the expression. It sees the body if its media type is `application/json` or
    /// `…+json`, else `null`; and as `$message` the envelope.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn compile(text: &str) -> Result<Self, JqError> {
        Ok(Self(Jq::compile(text, &["message"])?))
    }
}

impl Predicate for JqPredicate {
    fn test(&self, view: &View<'_>) -> Result<bool, RuleError> {
        let fault = |text: String| Err(RuleError::Fault(text));
        let Some(parsed) = view.parsed(Parsed::of) else {
            return fault("another kind of rule has parsed this message".to_owned());
        };
        let body = match &parsed.body {
            Ok(body) => body,
            Err(text) => return fault(text.clone()),
        };
        let outputs = match self.0.run(body, std::slice::from_ref(&parsed.envelope)) {
            Ok(outputs) => outputs,
            Err(error) if error.kind == JqErrorKind::Busy => {
                return Err(RuleError::Busy(error.to_string()));
            }
            Err(error) => return fault(error.to_string()),
        };
        match outputs.as_slice() {
            [one] => match one.as_bool() {
                Some(answer) => Ok(answer),
                None => fault(format!("yielded {}, not true or false", one.excerpt())),
            },
            [] => fault("yielded nothing, not true or false".to_owned()),
            [first, second, ..] => fault(format!(
                "yielded {} values, the first {} and {}, not one true or false",
                outputs.len(),
                first.excerpt(),
                second.excerpt()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pabal_core::{Headers, Message};

    fn message(content_type: &str, body: &str) -> Message {
        let source = "welfare/decisions".parse().unwrap();
        let mut message = Message::new(source, "decision.made", body.to_owned());
        message.content_type = Some(content_type.to_owned());
        message.key = Some("k-1".to_owned());
        message.version = Some(7);
        message.headers = Headers::from_iter([("X-Region", "11"), ("x-region", "12")]);
        message
    }

    fn test(text: &str, content_type: &str, body: &str) -> Result<bool, String> {
        let message = message(content_type, body);
        let tested = JqPredicate::compile(text).unwrap().test(&View::new(&message));
        tested.map_err(|error| error.to_string())
    }

    #[test]
    fn a_condition_sees_the_body_and_the_envelope() {
        for (text, expected) in [
            (r#".region == "11""#, true),
            (r#".region == "12""#, false),
            (r#"$message.type | startswith("decision.")"#, true),
            (r#"$message.source == "welfare/decisions""#, true),
            (r#"$message.origin == {source: "/welfare/decisions", id: null}"#, true),
            (r#"$message.headers["x-region"] == "11""#, true),
            (
                r#"$message | [.key, .version, .schema, .destination] == ["k-1", 7, null, null]"#,
                true,
            ),
            (".n == 9007199254740993", true),
            (".n == 9007199254740992", false),
        ] {
            let body = r#"{"region":"11","n":9007199254740993}"#;
            for content_type in ["application/json", "Application/JSON; charset=utf-8", "a/b+json"]
            {
                assert_eq!(test(text, content_type, body), Ok(expected), "{text}");
            }
        }
        assert_eq!(test(". == null", "text/plain", "{}"), Ok(true));
    }

    #[test]
    fn anything_but_one_boolean_is_an_error_that_says_what_came() {
        for (text, body, error) in [
            (".region", r#"{"region":"11"}"#, r#"yielded "11", not true or false"#),
            (".region", "{}", "yielded null, not true or false"),
            ("empty", "{}", "yielded nothing, not true or false"),
            (
                "true, false, 1",
                "{}",
                "yielded 3 values, the first true and false, not one true or false",
            ),
            (".a.b", r#"{"a":1}"#, r#"cannot index 1 with "b""#),
            ("true", "{", "the body is not JSON: EOF while parsing an object at line 1 column 1"),
        ] {
            assert_eq!(test(text, "application/json", body), Err(error.to_owned()), "{text}");
        }
    }

    #[test]
    fn one_message_is_parsed_once_for_all_conditions() {
        let message = message("application/json", "{\"a\":1}");
        let view = View::new(&message);
        let first: *const Parsed = view.parsed(Parsed::of).unwrap();
        assert!(JqPredicate::compile(".a == 1").unwrap().test(&view).unwrap());
        let again: *const Parsed = view.parsed(|_| unreachable!("parsed twice")).unwrap();
        assert_eq!(first, again);
    }
}
