//! What nodes may write of volumes, as a policy for clusters whose API server does not know Tether.
//!
//! The embedded server checks the same itself, and one thing more that a policy cannot look up: that the node which changes
//! a volume's record has an engine of it.

use serde_json::{Value, json};

use crate::{GROUP, labels};

const NAME: &str = "tether-nodes";

/// The policy and its binding.
pub(crate) fn nodes() -> [Value; 2] {
    let metadata = json!({"name": NAME, "labels": {labels::MANAGED_BY: labels::MANAGER}});
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata,
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [
                {"apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE", "DELETE"], "resources": ["*/*"]},
            ]},
            "matchConditions": [{"name": "by-a-node", "expression": BY_A_NODE}],
            "variables": VARIABLES.map(|(name, expression)| json!({"name": name, "expression": expression})),
            "validations": RULES.map(|(expression, words)| {
                let message = format!("'node \"' + variables.node + '\" {words}'");
                json!({"expression": expression, "messageExpression": message, "reason": "Forbidden"})
            }),
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata,
        "spec": {"policyName": NAME, "validationActions": ["Deny"]},
    });
    [policy, binding]
}

const BY_A_NODE: &str =
    "'system:nodes' in request.userInfo.groups && request.userInfo.username.startsWith('system:node:')";

/// `held` is the object before the write, or the one that is made: a node must not give itself what is another's.
const VARIABLES: [(&str, &str); 6] = [
    ("node", "request.userInfo.username.substring(12)"),
    ("kind", "request.resource.resource"),
    ("held", "request.operation == 'CREATE' ? object : oldObject"),
    ("place", "has(variables.held.spec) && has(variables.held.spec.nodeID) ? variables.held.spec.nodeID : ''"),
    ("owner", "has(variables.held.status) && has(variables.held.status.ownerID) ? variables.held.status.ownerID : ''"),
    ("isHere", "variables.place == variables.node || variables.owner == variables.node"),
];

/// What has to hold, and what is said where it does not.
const RULES: [(&str, &str); 5] = [
    ("variables.kind != 'nodes' || request.name == variables.node", "can only write the Node of its own name"),
    (
        "variables.kind != 'instancemanagers' || variables.place == variables.node",
        "can only write instance managers with spec.nodeID set to itself",
    ),
    (
        "!(variables.kind in ['engines', 'replicas']) || variables.isHere",
        "can only write engines and replicas that are on it",
    ),
    (
        "!(variables.kind in ['engines', 'replicas']) || request.operation != 'UPDATE' || \
         request.subResource == 'status' || object.spec == oldObject.spec",
        "cannot change what is wanted of engines and replicas",
    ),
    (
        "variables.kind != 'volumes' || (request.subResource == 'status' && has(object.status) && \
         object.status.all(key, key == 'record' || \
         (has(oldObject.status) && key in oldObject.status && object.status[key] == oldObject.status[key])) && \
         (!has(oldObject.status) || oldObject.status.all(key, key == 'record' || key in object.status)))",
        "can only change status.record of volumes",
    ),
];
