//! Binding a pod to a node.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::lifecycle::set_condition;
use crate::field::{FieldError, Path};
use crate::kinds::edit::{child, entries, set_in, text};

/// Why a pod was not bound.
#[derive(Clone, Debug, PartialEq)]
pub enum BindError {
    /// The binding itself is wrong.
    Invalid(Vec<FieldError>),
    /// The pod is not in a state to be bound.
    Conflict(String),
}

/// The pod, bound as `binding` says: the node set, annotations and labels added, `PodScheduled` true.
pub fn bind(pod: &Value, binding: &Value, now: Timestamp) -> Result<Value, BindError> {
    let node = text(binding, "/target/name");
    check_target(text(binding, "/target/kind"), node)?;
    let name = text(pod, "/metadata/name");
    let conflict = |why: String| Err(BindError::Conflict(why));
    let (wanted, is) = (text(binding, "/metadata/uid"), text(pod, "/metadata/uid"));
    if !wanted.is_empty() && wanted != is {
        return conflict(format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {is}"));
    }
    if !text(pod, "/metadata/deletionTimestamp").is_empty() {
        return conflict(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    let bound_to = text(pod, "/spec/nodeName");
    if !bound_to.is_empty() {
        return conflict(format!("pod {name} is already assigned to node {bound_to:?}"));
    }
    if pod.pointer("/spec/schedulingGates").and_then(Value::as_array).is_some_and(|gates| !gates.is_empty()) {
        return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let mut bound = pod.clone();
    set_in(&mut bound, "spec", "nodeName", node.into());
    set_in(&mut bound, "status", "nominatedNodeName", Value::Null);
    for section in ["annotations", "labels"] {
        let added: Vec<_> =
            entries(binding, &format!("/metadata/{section}")).map(|(k, v)| (k.clone(), v.clone())).collect();
        if !added.is_empty()
            && let Some(metadata) = bound.get_mut("metadata")
            && let Some(map) = child(metadata, section)
        {
            map.extend(added);
        }
    }
    set_condition(&mut bound, json!({"type": "PodScheduled", "status": "True"}), now);
    Ok(bound)
}

fn check_target(kind: &str, node: &str) -> Result<(), BindError> {
    let mut errors = Vec::new();
    if !matches!(kind, "" | "Node") {
        errors.push(FieldError::not_supported(Path::new("target.kind"), kind, &["Node", "<empty>"]));
    }
    if node.is_empty() {
        errors.push(FieldError::required(Path::new("target.name"), ""));
    }
    if errors.is_empty() { Ok(()) } else { Err(BindError::Invalid(errors)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(node: &str) -> Value {
        json!({"metadata": {"name": "web", "annotations": {"by": "test"}}, "target": {"kind": "Node", "name": node}})
    }

    #[test]
    fn a_pod_is_bound_once() {
        let pod = json!({"metadata": {"name": "web"}, "spec": {}, "status": {"phase": "Pending"}});
        let bound = bind(&pod, &binding("n1"), Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(bound["spec"]["nodeName"], "n1");
        assert_eq!(bound["metadata"]["annotations"]["by"], "test");
        assert_eq!(bound["status"]["conditions"][0]["status"], "True");
        let again = bind(&bound, &binding("n2"), Timestamp::UNIX_EPOCH);
        assert_eq!(again, Err(BindError::Conflict("pod web is already assigned to node \"n1\"".to_owned())));
    }

    #[test]
    fn what_cannot_be_bound_is_said_why() {
        let now = Timestamp::UNIX_EPOCH;
        let invalid = bind(&json!({}), &json!({"target": {"kind": "Pod"}}), now);
        assert!(matches!(invalid, Err(BindError::Invalid(errors)) if errors.len() == 2));
        for pod in [
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            json!({"metadata": {}, "spec": {"schedulingGates": [{"name": "wait"}]}}),
        ] {
            assert!(matches!(bind(&pod, &binding("n1"), now), Err(BindError::Conflict(_))), "{pod}");
        }
    }
}
