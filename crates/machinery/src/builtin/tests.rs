//! Schemas of built-in kinds: what is there, and that recursion ends.

use super::*;
use crate::schema::ListType;

#[test]
fn every_kind_has_a_schema() {
    for kind in KINDS {
        let schema = schema(kind.group, kind.version, kind.kind).unwrap_or_else(|| panic!("{}", kind.kind));
        assert_eq!(schema.ty, Type::Object, "{}", kind.kind);
        assert_eq!(schema.definition.as_deref(), Some(kind.definition));
        if kind.listable {
            let list = definition(&format!("{}List", kind.definition)).unwrap_or_else(|| panic!("{}List", kind.kind));
            let items = list.properties["items"].items.as_ref().unwrap();
            assert!(Arc::ptr_eq(items, &schema), "{}List", kind.kind);
        }
    }
    assert!(schema("apps", "v1", "Deployment").is_none());
}

#[test]
fn nodes_are_shared_between_kinds() {
    let (pod, node) = (schema("", "v1", "Pod").unwrap(), schema("", "v1", "Node").unwrap());
    let labels = |schema: &Schema| Arc::as_ptr(&schema.properties["metadata"].properties["labels"]);
    assert_eq!(labels(&pod), labels(&node));
}

#[test]
fn lists_of_pods_merge_by_their_keys() {
    let spec = definition("io.k8s.api.core.v1.PodSpec").unwrap();
    assert_eq!(spec.properties["containers"].list, ListType::Map(vec!["name".to_owned()]));
    assert_eq!(spec.properties["tolerations"].list, ListType::Atomic);
    assert!(spec.properties["volumes"].patch.retain_keys);
    assert!(spec.properties["nodeSelector"].atomic_map);
    let port = definition("io.k8s.api.core.v1.ContainerPort").unwrap();
    assert_eq!(port.properties["protocol"].default, Some("TCP".into()));
    assert_eq!(object_meta().properties["finalizers"].list, ListType::Set);
}

#[test]
fn the_schema_of_schemas_contains_itself() {
    let crd = schema("apiextensions.k8s.io", "v1", "CustomResourceDefinition").unwrap();
    let versions = crd.properties["spec"].properties["versions"].items.as_ref().unwrap();
    let openapi = versions.properties["schema"].properties["openAPIV3Schema"].resolve();
    let property = openapi.properties["properties"].additional.as_ref().unwrap();
    let again = property.resolve();
    assert!(again.properties.contains_key("x-kubernetes-list-type"));
    assert_eq!(openapi.properties["additionalProperties"].ty, Type::Any);
    assert!(openapi.properties["additionalProperties"].resolve().properties.contains_key("maxLength"));
}
