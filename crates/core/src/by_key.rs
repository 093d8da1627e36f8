//! The order in a batch, for transports that pipeline.

use std::collections::HashMap;

use futures_util::future::join_all;

use crate::{Message, SendError, Verdict};

/// Sends a batch with the keys side by side and each key in order: the next message of a key starts
/// only after the one ahead of it has a receipt; after a failure the rest of that key gets
/// [`SendError::NotSent`]. Messages without a key wait for nobody.
pub async fn by_key<'a, F, Fut>(batch: &'a [Message], send: F) -> Vec<Verdict>
where
    F: Fn(&'a Message) -> Fut,
    Fut: Future<Output = Verdict>,
{
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut group_of: HashMap<&str, usize> = HashMap::new();
    for (index, message) in batch.iter().enumerate() {
        match &message.key {
            Some(key) => {
                let group = *group_of.entry(key).or_insert_with(|| {
                    groups.push(Vec::new());
                    groups.len() - 1
                });
                groups[group].push(index);
            }
            None => groups.push(vec![index]),
        }
    }
    let send = &send;
    let sent = join_all(groups.into_iter().map(|group| async move {
        let mut verdicts = Vec::with_capacity(group.len());
        let mut failed = false;
        for index in group {
            let verdict = if failed { Err(SendError::NotSent) } else { send(&batch[index]).await };
            failed |= verdict.is_err();
            verdicts.push((index, verdict));
        }
        verdicts
    }))
    .await;
    let mut verdicts: Vec<Verdict> = batch.iter().map(|_| Err(SendError::NotSent)).collect();
    for (index, verdict) in sent.into_iter().flatten() {
        verdicts[index] = verdict;
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Receipt;

    fn message(key: Option<&str>, body: &'static str) -> Message {
        let mut message = Message::new("p/s".parse().unwrap(), "t", body);
        message.key = key.map(Into::into);
        message
    }

    #[tokio::test]
    async fn after_a_failure_the_rest_of_that_key_is_not_sent_and_other_keys_pass() {
        let batch = [
            message(Some("a"), "1"),
            message(Some("b"), "bad"),
            message(Some("b"), "2"),
            message(Some("a"), "3"),
            message(None, "bad"),
            message(None, "4"),
        ];
        let verdicts = by_key(&batch, async |message| {
            if message.body.inline().unwrap() == "bad" {
                Err(SendError::transient("no"))
            } else {
                Ok(Receipt::default())
            }
        })
        .await;
        let shape: Vec<_> = verdicts
            .iter()
            .map(|verdict| match verdict {
                Ok(_) => "ok",
                Err(SendError::NotSent) => "not sent",
                Err(_) => "failed",
            })
            .collect();
        assert_eq!(shape, ["ok", "failed", "not sent", "ok", "failed", "ok"]);
    }
}
