//! What was received on a connection and not yet taken, and where the rest is to go.
//!
//! Messages are a short header and sometimes a payload. The machine reads headers from the stream and then
//! asks for the payload by its length. A payload that will be written to a file must be aligned: what is
//! here already is copied once, the rest is received straight into the aligned buffer. So is a large payload
//! that only passes through: such buffers are used again and again. A small one is a slice of the stream, never copied.

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};

use tether_store::AlignedBuf;

/// Room kept for the stream: some small messages at once, so that a deep queue costs few calls.
const STREAM_BYTES: usize = 64 * 1024;
/// Room asked for after a large payload: the next header, and little of the payload behind it,
/// which is then received where it belongs instead of being copied.
const HEADER_FIRST_BYTES: usize = 512;
/// A payload from this size on is large: worth a receive of its own, into a buffer of its own.
const LARGE_PAYLOAD_BYTES: usize = 32 * 1024;

/// Whether payloads must be aligned for direct I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Alignment {
    #[default]
    Any,
    Block,
}

/// The receiving side of a connection.
#[derive(Debug, Default)]
pub struct Inbox {
    stream: BytesMut,
    alignment: Alignment,
    /// What the machine wants to receive at most the next time.
    limit: Option<usize>,
    payload: Option<Payload>,
    last_was_large: bool,
}

#[derive(Debug)]
struct Payload {
    buffer: AlignedBuf,
    filled: usize,
}

impl Inbox {
    pub fn new() -> Self {
        Self::default()
    }

    /// How payloads are laid out from now on.
    pub fn align(&mut self, alignment: Alignment) {
        self.alignment = alignment;
    }

    /// The stream, from the first byte not yet taken.
    pub fn stream(&mut self) -> &mut BytesMut {
        &mut self.stream
    }

    /// At most so many bytes are received the next time; for machines that know where the next payload ends.
    pub fn limit(&mut self, most: usize) {
        self.limit = Some(most.max(1));
    }

    /// Takes the next `len` bytes of the stream if they are all there; no payload for a file, so never aligned.
    pub fn take(&mut self, len: usize) -> Option<Bytes> {
        if self.stream.len() >= len {
            return Some(self.stream.split_to(len).freeze());
        }
        self.stream.reserve(len - self.stream.len());
        None
    }

    /// Takes the next `len` bytes as one payload, or None: then it is collected, and the next event about
    /// this connection comes when it is complete. The machine must ask again with the same length, and must
    /// not touch the stream in between.
    pub fn payload(&mut self, len: usize) -> Option<Bytes> {
        if let Some(payload) = self.payload.take() {
            debug_assert_eq!(payload.buffer.len(), len, "the same payload must be asked for again");
            if payload.filled < len {
                self.payload = Some(payload);
                return None;
            }
            return Some(payload.buffer.freeze());
        }
        self.last_was_large = len >= LARGE_PAYLOAD_BYTES;
        match self.alignment {
            Alignment::Any if !self.last_was_large => self.take(len),
            _ => self.collect(len),
        }
    }

    fn collect(&mut self, len: usize) -> Option<Bytes> {
        let mut buffer = AlignedBuf::new(len);
        let here = self.stream.len().min(len);
        buffer[..here].copy_from_slice(&self.stream.split_to(here));
        if here == len {
            return Some(buffer.freeze());
        }
        self.payload = Some(Payload { buffer, filled: here });
        None
    }

