//! A custom resource definition's schema and an object of it. Input: two JSON documents, one after the other.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use tether_machinery::{crd, openapi, schema};

fuzz_target!(|data: &[u8]| {
    let mut documents = serde_json::Deserializer::from_slice(data).into_iter::<Value>();
    let (Some(Ok(openapi_schema)), Some(Ok(mut object))) = (documents.next(), documents.next()) else { return };
    let mut definition = json!({
        "metadata": {"name": "ks.example.com"},
        "spec": {"group": "example.com", "scope": "Cluster", "names": {"kind": "K", "plural": "ks"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": openapi_schema}}]}});
    crd::apply_defaults(&mut definition);
    let errors = crd::validate(&definition, None);
    let _ = crd::warnings(&definition);
    let Ok(info) = crd::parse(&definition) else { return };
    let version = &info.versions[0];
    if errors.is_empty() {
        let before = object.clone();
        schema::prune(&mut object, &version.schema);
        schema::apply_defaults(&mut object, &version.schema);
        let _ = crd::validate_object(Vec::new(), &object, None, false, version);
        let _ = crd::validate_object(Vec::new(), &object, Some(&before), false, version);
        let settled = object.clone();
        schema::prune(&mut object, &version.schema);
        schema::apply_defaults(&mut object, &version.schema);
        assert_eq!(settled, object, "what was pruned and defaulted stays as it is");
    }
    let resource = openapi::Resource {
        group: info.group.clone(),
        version: "v1".to_owned(),
        kind: info.kind.clone(),
        list_kind: info.list_kind.clone(),
        plural: info.plural.clone(),
        namespaced: false,
        verbs: vec!["get".to_owned(), "list".to_owned()],
        subresources: Vec::new(),
        schema: version.schema.clone(),
    };
    let _ = openapi::gnostic::v2(&openapi::v2(&[resource], "v1"));
});
