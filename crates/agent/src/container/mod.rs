//! Containers as processes of the host: each run has a directory, and a tiny process of its own that outlives the agent.
//!
//! ```text
//!   agent ──starts──► shim ──starts──► the container's process ──► its children
//!     ▲                │ waits for it, keeps its log, ends what it leaves behind
//!     └── pidfd ───────┘ writes down how it ended
//!
//!   DIR/pods/<pod uid>/containers/<container>/<attempt>/
//!       lock       held by the shim as long as it lives; its pid
//!       started    the process, and since when it runs
//!       stopping   it was asked to end
//!       ended      exit code and time
//!       log        what it wrote, a line each, with time and stream
//!       exec.sock  where the shim takes orders for further commands
//! ```
//!
//! Killing the agent kills no container: the next agent reads the directories, and how a container ended meanwhile is
//! written there. Killing a shim is found out by its lock; what it leaves is then ended by the agent.
//!
//! - [`exec`]: further commands in a container.
//! - [`files`]: the directory of a run.
//! - [`root`]: what a container sees of the host's files and of its pod's volumes.
//! - [`shim`]: the process between agent and container.
//! - [`runner`]: the agent's side.
//! - [`processes`]: finding and ending processes.

pub mod exec;
pub mod files;
mod handle;
mod log;
mod processes;
mod root;
pub mod runner;
pub mod shim;

use serde::{Deserialize, Serialize};
use tether_plan::kubelet::Launch;

pub use self::root::{Shown, View};

/// Names the run that a process belongs to, in its environment.
pub const RUN_ENV: &str = "TETHER_CONTAINER";

/// Marks a further command in a container that acts on the node, in its environment.
const EXEC_ENV: &str = "TETHER_EXEC";

/// What a shim is told, on its standard input: an environment may hold secrets, and a file would keep them.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    argv: Vec<String>,
    env: Vec<(String, String)>,
    working_dir: Option<String>,
    /// The value of [`RUN_ENV`].
    run: String,
    /// Where it acts; see [`Place`].
    place: Place,
    user: Option<u32>,
    group: Option<u32>,
    /// Further groups: the one of the pod's volumes.
    groups: Vec<u32>,
    view: View,
}

/// Where a container acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Place {
    /// On the node itself, in its mount namespace. A process that leaves the container's session is the node's from
    /// then on: this is how the holder of a block device outlives the engine that made it.
    Node,
    /// In a mount namespace of its own. Everything it starts ends with it.
    Own,
    /// As [`Place::Own`], where namespaces cannot be had.
    Shared,
}

impl Order {
    fn new(launch: Launch, view: View, extra: &[(String, String)], run: String, namespaces: bool) -> Self {
        let place = match (launch.on_host, namespaces) {
            (true, _) => Place::Node,
            (false, true) => Place::Own,
            (false, false) => Place::Shared,
        };
        let mut env = launch.env;
        env.extend(extra.iter().cloned());
        env.push((RUN_ENV.to_owned(), run.clone()));
        Self {
            argv: launch.argv,
            env,
            working_dir: launch.working_dir,
            run,
            place,
            user: launch.user,
            group: launch.group,
            groups: launch.groups,
            view,
        }
    }
}
