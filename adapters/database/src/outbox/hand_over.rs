//! Hands the rows of a batch to the inbox: nothing of a key overtakes what stands before it.

use std::{collections::HashSet, sync::Arc};

use pabal_core::{Message, SendError, Sender, Stop, Verdict, shorten};

use super::{memory::Who, settings::OnFailed};

/// What is written of a reason, in bytes.
const REASON_BYTES_MAX: usize = 1_000;

/// A row of a batch.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) id: String,
    pub(super) who: Who,
    pub(super) order: Option<i64>,
    pub(super) fate: Fate,
}

/// What becomes of it.
#[derive(Debug)]
pub(super) enum Fate {
    /// To be handed over; untouched if it still is at the end.
    Ready(Box<Message>),
    /// Somebody else has it, or had.
    Elsewhere,
    /// The hub has it.
    Taken,
    /// The hub will never take it as it stands.
    Refused(String),
    /// It failed for now.
    Failed(String),
    /// It was not about this row, or it stands behind one that failed.
    Untouched(Option<String>),
}

/// Hands over what is ready, in order, until all is or `stop` fires.
pub(super) async fn hand_over(
    items: &mut [Item],
    inbox: &Arc<dyn Sender>,
    on_failed: OnFailed,
    stop: &Stop,
) {
    let limits = inbox.limits();
    let holds = on_failed == OnFailed::Hold;
    // Those of whom nothing more may go.
    let mut halted: HashSet<Who> = HashSet::new();
    let mut next = 0;
    while next < items.len() && !stop.fired() {
        let (mut places, mut messages, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut in_call = HashSet::new();
        while let Some(item) = items.get_mut(next) {
            if halted.contains(&item.who) {
                item.fate = Fate::Untouched(None);
            }
            match &mut item.fate {
                Fate::Ready(message) => {
                    let size = inbox.wire_size(message);
                    let full =
                        messages.len() >= limits.batch_max || bytes + size > limits.batch_bytes_max;
                    // Whether the next of a key may go is known once this one has its answer.
                    if !messages.is_empty() && full || holds && in_call.contains(&item.who) {
                        break;
                    }
                    bytes += size;
                    in_call.insert(item.who.clone());
                    places.push(next);
                    messages.push((**message).clone());
                }
                Fate::Elsewhere => drop(halted.insert(item.who.clone())),
                Fate::Refused(_) if holds => drop(halted.insert(item.who.clone())),
                _ => {}
            }
            next += 1;
        }
        if messages.is_empty() {
            continue;
        }
        let verdicts = inbox.send(&messages).await;
        let answered = verdicts.len() == messages.len();
        for (place, verdict) in places.into_iter().zip(verdicts.into_iter().map(Some).chain(
            // Silence never means success.
            std::iter::repeat_with(|| None),
        )) {
            let item = &mut items[place];
            item.fate = match verdict.filter(|_| answered) {
                Some(verdict) => fate(verdict),
                None => Fate::Failed("the hub gave no answer".to_owned()),
            };
            let halts = match &item.fate {
                Fate::Taken => false,
                Fate::Refused(_) => holds,
                _ => true,
            };
            if halts {
                halted.insert(item.who.clone());
            }
        }
    }
}

fn fate(verdict: Verdict) -> Fate {
    match verdict {
        Ok(_) => Fate::Taken,
        Err(SendError::Permanent { reason, cause }) => {
            Fate::Refused(told(&format!("{reason}: {cause}")))
        }
        Err(SendError::Transient { cause, .. }) => Fate::Failed(told(&cause.to_string())),
        Err(SendError::Unreachable { cause, .. }) => {
            Fate::Untouched(Some(told(&cause.to_string())))
        }
        Err(SendError::NotSent) => Fate::Untouched(None),
    }
}

/// As the column of the reason takes it.
pub(super) fn told(reason: &str) -> String {
    shorten(&reason.replace('\0', "\u{fffd}"), REASON_BYTES_MAX).into_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use pabal_core::{Limits, Reason, Receipt};

    use super::*;

    /// Refuses and fails by type; takes three at once.
    #[derive(Debug, Default)]
    struct Picky(Mutex<Vec<Vec<String>>>);

    #[async_trait]
    impl Sender for Picky {
        fn limits(&self) -> Limits {
            Limits { batch_max: 3, ..Limits::one_by_one(usize::MAX) }
        }
        fn wire_size(&self, _: &Message) -> usize {
            1
        }
        async fn send(&self, batch: &[Message]) -> Vec<Verdict> {
            let ids = batch.iter().map(|it| it.origin.id.clone().unwrap_or_default());
            self.0.lock().unwrap().push(ids.collect());
            let mut halted = HashSet::new();
            let verdict = |message: &Message| {
                let verdict = match message.message_type.as_str() {
                    _ if halted.contains(&message.key) => Err(SendError::NotSent),
                    "refused" => return Err(SendError::permanent(Reason::Invalid, "no")),
                    "failing" => Err(SendError::transient("busy")),
                    "paused" => Err(SendError::unreachable("paused")),
                    _ => return Ok(Receipt::default()),
                };
                halted.insert(message.key.clone());
                verdict
            };
            batch.iter().map(verdict).collect()
        }
    }

    fn items(rows: &[(&str, &str)]) -> Vec<Item> {
        let items = rows.iter().enumerate().map(|(number, (key, message_type))| {
            let mut message = Message::new("p/s".parse().unwrap(), *message_type, "");
            message.origin.id = Some(number.to_string());
            message.key = Some((*key).to_owned());
            let fate = match *message_type {
                "elsewhere" => Fate::Elsewhere,
                "unreadable" => Fate::Refused("unreadable".to_owned()),
                _ => Fate::Ready(Box::new(message)),
            };
            Item { id: number.to_string(), who: Who::Key((*key).to_owned()), order: None, fate }
        });
        items.collect()
    }

    async fn hand(rows: &[(&str, &str)], on_failed: OnFailed) -> (String, Vec<Vec<String>>) {
        let mut items = items(rows);
        let picky = Arc::new(Picky::default());
        let inbox = Arc::clone(&picky) as Arc<dyn Sender>;
        hand_over(&mut items, &inbox, on_failed, &Stop::new()).await;
        let letters = items.iter().map(|item| match &item.fate {
            Fate::Ready(_) => '?',
            Fate::Elsewhere => 'e',
            Fate::Taken => 't',
            Fate::Refused(_) => 'r',
            Fate::Failed(_) => 'f',
            Fate::Untouched(_) => 'u',
        });
        let letters = letters.collect();
        let calls = picky.0.lock().unwrap().clone();
        (letters, calls)
    }

    #[tokio::test]
    async fn nothing_of_a_key_overtakes_what_failed_or_is_elsewhere() {
        let rows = [
            ("a", "failing"),
            ("b", "fine"),
            ("c", "elsewhere"),
            ("c", "fine"),
            ("b", "refused"),
            ("a", "fine"),
            ("b", "fine"),
            ("d", "paused"),
            ("d", "fine"),
        ];
        let (letters, calls) = hand(&rows, OnFailed::Pass).await;
        assert_eq!(letters, "fteurutuu");
        let sizes: Vec<_> = calls.iter().map(Vec::len).collect();
        assert_eq!(sizes, [3, 3], "the limit of a call is kept: {calls:?}");
    }

    #[tokio::test]
    async fn a_refused_row_holds_its_key_where_it_is_told_to() {
        let rows = [
            ("a", "fine"),
            ("a", "refused"),
            ("a", "fine"),
            ("b", "unreadable"),
            ("b", "fine"),
            ("c", "fine"),
        ];
        assert_eq!(hand(&rows, OnFailed::Hold).await.0, "trurut");
        assert_eq!(hand(&rows, OnFailed::Pass).await.0, "trtrtt");
    }

    #[tokio::test]
    async fn after_a_stop_nothing_more_is_handed_over() {
        let mut items = items(&[("a", "fine")]);
        let inbox: Arc<dyn Sender> = Arc::new(Picky::default());
        let stop = Stop::new();
        stop.fire();
        hand_over(&mut items, &inbox, OnFailed::Pass, &stop).await;
        assert!(matches!(items[0].fate, Fate::Ready(_)));
    }
}
