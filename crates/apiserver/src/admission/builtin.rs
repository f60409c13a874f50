//! The admission rules that a stock Kubernetes server always has, as far as they need other objects; and those of volumes.

use std::sync::Arc;

use serde_json::Value;
use tether_machinery::status::{ApiError, Named};

use super::claim_resize::ClaimResize;
use super::longhorn::Longhorn;
use super::{Operation, Plugin, Request, node_restriction};
use crate::auth::{Attributes, Authorizer, Objects, check_escalation};
use crate::object::{is_deleting, meta_str};

/// Namespaces that everything else stands on.
const ETERNAL_NAMESPACES: [&str; 3] = ["default", "kube-system", "kube-public"];
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
const OLD_DEFAULT_CLASS: &str = "storageclass.beta.kubernetes.io/is-default-class";
pub(super) const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

pub(super) fn plugins(objects: &Arc<dyn Objects>, authorizer: &Arc<Authorizer>) -> Vec<Arc<dyn Plugin>> {
    vec![
        Arc::new(NamespaceLifecycle(objects.clone())),
        Arc::new(Privileges { objects: objects.clone(), authorizer: authorizer.clone() }),
        Arc::new(ServiceAccounts(objects.clone())),
        Arc::new(DefaultStorageClass(objects.clone())),
        Arc::new(ClaimResize(objects.clone())),
        Arc::new(Longhorn(objects.clone())),
    ]
}

/// Nothing new in a namespace that is not there or on its way out; some namespaces never go.
struct NamespaceLifecycle(Arc<dyn Objects>);

impl Plugin for NamespaceLifecycle {
    fn mutate(&self, request: &mut Request) -> Result<Vec<String>, ApiError> {
        let inside = !request.namespace.is_empty() && !request.is_main("", "namespaces");
        if request.operation != Operation::Create || !inside || !request.subresource.is_empty() {
            return Ok(Vec::new());
        }
        let Some(namespace) = self.0.get("namespaces", "", &request.namespace) else {
            return Err(ApiError::not_found(Named { group: "", resource: "namespaces", name: &request.namespace }));
        };
        let ending = is_deleting(&namespace) || namespace["status"]["phase"] == "Terminating";
        if ending {
            let why = format!(
                "unable to create new content in namespace {} because it is being terminated",
                request.namespace
            );
            let mut error = request.forbidden(why);
            error.details["causes"] = serde_json::json!([{
                "reason": "NamespaceTerminating",
                "message": format!("namespace {} is being terminated", request.namespace),
                "field": "metadata.namespace",
            }]);
            return Err(error);
        }
        Ok(Vec::new())
    }

    fn validate(&self, request: &Request) -> Result<Vec<String>, ApiError> {
        let eternal = request.operation == Operation::Delete
            && request.is_main("", "namespaces")
            && ETERNAL_NAMESPACES.contains(&request.name.as_str());
        if eternal { Err(request.forbidden("this namespace may not be deleted")) } else { Ok(Vec::new()) }
    }
}

/// Nodes touch what is theirs, and nobody grants what they do not have.
struct Privileges {
    objects: Arc<dyn Objects>,
    authorizer: Arc<Authorizer>,
}

impl Plugin for Privileges {
    fn validate(&self, request: &Request) -> Result<Vec<String>, ApiError> {
        node_restriction::admit(request, &*self.objects, &self.authorizer)?;
        if request.operation != Operation::Delete {
            let attributes = Attributes {
                user: request.user.clone(),
                verb: if request.operation == Operation::Create { "create" } else { "update" }.to_owned(),
                group: request.resource.group.clone(),
                version: request.resource.version.clone(),
                resource: request.resource.resource.clone(),
                subresource: request.subresource.clone(),
                namespace: request.namespace.clone(),
                name: request.name.clone(),
                is_resource: true,
                ..Attributes::default()
            };
            check_escalation(&self.authorizer, &attributes, &request.object, request.old_object.as_deref())?;
        }
        Ok(Vec::new())
    }
}

/// A pod runs as a service account that exists.
struct ServiceAccounts(Arc<dyn Objects>);

impl Plugin for ServiceAccounts {
    fn validate(&self, request: &Request) -> Result<Vec<String>, ApiError> {
        if request.operation != Operation::Create || !request.is_main("", "pods") {
            return Ok(Vec::new());
        }
        let pod = &request.object;
        if pod.pointer("/metadata/annotations/kubernetes.io~1config.mirror").is_some() {
            return Ok(Vec::new());
        }
        let name = pod["spec"]["serviceAccountName"].as_str().unwrap_or("default");
        if self.0.get("serviceaccounts", &request.namespace, name).is_none() {
            let why = format!(
                "error looking up service account {}/{name}: serviceaccount {name:?} not found",
                request.namespace
            );
            return Err(request.forbidden(why));
        }
        Ok(Vec::new())
    }
}

/// A claim that names no class gets the default one, the newest if there are several.
struct DefaultStorageClass(Arc<dyn Objects>);

impl Plugin for DefaultStorageClass {
    fn mutate(&self, request: &mut Request) -> Result<Vec<String>, ApiError> {
        let new_claim = request.operation == Operation::Create && request.is_main("", "persistentvolumeclaims");
        let claim = &mut request.object;
        let has_class =
            !claim["spec"]["storageClassName"].is_null() || claim["metadata"]["annotations"].get(OLD_CLASS).is_some();
        if !new_claim || has_class {
            return Ok(Vec::new());
        }
        let classes = self.0.list("storageclasses.storage.k8s.io");
        let newest = classes.iter().filter(|class| is_default(class)).max_by(|a, b| {
            let key = |c: &Value| meta_str(c, "creationTimestamp").to_owned();
            // Of two made in the same second the one with the smaller name counts, as upstream.
            key(a).cmp(&key(b)).then_with(|| meta_str(b, "name").cmp(meta_str(a, "name")))
        });
        if let Some(class) = newest {
            claim["spec"]["storageClassName"] = meta_str(class, "name").into();
        }
        Ok(Vec::new())
    }
}

fn is_default(class: &Value) -> bool {
    let annotations = &class["metadata"]["annotations"];
    [DEFAULT_CLASS, OLD_DEFAULT_CLASS].iter().any(|name| annotations[*name] == "true")
}
