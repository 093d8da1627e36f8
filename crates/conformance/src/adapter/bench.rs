//! What the cases share: making messages, handing them over, waiting for what follows.

use std::{sync::Arc, time::Duration};

use pabal_core::{
    Body, Bytes, Cause, Headers, Message, MessageId, Reason, ReceiveError, Receiver, SendError,
    Sender, Stop, Verdict,
};
use tokio_util::task::AbortOnDropHandle;

use super::{Arrived, Belief, Fault, Origin, PLAIN_HEADER, Partner, inbox::Inbox};

/// Nothing a case waits for takes this long, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);
/// How often a state is asked for that only the other side knows.
const POLL: Duration = Duration::from_millis(5);

/// The future's output; a case waits no longer than [`LIMIT`] for it.
pub(crate) async fn within<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: did not happen within {LIMIT:?}"),
    }
}

/// Asks again and again until the answer is yes.
async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    within(what, async {
        let mut ticks = tokio::time::interval(POLL);
        while !is().await {
            ticks.tick().await;
        }
    })
    .await;
}

/// Lets everything run that is ready to, on this thread and on others. There is no event for what
/// must not happen; whoever does it wrongly has done it by now on all but the busiest machine, and
/// for sure in a runtime of one thread.
pub(crate) async fn everybody_had_a_turn() {
    for _ in 0..2_000 {
        tokio::task::yield_now().await;
        std::thread::yield_now();
    }
}

/// A message with an id of its own, a key of its own and a body of its own.
pub(crate) fn message(number: usize) -> Message {
    let source = "kit/source".parse().unwrap();
    let body = format!("{{\"number\":{number}}}");
    let mut message = Message::new(source, "thing.happened", body);
    let origin_id = format!("kit-{number}");
    message.id = MessageId::of("kit", &message.source, &message.origin.source, &origin_id);
    message.origin.id = Some(origin_id);
    message.key = Some(format!("key-{number}"));
    message.content_type = Some("application/json".to_owned());
    message
}

/// The same with another body.
pub(crate) fn with_body(number: usize, content_type: &str, body: impl Into<Bytes>) -> Message {
    let mut message = message(number);
    message.content_type = Some(content_type.to_owned());
    message.body = Body::Inline(body.into());
    message
}

/// Messages of one key.
pub(crate) fn of_key(key: &str, numbers: impl IntoIterator<Item = usize>) -> Vec<Message> {
    let with_key = |number| Message { key: Some(key.to_owned()), ..message(number) };
    numbers.into_iter().map(with_key).collect()
}

pub(crate) fn body(message: &Message) -> Bytes {
    message.body.inline().unwrap().clone()
}

