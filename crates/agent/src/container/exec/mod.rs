//! Further commands in a container that runs: started by its shim, beside the container's own process.
//!
//! ```text
//!   kubectl exec ═ API server ═ agent ──order, descriptors──► shim ──starts──► the command
//!                                 ▲ pipes or a terminal                          │
//!                                 └──────────────────────────────────────────────┘
//! ```
//!
//! The shim has what the container's process was started with: environment (which no file holds), working directory, user,
//! mount namespace. The command is its child, so it ends with the container, however that ends. Input and output go
//! between command and agent directly. The connection to the shim stays open as long as somebody listens: when it ends,
//! because the client is gone or the agent was killed, the command's session is hung up and then killed.
//!
//! - [`door`]: the shim's side.
//! - [`visit`]: the agent's side.

pub(super) mod door;
pub mod visit;

use std::io;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::files::RunDir;

/// The name of the socket in a run's directory.
const SOCKET: &str = "exec.sock";
/// What the kernel takes as the arguments of a program is less; the longest query of an API server, much less.
const MAX_ORDER_BYTES: u64 = 1 << 20;
/// Goes with the descriptors, which need a byte to travel with.
const DESCRIPTORS: u8 = b'D';

/// What a shim is asked to run, on one line. Its standard streams come along as descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wish {
    argv: Vec<String>,
    /// Standard input is a terminal, to be the session's own.
    tty: bool,
}

/// What a shim says of it, a line each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum News {
    Started,
    Refused { why: String },
    Ended { exit_code: i32 },
}

/// The socket's path by way of the open directory: names of sockets are short, names of directories are not.
fn socket(dir: &RunDir) -> io::Result<(std::fs::File, PathBuf)> {
    let open = std::fs::File::open(&dir.path)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", open.as_raw_fd()));
    Ok((open, path))
}