    /// For hosts: where the next bytes go. Never empty.
    pub fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        if let Some(payload) = &mut self.payload {
            return as_uninit(&mut payload.buffer[payload.filled..]);
        }
        if let Some(limit) = self.limit {
            self.stream.reserve(limit);
            let spare = self.stream.spare_capacity_mut();
            return &mut spare[..limit];
        }
        let wanted = if self.last_was_large { HEADER_FIRST_BYTES } else { STREAM_BYTES };
        if self.stream.capacity() - self.stream.len() < wanted.min(STREAM_BYTES / 4) {
            self.stream.reserve(STREAM_BYTES);
        }
        let spare = self.stream.spare_capacity_mut();
        let len = if wanted == HEADER_FIRST_BYTES { spare.len().min(wanted) } else { spare.len() };
        &mut spare[..len]
    }

    /// For hosts: `len` bytes of the room were filled. True if the machine is to be told.
    ///
    /// # Safety
    /// The first `len` bytes of what [`Inbox::room`] returned last must have been written.
    #[allow(unsafe_code)]
    pub unsafe fn filled(&mut self, len: usize) -> bool {
        if let Some(payload) = &mut self.payload {
            payload.filled += len;
            debug_assert!(payload.filled <= payload.buffer.len());
            return payload.filled == payload.buffer.len();
        }
        // SAFETY: the caller wrote `len` bytes behind the end of the stream, as it promises.
        unsafe { self.stream.set_len(self.stream.len() + len) };
        true
    }

    /// For hosts that have the bytes in hand: appends them. True if the machine is to be told.
    pub fn push(&mut self, mut bytes: &[u8]) -> bool {
        if let Some(payload) = &mut self.payload {
            let wanted = payload.buffer.len() - payload.filled;
            let here = wanted.min(bytes.len());
            payload.buffer[payload.filled..payload.filled + here].copy_from_slice(&bytes[..here]);
            payload.filled += here;
            bytes = &bytes[here..];
            if here < wanted {
                return false;
            }
        }
        self.stream.extend_from_slice(bytes);
        true
    }
}

/// Initialized bytes as bytes that need not be.
#[allow(unsafe_code)]
fn as_uninit(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: same size and alignment; a host writes bytes through it or nothing.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) }
}

#[cfg(test)]
mod tests {
    use bytes::Buf as _;
    use proptest::prelude::*;

    use super::*;

    /// A toy framing: one byte of length in KiB (0: none), then the payload.
    fn read_all(inbox: &mut Inbox, pending: &mut Option<usize>, out: &mut Vec<Bytes>) {
        loop {
            let len = match *pending {
                Some(len) => len,
                None if inbox.stream().is_empty() => return,
                None => usize::from(inbox.stream().get_u8()) * 1024,
            };
            *pending = Some(len);
            let Some(payload) = inbox.payload(len) else { return };
            *pending = None;
            out.push(payload);
        }
    }

    proptest! {
        #[test]
        fn payloads_arrive_whole_and_in_order_however_the_stream_is_cut(
            lens in prop::collection::vec(0u8..80, 1..12),
            cuts in prop::collection::vec(1usize..40_000, 1..64),
            aligned: bool,
        ) {
            let mut wire = Vec::new();
            for (n, len) in lens.iter().enumerate() {
                wire.push(*len);
                wire.extend((0..usize::from(*len) * 1024).map(|i| (i * 7 + n) as u8));
            }
            let mut inbox = Inbox::new();
            inbox.align(if aligned { Alignment::Block } else { Alignment::Any });
            let (mut pending, mut got) = (None, Vec::new());
            let (mut rest, mut cuts) = (wire.as_slice(), cuts.iter().cycle());
            while !rest.is_empty() {
                let room = inbox.room().len();
                let n = (*cuts.next().expect("a cycle must not end")).min(rest.len()).min(room);
                if inbox.push(&rest[..n]) {
                    read_all(&mut inbox, &mut pending, &mut got);
                }
                rest = &rest[n..];
            }
            prop_assert_eq!(got.len(), lens.len());
            for (n, (payload, len)) in got.iter().zip(&lens).enumerate() {
                prop_assert_eq!(payload.len(), usize::from(*len) * 1024);
                prop_assert!(payload.iter().enumerate().all(|(i, b)| *b == (i * 7 + n) as u8));
                if aligned && !payload.is_empty() {
                    prop_assert_eq!(payload.as_ptr() as usize % tether_store::BLOCK as usize, 0);
                }
            }
        }
    }
}
