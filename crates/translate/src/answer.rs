//! `answer`: what a partner's answer means, each case a jq predicate over
//! `{status, headers, body}`.
//!
//! The cases are tried in this order: `duplicate`, `success`, `retry`, `dead`; the first that holds
//! decides. If none does, `else` decides, and its default is to try again.

use pabal_core::{Answer, AnswerRule, Cause, Judgement};

use crate::{Charset, Jq, JqError, Json, envelope};

/// The rule as the operator wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerTexts {
    /// How the body is read.
    pub format: AnswerFormat,
    /// The body's charset.
    pub charset: Charset,
    /// The other side holds the message.
    pub success: Option<String>,
    /// The other side had it already.
    pub duplicate: Option<String>,
    /// Try again later.
    pub retry: Option<String>,
    /// It will never be taken.
    pub dead: Option<String>,
    /// If no case holds.
    pub otherwise: Else,
}

impl Default for AnswerTexts {
    fn default() -> Self {
        Self {
            format: AnswerFormat::default(),
            charset: Charset::UTF_8,
            success: None,
            duplicate: None,
            retry: None,
            dead: None,
            otherwise: Else::default(),
        }
    }
}

/// How the body of an answer is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AnswerFormat {
    /// As JSON; `null` if it is not.
    #[default]
    Json,
    /// As one string; `null` if it is not of the charset.
    Text,
}

/// What an answer means that no case holds for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Else {
    /// Try again later.
    #[default]
    Retry,
    /// It will never be taken.
    Dead,
}

/// No rule is set: the transport's own table decides.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoRule;

impl AnswerRule for NoRule {
    fn judge(&self, _answer: &Answer) -> Option<Judgement> {
        None
    }
}

/// A rule in jq.
#[derive(Debug)]
pub struct JqAnswerRule {
    format: AnswerFormat,
    charset: Charset,
    cases: Vec<(Case, Jq)>,
    otherwise: Else,
}

#[derive(Debug, Clone, Copy)]
enum Case {
    Duplicate,
    Success,
    Retry,
    Dead,
}

const CASES: [(Case, &str); 4] = [
    (Case::Duplicate, "duplicate"),
    (Case::Success, "success"),
    (Case::Retry, "retry"),
    (Case::Dead, "dead"),
];

