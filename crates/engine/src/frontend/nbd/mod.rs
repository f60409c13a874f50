//! The NBD server: a machine for one connection, and the rules of where it may listen.
//!
//! ```text
//!           received ──►  ┌────────────┐ ──► block::Request  ──► engine
//!   socket  ◄── receive   │ Connection │
//!           ◄── output    │  (+ TLS)   │ ◄── block::Completion ◄── engine
//!           ──► sent      └────────────┘
//! ```
//!
//! **Several connections** of one client (`CAN_MULTI_CONN`) are offered because they are correct here: every
//! connection feeds the one engine of the volume, there is no cache per connection, and the engine's flush covers
//! all writes completed before it, whichever connection carried them.
//!
//! **Reconnecting and replaying.** A connection that is gone does not take its requests back: they complete, and the
//! completions are dropped. A client that comes back and sends an unanswered write again is safe: the engine
//! serialises overlapping requests in the order of their submission, so that the first copy lands before the second,
//! and both before anything the client sends after. With a new engine the same holds, because replicas drain what
//! older epochs had in flight before it serves. It does not hold if *another* engine acknowledged writes in between;
//! [`export::Lineage`] is for clients that replay and want to be refused in that case.

pub mod connection;
pub mod export;
mod flight;
pub mod listen;
mod output;
pub mod tls;

#[cfg(test)]
mod tests;
