//! What an error of a call says about what became of it.

/// The API server's limit for the text of an attach or detach error; a longer one would not be stored at all.
pub const LONGEST_MESSAGE_BYTES: usize = 1_024;

/// Whether a failed call may have had its effect all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// The driver said no: nothing is under way.
    Final,
    /// It may still be running, or may have been done.
    Ambiguous,
}

/// Of a gRPC code; `None` is an error that no driver sent.
pub fn certainty(code: Option<i32>) -> Certainty {
    const CANCELLED: i32 = 1;
    const DEADLINE_EXCEEDED: i32 = 4;
    const RESOURCE_EXHAUSTED: i32 = 8;
    const ABORTED: i32 = 10;
    const UNAVAILABLE: i32 = 14;
    match code {
        None | Some(CANCELLED | DEADLINE_EXCEEDED | RESOURCE_EXHAUSTED | ABORTED | UNAVAILABLE) => Certainty::Ambiguous,
        Some(_) => Certainty::Final,
    }
}

/// The message, cut where the API server would refuse it.
pub fn shortened(message: &str) -> &str {
    let mut end = message.len().min(LONGEST_MESSAGE_BYTES);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}
