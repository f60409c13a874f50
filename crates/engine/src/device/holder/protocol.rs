//! What engine and holder say to each other: lines of words, each answered by one line.
//!
//! A holder outlives upgrades, so the first line names the version; a holder refuses what it does not know.
//!
//! | engine | holder |
//! |---|---|
//! | `hello VERSION` | `holder VERSION PID` |
//! | `intend UID PREVIOUS` | `ok` |
//! | `take UID PREVIOUS PID MAX-WRITE` | `taken MAX-WRITE resumed` or `… fresh` with `/dev/fuse`; or `busy UID PID`; or `broken LAST` |
//! | `attach BLOCK ro|rw TAG NODE` | `attached LOOP` |
//! | `capacity`, `drop-cache` | `ok` |
//! | `detach`, `retire` | `ok`, and the holder ends |
//!
//! Anything can be answered by `failed REASON…`.

use std::fmt;
use std::path::PathBuf;

/// The version of this conversation.
pub const VERSION: u32 = 1;
/// Longest line: a path and some words.
pub const MAX_LINE_BYTES: usize = 4096;

/// What an engine says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Hello {
        version: u32,
    },
    /// `uid` is about to take the volume from `previous` in the record.
    Intend {
        uid: String,
        previous: String,
    },
    /// `uid` has taken the volume from `previous` in the record and wants the device.
    Take {
        uid: String,
        previous: String,
        pid: u32,
        max_write: u32,
    },
    Attach {
        block: u32,
        read_only: bool,
        tag: String,
        node: PathBuf,
    },
    Capacity,
    DropCache,
    /// In order: an engine serves, and nobody uses the device.
    Detach,
    /// By force: everything pending fails.
    Retire,
}

/// What the holder says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Holder {
        version: u32,
        pid: u32,
    },
    Done,
    /// `/dev/fuse` comes with it.
    Taken {
        max_write: u32,
        resumed: bool,
    },
    /// Another engine has the device and is alive.
    Busy {
        uid: String,
        pid: u32,
    },
    /// Another engine held the volume since `last` had the device.
    Broken {
        last: String,
    },
    Attached {
        number: u32,
    },
    Failed {
        why: String,
    },
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hello { version } => write!(f, "hello {version}"),
            Self::Intend { uid, previous } => write!(f, "intend {uid} {previous}"),
            Self::Take { uid, previous, pid, max_write } => write!(f, "take {uid} {previous} {pid} {max_write}"),
            Self::Attach { block, read_only, tag, node } => {
                let mode = if *read_only { "ro" } else { "rw" };
                write!(f, "attach {block} {mode} {tag} {}", node.display())
            }
            Self::Capacity => f.write_str("capacity"),
            Self::DropCache => f.write_str("drop-cache"),
            Self::Detach => f.write_str("detach"),
            Self::Retire => f.write_str("retire"),
        }
    }
}

impl Message {
    /// Reads a line; the reason if it is none.
    pub fn parse(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.splitn(5, ' ').collect();
        let message = match words.as_slice() {
            ["hello", version] => version.parse().ok().map(|version| Self::Hello { version }),
            ["intend", uid, previous] => {
                Some(Self::Intend { uid: (*uid).to_owned(), previous: (*previous).to_owned() })
            }
            ["take", uid, previous, pid, max_write] => {
                let numbers = pid.parse().ok().zip(max_write.parse().ok());
                let (uid, previous) = ((*uid).to_owned(), (*previous).to_owned());
                numbers.map(|(pid, max_write)| Self::Take { uid, previous, pid, max_write })
            }
            ["attach", block, mode @ ("ro" | "rw"), tag, node] => block.parse().ok().map(|block| Self::Attach {
                block,
                read_only: *mode == "ro",
                tag: (*tag).to_owned(),
                node: node.into(),
            }),
            ["capacity"] => Some(Self::Capacity),
            ["drop-cache"] => Some(Self::DropCache),
            ["detach"] => Some(Self::Detach),
            ["retire"] => Some(Self::Retire),
            _ => None,
        };
        message.ok_or_else(|| format!("this holder (version {VERSION}) does not understand {line:?}"))
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holder { version, pid } => write!(f, "holder {version} {pid}"),
            Self::Done => f.write_str("ok"),
            Self::Taken { max_write, resumed } => {
                write!(f, "taken {max_write} {}", if *resumed { "resumed" } else { "fresh" })
            }
            Self::Busy { uid, pid } => write!(f, "busy {uid} {pid}"),
            Self::Broken { last } => write!(f, "broken {last}"),
            Self::Attached { number } => write!(f, "attached {number}"),
            Self::Failed { why } => write!(f, "failed {}", why.trim().replace('\n', "; ")),
        }
    }
}

impl Answer {
    pub fn parse(line: &str) -> Option<Self> {
        if let Some(why) = line.strip_prefix("failed ") {
            return Some(Self::Failed { why: why.to_owned() });
        }
        let words: Vec<&str> = line.split(' ').collect();
        Some(match words.as_slice() {
            ["holder", version, pid] => Self::Holder { version: version.parse().ok()?, pid: pid.parse().ok()? },
            ["ok"] => Self::Done,
            ["taken", max_write, state @ ("resumed" | "fresh")] => {
                Self::Taken { max_write: max_write.parse().ok()?, resumed: *state == "resumed" }
            }
            ["busy", uid, pid] => Self::Busy { uid: (*uid).to_owned(), pid: pid.parse().ok()? },
            ["broken", last] => Self::Broken { last: (*last).to_owned() },
            ["attached", number] => Self::Attached { number: number.parse().ok()? },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_were_written() {
        let uid = || "00000000-0000-0000-0000-000000000001".to_owned();
        let messages = [
            Message::Hello { version: 1 },
            Message::Intend { uid: uid(), previous: uid() },
            Message::Take { uid: uid(), previous: uid(), pid: 7, max_write: 1 << 20 },
            Message::Attach { block: 512, read_only: true, tag: "tether:0:v1".into(), node: "/dev/x y/v1".into() },
            Message::Capacity,
            Message::DropCache,
            Message::Detach,
            Message::Retire,
        ];
        for message in messages {
            assert_eq!(Message::parse(&message.to_string()), Ok(message));
        }
        let answers = [
            Answer::Holder { version: 1, pid: 2 },
            Answer::Done,
            Answer::Taken { max_write: 4096, resumed: true },
            Answer::Busy { uid: uid(), pid: 9 },
            Answer::Broken { last: uid() },
            Answer::Attached { number: 3 },
            Answer::Failed { why: "no loop device: gone".into() },
        ];
        for answer in answers {
            assert_eq!(Answer::parse(&answer.to_string()), Some(answer));
        }
        for bad in ["", "take a b", "take a b x y", "attach 512 maybe t n", "hello one", "give me"] {
            assert!(Message::parse(bad).is_err(), "{bad:?}");
        }
    }
}
