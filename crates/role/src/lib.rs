//! What all programs that play a role in a cluster have in common: how they log, reach the API server, say that they are
//! ready, print, and end.

pub mod client;
pub mod logging;
pub mod output;
pub mod process;
