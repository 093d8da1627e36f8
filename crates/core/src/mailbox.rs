//! Destinations that nobody sends to: the partner fetches its messages itself, and says of each what
//! became of it.

use std::{fmt::Debug, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{Delivery, Message, MessageId, Number, Order, ReceiveError, Settled, Stop};

/// What a handed-out message failed of when nothing was heard of it in time.
pub const LAPSED: &str = "nothing was heard of it before its lease lapsed";

/// Lets the partner of one destination fetch its messages: the counterpart of [`crate::Receiver`] on
/// the way out. Every node runs one; a load balancer may stand in front of them.
#[async_trait]
pub trait Pickup: Debug + Send + Sync {
    /// For how long a message that was handed out is not handed out again.
    fn lease(&self) -> Duration;

    /// Serves what lies in `mailbox`. Once `stop` fires it serves nothing new, finishes what is in
    /// hand, and returns.
    ///
    /// # Errors
    /// If it cannot go on by itself; the engine runs it again after a pause.
    async fn run(&self, mailbox: Arc<dyn Mailbox>, stop: Stop) -> Result<(), ReceiveError>;
}

/// Where the messages of one destination lie until their partner has them.
///
/// Of one key only the oldest is handed out, and nothing behind it before it is settled. What was
/// handed out and not heard of before its lease lapses comes again, and the attempt counts; it then
/// goes alone, so that a message that kills its reader takes no other with it.
#[async_trait]
pub trait Mailbox: Debug + Send + Sync {
    /// Hands out up to `max` messages, the oldest first. While there is none it waits, at most for
    /// `wait`. Dropping the future before it returns takes nothing and spends no attempt.
    ///
    /// # Errors
    /// Why nothing is handed out at all.
    async fn pull(&self, max: usize, wait: Duration) -> Result<Vec<Pulled>, PullError>;

    /// The partner holds these: one answer each. It counts also after the lease has lapsed.
    ///
    /// # Errors
    /// If it is not known to be written: the same again.
    async fn ack(&self, which: &[Handout]) -> Result<Vec<Settled>, PullError>;

    /// The partner did not take these: one answer each. It counts only from who had the message
    /// last.
    ///
    /// # Errors
    /// If it is not known to be written: the same again.
    async fn nack(&self, which: &[Handout], why: &Refusal) -> Result<Vec<Settled>, PullError>;
}

/// One time that a message was handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handout {
    /// The order number of the delivery, ...
    pub number: Number,
    /// ... its message, ...
    pub message: MessageId,
    /// ... in which round.
    pub round: u32,
    /// For the so-manieth time, from 1.
    pub attempt: u32,
}

/// A message in its partner's hands.
#[derive(Debug)]
pub struct Pulled {
    /// What the partner names when it says what became of it.
    pub handout: Handout,
    /// The message.
    pub message: Message,
    /// Its room in memory; to be dropped with the body and not before.
    pub room: Box<dyn Debug + Send + Sync>,
}

/// Why a partner did not take a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refusal {
    /// Not again before this time from now; `None`: as the destination's retry policy says.
    pub delay: Option<Duration>,
    /// What the partner says of it.
    pub reason: Option<String>,
    /// It will never be taken as it stands: a dead letter at once.
    pub permanent: bool,
}

/// Why a mailbox gives and takes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PullError {
    /// An operator paused the destination.
    #[error("the destination is paused")]
    Paused,
    /// For the moment, for lack of a store or of room.
    #[error("{0}")]
    Unavailable(String),
}

/// What a pull asks a store for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullAsk {
    /// What may not overtake what.
    pub order: Order,
    /// Where to look.
    pub scan: Scan,
    /// At most so many deliveries, ...
    pub max: usize,
    /// ... with bodies of so many bytes together; one is handed out whatever its size.
    pub bytes_max: u64,
    /// They are not due again before.
    pub lease: Duration,
    /// What was handed out so often is not handed out again.
    pub attempts_max: u32,
    /// Only what never lapsed: nothing that has to go alone.
    pub unsuspected: bool,
}

