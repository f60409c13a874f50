//! What happens to a pod besides updates: it gets a token, is evicted, is deleted with grace.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::edit::{child, fill, fill_zero, integer, items, items_mut, present, rfc3339, set, set_in, text};

/// Whether no disruption budget needs to be asked: the pod has ended, has not begun, or is on its way out.
pub fn eviction_ignores_budgets(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed" | "Pending")
        || present(pod, "/metadata/deletionTimestamp").is_some()
}

/// Notes on a pod that it is being evicted, before it is deleted.
pub fn mark_evicted(pod: &mut Value, now: Timestamp) {
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
    });
    set_condition(pod, condition, now);
}

/// Sets a condition; the time of transition changes only with the status.
pub fn set_condition(pod: &mut Value, mut condition: Value, now: Timestamp) {
    let Some(status) = child(pod, "status") else { return };
    fill_zero(status, "conditions", json!([]));
    let Some(list) = status.get_mut("conditions").and_then(Value::as_array_mut) else { return };
    let before = list.iter_mut().find(|c| c.get("type") == condition.get("type"));
    if let Some(before) = before {
        let unchanged = before.get("status") == condition.get("status");
        let since = before.get("lastTransitionTime").cloned().filter(|_| unchanged);
        set(&mut condition, "lastTransitionTime", since.unwrap_or_else(|| rfc3339(now)));
        *before = condition;
    } else {
        set(&mut condition, "lastTransitionTime", rfc3339(now));
        list.push(condition);
    }
}

/// How long a pod gets to end, in seconds: what the client asked for, or what the pod says, and nothing
/// for a pod that no kubelet runs or that has ended already.
pub fn deletion_grace(pod: &Value, asked: Option<i64>) -> i64 {
    let running =
        !text(pod, "/spec/nodeName").is_empty() && !matches!(text(pod, "/status/phase"), "Failed" | "Succeeded");
    let grace = asked.or_else(|| integer(pod, "/spec/terminationGracePeriodSeconds")).unwrap_or(0);
    match grace {
        _ if !running => 0,
        grace if grace < 0 => 1,
        grace => grace,
    }
}

/// Where containers find the token of their service account.
const TOKEN_MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const TOKEN_VOLUME_PREFIX: &str = "kube-api-access-";
/// An hour and a little: the token is renewed well before it ends.
const TOKEN_SECONDS: i64 = 3607;
const FILE_MODE: i64 = 0o644;

/// What a service account gives to a new pod: pull secrets, and a token in every container unless the pod
/// or the account does not want it. `suffix` makes the volume's name unique.
pub fn admit_service_account(pod: &mut Value, account: &Value, suffix: &str) {
    let wanted = [pod.pointer("/spec/automountServiceAccountToken"), account.get("automountServiceAccountToken")]
        .into_iter()
        .flatten()
        .find_map(Value::as_bool)
        .unwrap_or(true);
    if wanted {
        mount_token(pod, suffix);
    }
    let secrets = items(account, "/imagePullSecrets");
    if items(pod, "/spec/imagePullSecrets").is_empty() && !secrets.is_empty() {
        let names: Value = secrets.iter().map(|s| json!({"name": text(s, "/name")})).collect();
        set_in(pod, "spec", "imagePullSecrets", names);
    }
}

fn mount_token(pod: &mut Value, suffix: &str) {
    let existing = items(pod, "/spec/volumes").iter().map(|v| text(v, "/name"));
    let existing = existing.into_iter().find(|name| name.starts_with(TOKEN_VOLUME_PREFIX)).map(str::to_owned);
    let volume = existing.clone().unwrap_or_else(|| format!("{TOKEN_VOLUME_PREFIX}{suffix}"));
    let mut mounted = false;
    for list in ["/spec/initContainers", "/spec/containers"] {
        for container in items_mut(pod, list) {
            if items(container, "/volumeMounts").iter().any(|m| text(m, "/mountPath") == TOKEN_MOUNT_PATH) {
                continue;
            }
            mounted = true;
            let mount = json!({"name": volume, "readOnly": true, "mountPath": TOKEN_MOUNT_PATH});
            push(container, "volumeMounts", mount);
        }
    }
    if mounted
        && existing.is_none()
        && let Some(spec) = pod.get_mut("spec")
    {
        push(
            spec,
            "volumes",
            json!({"name": volume, "projected": {"defaultMode": FILE_MODE, "sources": [
                {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [
                    {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
                ]}},
            ]}}),
        );
    }
}

fn push(owner: &mut Value, list: &str, value: Value) {
    if let Some(owner) = owner.as_object_mut() {
        fill(owner, list, json!([]));
        if let Some(list) = owner.get_mut(list).and_then(Value::as_array_mut) {
            list.push(value);
        }
    }
}