/// Bodies in which something gets lost that is not carried byte for byte.
pub(crate) fn bodies() -> Vec<(&'static str, Bytes)> {
    let every_byte: Vec<u8> = (0..=255).collect();
    // No byte order, no repetition: nothing that could be folded or cut at a boundary unnoticed.
    let large: Vec<u8> =
        (0..60_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    vec![
        ("application/octet-stream", every_byte.into()),
        ("application/octet-stream", Bytes::from_static(b"a\0b\0\0")),
        ("application/octet-stream", Bytes::from_static(b"\0")),
        (
            "text/plain; charset=utf-8",
            Bytes::from_static(b"not UTF-8: \xff\xfe\xc3\x28 \xed\xa0\x80"),
        ),
        ("text/plain; charset=euc-kr", Bytes::from_static(b"\xc1\xd6\xb9\xce\xb5\xee\xb7\xcf")),
        ("text/plain", Bytes::from_static(b" \r\nfirst\r\n.\r\n\nlast\n\n ")),
        ("application/json", "{\"이름\":\"홍길동\",  \"주소\" : \"서울특별시 강남구\"}".into()),
        (
            "application/json",
            Bytes::from_static(
                br#"{"n":12345678901234567890,"d":0.10,"e":1E+2,"s":"\u00eb\/","n":-0}"#,
            ),
        ),
        ("application/octet-stream", large.into()),
    ]
}

/// Headers in which something gets lost that is not carried character for character.
pub(crate) fn headers() -> Headers {
    let long = "0123456789abcdef".repeat(250);
    [
        (PLAIN_HEADER, "as it is, with \"quotes\" and = signs"),
        ("ce-kitkorean", "서울특별시 강남구 100%"),
        ("ce-kitdigits", "12345678901234567890"),
        ("ce-kitcase", "AbC%20d"),
        ("ce-kitlong", &long),
    ]
    .into_iter()
    .collect()
}

/// A message that fills every field of the envelope, and what each is called.
pub(crate) fn enveloped() -> (Message, Vec<(&'static str, String)>) {
    let mut message = message(1);
    message.origin.source = "/시청/민원 1".to_owned();
    message.id = MessageId::of("kit", &message.source, &message.origin.source, "kit-1");
    message.key = Some("가족/11 \"7\"".to_owned());
    message.version = Some(9_007_199_254_740_993);
    message.schema = Some("urn:pabal:schema:decision:1.0".to_owned());
    message.time = Some("2026-11-30T12:00:00.123000+09:00".to_owned());
    message.subject = Some("전입 신고 100%".to_owned());
    message.correlation = Some("case 7".to_owned());
    message.causation = Some("kit-0".to_owned());
    message.trace = Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned());
    let names = vec![
        ("ce-source", message.origin.source.clone()),
        ("ce-type", message.message_type.clone()),
        ("ce-partitionkey", message.key.clone().unwrap()),
        ("ce-keyversion", "9007199254740993".to_owned()),
        ("ce-dataschema", message.schema.clone().unwrap()),
        ("ce-time", message.time.clone().unwrap()),
        ("ce-subject", message.subject.clone().unwrap()),
        ("ce-correlationid", message.correlation.clone().unwrap()),
        ("ce-causationid", message.causation.clone().unwrap()),
        ("traceparent", message.trace.clone().unwrap()),
        ("content-type", message.content_type.clone().unwrap()),
    ];
    (message, names)
}

/// The sending half: one sender and its partner.
#[derive(Debug)]
pub struct Outward {
    partner: Box<dyn Partner>,
    pub(crate) sender: Arc<dyn Sender>,
    /// Whether the transport is said to carry more than one message in a call.
    pub(crate) batches: bool,
}

impl Outward {
    pub(crate) async fn new(partner: Box<dyn Partner>, batches: bool) -> Self {
        let sender = partner.sender().await;
        Self { partner, sender, batches }
    }

    pub(crate) async fn fail(&self, fault: Fault) {
        self.partner.fail(fault).await;
    }

    pub(crate) async fn mend(&self) {
        self.partner.mend().await;
    }

    pub(crate) async fn arrived(&self) -> Vec<Arrived> {
        self.partner.arrived().await
    }

    /// All that arrived of one message.
    pub(crate) async fn copies(&self, message: &Message) -> Vec<Arrived> {
        let id = message.id.to_string();
        self.arrived().await.into_iter().filter(|it| it.id == id).collect()
    }

    /// The only copy of a message that must have arrived once.
    pub(crate) async fn copy(&self, message: &Message) -> Arrived {
        let mut copies = self.copies(message).await;
        assert_eq!(copies.len(), 1, "copies of {:?} that arrived", message.origin.id);
        copies.remove(0)
    }

    pub(crate) async fn until_arrived(&self, message: &Message) {
        let what = format!("the arrival of {:?}", message.origin.id);
        until(&what, async || !self.copies(message).await.is_empty()).await;
    }

    /// Hands messages over as the hub does: in calls that keep the limits, and what is larger than
    /// they allow is refused before.
    pub(crate) async fn hand_over(&self, messages: &[Message]) -> Vec<Verdict> {
        let limits = self.sender.limits();
        let mut verdicts = Vec::new();
        let mut call: Vec<Message> = Vec::new();
        let mut bytes = 0;
        for message in messages {
            let size = self.sender.wire_size(message);
            if size > limits.message_bytes_max {
                self.call(&mut call, &mut verdicts).await;
                let cause = Cause::from("too large for the transport");
                verdicts.push(Err(SendError::permanent(Reason::TooLarge, cause)));
                continue;
            }
            if call.len() == limits.batch_max || bytes + size > limits.batch_bytes_max {
                self.call(&mut call, &mut verdicts).await;
                bytes = 0;
            }
            call.push(message.clone());
            bytes += size;
        }
        self.call(&mut call, &mut verdicts).await;
        verdicts
    }

    async fn call(&self, call: &mut Vec<Message>, verdicts: &mut Vec<Verdict>) {
        if !call.is_empty() {
            let given = within("an answer of the sender", self.sender.send(call)).await;
            assert_eq!(given.len(), call.len(), "verdicts for {} messages", call.len());
            verdicts.extend(given);
            call.clear();
        }
    }

    /// What becomes of one message.
    pub(crate) async fn verdict(&self, message: &Message) -> Verdict {
        self.hand_over(std::slice::from_ref(message)).await.remove(0)
    }

    /// Hands over what must be taken.
    pub(crate) async fn deliver(&self, messages: &[Message]) {
        for (verdict, message) in self.hand_over(messages).await.iter().zip(messages) {
            assert!(verdict.is_ok(), "{:?} should be taken: {verdict:?}", message.origin.id);
        }
    }

    /// Hands over while the case does something else.
    pub(crate) fn delivering(&self, message: &Message) -> AbortOnDropHandle<Vec<Verdict>> {
        let (sender, message) = (Arc::clone(&self.sender), message.clone());
        AbortOnDropHandle::new(tokio::spawn(async move { sender.send(&[message]).await }))
    }
}

/// The receiving half: an origin.
#[derive(Debug)]
pub struct Inward {
    origin: Box<dyn Origin>,
}

/// A receiver that runs, until it is dropped at the latest.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) receiver: Arc<dyn Receiver>,
    pub(crate) stop: Stop,
    pub(crate) task: AbortOnDropHandle<Result<(), ReceiveError>>,
}

