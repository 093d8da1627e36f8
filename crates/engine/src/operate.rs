//! Operators' verbs that need the engine: replay of every kind, and routing again.

use pabal_core::{
    DeadKind, DeadLetter, DeadLetterQuery, DeadReason, MessageId, MessageQuery, OperatorAct,
    Routing, SendError, StoreError,
};
use serde::{Deserialize, Serialize};

use crate::{Engine, router::Routed};

/// Dead letters or messages handled in one go.
const PAGE: usize = 500;

/// What a replay did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayReport {
    /// Deliveries queued again with their old numbers.
    pub queued: u64,
    /// Arrivals that were now taken.
    pub taken: u64,
    /// Routing questions that now have an answer.
    pub routed: u64,
    /// Those still dead, with the reason; or no longer there.
    pub refused: Vec<(i64, String)>,
}

impl Engine {
    /// Replays dead letters of every kind: deliveries are queued again, arrivals are read again,
    /// routing questions are asked again. What is already replayed is not replayed twice.
    ///
    /// # Errors
    /// If the store cannot.
    pub async fn replay(&self, ids: &[i64], act: &OperatorAct) -> Result<ReplayReport, StoreError> {
        let mut report = ReplayReport::default();
        for ids in ids.chunks(PAGE) {
            let query = DeadLetterQuery { ids: ids.to_vec(), ..DeadLetterQuery::default() };
            let letters = self.store.dead_letters(&query).await?;
            let gone = ids.iter().filter(|id| !letters.iter().any(|letter| letter.id == **id));
            report.refused.extend(gone.map(|id| (*id, "it is no longer there".to_owned())));
            let deliveries: Vec<_> =
                letters.iter().filter(|l| l.kind == DeadKind::Delivery).map(|l| l.id).collect();
            if !deliveries.is_empty() {
                report.queued += self.store.replay(&deliveries, act).await?.len() as u64;
            }
            for letter in &letters {
                let done = match letter.kind {
                    DeadKind::Delivery => continue,
                    DeadKind::Source => {
                        self.read_again(letter, act).await?.map(|()| &mut report.taken)
                    }
                    DeadKind::Routing => {
                        self.ask_again(letter, act).await?.map(|()| &mut report.routed)
                    }
                };
                match done {
                    Ok(count) => *count += 1,
                    Err(why) => report.refused.push((letter.id, why)),
                }
            }
        }
        self.wake();
        Ok(report)
    }

    async fn read_again(
        &self,
        letter: &DeadLetter,
        act: &OperatorAct,
    ) -> Result<Result<(), String>, StoreError> {
        if letter.reason == DeadReason::Conflict {
            let why = "another content is held under its id: discard it, or have it sent under a \
                       new id";
            return Ok(Err(why.to_owned()));
        }
        let Some(inbox) = self.own_inbox(&letter.endpoint) else {
            return Ok(Err(format!("there is no source {} any more", letter.endpoint)));
        };
        let Some(mut message) = self.store.dead_message(letter.id).await? else {
            return Ok(Err("it is no longer there".to_owned()));
        };
        // The same for whoever presses first, so that two operators take one message.
        message.origin.id.get_or_insert_with(|| format!("dead-letter-{}", letter.id));
        match inbox.take_again(message).await {
            Ok(_) => {
                // Taken under its own id it is closed already; under a new one it is closed here.
                self.store.discard(&[letter.id], act).await?;
                Ok(Ok(()))
            }
            Err(error) => Ok(Err(error.to_string())),
        }
    }

    async fn ask_again(
        &self,
        letter: &DeadLetter,
        act: &OperatorAct,
    ) -> Result<Result<(), String>, StoreError> {
        let message = match letter.message {
            Some(id) => self.store.message_content(id).await?,
            None => None,
        };
        let Some(message) = message else {
            return Ok(Err("its message is gone".to_owned()));
        };
        let (router, destination) = (std::sync::Arc::clone(&self.router), letter.endpoint.clone());
        let id = message.id;
        let asked = tokio::task::spawn_blocking(move || router.ask(&destination, &message))
            .await
            .unwrap_or_else(|panic| Err(panic.to_string()));
        match asked {
            Ok(wanted) => {
                let destinations = if wanted { vec![letter.endpoint.clone()] } else { Vec::new() };
                let routing = Routing {
                    message: id,
                    destinations,
                    faults: Vec::new(),
                    dead_letter: Some(letter.id),
                };
                self.store.route(&[routing], act).await?;
                Ok(Ok(()))
            }
            Err(fault) => Ok(Err(fault)),
        }
    }

    /// Routes messages that nobody took again, oldest first; `None`: all of them. How many
    /// deliveries that made.
    ///
    /// # Errors
    /// If the store cannot.
    pub async fn reroute(
        &self,
        messages: Option<&[MessageId]>,
        act: &OperatorAct,
    ) -> Result<u64, StoreError> {
        let ids = match messages {
            Some(ids) => ids.to_vec(),
            None => self.unrouted().await?,
        };
        let mut made = 0;
        for ids in ids.chunks(PAGE) {
            let mut routings = Vec::new();
            for id in ids {
                let Some(message) = self.store.message_content(*id).await? else {
                    continue;
                };
                let router = std::sync::Arc::clone(&self.router);
                let asked = move || router.route(&message, None);
                let routed = tokio::task::spawn_blocking(asked)
                    .await
                    .unwrap_or_else(|panic| Err(SendError::transient(panic.to_string())));
                match routed {
                    Ok(Routed { destinations, faults })
                        if !destinations.is_empty() || !faults.is_empty() =>
                    {
                        let message = *id;
                        routings.push(Routing { message, destinations, faults, dead_letter: None });
                    }
                    Ok(_) => {}
                    Err(error) => tracing::warn!(message_id = %id, %error, "it stays unrouted"),
                }
            }
            made += self.store.route(&routings, act).await?;
        }
        self.wake();
        Ok(made)
    }

    async fn unrouted(&self) -> Result<Vec<MessageId>, StoreError> {
        let mut ids = Vec::new();
        let mut query =
            MessageQuery { unrouted: true, limit: PAGE as u32, ..MessageQuery::default() };
        loop {
            let page = self.store.messages(&query).await?;
            query.after = page.last().map(|message| message.sequence);
            let complete = page.len() < PAGE;
            ids.extend(page.into_iter().map(|message| message.id));
            if complete {
                ids.reverse();
                return Ok(ids);
            }
        }
    }
}
