//! A claim may ask for more only if it has a volume and its class lets volumes grow.

use std::sync::Arc;

use serde_json::Value;
use tether_machinery::quantity::Quantity;
use tether_machinery::status::ApiError;

use super::builtin::OLD_CLASS;
use super::{Operation, Plugin, Request};
use crate::auth::Objects;

const UNBOUND: &str = "Only bound persistent volume claims can be expanded";
const CLASS: &str = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must \
                     support resize";

pub(super) struct ClaimResize(pub Arc<dyn Objects>);

impl Plugin for ClaimResize {
    fn validate(&self, request: &Request) -> Result<Vec<String>, ApiError> {
        let changes = request.operation == Operation::Update && request.is_main("", "persistentvolumeclaims");
        let Some(old) = request.old_object.as_deref().filter(|_| changes) else { return Ok(Vec::new()) };
        if asks(&request.object) <= asks(old) {
            return Ok(Vec::new());
        }
        if old["status"]["phase"] != "Bound" {
            return Err(request.forbidden(UNBOUND));
        }
        let wanted = class(&request.object).filter(|wanted| class(old) == Some(wanted));
        let found = wanted.and_then(|name| self.0.get("storageclasses.storage.k8s.io", "", name));
        match found.is_some_and(|class| class["allowVolumeExpansion"] == true) {
            true => Ok(Vec::new()),
            false => Err(request.forbidden(CLASS)),
        }
    }
}

fn asks(claim: &Value) -> i64 {
    let quantity = claim["spec"]["resources"]["requests"]["storage"].as_str();
    quantity.and_then(|text| Quantity::parse(text).ok()).map_or(0, |quantity| quantity.value())
}

fn class(claim: &Value) -> Option<&str> {
    let annotation = claim["metadata"]["annotations"][OLD_CLASS].as_str();
    annotation.or_else(|| claim["spec"]["storageClassName"].as_str()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::admission::{GroupVersionKind, GroupVersionResource};
    use crate::auth::User;

    struct Classes;

    impl Objects for Classes {
        fn list(&self, _: &str) -> Vec<Arc<Value>> {
            Vec::new()
        }

        fn get(&self, _: &str, _: &str, name: &str) -> Option<Arc<Value>> {
            (name != "missing").then(|| Arc::new(json!({"allowVolumeExpansion": name == "grows"})))
        }

        fn named(&self, _: &str, _: &str, _: &str) -> Vec<Arc<Value>> {
            Vec::new()
        }

        fn changes(&self, _: &str) -> u64 {
            0
        }
    }

    fn claim(class: &str, size: &str, phase: &str) -> Value {
        let spec = json!({"storageClassName": class, "resources": {"requests": {"storage": size}}});
        json!({"metadata": {"name": "data"}, "spec": spec, "status": {"phase": phase}})
    }

    fn said(old: Value, new: Value) -> Option<String> {
        let request = Request {
            user: User::new("jane", [""]),
            operation: Operation::Update,
            kind: GroupVersionKind { group: String::new(), version: "v1".into(), kind: "PersistentVolumeClaim".into() },
            resource: GroupVersionResource {
                group: String::new(),
                version: "v1".into(),
                resource: "persistentvolumeclaims".into(),
            },
            subresource: String::new(),
            namespace: "default".into(),
            name: "data".into(),
            object: new,
            old_object: Some(Arc::new(old)),
            dry_run: false,
            options: Value::Null,
        };
        ClaimResize(Arc::new(Classes)).validate(&request).err().map(|error| error.message)
    }

    #[test]
    fn claims_grow_where_their_class_allows_it() {
        let grown = |class: &str, phase: &str| said(claim(class, "1Gi", phase), claim(class, "2Gi", phase));
        assert_eq!(grown("grows", "Bound"), None);
        let refused = |why: &str| Some(format!("persistentvolumeclaims \"data\" is forbidden: {why}"));
        assert_eq!(grown("grows", "Pending"), refused(UNBOUND));
        for class in ["fixed", "missing", ""] {
            assert_eq!(grown(class, "Bound"), refused(CLASS), "{class:?}");
        }
        let moved = said(claim("fixed", "1Gi", "Bound"), claim("grows", "2Gi", "Bound"));
        assert_eq!(moved, refused(CLASS), "the class that it was made by counts");
        assert_eq!(said(claim("fixed", "1Gi", "Bound"), claim("fixed", "1024Mi", "Bound")), None, "as large as before");
    }
}
