//! What is to be sent: headers packed together, payload passed through uncopied.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// A queue of segments, in the order in which they go out.
#[derive(Debug, Default)]
pub struct Output {
    segments: VecDeque<Bytes>,
    /// Replies without payload that follow each other share one segment.
    tail: BytesMut,
    /// Bytes in `segments` and `tail`.
    queued: u64,
    /// Bytes that the host has taken and not yet sent.
    sending: u64,
}

impl Output {
    /// Lets `write` append headers and small replies.
    pub fn write<T>(&mut self, write: impl FnOnce(&mut BytesMut) -> T) -> T {
        let before = self.tail.len();
        let result = write(&mut self.tail);
        self.queued += (self.tail.len() - before) as u64;
        result
    }

    /// Appends payload without copying it.
    pub fn payload(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        self.seal();
        self.queued += data.len() as u64;
        self.segments.push_back(data);
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.segments.push_back(self.tail.split().freeze());
        }
    }

    /// Everything queued, for the host to send; counted as being sent from now on.
    pub fn take(&mut self) -> Vec<Bytes> {
        let segments = self.take_plain();
        self.sending += segments.iter().map(|s| s.len() as u64).sum::<u64>();
        segments
    }

    /// Everything queued, for a layer in between that will say with [`Output::hand_over`] what became of it.
    pub fn take_plain(&mut self) -> Vec<Bytes> {
        self.seal();
        self.queued = 0;
        self.segments.drain(..).collect()
    }

    pub fn hand_over(&mut self, bytes: u64) {
        self.sending += bytes;
    }

    pub fn sent(&mut self, bytes: u64) {
        self.sending = self.sending.saturating_sub(bytes);
    }

    /// Bytes that wait in memory for the client to read them.
    pub fn waiting(&self) -> u64 {
        self.queued + self.sending
    }
}
