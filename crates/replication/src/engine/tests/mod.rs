//! What an engine does, told as short stories with real replicas.

mod lab;
mod members;
mod requests;
mod starts;
