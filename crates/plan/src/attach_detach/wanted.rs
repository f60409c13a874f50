//! Which pods want volumes attached, which volumes can be, and to how many nodes.

use k8s_openapi::api::core::v1::{ContainerStatus, Node, PersistentVolume, Pod};
use k8s_openapi::api::storage::v1::CSIDriver;

use crate::object::is_deleting;

/// On a node: volumes are attached to it for its kubelet.
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// Whether volumes are to be attached to the node.
pub fn is_managed(node: &Node) -> bool {
    node.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(MANAGED))
}

/// Whether a pod needs its volumes no more: it has ended, or it is being deleted and nothing of it runs.
pub fn is_terminated(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    if matches!(status.and_then(|s| s.phase.as_deref()), Some("Failed" | "Succeeded")) {
        return true;
    }
    let runs = |status: &ContainerStatus| {
        let state = status.state.as_ref();
        state.is_some_and(|s| s.running.is_some())
            || state.is_none_or(|s| s.terminated.is_none() && s.waiting.is_none())
    };
    let all = status.into_iter().flat_map(|s| {
        let lists = [&s.init_container_statuses, &s.container_statuses, &s.ephemeral_container_statuses];
        lists.into_iter().flatten().flatten()
    });
    is_deleting(pod) && !all.into_iter().any(runs)
}

/// Whether volumes of a driver are attached at all; a driver that is not known says nothing against it.
pub fn is_attachable(driver: Option<&CSIDriver>) -> bool {
    driver.and_then(|d| d.spec.attach_required).unwrap_or(true)
}

/// Whether the volume may be attached to several nodes.
pub fn may_be_shared(volume: &PersistentVolume) -> bool {
    let modes = volume.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default();
    modes.is_empty() || modes.iter().any(|mode| mode == "ReadWriteMany" || mode == "ReadOnlyMany")
}
