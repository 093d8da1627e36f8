//! `pabal pause` and `pabal resume`

use anyhow::Result;

use crate::{
    api::types::{LinkAct, Linked},
    cli::Link,
    client::Client,
    operator, out,
};

pub(super) async fn act(client: &Client, link: Link, verb: &str, json: bool) -> Result<()> {
    let given = LinkAct { why: link.why, by: operator::name() };
    let done: Linked = client.post(&format!("/links/{}/{verb}", link.endpoint), &given).await?;
    if json {
        return out::json(&done);
    }
    let state = done.state;
    match state.paused {
        Some(paused) => out::line(format_args!(
            "{} is paused by {}; `pabal resume {0}` lets it go on",
            state.endpoint, paused.by
        )),
        None if done.was_paused => out::line(format_args!("{} is resumed", state.endpoint)),
        None => out::line(format_args!(
            "{} was not paused; if it is held, it is tried again now",
            state.endpoint
        )),
    }
    Ok(())
}
