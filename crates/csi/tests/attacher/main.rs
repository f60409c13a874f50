//! The attacher between an API server, in process, and a scripted driver on a socket.

// Test code fails by panicking; the helpers outside of #[test] functions do too.
#![allow(clippy::unwrap_used)]

mod attach;
mod detach;
mod drift;
mod lab;
mod life;
