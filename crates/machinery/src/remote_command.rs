//! Commands in containers (`exec`, `attach`): what a request asks for, and how its streams go through one WebSocket.
//!
//! ```text
//!   message = channel (one byte), content
//!
//!   client ─► 0 standard input         server ─► 1 standard output
//!             4 size of the terminal             2 standard error
//!           255 end of a channel (v5)            3 how it ended: a Status, the last message
//! ```
//!
//! Nothing here knows of sockets: bytes of a message come in, what they mean comes out.

use serde::Deserialize;
use serde_json::{Value, json};

const STDIN: u8 = 0;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The end of standard input can be told.
    V5,
    /// It cannot.
    V4,
}

impl Protocol {
    /// The names, best first.
    pub const ALL: [Self; 2] = [Self::V5, Self::V4];

    /// As it is negotiated in `Sec-WebSocket-Protocol`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V5 => "v5.channel.k8s.io",
            Self::V4 => "v4.channel.k8s.io",
        }
    }

    /// The first of the client's offers that is known: the client lists them as it likes them.
    pub fn negotiate<'a>(offers: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let mut words = offers.into_iter().flat_map(|header| header.split(',')).map(str::trim);
        words.find_map(|word| Self::ALL.into_iter().find(|known| known.name() == word))
    }
}

/// Which streams a client wants.
#[allow(clippy::struct_excessive_bools, reason = "each is a stream that is there or not")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

impl Streams {
    /// What is possible of them: a terminal has one output.
    pub fn checked(self) -> Result<Self, String> {
        let stderr = self.stderr && !self.tty;
        if !self.stdin && !self.stdout && !stderr {
            return Err("you must specify at least 1 of stdin, stdout, stderr".to_owned());
        }
        Ok(Self { stderr, ..self })
    }
}

/// What a client says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<'a> {
    Stdin(&'a [u8]),
    /// Standard input has ended.
    StdinEnds,
    Resize(Size),
    /// Something for a channel that this request has no use for.
    Nothing,
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Size {
    #[serde(rename = "Width")]
    pub columns: u16,
    #[serde(rename = "Height")]
    pub rows: u16,
}

/// What a client may not say.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    #[error("a message has no channel: its first byte is the channel's number")]
    Empty,
    #[error("channel 4 (size of the terminal): {0:?} is not of the form {{\"Width\":80,\"Height\":24}}")]
    Size(String),
    #[error("channel 255 (end of a channel) names {0} channels instead of one")]
    Close(usize),
    #[error("channel {0} is none that a client may write to (0: standard input, 4: size of the terminal)")]
    Channel(u8),
}

/// The most of a message that an error repeats.
const QUOTED_BYTES: usize = 64;

/// What a message of the client's means for a request that asked for these streams.
pub fn read(protocol: Protocol, streams: Streams, message: &[u8]) -> Result<Input<'_>, InputError> {
    let (channel, content) = message.split_first().ok_or(InputError::Empty)?;
    match *channel {
        STDIN if streams.stdin => Ok(Input::Stdin(content)),
        STDIN => Ok(Input::Nothing),
        RESIZE => size(content).map(|size| if streams.tty { Input::Resize(size) } else { Input::Nothing }),
        CLOSE if protocol == Protocol::V5 => match content {
            [STDIN] if streams.stdin => Ok(Input::StdinEnds),
            [_] => Ok(Input::Nothing),
            other => Err(InputError::Close(other.len())),
        },
        other => Err(InputError::Channel(other)),
    }
}

fn size(content: &[u8]) -> Result<Size, InputError> {
    let quoted = || String::from_utf8_lossy(&content[..content.len().min(QUOTED_BYTES)]).into_owned();
    serde_json::from_slice(content).map_err(|_| InputError::Size(quoted()))
}

/// A channel of the server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Stdout,
    Stderr,
    /// How it ended.
    End,
}

impl Output {
    /// A message on this channel.
    pub fn message(self, content: &[u8]) -> Vec<u8> {
        let channel = match self {
            Self::Stdout => 1,
            Self::Stderr => 2,
            Self::End => 3,
        };
        [&[channel], content].concat()
    }
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Exited(i32),
    /// It was not run.
    Failed(String),
}

