//! What is not kept in memory: everything that no decision looks at and that would weigh.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount,
};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment};
use kube::ResourceExt;

/// An object that can be made lighter before it is kept.
pub trait Trim: ResourceExt {
    fn trim(&mut self) {
        self.managed_fields_mut().clear();
    }
}

impl Trim for ConfigMap {}
impl Trim for CSIDriver {}
impl Trim for CSINode {}
impl Trim for Lease {}
impl Trim for Namespace {}
impl Trim for PersistentVolume {}
impl Trim for PersistentVolumeClaim {}
impl Trim for ServiceAccount {}
impl Trim for StorageClass {}
impl Trim for VolumeAttachment {}

impl Trim for Node {
    fn trim(&mut self) {
        self.managed_fields_mut().clear();
        if let Some(status) = &mut self.status {
            status.images = None;
        }
    }
}

impl Trim for Pod {
    fn trim(&mut self) {
        self.managed_fields_mut().clear();
        if let Some(status) = &mut self.status {
            let lists = [
                &mut status.init_container_statuses,
                &mut status.container_statuses,
                &mut status.ephemeral_container_statuses,
            ];
            lists.into_iter().flatten().flatten().for_each(trim_container);
        }
        let Some(spec) = &mut self.spec else {
            return;
        };
        for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            *container = Container {
                name: std::mem::take(&mut container.name),
                resources: container.resources.take(),
                restart_policy: container.restart_policy.take(),
                ..Default::default()
            };
        }
    }
}

/// Only whether it runs, waits or has ended is looked at.
fn trim_container(status: &mut ContainerStatus) {
    let state = status.state.take().unwrap_or_default();
    let state = ContainerState {
        running: state.running.map(|_| ContainerStateRunning::default()),
        terminated: state.terminated.map(|_| ContainerStateTerminated::default()),
        waiting: state.waiting.map(|_| ContainerStateWaiting::default()),
    };
    *status =
        ContainerStatus { name: std::mem::take(&mut status.name), state: Some(state), ..ContainerStatus::default() };
}
