//! Documents as clients read them: paths, components, protobuf.

use prost::Message;
use serde_json::{Value, json};

use super::*;
use crate::{builtin, crd};

fn verbs(list: &str) -> Vec<String> {
    list.split(' ').map(str::to_owned).collect()
}

const ALL: &str = "create delete deletecollection get list patch update watch";

fn resources() -> Vec<Resource> {
    let pod = builtin::schema("", "v1", "Pod").unwrap();
    let definition = json!({"spec": {"group": "example.io", "scope": "Cluster",
        "names": {"kind": "Widget", "plural": "widgets"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
            "type": "object", "description": "A widget.", "properties": {"spec": {"type": "object", "properties": {
                "size": {"type": "integer", "nullable": true, "default": 1, "description": "How large."},
                "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
                "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}}}}}}}]}});
    let widgets = crd::parse(&definition).unwrap();
    vec![
        Resource {
            group: String::new(),
            version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            list_kind: "PodList".to_owned(),
            plural: "pods".to_owned(),
            namespaced: true,
            verbs: verbs(ALL),
            subresources: vec![
                Subresource {
                    name: "status".to_owned(),
                    group: String::new(),
                    version: "v1".to_owned(),
                    kind: "Pod".to_owned(),
                    verbs: verbs("get patch update"),
                    schema: pod.clone(),
                },
                Subresource {
                    name: "eviction".to_owned(),
                    group: "policy".to_owned(),
                    version: "v1".to_owned(),
                    kind: "Eviction".to_owned(),
                    verbs: verbs("create"),
                    schema: builtin::schema("policy", "v1", "Eviction").unwrap(),
                },
            ],
            schema: pod,
        },
        Resource {
            group: "example.io".to_owned(),
            version: "v1".to_owned(),
            kind: widgets.kind.clone(),
            list_kind: widgets.list_kind.clone(),
            plural: widgets.plural.clone(),
            namespaced: false,
            verbs: verbs(ALL),
            subresources: Vec::new(),
            schema: widgets.versions[0].schema.clone(),
        },
    ]
}

/// Every `$ref` of a document.
fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(target)) = map.get("$ref") {
                found.push(target);
            }
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[test]
fn every_reference_leads_somewhere() {
    let resources = resources();
    for document in
        [v3("", "v1", &resources, "v1.35.0"), v3("example.io", "v1", &resources, "v1.35.0"), v2(&resources, "v1.35.0")]
    {
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(!found.is_empty());
        for target in found {
            assert!(document.pointer(target.trim_start_matches('#')).is_some(), "{target}");
        }
    }
}

#[test]
fn explain_finds_kinds_by_path_and_definition() {
    let document = v3("", "v1", &resources(), "v1.35.0");
    let pod = json!({"group": "", "version": "v1", "kind": "Pod"});
    for path in ["/api/v1/pods", "/api/v1/namespaces/{namespace}/pods/{name}"] {
        assert_eq!(document["paths"][path]["get"]["x-kubernetes-group-version-kind"], pod, "{path}");
    }
    let schema = &document["components"]["schemas"]["io.k8s.api.core.v1.Pod"];
    assert_eq!(schema["x-kubernetes-group-version-kind"], json!([pod]));
    let spec = &schema["properties"]["spec"];
    assert_eq!(spec["allOf"], json!([{"$ref": "#/components/schemas/io.k8s.api.core.v1.PodSpec"}]));
    assert!(spec["description"].as_str().is_some_and(|text| !text.is_empty()));
    let eviction = &document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}/eviction"]["post"];
    assert_eq!(eviction["x-kubernetes-group-version-kind"]["kind"], "Eviction");
    assert_eq!(eviction["operationId"], "createCoreV1NamespacedPodEviction");
}

#[test]
fn patches_say_that_they_take_field_validation() {
    let resources = resources();
    let v3 = v3("example.io", "v1", &resources, "v1.35.0");
    let v2 = v2(&resources, "v1.35.0");
    for document in [&v3, &v2] {
        let patch = &document["paths"]["/apis/example.io/v1/widgets/{name}"]["patch"];
        let names: Vec<&str> =
            patch["parameters"].as_array().unwrap().iter().filter_map(|p| p["name"].as_str()).collect();
        assert!(names.contains(&"fieldValidation"), "{names:?}");
        assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Widget");
    }
}

#[test]
fn custom_resources_are_described() {
    let resources = resources();
    let document = v3("example.io", "v1", &resources, "v1.35.0");
    let schemas = &document["components"]["schemas"];
    let widget = &schemas["io.example.v1.Widget"];
    assert_eq!(widget["description"], "A widget.");
    let metadata = &widget["properties"]["metadata"];
    let object_meta = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    assert_eq!(metadata["allOf"], json!([{"$ref": object_meta}]));
    assert!(metadata["description"].as_str().is_some_and(|text| text.contains("metadata")), "{metadata}");
    let spec = &widget["properties"]["spec"]["properties"];
    assert_eq!(spec["size"], json!({"type": "integer", "nullable": true, "default": 1, "description": "How large."}));
    assert_eq!(spec["tags"]["x-kubernetes-list-type"], "set");
    assert_eq!(spec["port"]["x-kubernetes-int-or-string"], true);
    let list = &schemas["io.example.v1.WidgetList"];
    assert_eq!(list["properties"]["items"]["items"]["$ref"], "#/components/schemas/io.example.v1.Widget");
    // Version 2 cannot say null, and says nothing instead.
    let v2 = v2(&resources, "v1.35.0");
    let size = &v2["definitions"]["io.example.v1.Widget"]["properties"]["spec"]["properties"]["size"];
    assert_eq!(size, &json!({"description": "How large."}));
}

#[test]
fn the_index_names_documents_by_hash() {
    let etag = etag(b"{}");
    assert_eq!(etag.len(), 128);
    let index = v3_index([("api/v1", etag.as_str()), ("apis/example.io/v1", "AB")]);
    assert_eq!(index["paths"]["apis/example.io/v1"]["serverRelativeURL"], "/openapi/v3/apis/example.io/v1?hash=AB");
}

/// Just enough of gnostic's messages to read back what a client looks at.
mod read {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Any {
        #[prost(string, tag = "2")]
        pub yaml: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct NamedAny {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(message, optional, tag = "2")]
        pub value: Option<Any>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Texts {
        #[prost(string, repeated, tag = "1")]
        pub value: Vec<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Schema {
        #[prost(string, tag = "1")]
        pub reference: String,
        #[prost(string, tag = "4")]
        pub description: String,
        #[prost(message, optional, tag = "22")]
        pub ty: Option<Texts>,
        #[prost(message, optional, tag = "25")]
        pub properties: Option<Schemas>,
        #[prost(message, repeated, tag = "31")]
        pub extensions: Vec<NamedAny>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct NamedSchema {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(message, optional, tag = "2")]
        pub value: Option<Schema>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Schemas {
        #[prost(message, repeated, tag = "1")]
        pub all: Vec<NamedSchema>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct DocumentV2 {
        #[prost(string, tag = "1")]
        pub swagger: String,
        #[prost(message, optional, tag = "9")]
        pub definitions: Option<Schemas>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct SchemaV3 {
        #[prost(string, tag = "34")]
        pub description: String,
        #[prost(string, tag = "25")]
        pub ty: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct SchemaOrReference {
        #[prost(message, optional, tag = "1")]
        pub schema: Option<SchemaV3>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct NamedSchemaV3 {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(message, optional, tag = "2")]
        pub value: Option<SchemaOrReference>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct SchemasV3 {
        #[prost(message, repeated, tag = "1")]
        pub all: Vec<NamedSchemaV3>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Components {
        #[prost(message, optional, tag = "1")]
        pub schemas: Option<SchemasV3>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct DocumentV3 {
        #[prost(string, tag = "1")]
        pub openapi: String,
        #[prost(message, optional, tag = "5")]
        pub components: Option<Components>,
    }
}

#[test]
fn protobuf_says_what_the_json_says() {
    let resources = resources();
    let bytes = gnostic::v2(&v2(&resources, "v1.35.0"));
    let document = read::DocumentV2::decode(bytes.as_slice()).unwrap();
    assert_eq!(document.swagger, "2.0");
    let definitions = document.definitions.unwrap().all;
    let find = |name: &str| definitions.iter().find(|d| d.name == name).and_then(|d| d.value.clone()).unwrap();
    let pod = find("io.k8s.api.core.v1.Pod");
    assert_eq!(pod.ty.unwrap().value, ["object"]);
    let gvk = &pod.extensions[0];
    assert_eq!(gvk.name, "x-kubernetes-group-version-kind");
    let value: Value = serde_json::from_str(&gvk.value.as_ref().unwrap().yaml).unwrap();
    assert_eq!(value, json!([{"group": "", "version": "v1", "kind": "Pod"}]));
    let spec = pod.properties.unwrap().all.into_iter().find(|p| p.name == "spec").unwrap().value.unwrap();
    assert_eq!(spec.reference, "#/definitions/io.k8s.api.core.v1.PodSpec");
    assert_eq!(find("io.example.v1.Widget").description, "A widget.");

    let bytes = gnostic::v3(&v3("example.io", "v1", &resources, "v1.35.0"));
    let document = read::DocumentV3::decode(bytes.as_slice()).unwrap();
    assert_eq!(document.openapi, "3.0.0");
    let schemas = document.components.unwrap().schemas.unwrap().all;
    let widget = schemas.into_iter().find(|s| s.name == "io.example.v1.Widget").unwrap().value.unwrap();
    assert_eq!(widget.schema.unwrap().description, "A widget.");
}
