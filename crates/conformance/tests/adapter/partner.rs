//! The sending half within the process.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use async_trait::async_trait;
use pabal_conformance::adapter::{Arrived, BODY_BYTES_MAX, Fault, Partner};
use pabal_core::{
    Bytes, Headers, Limits, Message, Reason, Receipt, SendError, Sender, Verdict, by_key,
};
use tokio::{sync::watch, task::yield_now};

use crate::Mistake;

const BATCH_MAX: usize = 10;
const ENVELOPE_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug, Clone)]
pub(super) struct Place(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    mistake: Mistake,
    fault: Mutex<Option<Fault>>,
    arrived: Mutex<Vec<Arrived>>,
    /// Has a receipt, and arrives with the next one.
    on_its_way: Mutex<Option<Arrived>>,
    mended: watch::Sender<bool>,
    sends: AtomicUsize,
    broken: AtomicBool,
    busy: AtomicBool,
}

impl Place {
    pub(super) fn new(mistake: Mistake) -> Self {
        Self(Arc::new(Inner {
            mistake,
            fault: Mutex::default(),
            arrived: Mutex::default(),
            on_its_way: Mutex::default(),
            mended: watch::Sender::default(),
            sends: AtomicUsize::default(),
            broken: AtomicBool::default(),
            busy: AtomicBool::default(),
        }))
    }
}

#[async_trait]
impl Partner for Place {
    async fn sender(&self) -> Arc<dyn Sender> {
        Arc::new(self.clone())
    }

    async fn arrived(&self) -> Vec<Arrived> {
        self.0.arrived.lock().unwrap().clone()
    }

    async fn fail(&self, fault: Fault) {
        self.0.mended.send_replace(false);
        *self.0.fault.lock().unwrap() = Some(fault);
    }

    async fn mend(&self) {
        *self.0.fault.lock().unwrap() = None;
        self.0.mended.send_replace(true);
    }
}

fn wire_bytes(message: &Message) -> usize {
    let envelope: usize =
        envelope(message).iter().map(|(name, value)| name.len() + value.len()).sum();
    message.body.size() as usize + envelope
}

fn envelope(message: &Message) -> Headers {
    let fields = [
        ("ce-source", Some(message.origin.source.clone())),
        ("ce-originid", message.origin.id.clone()),
        ("ce-type", Some(message.message_type.clone())),
        ("ce-partitionkey", message.key.clone()),
        ("ce-keyversion", message.version.map(|version| version.to_string())),
        ("ce-dataschema", message.schema.clone()),
        ("ce-time", message.time.clone()),
        ("ce-subject", message.subject.clone()),
        ("ce-correlationid", message.correlation.clone()),
        ("ce-causationid", message.causation.clone()),
        ("traceparent", message.trace.clone()),
        ("content-type", message.content_type.clone()),
    ];
    let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let others = message.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
    fields.chain(others).collect()
}

/// Set while it lives; stays set if nobody clears it.
struct Busy<'a>(&'a AtomicBool, bool);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if self.1 {
            self.0.store(false, Ordering::SeqCst);
        }
    }
}

impl Inner {
    fn arrival(&self, message: &Message) -> Arrived {
        let is = |case| self.mistake.is(case);
        let mut body = message.body.inline().unwrap().clone();
        let mut headers = envelope(message);
        let mut id = message.id.to_string();
        if is("every_byte_arrives") {
            body = Bytes::from(String::from_utf8_lossy(&body).into_owned());
        }
        if is("every_header_arrives") {
            headers = headers.iter().map(|(name, value)| (name, value.trim_matches('f'))).collect();
        }
        if is("the_envelope_arrives") {
            headers = headers.iter().filter(|(name, _)| *name != "ce-subject").collect();
        }
        let sends = self.sends.fetch_add(1, Ordering::SeqCst);
        if is("a_repeat_carries_the_same_id_and_bytes") && sends > 0 {
            id = format!("{id}-{sends}");
        }
        Arrived { id, headers, body, wire_bytes: Some(wire_bytes(message)) }
    }

