//! Citizens who submit forms and change them, whether the service answers or not.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pabal_tests::{client, within};
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinSet};

/// How often each form is changed.
const AMENDMENTS: usize = 4;
/// How soon a form is submitted again.
const AGAIN: Duration = Duration::from_millis(20);

/// Citizens at work.
pub(crate) struct Citizens {
    enough: Arc<AtomicBool>,
    answered: watch::Sender<usize>,
    at_work: JoinSet<Experience>,
}

/// What they were told, by their forms' numbers.
#[derive(Debug, Default)]
pub(crate) struct Experience {
    /// Forms that were taken, as the service answered.
    pub(crate) taken: Vec<String>,
    /// Forms that were changed, once for each change, as the service answered.
    pub(crate) amended: Vec<String>,
    /// Requests that the service had and did not answer.
    pub(crate) cut_off: usize,
}

impl Citizens {
    /// So many, each with one form after the other at `url`.
    pub(crate) fn start(count: usize, url: &str) -> Self {
        let (enough, answered) = (Arc::new(AtomicBool::new(false)), watch::Sender::new(0));
        let mut at_work = JoinSet::new();
        for citizen in 0..count {
            at_work.spawn(work(citizen, url.to_owned(), enough.clone(), answered.clone()));
        }
        Self { enough, answered, at_work }
    }

    /// Waits until so many more requests were answered.
    pub(crate) async fn wait_for_more(&self, count: usize) {
        let mut answered = self.answered.subscribe();
        let enough = *answered.borrow() + count;
        let more = answered.wait_for(|answered| *answered >= enough);
        within(&format!("{count} more answers"), more).await.unwrap();
    }

    /// Lets each finish the form in hand.
    pub(crate) async fn stop(self) -> Experience {
        self.enough.store(true, Ordering::Relaxed);
        let mut all = Experience::default();
        for one in within("the citizens' end", self.at_work.join_all()).await {
            all.taken.extend(one.taken);
            all.amended.extend(one.amended);
            all.cut_off += one.cut_off;
        }
        all
    }
}

struct Citizen {
    client: reqwest::Client,
    answered: watch::Sender<usize>,
    experience: Experience,
}

impl Citizen {
    /// The status of the answer, if there is one and the service did not fail.
    async fn ask(&mut self, request: reqwest::RequestBuilder, body: &Value) -> Option<u16> {
        let request = request.header("content-type", "application/json").body(body.to_string());
        match within("an answer or none", request.send()).await {
            Ok(reply) if reply.status().is_server_error() => None,
            Ok(reply) => {
                self.answered.send_modify(|count| *count += 1);
                Some(reply.status().as_u16())
            }
            Err(error) => {
                self.experience.cut_off += usize::from(!error.is_connect());
                None
            }
        }
    }
}

async fn work(
    name: usize,
    url: String,
    enough: Arc<AtomicBool>,
    answered: watch::Sender<usize>,
) -> Experience {
    let mut citizen = Citizen { client: client(), answered, experience: Experience::default() };
    for form in 0.. {
        let number = format!("{name}-{form}");
        let body = json!({ "number": number, "applicant": "김파발", "region": "11" });
        // The same form again until somebody says that it was taken.
        let status = within("an answer to a form", async {
            let mut ticks = tokio::time::interval(AGAIN);
            loop {
                ticks.tick().await;
                if let Some(status) = citizen.ask(citizen.client.post(&url), &body).await {
                    return status;
                }
            }
        })
        .await;
        assert!(matches!(status, 200 | 201), "{status}");
        citizen.experience.taken.push(number.clone());
        for amendment in 0..AMENDMENTS {
            // Nobody knows whether a change without an answer was made; a citizen goes on.
            let region = format!("{number}/{amendment}");
            let put = citizen.client.put(format!("{url}/{number}"));
            if let Some(status) = citizen.ask(put, &json!({ "region": region })).await {
                assert_eq!(status, 204);
                citizen.experience.amended.push(number.clone());
            }
        }
        if enough.load(Ordering::Relaxed) {
            break;
        }
    }
    citizen.experience
}
