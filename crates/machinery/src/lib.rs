//! Kubernetes API machinery as pure functions over JSON values.
//!
//! Everything that an API server decides about an object — is it well formed, which defaults does it
//! get, what does a patch make of it, who owns which field, how is it printed — lives here and takes
//! values and returns values. There is no clock, no socket and no store; `tether-apiserver` brings those.
//!
//! Built-in kinds and custom resources share one path: both are described by a [`schema::Schema`], and
//! schema-driven code never asks which of the two it has in hand. What is particular to a built-in kind
//! (its defaults, what may change on update, how it prints) is a strategy in [`kinds`].

pub mod apart;
pub mod apply;
pub mod builtin;
pub mod crd;
pub mod field;
pub mod go;
pub mod json;
pub mod json_members;
mod json_syntax;
pub mod kinds;
pub mod meta;
pub mod names;
pub mod openapi;
pub mod patch;
pub mod proto;
pub mod quantity;
pub mod remote_command;
pub mod schema;
pub mod selector;
pub mod status;
pub mod table;
pub mod version;

#[cfg(test)]
mod testing;
