//! NodeRestriction: of the objects that nodes may write at all, each node writes its own, and only in the parts that
//! do not steer other people's workloads to it.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use tether_machinery::status::{ApiError, Named};

use super::{Operation, Request, storage_restriction};
use crate::auth::node::{MIRROR_ANNOTATION, NODE_LEASE_NAMESPACE, PodReferences};
use crate::auth::{Attributes, Authorizer, Objects, text};

const CSI_DRIVERS: &str = "csidrivers.storage.k8s.io";
/// Labels under this domain are for administrators: workloads rely on nodes not setting them.
const RESTRICTED_LABELS: &str = "node-restriction.kubernetes.io";
/// Domains of Kubernetes under which a node may set labels of its own.
const NODE_LABEL_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// Labels of Kubernetes that a node knows best.
const NODE_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
/// Volume types that need nothing from the API.
const LOCAL_VOLUMES: [&str; 22] = [
    "awsElasticBlockStore",
    "azureDisk",
    "cephfs",
    "cinder",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

/// Checks a write of a node; everybody else passes.
pub fn admit(request: &Request, objects: &dyn Objects, authorizer: &Authorizer) -> Result<(), ApiError> {
    let Some(node) = request.user.node_name() else { return Ok(()) };
    if node.is_empty() {
        let user = &request.user.name;
        return Err(request.forbidden(format!("could not determine node from user {user:?}")));
    }
    let check = Check { node, request, objects, authorizer };
    let resource = &request.resource;
    match (resource.group.as_str(), resource.resource.as_str(), request.subresource.as_str()) {
        ("", "pods", "") => check.pod(),
        ("", "pods", "status") => check.pod_status(),
        ("", "pods", "eviction") => check.eviction(),
        ("", "pods", other) => Err(request
            .forbidden(format!("unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"))),
        ("", "nodes", _) => check.node(),
        ("", "persistentvolumeclaims", "status") => check.claim_status(),
        ("", "persistentvolumeclaims", _) => Err(request.forbidden("may only update PVC status")),
        ("", "serviceaccounts", "token") if request.operation == Operation::Create => check.token(),
        ("coordination.k8s.io", "leases", _) => check.lease(),
        ("storage.k8s.io", "csinodes", _) => {
            check.own_name("can only access CSINode with the same name as the requesting node")
        }
        (tether_crd::GROUP, ..) => match storage_restriction::refuse(node, request, objects) {
            Some(why) => Err(request.forbidden(why)),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

struct Check<'a> {
    node: &'a str,
    request: &'a Request,
    objects: &'a dyn Objects,
    authorizer: &'a Authorizer,
}

impl Check<'_> {
    fn forbidden<T>(&self, why: impl std::fmt::Display) -> Result<T, ApiError> {
        Err(self.request.forbidden(why))
    }

    fn unexpected_operation(&self) -> Result<(), ApiError> {
        self.forbidden(format!("unexpected operation {:?}", self.request.operation.as_str()))
    }

    fn existing_pod(&self, name: &str) -> Result<std::sync::Arc<Value>, ApiError> {
        self.objects
            .get("pods", &self.request.namespace, name)
            .ok_or_else(|| ApiError::not_found(Named { group: "", resource: "pods", name }))
    }

    fn pod(&self) -> Result<(), ApiError> {
        let node = self.node;
        match self.request.operation {
            Operation::Create => self.mirror_pod(&self.request.object),
            Operation::Delete => {
                let pod = self.existing_pod(&self.request.name)?;
                if text(&pod, "/spec/nodeName") == node {
                    return Ok(());
                }
                self.forbidden(format!("node {node:?} can only delete pods with spec.nodeName set to itself"))
            }
            other => self.forbidden(format!(
                "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
                other.as_str()
            )),
        }
    }

    /// The pods that a node creates show its static pods: they run on it, belong to it, and use no other object.
    fn mirror_pod(&self, pod: &Value) -> Result<(), ApiError> {
        let node = self.node;
        let annotated = pod.pointer("/metadata/annotations").and_then(|a| a.get(MIRROR_ANNOTATION)).is_some();
        if !annotated {
            return self.forbidden(format!(
                "pod does not have {MIRROR_ANNOTATION:?} annotation, node {node:?} can only create mirror pods"
            ));
        }
        if text(pod, "/spec/nodeName") != node {
            return self.forbidden(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
        }
        self.mirror_pod_owner(pod)?;
        match api_reference(pod) {
            Ok(None) => Ok(()),
            Ok(Some(what)) => self.forbidden(format!("node {node:?} can not create pods that reference {what}")),
            Err(why) => self.forbidden(format!("error checking mirror pod for API references: {why}")),
        }
    }

    fn mirror_pod_owner(&self, pod: &Value) -> Result<(), ApiError> {
        let node = self.node;
        let owners = pod.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        let owner = match owners.map(Vec::as_slice).unwrap_or_default() {
            [owner] => owner,
            [] => {
                return self
                    .forbidden(format!("node {node:?} can only create pods with an owner reference set to itself"));
            }
            _ => {
                return self.forbidden(format!(
                    "node {node:?} can only create pods with a single owner reference set to itself"
                ));
            }
        };
        let is_node = text(owner, "/apiVersion") == "v1" && text(owner, "/kind") == "Node";
        if !is_node || text(owner, "/name") != node {
            return self.forbidden(format!("node {node:?} can only create pods with an owner reference set to itself"));
        }
        if owner.get("controller") != Some(&Value::Bool(true)) {
            return self.forbidden(format!(
                "node {node:?} can only create pods with a controller owner reference set to itself"
            ));
        }
        if owner.get("blockOwnerDeletion") == Some(&Value::Bool(true)) {
            return self.forbidden(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
        }
        let live = self.objects.get("nodes", "", node);
        let live = live.ok_or_else(|| ApiError::not_found(Named { group: "", resource: "nodes", name: node }))?;
        let (given, uid) = (text(owner, "/uid"), text(&live, "/metadata/uid"));
        if given != uid {
            return self.forbidden(format!("node {node} UID mismatch: expected {given} got {uid}"));
        }
        Ok(())
    }

    fn pod_status(&self) -> Result<(), ApiError> {
        let node = self.node;
        let (Operation::Update, Some(old)) = (self.request.operation, &self.request.old_object) else {
            return self.unexpected_operation();
        };
        if text(old, "/spec/nodeName") != node {
            return self.forbidden(format!(
                "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
            ));
        }
        let new = &self.request.object;
        if !same(old.pointer("/metadata/labels"), new.pointer("/metadata/labels")) {
            return self.forbidden(format!("node {node:?} cannot update labels through pod status"));
        }
        let claims = "/status/resourceClaimStatuses";
        if !same(old.pointer(claims), new.pointer(claims)) {
            return self.forbidden(format!("node {node:?} cannot update resource claim statues"));
        }
        Ok(())
    }

    fn eviction(&self) -> Result<(), ApiError> {
        if self.request.operation != Operation::Create {
            return self.forbidden(format!("unexpected operation {}", self.request.operation.as_str()));
        }
        let name = match self.request.name.as_str() {
            "" => text(&self.request.object, "/metadata/name"),
            name => name,
        };
        if name.is_empty() {
            return self.forbidden("could not determine pod from request data");
        }
        if text(&*self.existing_pod(name)?, "/spec/nodeName") != self.node {
            return self.forbidden(format!("node {} can only evict pods with spec.nodeName set to itself", self.node));
        }
        Ok(())
    }

    fn claim_status(&self) -> Result<(), ApiError> {
        let (Operation::Update, Some(old)) = (self.request.operation, &self.request.old_object) else {
            return self.unexpected_operation();
        };
        if same(Some(&claim_for_comparison(old)), Some(&claim_for_comparison(&self.request.object))) {
            return Ok(());
        }
        self.forbidden(format!(
            "node {:?} is not allowed to update fields other than status.quantity and status.conditions",
            self.node
        ))
    }

    fn node(&self) -> Result<(), ApiError> {
        let node = self.node;
        if self.request.name != node {
            let other = &self.request.name;
            return self.forbidden(format!("node {node:?} is not allowed to modify node {other:?}"));
        }
        let new = &self.request.object;
        let config_source = new.pointer("/spec/configSource").filter(|source| !source.is_null());
        match (self.request.operation, &self.request.old_object) {
            (Operation::Create, _) => {
                if config_source.is_some() {
                    return self
                        .forbidden(format!("node {node:?} is not allowed to create pods with a non-nil configSource"));
                }
                let labels = forbidden_labels(None, new.pointer("/metadata/labels"));
                if !labels.is_empty() {
                    return self
                        .forbidden(format!("node {node:?} is not allowed to set the following labels: {labels}"));
                }
            }
            (Operation::Update, Some(old)) => {
                if config_source.is_some() && config_source != old.pointer("/spec/configSource") {
                    return self.forbidden(format!(
                        "node {node:?} is not allowed to update configSource to a new non-nil configSource"
                    ));
                }
                for (path, what) in [("/spec/taints", "taints"), ("/metadata/ownerReferences", "ownerReferences")] {
                    if !same(old.pointer(path), new.pointer(path)) {
                        return self.forbidden(format!("node {node:?} is not allowed to modify {what}"));
                    }
                }
                let labels = forbidden_labels(old.pointer("/metadata/labels"), new.pointer("/metadata/labels"));
                if !labels.is_empty() {
                    return self.forbidden(format!("is not allowed to modify labels: {labels}"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn lease(&self) -> Result<(), ApiError> {
        if self.request.namespace != NODE_LEASE_NAMESPACE {
            return self.forbidden(format!("can only access leases in the {NODE_LEASE_NAMESPACE:?} system namespace"));
        }
        self.own_name("can only access node lease with the same name as the requesting node")
    }

    fn own_name(&self, otherwise: &str) -> Result<(), ApiError> {
        let name = match self.request.operation {
            Operation::Create => text(&self.request.object, "/metadata/name"),
            _ => &self.request.name,
        };
        if name == self.node { Ok(()) } else { self.forbidden(otherwise) }
    }

    /// A node gets tokens for its pods, for the audiences that the pods ask for.
    fn token(&self) -> Result<(), ApiError> {
        let bound = self.request.object.pointer("/spec/boundObjectRef").unwrap_or(&Value::Null);
        let name = text(bound, "/name");
        if text(bound, "/apiVersion") != "v1" || text(bound, "/kind") != "Pod" || name.is_empty() {
            return self.forbidden("node requested token not bound to a pod");
        }
        let uid = text(bound, "/uid");
        if uid.is_empty() {
            return self.forbidden("node requested token with a pod binding without a uid");
        }
        let pod = self.existing_pod(name)?;
        if uid != text(&pod, "/metadata/uid") {
            return self.forbidden(format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have \
                 been deleted and then recreated"
            ));
        }
        if text(&pod, "/spec/nodeName") != self.node {
            return self.forbidden("node requested token bound to a pod scheduled on a different node");
        }
        self.audience(&pod)
    }

    fn audience(&self, pod: &Value) -> Result<(), ApiError> {
        let audiences = self.request.object.pointer("/spec/audiences").and_then(Value::as_array);
        let audience = match audiences.map(Vec::as_slice).unwrap_or_default() {
            [] => "",
            [one] => one.as_str().unwrap_or_default(),
            _ => return self.forbidden("node may only request 0 or 1 audiences"),
        };
        if self.pod_wants_audience(pod, audience) {
            return Ok(());
        }
        let user = &self.request.user;
        let permission = Attributes {
            user: user.clone(),
            verb: "request-serviceaccounts-token-audience".into(),
            version: "v1".into(),
            resource: audience.into(),
            namespace: self.request.namespace.clone(),
            name: self.request.name.clone(),
            is_resource: true,
            ..Attributes::default()
        };
        if self.authorizer.authorize(&permission).is_allowed() {
            return Ok(());
        }
        self.forbidden(format!("{} is not authorized to request tokens for audience {audience:?}", user.name))
    }

    fn pod_wants_audience(&self, pod: &Value, audience: &str) -> bool {
        let namespace = text(pod, "/metadata/namespace");
        volumes(pod).any(|volume| {
            let sources = volume.pointer("/projected/sources").and_then(Value::as_array);
            let projected = sources.into_iter().flatten().any(|source| {
                let token = source.get("serviceAccountToken").filter(|token| !token.is_null());
                token.is_some_and(|token| text(token, "/audience") == audience)
            });
            projected
                || self.driver_of(volume, pod, namespace).is_some_and(|driver| self.driver_wants(&driver, audience))
        })
    }

    /// The CSI driver behind a pod's volume.
    fn driver_of(&self, volume: &Value, pod: &Value, namespace: &str) -> Option<String> {
        let inline = text(volume, "/csi/driver");
        if !inline.is_empty() {
            return Some(inline.to_owned());
        }
        let claim = match text(volume, "/persistentVolumeClaim/claimName") {
            "" if volume.get("ephemeral").is_some() => {
                format!("{}-{}", text(pod, "/metadata/name"), text(volume, "/name"))
            }
            name => name.to_owned(),
        };
        let claim = self.objects.get("persistentvolumeclaims", namespace, &claim)?;
        let bound = self.objects.get("persistentvolumes", "", text(&claim, "/spec/volumeName"))?;
        Some(text(&bound, "/spec/csi/driver").to_owned()).filter(|driver| !driver.is_empty())
    }

    fn driver_wants(&self, driver: &str, audience: &str) -> bool {
        let Some(driver) = self.objects.get(CSI_DRIVERS, "", driver) else { return false };
        let requests = driver.pointer("/spec/tokenRequests").and_then(Value::as_array);
        requests.into_iter().flatten().any(|request| text(request, "/audience") == audience)
    }
}

fn volumes(pod: &Value) -> impl Iterator<Item = &Value> {
    pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten()
}

/// Equal, where nothing, null and empty are the same.
fn same(a: Option<&Value>, b: Option<&Value>) -> bool {
    fn empty(value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.values().all(empty),
            _ => false,
        }
    }
    fn equal(a: &Value, b: &Value) -> bool {
        match (a, b) {
            (Value::Object(a), Value::Object(b)) => {
                let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
                keys.into_iter().all(|key| same(a.get(key), b.get(key)))
            }
            (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
            _ => a == b || (empty(a) && empty(b)),
        }
    }
    equal(a.unwrap_or(&Value::Null), b.unwrap_or(&Value::Null))
}

/// A claim without what a node may change.
fn claim_for_comparison(claim: &Value) -> Value {
    let mut claim = claim.clone();
    let mut remove = |parent: &str, fields: &[&str]| {
        if let Some(parent) = claim.get_mut(parent).and_then(Value::as_object_mut) {
            parent.retain(|field, _| !fields.contains(&field.as_str()));
        }
    };
    remove("metadata", &["resourceVersion", "managedFields"]);
    remove("status", &["capacity", "conditions", "allocatedResourceStatuses", "allocatedResources"]);
    claim
}

/// The labels that differ and that a node has no say in, sorted and listed.
fn forbidden_labels(old: Option<&Value>, new: Option<&Value>) -> String {
    let empty = Map::new();
    let labels = |value: Option<&'_ Value>| value.and_then(Value::as_object).unwrap_or(&empty).clone();
    let (old, new) = (labels(old), labels(new));
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let changed = keys.into_iter().filter(|key| old.get(*key) != new.get(*key));
    changed.filter(|key| !may_set(key)).cloned().collect::<Vec<_>>().join(", ")
}

fn may_set(label: &str) -> bool {
    let domain = label.split_once('/').map_or("", |(domain, _)| domain);
    let within = |parent: &str| domain == parent || domain.strip_suffix(parent).is_some_and(|d| d.ends_with('.'));
    if within(RESTRICTED_LABELS) {
        return false;
    }
    let of_kubernetes = within("kubernetes.io") || within("k8s.io");
    !of_kubernetes || NODE_LABELS.contains(&label) || NODE_LABEL_DOMAINS.into_iter().any(within)
}

/// What a pod refers to that has to be fetched from the API, if anything.
fn api_reference(pod: &Value) -> Result<Option<&'static str>, String> {
    let references = PodReferences::of(pod);
    if !references.service_account.is_empty() {
        return Ok(Some("serviceaccounts"));
    }
    if !references.secrets.is_empty() {
        return Ok(Some("secrets"));
    }
    if !references.config_maps.is_empty() {
        return Ok(Some("configmaps"));
    }
    let claims = pod.pointer("/spec/resourceClaims").and_then(Value::as_array);
    if claims.is_some_and(|claims| !claims.is_empty()) {
        return Ok(Some("resourceclaims"));
    }
    for volume in volumes(pod) {
        if let Some(what) = volume_reference(volume)? {
            return Ok(Some(what));
        }
    }
    Ok(None)
}

fn volume_reference(volume: &Value) -> Result<Option<&'static str>, String> {
    const REFERRING: [(&str, &str); 7] = [
        ("configMap", "configmaps (via configmap volumes)"),
        ("secret", "secrets (via secret volumes)"),
        ("csi", "csidrivers (via CSI volumes)"),
        ("glusterfs", "endpoints (via glusterFS volumes)"),
        ("persistentVolumeClaim", "persistentvolumeclaims"),
        ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
        ("azureFile", "secrets (via azureFile volumes)"),
    ];
    const PROJECTED: [(&str, &str); 5] = [
        ("configMap", "configmaps (via projected volumes)"),
        ("secret", "secrets (via projected volumes)"),
        ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
        ("clusterTrustBundle", "clustertrustbundles"),
        ("podCertificate", "podcertificates"),
    ];
    let name = text(volume, "/name");
    let has = |object: &Value, field: &str| object.get(field).is_some_and(|value| !value.is_null());
    if LOCAL_VOLUMES.into_iter().any(|kind| has(volume, kind)) {
        return Ok(None);
    }
    if let Some((_, what)) = REFERRING.into_iter().find(|(kind, _)| has(volume, kind)) {
        return Ok(Some(what));
    }
    if !has(volume, "projected") {
        return Err(format!("unknown volume type for volume  {name:?}"));
    }
    let sources = volume.pointer("/projected/sources").and_then(Value::as_array);
    for source in sources.into_iter().flatten() {
        if let Some((_, what)) = PROJECTED.into_iter().find(|(kind, _)| has(source, kind)) {
            return Ok(Some(what));
        }
        if !has(source, "downwardAPI") {
            return Err(format!("unknown source for projected volume {name:?}"));
        }
    }
    Ok(None)
}

#[cfg(test)]
#[path = "node_restriction_tests.rs"]
mod tests;