impl End {
    /// As a client reads it.
    pub fn status(&self) -> Value {
        match self {
            Self::Exited(0) => json!({"metadata": {}, "status": "Success"}),
            Self::Exited(code) => json!({
                "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                "message": format!("command terminated with non-zero exit code: exit status {code}"),
                "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
            }),
            Self::Failed(why) => json!({
                "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
                "message": format!("Internal error occurred: error executing command in container: {why}"),
                "details": {"causes": [{"message": format!("error executing command in container: {why}")}]},
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Streams = Streams { stdin: true, stdout: true, stderr: true, tty: false };
    const TERMINAL: Streams = Streams { stdin: true, stdout: true, stderr: false, tty: true };

    #[test]
    fn the_client_chooses_among_what_is_known() {
        let kubectl = ["v5.channel.k8s.io, v4.channel.k8s.io, v3.channel.k8s.io"];
        assert_eq!(Protocol::negotiate(kubectl), Some(Protocol::V5));
        assert_eq!(Protocol::negotiate(["v3.channel.k8s.io", "v4.channel.k8s.io"]), Some(Protocol::V4));
        assert_eq!(Protocol::negotiate(["v4.channel.k8s.io,v5.channel.k8s.io"]), Some(Protocol::V4));
        assert_eq!(Protocol::negotiate(["base64.channel.k8s.io", ""]), None);
        assert_eq!(Protocol::negotiate([]), None);
    }

    #[test]
    fn streams_are_at_least_one_and_a_terminal_has_one_output() {
        assert_eq!(ALL.checked(), Ok(ALL));
        assert_eq!(Streams { tty: true, ..ALL }.checked(), Ok(TERMINAL));
        let only_errors = Streams { stderr: true, tty: true, ..Streams::default() };
        for none in [Streams::default(), Streams { tty: true, ..Streams::default() }, only_errors] {
            assert_eq!(none.checked().unwrap_err(), "you must specify at least 1 of stdin, stdout, stderr");
        }
    }

    #[test]
    fn messages_mean_what_their_first_byte_says() {
        let v5 = |streams, message| read(Protocol::V5, streams, message);
        let size = Input::Resize(Size { columns: 80, rows: 24 });
        let resize = b"\x04{\"Width\":80,\"Height\":24}";
        assert_eq!(v5(ALL, b"\0hello"), Ok(Input::Stdin(b"hello")));
        assert_eq!(v5(ALL, b"\0"), Ok(Input::Stdin(b"")));
        assert_eq!(v5(TERMINAL, resize), Ok(size));
        assert_eq!(v5(ALL, resize), Ok(Input::Nothing), "there is no terminal");
        assert_eq!(v5(ALL, b"\xff\0"), Ok(Input::StdinEnds));
        assert_eq!(v5(ALL, b"\xff\x01"), Ok(Input::Nothing), "our own channels are ours to end");
        let deaf = Streams { stdin: false, ..ALL };
        assert_eq!((v5(deaf, b"\0x"), v5(deaf, b"\xff\0")), (Ok(Input::Nothing), Ok(Input::Nothing)));
    }

    #[test]
    fn what_a_client_may_not_say_is_named() {
        let v5 = |message: &[u8]| read(Protocol::V5, TERMINAL, message).unwrap_err().to_string();
        assert!(v5(b"").contains("no channel"));
        assert!(v5(b"\x01x").starts_with("channel 1 is none that a client may write to"));
        assert!(v5(b"\xff").contains("names 0 channels"));
        assert!(v5(b"\x04{\"Width\":-1}").contains("{\\\"Width\\\":-1}"));
        assert!(v5(&[&b"\x04"[..], &[b'x'; 1000]].concat()).len() < 200, "garbage is not repeated whole");
        let v4 = read(Protocol::V4, TERMINAL, b"\xff\0");
        assert_eq!(v4, Err(InputError::Channel(255)), "v4 has no such channel");
    }

    #[test]
    fn an_end_is_a_status() {
        assert_eq!(End::Exited(0).status()["status"], "Success");
        let failed = End::Exited(7).status();
        assert_eq!(
            (&failed["reason"], &failed["details"]["causes"][0]["message"]),
            (&json!("NonZeroExitCode"), &json!("7"))
        );
        let message = End::Failed("no such program".to_owned()).status()["message"].clone();
        assert_eq!(message, "Internal error occurred: error executing command in container: no such program");
        assert_eq!(Output::Stderr.message(b"oh"), b"\x02oh");
    }
}