impl JqAnswerRule {
    /// Compiles the predicates.
    ///
    /// # Errors
    /// All that are wrong, each with its name in the configuration.
    pub fn compile(texts: &AnswerTexts) -> Result<Self, Vec<(&'static str, JqError)>> {
        let (mut cases, mut faults) = (Vec::new(), Vec::new());
        for (case, name) in CASES {
            let text = match case {
                Case::Duplicate => &texts.duplicate,
                Case::Success => &texts.success,
                Case::Retry => &texts.retry,
                Case::Dead => &texts.dead,
            };
            match text.as_deref().map(|text| Jq::compile(text, &[])) {
                Some(Ok(jq)) => cases.push((case, jq)),
                Some(Err(error)) => faults.push((name, error)),
                None => {}
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        Ok(Self { format: texts.format, charset: texts.charset, cases, otherwise: texts.otherwise })
    }

    fn body(&self, bytes: &[u8]) -> Json {
        let Ok(text) = self.charset.decode(bytes) else {
            return Json::NULL;
        };
        match self.format {
            AnswerFormat::Json => Json::parse(text.as_bytes()).unwrap_or_default(),
            AnswerFormat::Text => Json::text(&text),
        }
    }

    /// The start of the answer as text, as well as it can be read.
    fn detail(&self, answer: &Answer) -> String {
        let status = answer.status.map(|status| status.to_string());
        let body = match self.charset.decode(&answer.body) {
            Ok(text) => text.into_owned(),
            Err(_) => String::from_utf8_lossy(&answer.body).into_owned(),
        };
        [status.unwrap_or_default(), body].join(" ").trim().to_owned()
    }
}

impl AnswerRule for JqAnswerRule {
    fn judge(&self, answer: &Answer) -> Option<Judgement> {
        let input = Json::object([
            ("status", answer.status.map_or(Json::NULL, |status| Json::integer(status.into()))),
            ("headers", envelope::headers(&answer.headers)),
            ("body", self.body(&answer.body)),
        ]);
        let cause = |summary: &'static str| Cause::with(summary, self.detail(answer));
        for (case, jq) in &self.cases {
            let held = match jq.run(&input, &[]).as_deref() {
                Ok([one]) => one.as_bool(),
                _ => None,
            };
            // A case that fails, or yields anything but one boolean, must not let the message be
            // taken for delivered or dead by a later case.
            let Some(held) = held else {
                return Some(Judgement::Retry(cause(match case {
                    Case::Duplicate => "answer rule: duplicate failed",
                    Case::Success => "answer rule: success failed",
                    Case::Retry => "answer rule: retry failed",
                    Case::Dead => "answer rule: dead failed",
                })));
            };
            if held {
                return Some(match case {
                    Case::Duplicate => Judgement::Duplicate,
                    Case::Success => Judgement::Success,
                    Case::Retry => Judgement::Retry(cause("answer rule: retry")),
                    Case::Dead => Judgement::Dead(cause("answer rule: dead")),
                });
            }
        }
        let cause = cause("answer rule: not a success");
        Some(match self.otherwise {
            Else::Retry => Judgement::Retry(cause),
            Else::Dead => Judgement::Dead(cause),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pabal_core::{Bytes, Headers};

    fn answer(status: u16, body: impl Into<Bytes>) -> Answer {
        Answer {
            status: Some(status),
            headers: Headers::from_iter([("X-Code", "7")]),
            body: body.into(),
        }
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn rule(texts: AnswerTexts) -> JqAnswerRule {
        JqAnswerRule::compile(&texts).unwrap()
    }

    #[test]
    fn the_first_case_that_holds_decides() {
        let rule = rule(AnswerTexts {
            success: some(r#".status == 200 and .body.code == "0000""#),
            duplicate: some(r#".body.code == "E409""#),
            retry: some(".status >= 500"),
            dead: some(r#".headers["x-code"] == "7" and .status == 400"#),
            ..AnswerTexts::default()
        });
        let judge = |status, body: &'static str| rule.judge(&answer(status, body)).unwrap();
        assert_eq!(judge(200, r#"{"code":"0000"}"#), Judgement::Success);
        assert_eq!(judge(200, r#"{"code":"E409"}"#), Judgement::Duplicate);
        let retry = Cause::with("answer rule: retry", "503 x");
        assert_eq!(judge(503, "x"), Judgement::Retry(retry));
        assert_eq!(judge(400, ""), Judgement::Dead(Cause::with("answer rule: dead", "400")));
        let neither = Cause::with("answer rule: not a success", r#"200 {"code":"E1"}"#);
        assert_eq!(judge(200, r#"{"code":"E1"}"#), Judgement::Retry(neither));
    }

    #[test]
    fn with_success_alone_everything_else_is_what_else_says() {
        for (otherwise, dead) in [(Else::Retry, false), (Else::Dead, true)] {
            let rule = rule(AnswerTexts {
                success: some(r#".body.code == "0000""#),
                otherwise,
                ..AnswerTexts::default()
            });
            for body in [r#"{"code":"1"}"#, "<html>", "", "[[["] {
                let judged = rule.judge(&answer(200, body));
                let expected = matches!(judged, Some(Judgement::Dead(_)));
                assert_eq!((expected, judged.is_some()), (dead, true), "{body}: {judged:?}");
            }
        }
    }

    #[test]
    fn an_answer_in_a_korean_charset_is_read_and_shown() {
        let texts = AnswerTexts {
            format: AnswerFormat::Text,
            charset: Charset::EUC_KR,
            success: some(r#".body | startswith("정상")"#),
            ..AnswerTexts::default()
        };
        let rule = rule(texts);
        let encoded = |text: &str| Charset::EUC_KR.encode(text).unwrap().into_owned();
        assert_eq!(rule.judge(&answer(200, encoded("정상 처리"))), Some(Judgement::Success));
        let cause = Cause::with("answer rule: not a success", "200 오류");
        assert_eq!(rule.judge(&answer(200, encoded("오류"))), Some(Judgement::Retry(cause)));
        // A body that is not of the charset is null, and a predicate that fails on it never means
        // success.
        let failed = rule.judge(&answer(200, &b"\xff\xff"[..]));
        assert!(
            matches!(failed, Some(Judgement::Retry(cause)) if cause.summary == "answer rule: success failed")
        );
    }

    #[test]
    fn a_long_answer_is_cut_at_a_character() {
        let rule = rule(AnswerTexts { success: some("false"), ..AnswerTexts::default() });
        for shift in 0..4 {
            let body = "x".repeat(shift) + &"가".repeat(2000);
            let Some(Judgement::Retry(cause)) = rule.judge(&answer(500, body)) else {
                panic!("not a retry");
            };
            assert!(cause.detail.unwrap().len() <= pabal_core::ANSWER_BYTES_KEPT);
        }
    }

    #[test]
    fn without_a_rule_the_transport_decides() {
        assert_eq!(NoRule.judge(&answer(200, "")), None);
    }

    #[test]
    fn predicates_that_are_wrong_are_all_named() {
        let texts = AnswerTexts { success: some("("), dead: some("$x"), ..AnswerTexts::default() };
        let names: Vec<_> =
            JqAnswerRule::compile(&texts).unwrap_err().into_iter().map(|(n, _)| n).collect();
        assert_eq!(names, ["success", "dead"]);
    }
}
