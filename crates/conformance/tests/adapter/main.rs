//! The cases of adapters, tried out: an adapter that does all that one must passes them, and for
//! every case there is a mistake that it finds.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail as tests do")]

mod origin;
mod partner;

use async_trait::async_trait;
use pabal_conformance::adapter::{Origin, Partner, Subject, cases, check};

/// An adapter within the process: its other sides are values that both hold.
#[derive(Debug)]
struct Loopback {
    /// By the name of the case that finds it.
    mistake: Option<&'static str>,
}

#[async_trait]
impl Subject for Loopback {
    async fn partner(&self) -> Box<dyn Partner> {
        Box::new(partner::Place::new(Mistake(self.mistake)))
    }

    async fn origin(&self) -> Box<dyn Origin> {
        Box::new(origin::Place::new(Mistake(self.mistake)))
    }
}

/// The mistake that the adapter makes.
#[derive(Debug, Clone, Copy)]
struct Mistake(Option<&'static str>);

impl Mistake {
    /// Whether it is the one that this case finds.
    fn is(self, case: &str) -> bool {
        self.0 == Some(case)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adapter_that_does_all_that_it_must_passes() {
    check(&Loopback { mistake: None }, &[]).await;
}

#[tokio::test]
async fn every_case_finds_a_mistake() {
    let mut missed = Vec::new();
    for case in cases() {
        match case.run(&Loopback { mistake: Some(case.name) }, true).await {
            Ok(()) => missed.push(case.name),
            Err(why) => eprintln!("{case:?}: {why}"),
        }
    }
    assert_eq!(missed, <[&str; 0]>::default());
}
