//! Instances as the control API shows them: a state that machines compare, and a reason that people read.

use super::proto;
use super::registry::{Entry, Running};
use crate::engine_server::{self, Info};
use crate::instance::Ended;
use crate::replica_server;

const STARTING: &str = "starting";
const RUNNING: &str = "running";
pub(super) const STOPPED: &str = "stopped";
const ERROR: &str = "error";

fn base(name: &str, entry: &Entry, state: &str, reason: String) -> proto::Instance {
    proto::Instance {
        name: name.to_owned(),
        kind: entry.running.kind().to_owned(),
        state: state.to_owned(),
        addresses: entry.addresses.iter().map(ToString::to_string).collect(),
        uid: entry.uid.to_string(),
        reason,
        engine: None,
        replica: None,
    }
}

/// One that ended.
pub(super) fn ended(name: &str, entry: &Entry, how: &Ended) -> proto::Instance {
    let state = if *how == Ended::Stopped { STOPPED } else { ERROR };
    base(name, entry, state, how.to_string())
}

/// An engine that has not.
pub(super) fn engine(name: &str, entry: &Entry, info: Info) -> proto::Instance {
    let why = || info.suspended.clone().or_else(|| info.device_error.clone()).unwrap_or_default();
    let (state, reason) = match info.phase.as_str() {
        "Serving" | "Standby" => (RUNNING, why()),
        "Fenced" => (ERROR, "fenced: another engine holds the volume".to_owned()),
        "Failed" => (ERROR, info.events.last().cloned().unwrap_or_default()),
        "Stopped" => (STOPPED, String::new()),
        phase => match why() {
            nothing if nothing.is_empty() => (STARTING, phase.to_owned()),
            why => (STARTING, why),
        },
    };
    proto::Instance { engine: Some(info.into()), ..base(name, entry, state, reason) }
}

/// Whatever it is, asked now.
pub(super) async fn instance(name: &str, entry: &Entry) -> proto::Instance {
    let shown = match &entry.running {
        Running::Engine(asked) => match asked.get_async(engine_server::Command::Info).await {
            Ok(engine_server::Answer::Info(info)) => Some(engine(name, entry, *info)),
            _ => None,
        },
        Running::Replica(asked) => match asked.get_async(replica_server::Command::Info).await {
            Ok(replica_server::Answer::Info(info)) => {
                let reason = info.out_of_sync.clone().unwrap_or_default();
                Some(proto::Instance { replica: Some(info.into()), ..base(name, entry, RUNNING, reason) })
            }
            _ => None,
        },
    };
    match (shown, entry.running.ended()) {
        (Some(shown), _) => shown,
        (None, Some(how)) => ended(name, entry, &how),
        (None, None) => base(name, entry, STOPPED, "it is ending".to_owned()),
    }
}
