//! What a failed call leaves: sometimes nothing, sometimes nobody knows what.

use super::Progress;

/// What a driver's error says about what it did. The numbers are gRPC's codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It did nothing, or undid it.
    Final,
    /// It may be at work still.
    Uncertain,
    /// The driver was not asked.
    Transient,
}

impl Class {
    /// As a kubelet tells them apart: cancelled, too late, unavailable, exhausted and aborted say nothing of what was done.
    pub fn of(code: i32) -> Self {
        match code {
            1 | 4 | 8 | 10 | 14 => Self::Uncertain,
            _ => Self::Final,
        }
    }
}

/// How far staging or publishing got after it failed. `kept`: it was found when the agent started, so that something of it
/// may be there whatever the driver says of this attempt.
pub fn after_failure(before: Progress, class: Class, kept: bool) -> Progress {
    match (before, class) {
        (Progress::Done, _) => Progress::Done,
        (_, Class::Transient) => before,
        (_, Class::Uncertain) => Progress::Unknown,
        (Progress::Unknown, Class::Final) if kept => Progress::Unknown,
        (_, Class::Final) => Progress::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_leaves_what_a_kubelet_says_it_leaves() {
        use Class::{Final, Transient, Uncertain};
        use Progress::{Done, Nothing, Unknown};
        let table = [
            ("times out", Nothing, Uncertain, false, Unknown),
            ("fails for good", Nothing, Final, false, Nothing),
            ("times out, then fails for good", Unknown, Final, false, Nothing),
            ("succeeds, then a repetition times out", Done, Uncertain, false, Done),
            ("succeeds, then a repetition fails", Done, Final, false, Done),
            ("found at start, then fails for good", Unknown, Final, true, Unknown),
            ("found at start, then times out", Unknown, Uncertain, true, Unknown),
            ("driver not there", Nothing, Transient, false, Nothing),
            ("driver not there, found at start", Unknown, Transient, true, Unknown),
        ];
        for (what, before, class, kept, expected) in table {
            assert_eq!(after_failure(before, class, kept), expected, "{what}");
        }
    }

    #[test]
    fn codes_are_told_apart() {
        let uncertain: Vec<_> = (0..17).filter(|code| Class::of(*code) == Class::Uncertain).collect();
        assert_eq!(uncertain, [1, 4, 8, 10, 14]);
    }
}
