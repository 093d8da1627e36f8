//! Every case that an adapter must pass, in both forms of CloudEvents.

mod origin;
mod partner;

use async_trait::async_trait;
use pabal_conformance::adapter::{Feature, Origin, Partner, Subject, check};
use pabal_core::Context;
use serde_json::Value;

use crate::support::context;

/// How the envelope travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Binary,
    Structured,
}

impl Form {
    /// Its name in the settings.
    fn mode(self) -> &'static str {
        match self {
            Self::Binary => "binary",
            Self::Structured => "structured",
        }
    }
}

#[async_trait]
impl Subject for Form {
    async fn partner(&self) -> Box<dyn Partner> {
        Box::new(partner::Server::start(*self).await)
    }

    async fn origin(&self) -> Box<dyn Origin> {
        Box::new(origin::Caller::new(*self))
    }
}

fn small(settings: Value) -> Context {
    Context { body_bytes_max: pabal_conformance::adapter::BODY_BYTES_MAX, ..context(settings) }
}

const CANNOT: [(Feature, &str); 2] = [
    (Feature::Batches, "an exchange carries one message"),
    (Feature::Order, "callers decide in which order they hand over"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rest_does_all_that_an_adapter_must() {
    check(&Form::Binary, &CANNOT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rest_does_all_that_an_adapter_must_in_one_document() {
    check(&Form::Structured, &CANNOT).await;
}
