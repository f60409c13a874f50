//! How users reach a volume: what every frontend asks of the engine, and the NBD server.
//!
//! A frontend is a machine without a descriptor: bytes in, [`block::Request`]s out; [`block::Completion`]s in, bytes
//! out. The host moves the bytes, gives requests to the engine and takes completions back to the frontend that
//! [`block::RequestId::client`] names. Kernel devices ([`crate::device`]) speak the same vocabulary.

pub mod block;
pub mod failure;
pub mod nbd;
