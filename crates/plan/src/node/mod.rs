//! Nodes: their conditions and taints as decisions read them, and the decisions about their life.
//!
//! ```text
//!            lease renewed or status posted
//!   Ready ◄──────────────────────────────────┐
//!     │ silent longer than the grace period  │
//!     ▼                                      │
//!   Unknown ─► taint unreachable:NoSchedule ─┤
//!     │        pods are marked not ready     │
//!     ▼        one node per zone and 10 s    │
//!   taint unreachable:NoExecute ─────────────┘  (both taints go when the node is Ready again)
//!     │ tolerationSeconds over (300 s by default)
//!     ▼
//!   its pods are deleted
//! ```

pub mod eviction;
pub mod lifecycle;

use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint, Toleration};

pub const TAINT_NOT_READY: &str = "node.kubernetes.io/not-ready";
pub const TAINT_UNREACHABLE: &str = "node.kubernetes.io/unreachable";
pub const TAINT_UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
pub const TAINT_MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure";
pub const TAINT_DISK_PRESSURE: &str = "node.kubernetes.io/disk-pressure";
pub const TAINT_PID_PRESSURE: &str = "node.kubernetes.io/pid-pressure";
pub const TAINT_NETWORK_UNAVAILABLE: &str = "node.kubernetes.io/network-unavailable";
pub const TAINT_OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

pub const NO_SCHEDULE: &str = "NoSchedule";
pub const NO_EXECUTE: &str = "NoExecute";
pub const PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";

pub fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.as_deref()?.iter().find(|c| c.type_ == kind)
}

/// The status of condition Ready; empty where the node never had one.
pub fn readiness(node: &Node) -> &str {
    condition(node, "Ready").map(|c| c.status.as_str()).unwrap_or_default()
}

pub fn is_ready(node: &Node) -> bool {
    readiness(node) == "True"
}

pub fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default()
}

pub fn is_unschedulable(node: &Node) -> bool {
    node.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or_default()
}

/// Region and zone, which together are the zone that evictions are limited by.
pub fn zone(node: &Node) -> String {
    let labels = node.metadata.labels.as_ref();
    let label = |key: &str| labels.and_then(|l| l.get(key)).map(String::as_str).unwrap_or_default();
    match (label("topology.kubernetes.io/region"), label("topology.kubernetes.io/zone")) {
        ("", "") => String::new(),
        (region, zone) => format!("{region}:{zone}"),
    }
}

/// Whether the toleration matches the taint: an empty effect matches every effect, an empty key every key.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let given = |field: &Option<String>| field.as_deref().unwrap_or_default().to_owned();
    let matches = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|w| w.is_empty() || w == found);
    if !matches(&toleration.effect, &taint.effect) || !matches(&toleration.key, &taint.key) {
        return false;
    }
    match toleration.operator.as_deref() {
        None | Some("" | "Equal") => given(&toleration.value) == given(&taint.value),
        Some("Exists") => true,
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_match_as_in_kubernetes() {
        let taint = |key: &str, value: &str, effect: &str| Taint {
            key: key.into(),
            value: (!value.is_empty()).then(|| value.into()),
            effect: effect.into(),
            time_added: None,
        };
        let toleration = |key: &str, operator: &str, value: &str, effect: &str| Toleration {
            key: (!key.is_empty()).then(|| key.into()),
            operator: (!operator.is_empty()).then(|| operator.into()),
            value: (!value.is_empty()).then(|| value.into()),
            effect: (!effect.is_empty()).then(|| effect.into()),
            toleration_seconds: None,
        };
        let cases = [
            ("same key, value and effect", toleration("k", "Equal", "v", "NoSchedule"), true),
            ("no operator means Equal", toleration("k", "", "v", "NoSchedule"), true),
            ("another value", toleration("k", "Equal", "w", "NoSchedule"), false),
            ("Exists ignores the value", toleration("k", "Exists", "", "NoSchedule"), true),
            ("another effect", toleration("k", "Exists", "", "NoExecute"), false),
            ("no effect means every effect", toleration("k", "Exists", "", ""), true),
            ("no key and Exists tolerates everything", toleration("", "Exists", "", ""), true),
            ("another key", toleration("j", "Exists", "", ""), false),
            ("an operator that is not known", toleration("k", "Near", "v", ""), false),
        ];
        for (what, toleration, expected) in cases {
            assert_eq!(tolerates(&toleration, &taint("k", "v", "NoSchedule")), expected, "{what}");
        }
        assert!(tolerates(&toleration("k", "Equal", "", ""), &taint("k", "", "NoExecute")), "both without a value");
    }
}
