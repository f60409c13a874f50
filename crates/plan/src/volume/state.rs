//! The states of a volume and the ways between them, as one table.

use tether_crd::volume::State;

/// Where a volume is, and where it is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Position<'a> {
    /// `spec.nodeID`.
    pub wanted: &'a str,
    /// `status.currentNodeID`: set when the volume gets attached, cleared when it is detached.
    pub current: &'a str,
    pub state: State,
    /// It may be attached to another node than it is wanted on, because it moves there.
    pub is_migrating: bool,
    /// An engine serves.
    pub is_open: bool,
    /// Nothing of it runs.
    pub is_closed: bool,
}

/// What is done with engine and replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start them, and keep them running.
    Open,
    /// Stop them, and keep them stopped.
    Close,
}

/// What becomes of `status.currentNodeID`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Current {
    Keep,
    /// It is where it is wanted.
    Set,
    Clear,
}

/// What follows for a volume.
// It is a table: rows that end alike stay rows.
#[allow(clippy::match_same_arms)]
pub fn next(at: &Position<'_>) -> (Action, State, Current) {
    use Action::{Close, Open};
    use State::{Attached, Attaching, Detached, Detaching};
    let here = match (at.wanted, at.current) {
        ("", _) => Place::Unwanted,
        (_, "") => Place::Nowhere,
        (wanted, current) if wanted == current => Place::There,
        _ => Place::Elsewhere,
    };
    match (here, at.state) {
        (_, Detaching) if at.is_closed => (Close, Detached, Current::Clear),
        (_, Detaching) => (Close, Detaching, Current::Keep),

        (Place::Unwanted, Detached) if at.current.is_empty() => (Close, Detached, Current::Keep),
        (Place::Unwanted, _) => (Close, Detaching, Current::Keep),

        (Place::Nowhere, Detached) => (Open, Attaching, Current::Keep),
        (Place::Nowhere, Attaching) if at.is_open => (Open, Attached, Current::Set),
        (Place::Nowhere, Attaching) => (Open, Attaching, Current::Keep),
        (Place::Nowhere, _) => (Close, Detaching, Current::Keep),

        (Place::There, Attached) => (Open, Attached, Current::Keep),
        (Place::There, _) => (Close, Detaching, Current::Keep),

        (Place::Elsewhere, Attached) if at.is_migrating => (Open, Attached, Current::Keep),
        (Place::Elsewhere, _) => (Close, Detaching, Current::Keep),
    }
}

/// Where the volume is, as seen from where it is wanted.
#[derive(Clone, Copy)]
enum Place {
    Unwanted,
    Nowhere,
    There,
    Elsewhere,
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "a";
    const B: &str = "b";

    /// Longhorn's table: wanted, current, state, what runs, and what follows.
    #[test]
    fn the_table() {
        use Action::{Close, Open};
        use State::{Attached, Attaching, Creating, Detached, Detaching};
        let table = [
            ("", "", Creating, "", Close, Detaching, ""),
            ("", "", Attaching, "", Close, Detaching, ""),
            ("", "", Attached, "open", Close, Detaching, ""),
            ("", "", Detaching, "", Close, Detaching, ""),
            ("", "", Detaching, "closed", Close, Detached, ""),
            ("", "", Detached, "closed", Close, Detached, ""),
            ("", A, Attaching, "", Close, Detaching, A),
            ("", A, Attached, "open", Close, Detaching, A),
            ("", A, Detached, "closed", Close, Detaching, A),
            ("", A, Detaching, "", Close, Detaching, A),
            ("", A, Detaching, "closed", Close, Detached, ""),
            (A, "", Creating, "", Close, Detaching, ""),
            (A, "", Attached, "open", Close, Detaching, ""),
            (A, "", Detaching, "", Close, Detaching, ""),
            (A, "", Detaching, "closed", Close, Detached, ""),
            (A, "", Detached, "closed", Open, Attaching, ""),
            (A, "", Attaching, "", Open, Attaching, ""),
            (A, "", Attaching, "open", Open, Attached, A),
            (A, A, Attaching, "open", Close, Detaching, A),
            (A, A, Detached, "closed", Close, Detaching, A),
            (A, A, Detaching, "closed", Close, Detached, ""),
            (A, A, Attached, "open", Open, Attached, A),
            (A, A, Attached, "", Open, Attached, A),
            (A, B, Detached, "closed", Close, Detaching, B),
            (A, B, Attaching, "", Close, Detaching, B),
            (A, B, Detaching, "closed", Close, Detached, ""),
            (A, B, Attached, "open", Close, Detaching, B),
            (A, B, Attached, "migrating", Open, Attached, B),
        ];
        for (wanted, current, state, runs, action, then, at) in table {
            let position = Position {
                wanted,
                current,
                state,
                is_migrating: runs == "migrating",
                is_open: runs == "open",
                is_closed: runs == "closed",
            };
            let (did, became, node) = next(&position);
            let node = match node {
                Current::Keep => current,
                Current::Set => wanted,
                Current::Clear => "",
            };
            assert_eq!((did, became, node), (action, then, at), "{position:?}");
        }
    }

    /// From anywhere, with agents that do what they are told, the volume gets where it is wanted.
    #[test]
    fn every_way_ends() {
        for state in State::ALL.iter().filter(|state| **state != State::Deleting) {
            for (wanted, current) in [("", ""), ("", A), (A, ""), (A, A), (A, B)] {
                let mut at = Position {
                    wanted,
                    current,
                    state: *state,
                    is_migrating: false,
                    is_open: *state == State::Attached,
                    is_closed: false,
                };
                for _ in 0..8 {
                    let (action, then, node) = next(&at);
                    at.state = then;
                    at.current = match node {
                        Current::Keep => at.current,
                        Current::Set => at.wanted,
                        Current::Clear => "",
                    };
                    at.is_open = action == Action::Open;
                    at.is_closed = action == Action::Close;
                }
                let end = if wanted.is_empty() { State::Detached } else { State::Attached };
                assert_eq!((at.state, at.current), (end, wanted), "from {state} at {current:?}");
            }
        }
    }
}
