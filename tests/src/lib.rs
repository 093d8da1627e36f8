//! The test kit: the real binary, partners that follow a script, a proxy that breaks connections,
//! and programs no one here wrote. Everything listens on free loopback ports, waits for events
//! with a limit, and is gone when it is dropped.
//!
//! ```no_run
//! # async fn example() {
//! use pabal_tests::{Answer, Hub, Partner};
//!
//! let partner = Partner::start().await;
//! partner.next([Answer::status(503), Answer::close_after()]);
//! let mut hub = Hub::setup()
//!     .partner("town", &format!("[source.orders.rest]\nauth = \"none\"\n"))
//!     .partner("welfare", &format!("[destination.orders]\ntakes = [\"*\"]\n[destination.orders.rest]\nurl = \"{}\"\n", partner.url("/orders")))
//!     .start()
//!     .await;
//! hub.hand_over("town/orders", "id-1", &[("ce-partitionkey", "a")], "{}").await;
//! partner.wait_for_taken(1).await;
//! hub.kill9().await;
//! # }
//! ```
//!
//! Several nodes of one hub on one PostgreSQL database, in folders of their own:
//!
//! ```no_run
//! # async fn example(town: &str, welfare: &str) {
//! use pabal_tests::Nodes;
//!
//! let mut nodes = Nodes::start(2, |hub| {
//!     hub.partner("town", town).partner("welfare", welfare).hub_toml("lease = \"2s\"")
//! })
//! .await;
//! nodes.wait_for_lanes("welfare/orders", 4, true).await;
//! nodes.node(0).hand_over("town/orders", "id-1", &[], "{}").await;
//! nodes.node_mut(0).kill9().await;
//! nodes.node(1).freeze();
//! nodes.postgres.restart_immediately().await;
//! nodes.node(1).thaw();
//! # }
//! ```

mod answer;
mod command;
mod free_port;
mod http_client;
mod hub;
mod hub_setup;
mod log;
mod metrics;
mod nodes;
mod operators;
mod partner;
mod proxy;
mod python;
mod service;
mod wait;
mod wall_clock;
mod way_in;

pub use answer::{Answer, Gate};
pub use command::{Ran, built, repository, run};
pub use free_port::free_port;
pub use http_client::{Reply, client};
pub use hub::{Hub, pabal, pabal_binary, pabal_within};
pub use hub_setup::HubSetup;
pub use metrics::Metrics;
pub use nodes::{Nodes, Postgres, Session};
pub use partner::{Outcome, Partner, Request};
pub use proxy::Proxy;
pub use python::{interpreter, python};
pub use service::Service;
pub use wait::{LIMIT, until, within};
pub use way_in::WayIn;
