//! The configuration: TOML files become a checked plan of plain data.
//!
//! [`load`] reads `hub.toml` and `partners/*.toml` and either gives a [`Config`] or all [`Faults`]
//! of all files at once, each with file, line, key and remedy. Nothing here opens a connection or
//! compiles an expression; what others find wrong with a value is brought to its line by
//! [`Config::fault_at`].

mod adapter_table;
mod adapters;
mod effective;
mod fault;
mod hub;
mod known;
mod load;
mod parse;
mod partner;
mod place;
mod plan;
mod rate;
mod redact;
mod retention;
mod secrets;
mod source;
mod store;

pub use adapters::AdapterNames;
pub use fault::{Fault, Faults};
pub use hub::{AdminConfig, HttpConfig, HubConfig, LogConfig, LogFormat, TlsConfig};
pub use load::{Loaded, load, load_all, load_hub};
pub use place::Position;
pub use plan::{
    AdapterConfig, AnswerConfig, AnswerFormat, Config, Contact, DestinationConfig, Else,
    HotCacheConfig, IdentifyConfig, JqText, MissingId, OnInvalid, PartnerConfig, SourceConfig,
};
pub use rate::Rate;
pub use secrets::ConfigSecrets;
pub use store::StoreConfig;
