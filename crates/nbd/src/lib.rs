//! The server side of NBD, without a socket.
//!
//! Bytes in, bytes and requests out: [`handshake::Handshake`] takes a connection from its first byte to an
//! agreed export, [`session::Session`] reads commands from there on and renders replies. Who moves the bytes,
//! and who serves the blocks, is not known here; that keeps both machines testable byte by byte.
//!
//! Fixed newstyle only. Structured replies, block status (`base:allocation`), FUA, trim, write-zeroes and
//! resizing are offered when the export says so. A client that breaks the protocol is told why as far as the
//! protocol can tell it, and is then cut off; nothing it sends makes the server panic or allocate without bound.

pub mod handshake;
pub mod session;
pub mod wire;
