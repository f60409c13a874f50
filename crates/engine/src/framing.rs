//! Messages of the data port in the stream of a connection.

use bytes::{Bytes, BytesMut};
use tether_replication::wire::{self, HEADER_BYTES, Header, Message, WireError};

use crate::host::{ConnId, Inbox, Io};

/// The receiving side: a header that waits for its payload, or nothing.
#[derive(Debug, Default)]
pub struct Framing {
    pending: Option<Header>,
}

impl Framing {
    /// The next message, if all of it is there. After an error the connection is of no use.
    pub fn next(&mut self, inbox: &mut Inbox) -> Result<Option<Message>, WireError> {
        let header = if let Some(header) = self.pending.take() {
            header
        } else {
            let Some(start) = inbox.stream().first_chunk::<HEADER_BYTES>() else { return Ok(None) };
            let header = Header::decode(start)?;
            bytes::Buf::advance(inbox.stream(), HEADER_BYTES);
            header
        };
        let len = header.payload as usize;
        let payload = match len {
            0 => Some(Bytes::new()),
            _ if header.carries_data() => inbox.payload(len),
            _ => inbox.take(len),
        };
        let Some(payload) = payload else {
            self.pending = Some(header);
            return Ok(None);
        };
        wire::decode_parts(&header, payload).map(Some)
    }
}

/// Sends a message: the header, then the payload as it is.
pub fn send(conn: ConnId, (header, payload): ([u8; HEADER_BYTES], Bytes), headers: &mut Headers, io: &mut Io) {
    io.send(conn, headers.keep(&header));
    io.send(conn, payload);
}

/// Headers on their way out share allocations, some hundred to one.
#[derive(Debug, Default)]
pub struct Headers {
    room: BytesMut,
}

/// Room for this many headers at once: the allocation is paid for by a few dozen messages.
const HEADERS_AT_ONCE: usize = 64;

impl Headers {
    fn keep(&mut self, header: &[u8; HEADER_BYTES]) -> Bytes {
        if self.room.capacity() < HEADER_BYTES {
            self.room.reserve(HEADERS_AT_ONCE * HEADER_BYTES);
        }
        self.room.extend_from_slice(header);
        self.room.split().freeze()
    }
}