    async fn one(self: &Arc<Self>, message: &Message) -> Verdict {
        let is = |case| self.mistake.is(case);
        let alone = is("one_slow_message_delays_no_other_key")
            || is("a_send_dropped_while_it_waits_takes_no_other_with_it")
            || is("a_send_dropped_at_any_point_loses_nothing");
        if alone && self.busy.swap(true, Ordering::SeqCst) {
            return Err(SendError::transient("there is something in flight"));
        }
        let mut busy = Busy(&self.busy, is("one_slow_message_delays_no_other_key"));
        yield_now().await;
        if wire_bytes(message) > BODY_BYTES_MAX + ENVELOPE_BYTES_MAX {
            return Err(SendError::permanent(Reason::TooLarge, "over the limit"));
        }
        if is("the_largest_message_arrives") && wire_bytes(message) > BODY_BYTES_MAX {
            return Err(SendError::permanent(Reason::TooLarge, "over another limit"));
        }
        let fault = *self.fault.lock().unwrap();
        let held = match fault {
            Some(Fault::OutOfReach) => {
                self.broken.store(true, Ordering::SeqCst);
                return Err(SendError::unreachable("nobody is there"));
            }
            Some(Fault::Pause(time)) => {
                let told = !is("a_wish_to_be_left_alone_is_passed_on");
                let retry_after = told.then_some(time);
                return Err(SendError::Transient { cause: "busy".into(), retry_after });
            }
            Some(Fault::Refuse(id)) if id == message.id => {
                return Err(SendError::permanent(Reason::Invalid, "not like this"));
            }
            Some(Fault::Fail(id)) if id == message.id => {
                return Err(match is("a_failure_is_for_now_and_spares_the_neighbours") {
                    true => SendError::permanent(Reason::Refused, "not now"),
                    false => SendError::transient("not now"),
                });
            }
            Some(Fault::Cut) => {
                *self.fault.lock().unwrap() = None;
                self.arrived.lock().unwrap().push(self.arrival(message));
                return Err(match is("what_is_cut_after_writing_is_transient_and_mends") {
                    true => SendError::unreachable("cut"),
                    false => SendError::transient("cut"),
                });
            }
            Some(Fault::Hold(id)) => id == message.id,
            _ => false,
        };
        if is("what_cannot_be_reached_is_unreachable_and_mends")
            && self.broken.load(Ordering::SeqCst)
        {
            return Err(SendError::unreachable("the connection is gone for good"));
        }
        if !(is("an_empty_body_arrives") && message.body.size() == 0) {
            let arrival = self.arrival(message);
            let mut arrived = self.arrived.lock().unwrap();
            arrived.extend(self.on_its_way.lock().unwrap().take());
            if is("a_receipt_means_it_arrived") {
                *self.on_its_way.lock().unwrap() = Some(arrival);
            } else {
                arrived.push(arrival);
            }
        }
        if held {
            self.mended.subscribe().wait_for(|mended| *mended).await.unwrap();
        }
        yield_now().await;
        busy.1 = true;
        Ok(Receipt::default())
    }
}

#[async_trait]
impl Sender for Place {
    fn limits(&self) -> Limits {
        let message_bytes_max = match self.0.mistake.is("what_is_too_large_is_refused_for_good") {
            true => usize::MAX,
            false => BODY_BYTES_MAX + ENVELOPE_BYTES_MAX,
        };
        Limits { batch_max: BATCH_MAX, batch_bytes_max: message_bytes_max, message_bytes_max }
    }

    fn wire_size(&self, message: &Message) -> usize {
        match self.0.mistake.is("no_more_goes_over_the_wire_than_announced") {
            true => message.body.size() as usize,
            false => wire_bytes(message),
        }
    }

    async fn send(&self, batch: &[Message]) -> Vec<Verdict> {
        let is = |case| self.0.mistake.is(case);
        if is("a_key_arrives_in_order") {
            let mut verdicts = Vec::new();
            for message in batch.iter().rev() {
                verdicts.push(self.0.one(message).await);
            }
            verdicts.reverse();
            return verdicts;
        }
        if is("after_a_failure_the_rest_of_its_key_is_not_sent") {
            let mut verdicts = Vec::new();
            for message in batch {
                verdicts.push(self.0.one(message).await);
            }
            return verdicts;
        }
        let mut verdicts = by_key(batch, |message| self.0.one(message)).await;
        if is("none_one_and_a_full_batch_get_a_verdict_each") && batch.len() == BATCH_MAX {
            verdicts.pop();
        }
        if is("a_refusal_is_for_good_and_spares_the_neighbours")
            && verdicts.iter().any(Result::is_err)
        {
            let whole = SendError::permanent(Reason::Invalid, "one of them");
            verdicts.fill(Err(whole));
        }
        verdicts
    }
}
