//! Waiting for events, never for a guessed time: every wait ends with the event, or fails the test
//! at a limit that is far beyond what it should take.

use std::time::Duration;

/// No event a test waits for takes this long, even on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(30);

/// How often a state is asked for that only another process knows.
pub(crate) const POLL: Duration = Duration::from_millis(10);

/// The future's output.
///
/// # Panics
/// If it takes longer than [`LIMIT`]; says what was waited for.
pub async fn within<F: Future>(what: &str, future: F) -> F::Output {
    within_limit(what, LIMIT, future).await
}

pub(crate) async fn within_limit<F: Future>(what: &str, limit: Duration, future: F) -> F::Output {
    match tokio::time::timeout(limit, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: did not happen within {limit:?}"),
    }
}

/// Asks again and again until there is an answer: for what another process does and does not tell.
///
/// # Panics
/// If there is none within [`LIMIT`].
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    within(what, async {
        let mut ticks = tokio::time::interval(POLL);
        loop {
            ticks.tick().await;
            if let Some(answer) = ask().await {
                return answer;
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn asking_ends_with_the_first_answer() {
        let mut asked = 0;
        let answer = until("three", async || {
            asked += 1;
            (asked == 3).then_some("yes")
        })
        .await;
        assert_eq!((answer, asked), ("yes", 3));
    }

    #[tokio::test]
    #[should_panic(expected = "rain: did not happen within 1ms")]
    async fn a_wait_without_an_event_fails_at_the_limit() {
        within_limit("rain", Duration::from_millis(1), std::future::pending::<()>()).await;
    }
}
