//! `pabal pause` and `pabal resume`

use anyhow::Result;
use pabal_core::LinkState;

use crate::{api::types::LinkAct, cli::Link, client::Client, operator, out};

pub(super) async fn act(client: &Client, link: Link, verb: &str, json: bool) -> Result<()> {
    let given = LinkAct { why: link.why, by: operator::name() };
    let state: LinkState = client.post(&format!("/links/{}/{verb}", link.endpoint), &given).await?;
    if json {
        return out::json(&state);
    }
    match state.paused {
        Some(paused) => out::line(format_args!(
            "{} is paused by {}; `pabal resume {0}` lets it go on",
            state.endpoint, paused.by
        )),
        None => out::line(format_args!("{} is not paused", state.endpoint)),
    }
    Ok(())
}