impl Run {
    pub(crate) fn start(receiver: Arc<dyn Receiver>, inbox: &Arc<Inbox>) -> Self {
        let stop = Stop::new();
        let (running, ended) = (Arc::clone(&receiver), stop.clone());
        let inbox = Arc::clone(inbox) as Arc<dyn Sender>;
        let task = tokio::spawn(async move { running.run(inbox, ended).await });
        Self { receiver, stop, task: AbortOnDropHandle::new(task) }
    }

    /// Returns once it has; gives the receiver back.
    pub(crate) async fn returned(self) -> Arc<dyn Receiver> {
        let ended = within("the return of the receiver after a stop", self.task).await;
        assert!(matches!(ended, Ok(Ok(()))), "it should return in good order: {ended:?}");
        self.receiver
    }
}

impl Inward {
    pub(crate) fn new(origin: Box<dyn Origin>) -> Self {
        Self { origin }
    }

    pub(crate) async fn put(&self, messages: &[Message]) {
        self.origin.put(messages).await;
    }

    pub(crate) async fn offer(&self) {
        self.origin.offer().await;
    }

    pub(crate) async fn believes(&self, message: &Message) -> Belief {
        self.origin.believes(message).await
    }

    /// Runs a new receiver.
    pub(crate) async fn run(&self, inbox: &Arc<Inbox>) -> Run {
        Run::start(self.origin.receiver().await, inbox)
    }

    /// The process dies.
    pub(crate) async fn kill(&self, mut run: Run) {
        run.task.abort();
        let _ = (&mut run.task).await;
        self.end(run.receiver).await;
    }

    /// The process ends while nothing runs. What calls it is gone before the receiver is: nobody
    /// is told that there was never such a source.
    pub(crate) async fn end(&self, receiver: Arc<dyn Receiver>) {
        self.origin.kill().await;
        drop(receiver);
    }

    /// Waits until it is so, while the origin offers what it has.
    pub(crate) async fn until(&self, what: &str, mut is: impl AsyncFnMut() -> bool) {
        until(what, async || {
            self.offer().await;
            is().await
        })
        .await;
    }

    /// Waits until a message was handed over so often; what is settled before is handed over no
    /// more.
    pub(crate) async fn until_handed(&self, inbox: &Inbox, message: &Message, times: usize) {
        let what = format!("hand-over {times} of {:?}", message.origin.id);
        self.until(&what, async || {
            // In this order: it may be settled by the hand-over that is waited for.
            let believed = self.believes(message).await;
            let handed = inbox.handed(message).len();
            assert!(
                handed >= times || believed == Belief::Waiting,
                "{:?} is {believed:?} after {handed} hand-overs of {times}",
                message.origin.id
            );
            handed >= times
        })
        .await;
    }

    /// Waits until the origin knows what became of a message.
    pub(crate) async fn until_settled(&self, run: &Run, message: &Message) -> Belief {
        let mut believed = Belief::Waiting;
        let what = format!("an end of {:?}", message.origin.id);
        self.until(&what, async || {
            let returned = run.task.is_finished();
            believed = self.believes(message).await;
            assert!(!returned || believed != Belief::Waiting, "it returned without a stop");
            believed != Belief::Waiting
        })
        .await;
        believed
    }

    pub(crate) async fn until_acknowledged(&self, run: &Run, message: &Message) {
        let believed = self.until_settled(run, message).await;
        assert_eq!(believed, Belief::Acknowledged, "{:?}", message.origin.id);
    }
}
