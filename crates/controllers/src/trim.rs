//! What is not kept in memory: everything that no decision looks at and that would weigh.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount,
};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use kube::ResourceExt;

/// An object that can be made lighter before it is kept.
pub trait Trim: ResourceExt {
    fn trim(&mut self) {
        self.managed_fields_mut().clear();
    }
}

impl Trim for ConfigMap {}
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
            status.container_statuses = None;
            status.init_container_statuses = None;
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