/// Where to look for deliveries. A scan is cut into pages that cost about the same, whatever waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scan {
    /// In order of their numbers, above this one: the oldest first.
    Numbers(Number),
    /// The first of each key, behind this slot and key: past a key however deep.
    Keys(Option<(u8, Arc<str>)>),
}

/// What a store found in one page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullPage {
    /// Handed out from now on, each as it stood before: it may have lapsed.
    pub taken: Vec<Delivery>,
    /// Not handed out: all attempts are spent, and the last one has lapsed.
    pub spent: Vec<Delivery>,
    /// Where the scan goes on; `None`: there is no more.
    pub next: Option<Scan>,
    /// When the first of those that were passed over is due, if time is all it lacks.
    pub due_in: Option<Duration>,
}

impl PullAsk {
    /// Which of these deliveries, all due and in order of their numbers, are handed out, and which
    /// never again: what has lapsed goes alone, once it is the oldest, and spent ones not at all.
    #[must_use]
    pub fn choose(&self, due: Vec<Delivery>) -> (Vec<Delivery>, Vec<Delivery>) {
        let is_spent = |it: &Delivery| {
            it.started > 0 && it.attempts.saturating_add(it.started) >= self.attempts_max
        };
        let (spent, mut taken): (Vec<_>, Vec<_>) = due.into_iter().partition(is_spent);
        match taken.first() {
            Some(first) if first.started > 0 => taken.truncate(1),
            _ => taken.retain(|it| it.started == 0),
        }
        let mut bytes = 0_u64;
        let fits = taken.iter().take(self.max).take_while(|it| {
            let first = bytes == 0;
            bytes = bytes.saturating_add(it.size.max(1));
            first || bytes <= self.bytes_max
        });
        let fits = fits.count();
        taken.truncate(fits);
        (taken, spent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(number: Number, attempts: u32, started: u32, size: u64) -> Delivery {
        Delivery {
            number,
            message: MessageId::UNASSIGNED,
            destination: "p/d".parse().unwrap(),
            slot: 0,
            key: None,
            attempts,
            round: 0,
            started,
            due_in: Duration::ZERO,
            age: Duration::ZERO,
            size,
        }
    }

    fn chosen(max: usize, due: &[Delivery]) -> (Vec<Number>, Vec<Number>) {
        let ask = PullAsk {
            order: Order::Key,
            scan: Scan::Numbers(0),
            max,
            bytes_max: 10,
            lease: Duration::from_secs(60),
            attempts_max: 3,
            unsuspected: false,
        };
        let (taken, spent) = ask.choose(due.to_vec());
        let numbers = |all: Vec<Delivery>| all.iter().map(|it| it.number).collect();
        (numbers(taken), numbers(spent))
    }

    #[test]
    fn what_has_lapsed_goes_alone_and_what_is_spent_not_at_all() {
        let fresh = |number| due(number, 0, 0, 1);
        assert_eq!(chosen(9, &[fresh(1), due(2, 0, 1, 1), fresh(3)]), (vec![1, 3], vec![]));
        assert_eq!(chosen(9, &[due(1, 1, 1, 1), fresh(2), due(3, 0, 1, 1)]), (vec![1], vec![]));
        assert_eq!(chosen(9, &[due(1, 2, 1, 1), fresh(2)]), (vec![2], vec![1]));
        // What was refused so often, and not handed out since, has its last attempt before it.
        assert_eq!(chosen(9, &[due(1, 2, 0, 1)]), (vec![1], vec![]));
    }

    #[test]
    fn a_batch_is_bounded_in_number_and_bytes_and_one_of_any_size_goes() {
        let of = |sizes: &[u64]| -> Vec<_> {
            (1..).zip(sizes).map(|(number, size)| due(number, 0, 0, *size)).collect()
        };
        assert_eq!(chosen(2, &of(&[1, 1, 1])).0, [1, 2]);
        assert_eq!(chosen(9, &of(&[4, 6, 1])).0, [1, 2]);
        assert_eq!(chosen(9, &of(&[99, 1])).0, [1]);
        assert_eq!(chosen(9, &of(&[0, 99])).0, [1]);
        assert_eq!(chosen(9, &[]).0, [] as [Number; 0]);
    }
}
