//! The row of a pod: what its containers say, summed up into one word.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Row;
use super::duration::since;
use crate::kinds::edit::{flag, integer, items, present, text};

/// What the statuses of a pod's containers add up to.
struct Summary {
    reason: String,
    ready: usize,
    restarts: i64,
    /// End of the last run that was followed by a restart; RFC 3339 sorts as text.
    last_restart: String,
}

pub(super) fn row(pod: &Value, now: Timestamp) -> Row {
    let phase = text(pod, "/status/phase");
    let init_containers = items(pod, "/spec/initContainers");
    let total = items(pod, "/spec/containers").len() + init_containers.iter().filter(|c| is_sidecar(c)).count();
    let summary = summarize(pod);

    let deleting = present(pod, "/metadata/deletionTimestamp").is_some();
    let reason = match summary.reason {
        _ if deleting && text(pod, "/status/reason") == "NodeLost" => "Unknown".to_owned(),
        _ if deleting && !matches!(phase, "Failed" | "Succeeded") => "Terminating".to_owned(),
        reason => reason,
    };
    let restarts = if summary.restarts != 0 && !summary.last_restart.is_empty() {
        let ago = since(&json!({"at": summary.last_restart}), "/at", now);
        format!("{} ({ago} ago)", summary.restarts)
    } else {
        summary.restarts.to_string()
    };

    let mut row = Row::new(vec![
        text(pod, "/metadata/name").into(),
        format!("{}/{total}", summary.ready).into(),
        reason.into(),
        restarts.into(),
        since(pod, "/metadata/creationTimestamp", now).into(),
        or_none(text(pod, "/status/podIPs/0/ip")),
        or_none(text(pod, "/spec/nodeName")),
        or_none(text(pod, "/status/nominatedNodeName")),
        readiness_gates(pod).into(),
    ]);
    row.conditions = match phase {
        "Succeeded" => vec![completed(phase, "The pod has completed successfully.")],
        "Failed" => vec![completed(phase, "The pod failed.")],
        _ => Vec::new(),
    };
    row
}

fn completed(phase: &str, message: &str) -> Value {
    json!({"type": "Completed", "status": "True", "reason": phase, "message": message})
}

fn or_none(text: &str) -> Value {
    if text.is_empty() { "<none>".into() } else { text.into() }
}

/// An init container that keeps running beside the others.
fn is_sidecar(container: &Value) -> bool {
    text(container, "/restartPolicy") == "Always"
}

fn summarize(pod: &Value) -> Summary {
    let mut reason = [text(pod, "/status/reason"), text(pod, "/status/phase")]
        .into_iter()
        .find(|r| !r.is_empty())
        .unwrap_or_default()
        .to_owned();
    if condition(pod, "PodScheduled").is_some_and(|c| text(c, "/reason") == "SchedulingGated") {
        "SchedulingGated".clone_into(&mut reason);
    }
    let mut summary = Summary { reason, ready: 0, restarts: 0, last_restart: String::new() };
    let initializing = summarize_init(pod, &mut summary);
    if !initializing || condition(pod, "Initialized").is_some_and(|c| text(c, "/status") == "True") {
        summarize_main(pod, &mut summary);
    }
    summary
}

/// Goes through init containers up to the first that is not done; true if there is such a one.
fn summarize_init(pod: &Value, summary: &mut Summary) -> bool {
    let specs = items(pod, "/spec/initContainers");
    for (index, status) in items(pod, "/status/initContainerStatuses").iter().enumerate() {
        let sidecar = specs.iter().any(|c| text(c, "/name") == text(status, "/name") && is_sidecar(c));
        count_restarts(status, summary);
        let terminated = present(status, "/state/terminated");
        if terminated.is_some_and(|t| exit_code(t) == 0) {
            continue;
        }
        if sidecar && flag(status, "/started") {
            summary.ready += usize::from(flag(status, "/ready"));
            continue;
        }
        let waiting = text(status, "/state/waiting/reason");
        summary.reason = match terminated {
            Some(end) => format!("Init:{}", end_reason(end)),
            None if !waiting.is_empty() && waiting != "PodInitializing" => format!("Init:{waiting}"),
            None => format!("Init:{index}/{}", specs.len()),
        };
        return true;
    }
    false
}

/// Once the pod is initialized, only sidecars and main containers count.
fn summarize_main(pod: &Value, summary: &mut Summary) {
    let specs = items(pod, "/spec/initContainers");
    summary.restarts = 0;
    summary.last_restart.clear();
    for status in items(pod, "/status/initContainerStatuses") {
        if specs.iter().any(|c| text(c, "/name") == text(status, "/name") && is_sidecar(c)) {
            count_restarts(status, summary);
        }
    }
    let mut running = false;
    let mut failure = String::new();
    for status in items(pod, "/status/containerStatuses").iter().rev() {
        count_restarts(status, summary);
        let waiting = text(status, "/state/waiting/reason");
        if !waiting.is_empty() {
            waiting.clone_into(&mut summary.reason);
        } else if let Some(end) = present(status, "/state/terminated") {
            summary.reason = end_reason(end);
            if exit_code(end) != 0 {
                failure.clone_from(&summary.reason);
            }
        } else if flag(status, "/ready") && present(status, "/state/running").is_some() {
            running = true;
            summary.ready += 1;
        }
    }
    // A container that completed does not speak for those that still run or that failed.
    if summary.reason == "Completed" {
        if running && condition(pod, "Ready").is_some_and(|c| text(c, "/status") == "True") {
            "Running".clone_into(&mut summary.reason);
        } else if !failure.is_empty() {
            summary.reason = failure;
        } else if running {
            "NotReady".clone_into(&mut summary.reason);
        }
    }
}

fn count_restarts(status: &Value, summary: &mut Summary) {
    summary.restarts += integer(status, "/restartCount").unwrap_or_default();
    let ended = text(status, "/lastState/terminated/finishedAt");
    if ended > summary.last_restart.as_str() {
        ended.clone_into(&mut summary.last_restart);
    }
}

fn exit_code(terminated: &Value) -> i64 {
    integer(terminated, "/exitCode").unwrap_or_default()
}

fn end_reason(terminated: &Value) -> String {
    let reason = text(terminated, "/reason");
    match integer(terminated, "/signal").unwrap_or_default() {
        _ if !reason.is_empty() => reason.to_owned(),
        0 => format!("ExitCode:{}", exit_code(terminated)),
        signal => format!("Signal:{signal}"),
    }
}

fn condition<'a>(pod: &'a Value, ty: &str) -> Option<&'a Value> {
    items(pod, "/status/conditions").iter().find(|c| text(c, "/type") == ty)
}

fn readiness_gates(pod: &Value) -> String {
    let gates = items(pod, "/spec/readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let open = gates
        .iter()
        .filter(|g| condition(pod, text(g, "/conditionType")).is_some_and(|c| text(c, "/status") == "True"))
        .count();
    format!("{open}/{}", gates.len())
}
