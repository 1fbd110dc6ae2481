//! Handlers of the API's requests. `control` is the service for users, `peer` the service for nodes; each other file
//! handles one kind of request. A request about another node's object is forwarded to that node (`route`).

mod attach;
mod caller_disconnect;
mod channel;
mod children;
mod compare;
mod control;
mod core_dump;
mod dependents;
mod exec;
mod exit_watch;
mod fork;
mod inspect;
mod peer;
mod prewarm;
mod process_owner;
mod route;
mod seeds;
mod settle;
mod speculative_prewarm;
mod start;
mod stream;
mod volume_messages;
mod volumes;
mod wait;
mod zygote;

pub(crate) use channel::open_channel;
pub(crate) use children::{kill, remove};
pub(crate) use control::ControlService;
pub(crate) use dependents::run_lease_expiry;
pub(crate) use exit_watch::watch_children;
pub(crate) use fork::fork;
pub(crate) use peer::PeerService;
pub(crate) use seeds::{drop_seed, prepare_and_wait};
pub(crate) use speculative_prewarm::{prewarm_first_seed, prewarm_next_seed};
