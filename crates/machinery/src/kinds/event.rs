//! Events: one storage, two faces. Stored as core/v1; `events.k8s.io/v1` names the same facts differently.

use serde_json::{Map, Value};

use super::{Face, Strategy};

pub(super) const CORE: Strategy = Strategy::PLAIN;
pub(super) const NEW: Strategy = Strategy::PLAIN;

pub(super) const FACE: Face =
    Face { stored_group: "", stored_plural: "events", to_stored: to_core, from_stored: from_core };

/// Field names: `events.k8s.io/v1`, core/v1.
const RENAMED: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// An `events.k8s.io/v1` event as core/v1.
pub fn to_core(event: &mut Value) {
    if let Some(event) = event.as_object_mut() {
        for (new, core) in RENAMED {
            rename(event, new, core);
        }
        event.insert("apiVersion".to_owned(), "v1".into());
    }
}

/// A core/v1 event as `events.k8s.io/v1`.
pub fn from_core(event: &mut Value) {
    if let Some(event) = event.as_object_mut() {
        for (new, core) in RENAMED {
            rename(event, core, new);
        }
        event.insert("apiVersion".to_owned(), "events.k8s.io/v1".into());
    }
}

fn rename(event: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = event.remove(from) {
        event.insert(to.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_faces_carry_the_same_facts() {
        let core = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "reason": "BackOff", "message": "m",
            "involvedObject": {"kind": "Pod"}, "source": {"component": "kubelet"}, "count": 3,
            "reportingComponent": "kubelet", "firstTimestamp": "a", "lastTimestamp": "b", "type": "Warning",
        });
        let mut event = core.clone();
        from_core(&mut event);
        assert_eq!(event["apiVersion"], "events.k8s.io/v1");
        assert_eq!(event["regarding"]["kind"], "Pod");
        assert_eq!(event["note"], "m");
        assert_eq!(event["deprecatedCount"], 3);
        assert_eq!(event.get("message"), None);
        to_core(&mut event);
        assert_eq!(event, core);
    }
}
