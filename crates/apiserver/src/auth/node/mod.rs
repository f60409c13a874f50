//! The node authorizer: a node may touch itself and what its pods need, and nothing else.
//!
//! It only ever adds permissions; RBAC is asked after it, which is how nodes get at custom resources. What can be told
//! from the path alone is decided here; what depends on the object written is left to
//! [`crate::admission::node_restriction`].

mod references;
mod relations;

use std::sync::Arc;

use tether_machinery::selector::FieldSelector;

pub(crate) use references::PodReferences;
use relations::Relations;

use super::rules::PolicyRule;
use super::{Attributes, Objects, bootstrap};

/// Leases of nodes live here.
pub(crate) const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";
/// Marks a pod that mirrors a static one: it grants its node nothing.
pub(crate) const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// What a node can stand in relation to through its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Kind {
    ConfigMap,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    Secret,
    ServiceAccount,
    VolumeAttachment,
}

/// Allowed, or not by this authorizer (with a reason, which may be empty).
pub(crate) type Opinion = Result<(), String>;

fn refuse(reason: &str) -> Opinion {
    Err(reason.to_owned())
}

pub(crate) struct NodeAuthorizer {
    relations: Relations,
    rules: Vec<PolicyRule>,
}

impl NodeAuthorizer {
    pub(crate) fn new(objects: Arc<dyn Objects>) -> Self {
        Self { relations: Relations::new(objects), rules: bootstrap::node_rules() }
    }

    /// `None`: the user is no node.
    pub(crate) fn authorize(&self, request: &Attributes) -> Option<Opinion> {
        let node = request.user.node_name()?;
        if node.is_empty() {
            return Some(Err(format!("unknown node for user {:?}", request.user.name)));
        }
        Some(self.authorize_node(node, request))
    }

    fn authorize_node(&self, node: &str, request: &Attributes) -> Opinion {
        if request.is_resource {
            match (request.group.as_str(), request.resource.as_str()) {
                ("", "secrets") => return self.read(node, Kind::Secret, request),
                ("", "configmaps") => return self.read(node, Kind::ConfigMap, request),
                ("", "persistentvolumeclaims") if request.subresource == "status" => {
                    return self.update_status(node, Kind::PersistentVolumeClaim, request);
                }
                // Unlike in Kubernetes: a node that waits for a claim to grow is told, instead of asking again and again.
                ("", "persistentvolumeclaims")
                    if matches!(request.verb.as_str(), "list" | "watch") && !request.name.is_empty() =>
                {
                    return self.read(node, Kind::PersistentVolumeClaim, request);
                }
                ("", "persistentvolumeclaims") => return self.get(node, Kind::PersistentVolumeClaim, request),
                ("", "persistentvolumes") => return self.get(node, Kind::PersistentVolume, request),
                ("storage.k8s.io", "volumeattachments") => return self.get(node, Kind::VolumeAttachment, request),
                ("", "serviceaccounts") => return self.service_account(node, request),
                ("coordination.k8s.io", "leases") => return lease(node, request),
                ("storage.k8s.io", "csinodes") => return csi_node(node, request),
                ("", "nodes") => return own_node(node, request),
                ("", "pods") => return self.pod(node, request),
                _ => {}
            }
        }
        if self.rules.iter().any(|rule| rule.allows(request)) { Ok(()) } else { refuse("") }
    }

    /// The named object must be one that this node's pods refer to.
    fn related(&self, node: &str, kind: Kind, request: &Attributes) -> Opinion {
        if request.name.is_empty() {
            return refuse("No Object name found");
        }
        if self.relations.holds(kind, &request.namespace, &request.name, node) {
            return Ok(());
        }
        Err(format!("no relationship found between node '{node}' and this object"))
    }

    fn get(&self, node: &str, kind: Kind, request: &Attributes) -> Opinion {
        if request.verb != "get" {
            return refuse("can only get individual resources of this type");
        }
        if !request.subresource.is_empty() {
            return refuse("cannot get subresource");
        }
        self.related(node, kind, request)
    }

    fn read(&self, node: &str, kind: Kind, request: &Attributes) -> Opinion {
        if !matches!(request.verb.as_str(), "get" | "list" | "watch") {
            return refuse("can only read resources of this type");
        }
        if !request.subresource.is_empty() {
            return refuse("cannot read subresource");
        }
        if request.namespace.is_empty() {
            return refuse("can only read namespaced object of this type");
        }
        self.related(node, kind, request)
    }

    fn update_status(&self, node: &str, kind: Kind, request: &Attributes) -> Opinion {
        if !matches!(request.verb.as_str(), "update" | "patch") {
            return refuse("can only get/update/patch this type");
        }
        self.related(node, kind, request)
    }

    /// Reading an account of a pod here, and tokens for it.
    fn service_account(&self, node: &str, request: &Attributes) -> Opinion {
        if request.verb == "get" && request.subresource.is_empty() {
            return self.read(node, Kind::ServiceAccount, request);
        }
        if request.verb != "create" || request.name.is_empty() {
            return refuse("can only create tokens for individual service accounts");
        }
        if request.subresource != "token" {
            return refuse("can only create token subresource of serviceaccount");
        }
        self.related(node, Kind::ServiceAccount, request)
    }

    fn pod(&self, node: &str, request: &Attributes) -> Opinion {
        match (request.subresource.as_str(), request.verb.as_str()) {
            ("", "get") => self.get(node, Kind::Pod, request),
            ("", "list" | "watch") => {
                if selects_own(node, &request.field_selector) {
                    return Ok(());
                }
                if request.name.is_empty() {
                    return refuse("can only list/watch pods with spec.nodeName field selector");
                }
                self.related(node, Kind::Pod, request)
            }
            // Whose pod it is, admission knows.
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => Ok(()),
            _ => refuse(""),
        }
    }
}

/// Does the selector hold the requirement `spec.nodeName=NODE`?
fn selects_own(node: &str, field_selector: &str) -> bool {
    FieldSelector::parse(field_selector).is_ok_and(|selector| selector.exact("spec.nodeName") == Some(node))
}

fn lease(node: &str, request: &Attributes) -> Opinion {
    let verb = request.verb.as_str();
    if !matches!(verb, "get" | "create" | "update" | "patch" | "delete") {
        return refuse("can only get, create, update, patch, or delete a node lease");
    }
    if request.namespace != NODE_LEASE_NAMESPACE {
        return Err(format!("can only access leases in the {NODE_LEASE_NAMESPACE:?} system namespace"));
    }
    // On create the name is in the body, which admission looks at.
    if verb != "create" && request.name != node {
        return refuse("can only access node lease with the same name as the requesting node");
    }
    Ok(())
}

fn csi_node(node: &str, request: &Attributes) -> Opinion {
    if !request.subresource.is_empty() {
        return refuse("cannot authorize CSINode subresources");
    }
    let verb = request.verb.as_str();
    if !matches!(verb, "get" | "create" | "update" | "patch" | "delete") {
        return refuse("can only get, create, update, patch, or delete a CSINode");
    }
    if verb != "create" && request.name != node {
        return refuse("can only access CSINode with the same name as the requesting node");
    }
    Ok(())
}

fn own_node(node: &str, request: &Attributes) -> Opinion {
    match (request.subresource.as_str(), request.verb.as_str()) {
        // Which node is written, admission knows.
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
        ("", "get" | "list" | "watch") => match request.name.as_str() {
            name if name == node => Ok(()),
            "" => Err(format!("node '{node}' cannot read all nodes, only its own Node object")),
            other => Err(format!("node '{node}' cannot read '{other}', only its own Node object")),
        },
        _ => refuse(""),
    }
}

#[cfg(test)]
mod tests;
