//! Definitions that are accepted, and those that are refused, with the field that is wrong.

use serde_json::{Value, json};

use super::*;

fn crd() -> Value {
    let mut crd = json!({
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "volumes.example.com"},
    "spec": {
        "group": "example.com", "scope": "Namespaced",
        "names": {"plural": "volumes", "kind": "Volume", "shortNames": ["vol"], "categories": ["all"]},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": {
                    "size": {"type": "integer", "default": 1}, "color": {"type": "string"}}},
                "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}}}}},
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size",
                "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}},
            "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
            "selectableFields": [{"jsonPath": ".spec.color"}]}],
    }});
    apply_defaults(&mut crd);
    crd
}

/// The errors of the definition after `edit`.
fn errors(edit: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut crd = crd();
    edit(&mut crd);
    validate(&crd, None).iter().map(ToString::to_string).collect()
}

fn schema_error(spec: Value) -> Vec<String> {
    errors(|crd| crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = spec)
}

#[test]
fn a_definition_says_how_to_serve_it() {
    let crd = crd();
    assert_eq!(validate(&crd, None), []);
    let info = parse(&crd).unwrap();
    assert_eq!((info.group.as_str(), info.kind.as_str(), info.plural.as_str()), ("example.com", "Volume", "volumes"));
    assert_eq!((info.singular.as_str(), info.list_kind.as_str()), ("volume", "VolumeList"));
    assert!(info.namespaced && !info.conversion_webhook);
    let version = info.storage_version().unwrap();
    assert!(version.status_subresource);
    assert_eq!(version.scale.as_ref().unwrap().selector_path.as_deref(), Some(".status.selector"));
    assert_eq!(version.columns[0].json_path, ".spec.size");
    assert_eq!(version.selectable_fields, ["spec.color"]);
    assert_eq!(version.schema.properties["spec"].properties["size"].default, Some(json!(1)));
}

#[test]
fn defaults_derive_names_from_the_kind() {
    let crd = crd();
    assert_eq!(crd["spec"]["names"]["singular"], "volume");
    assert_eq!(crd["spec"]["names"]["listKind"], "VolumeList");
    assert_eq!(crd["spec"]["conversion"], json!({"strategy": "None"}));
}

#[test]
fn deprecated_versions_warn() {
    let mut crd = crd();
    crd["spec"]["versions"][0]["deprecated"] = true.into();
    let warning = |crd: &Value| {
        let info = parse(crd).unwrap();
        info.deprecation(&info.versions[0])
    };
    assert_eq!(warning(&crd).as_deref(), Some("example.com/v1 Volume is deprecated"));
    for name in ["v1beta1", "v2beta1", "v2", "v3"] {
        let mut other = crd["spec"]["versions"][0].clone();
        other["name"] = name.into();
        other["deprecated"] = (name == "v3").into();
        crd["spec"]["versions"].as_array_mut().unwrap().push(other);
    }
    assert_eq!(
        warning(&crd).as_deref(),
        Some("example.com/v1 Volume is deprecated; use example.com/v2 Volume"),
        "the newest stable version that is not deprecated itself"
    );
    crd["spec"]["versions"][0]["deprecationWarning"] = "go away".into();
    assert_eq!(warning(&crd).as_deref(), Some("go away"));
}

#[test]
fn names_and_versions() {
    let at = |pointer: &'static str, value: Value| {
        move |crd: &mut Value| {
            *crd.pointer_mut(pointer).unwrap() = value;
        }
    };
    for (edit, want) in [
        (
            Box::new(at("/metadata/name", json!("x.example.com"))) as Box<dyn FnOnce(&mut Value)>,
            "metadata.name: Invalid value: \"x.example.com\": must be spec.names.plural+\".\"+spec.group",
        ),
        (
            Box::new(at("/spec/scope", json!("Global"))),
            "spec.scope: Unsupported value: \"Global\": supported values: \"Cluster\", \"Namespaced\"",
        ),
        (
            Box::new(at("/spec/names/listKind", json!("Volume"))),
            "spec.names.listKind: Invalid value: \"Volume\": kind and listKind may not be the same",
        ),
        (Box::new(at("/spec/names/kind", json!(""))), "spec.names.kind: Required value"),
        (
            Box::new(at("/spec/versions/0/storage", json!(false))),
            "spec.versions: Invalid value: [{\"Name\":\"v1\",\"Served\":true,\"Storage\":false,\"Deprecated\":false,\"DeprecationWarning\":null,\"Schema\":null,\"Subresources\":null,\"AdditionalPrinterColumns\":null,\"SelectableFields\":null}]: must have exactly one version marked as storage version",
        ),
        (
            Box::new(at("/spec/versions/0/subresources/scale/specReplicasPath", json!(".status.x"))),
            "spec.subresources.scale.specReplicasPath: Invalid value: \".status.x\": should be a json path under .spec",
        ),
        (
            Box::new(at("/spec/versions/0/subresources/scale/statusReplicasPath", json!("status.x"))),
            "spec.subresources.scale.statusReplicasPath: Invalid value: \"status.x\": must be a simple json path starting with .",
        ),
        (
            Box::new(at("/spec/versions/0/additionalPrinterColumns/0/type", json!("float"))),
            "spec.additionalPrinterColumns[0].type: Invalid value: \"float\": must be one of boolean,date,integer,number,string",
        ),
        (
            Box::new(at("/spec/versions/0/additionalPrinterColumns/0/jsonPath", json!("spec"))),
            "spec.additionalPrinterColumns[0].JSONPath: Invalid value: \"spec\": must be a simple json path starting with .",
        ),
        (
            Box::new(at("/spec/versions/0/selectableFields/0/jsonPath", json!(".spec.nope"))),
            "spec.selectableFields[0].jsonPath: Invalid value: \".spec.nope\": is an invalid path: does not refer to a valid field",
        ),
        (
            Box::new(at("/spec/versions/0/selectableFields/0/jsonPath", json!(".spec"))),
            "spec.selectableFields[0].jsonPath: Invalid value: \".spec\": must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.",
        ),
        (
            Box::new(|crd: &mut Value| crd["spec"]["preserveUnknownFields"] = true.into()),
            "spec.preserveUnknownFields: Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        ),
        (
            Box::new(|crd: &mut Value| crd["spec"]["versions"][0]["deprecationWarning"] = "x".into()),
            "spec.versions[0].deprecationWarning: Invalid value: \"x\": can only be set for deprecated versions",
        ),
        (
            Box::new(|crd: &mut Value| crd["spec"]["conversion"] = json!({"strategy": "Webhook"})),
            "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
        ),
    ] {
        assert_eq!(errors(edit)[0], want);
    }
}

#[test]
fn several_versions_name_themselves() {
    let wrong = errors(|crd| {
        let mut second = crd["spec"]["versions"][0].clone();
        second["schema"]["openAPIV3Schema"] = json!({"type": "array"});
        crd["spec"]["versions"].as_array_mut().unwrap().push(second);
    });
    assert_eq!(
        wrong[..2],
        [
            "spec.versions[1].schema.openAPIV3Schema.type: Invalid value: \"array\": only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled",
            "spec.versions[1].schema.openAPIV3Schema.items: Required value: must be specified",
        ]
    );
    assert!(wrong.iter().any(|e| e.ends_with("must contain unique version names")), "{wrong:?}");
    assert!(wrong.iter().any(|e| e.ends_with("must have exactly one version marked as storage version")), "{wrong:?}");
    let wrong = errors(|crd| crd["spec"]["versions"][0]["schema"] = Value::Null);
    assert_eq!(wrong[0], "spec.versions[0].schema.openAPIV3Schema: Required value");
}

#[test]
fn schemas_are_looked_through() {
    let base = "spec.validation.openAPIV3Schema.properties[spec]";
    for (schema, want) in [
        (
            json!({"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}}),
            ".properties[a].default: Invalid value: \"string\":  in body must be of type integer: \"string\"",
        ),
        (
            json!({"type": "object", "default": {"b": 1}, "properties": {"a": {"type": "integer"}}}),
            ".default: Invalid value: {\"b\":1}: must not have unknown fields",
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object"}}),
            ".items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object"}}),
            ".x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"],
            "items": {"type": "object", "properties": {"a": {"type": "string"}}}}),
            ".items.properties[a].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"],
            "items": {"type": "object", "required": ["a"], "properties": {"a": {"type": "object"}}}}),
            ".items.properties[a].type: Invalid value: \"object\": must be a scalar type if parent array's x-kubernetes-list-type is map",
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["b"],
            "items": {"type": "object", "properties": {"a": {"type": "string"}}}}),
            ".x-kubernetes-list-map-keys: Invalid value: [\"b\"]: entries must all be names of item properties",
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "bag", "items": {"type": "string"}}),
            ".x-kubernetes-list-type: Unsupported value: \"bag\": supported values: \"atomic\", \"set\", \"map\"",
        ),
        (
            json!({"type": "string", "x-kubernetes-map-type": "atomic"}),
            ".type: Invalid value: \"string\": must be object if x-kubernetes-map-type is specified",
        ),
        (
            json!({"type": "array", "uniqueItems": true, "items": {"type": "string"}}),
            ".uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
            ".additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
        ),
        (json!({"type": "object", "$ref": "#/x"}), ".$ref: Forbidden: $ref is not supported"),
        (
            json!({"type": "object", "x-kubernetes-validations": [{"rule": " "}]}),
            ".x-kubernetes-validations[0].rule: Required value: rule is not specified",
        ),
        (
            json!({"type": "object", "x-kubernetes-validations": [{"rule": "true", "reason": "Because"}]}),
            ".x-kubernetes-validations[0].reason: Unsupported value: \"Because\": supported values: \"FieldValueDuplicate\", \"FieldValueForbidden\", \"FieldValueInvalid\", \"FieldValueRequired\"",
        ),
        (
            json!({"type": "object", "x-kubernetes-validations": [{"rule": "true", "fieldPath": ".x"}]}),
            ".x-kubernetes-validations[0].fieldPath: Invalid value: \".x\": must be a valid path",
        ),
        (
            json!({"type": "array", "items": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}),
            ".items.x-kubernetes-validations[0].rule: Invalid value: \"self == oldSelf\": oldSelf cannot be used on the uncorrelatable portion of the schema within spec.validation.openAPIV3Schema.properties[spec]",
        ),
        (
            json!({"type": "string", "x-kubernetes-validations": [{"rule": "self != ''", "optionalOldSelf": true}]}),
            ".x-kubernetes-validations[0].optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule",
        ),
    ] {
        assert_eq!(schema_error(schema.clone())[0], format!("{base}{want}"), "{schema}");
    }
}

#[test]
fn the_root_keeps_out_of_the_way_of_the_status() {
    let wrong = errors(|crd| {
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["oneOf"] = json!([{"required": ["spec"]}]);
    });
    assert!(wrong[0].contains("only [Description Type Format Title"), "{wrong:?}");
    let wrong = errors(|crd| crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["nullable"] = true.into());
    assert!(wrong.iter().any(|e| e.ends_with("Forbidden: nullable cannot be true at the root")), "{wrong:?}");
    let wrong = errors(|crd| {
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["metadata"] =
            json!({"type": "object", "default": {}});
    });
    assert_eq!(
        wrong,
        [
            "spec.validation.openAPIV3Schema.properties[metadata].default: Forbidden: must not be set in top-level metadata"
        ]
    );
}

#[test]
fn updates_keep_what_objects_are_stored_under() {
    let mut old = crd();
    old["status"] = json!({"conditions": [{"type": "Established", "status": "True"}], "storedVersions": ["v1"]});
    let update = |edit: &dyn Fn(&mut Value)| -> Vec<String> {
        let mut new = old.clone();
        edit(&mut new);
        validate(&new, Some(&old)).iter().map(ToString::to_string).collect()
    };
    assert_eq!(update(&|_| ()), Vec::<String>::new());
    assert_eq!(
        update(&|crd| crd["spec"]["scope"] = "Cluster".into()),
        ["spec.scope: Invalid value: \"Cluster\": field is immutable"]
    );
    assert_eq!(
        update(&|crd| crd["spec"]["names"]["plural"] = "others".into()),
        ["spec.names.plural: Invalid value: \"others\": field is immutable"]
    );
    let wrong = update(&|crd| crd["spec"]["versions"][0]["name"] = "v2".into());
    assert_eq!(wrong[0], "status.storedVersions: Invalid value: [\"v1\"]: must have the storage version v2");
    assert!(
        wrong[1].starts_with("status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions; v1 was")
    );
}

#[test]
fn groups_of_the_community_need_approval() {
    let wrong = errors(|crd| {
        crd["spec"]["group"] = "x.k8s.io".into();
        crd["metadata"]["name"] = "volumes.x.k8s.io".into();
    });
    assert_eq!(
        wrong,
        [
            "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111"
        ]
    );
    let wrong = errors(|crd| {
        crd["spec"]["group"] = "x.k8s.io".into();
        crd["metadata"] =
            json!({"name": "volumes.x.k8s.io", "annotations": {"api-approved.kubernetes.io": "https://a.b/c"}});
    });
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn webhooks_of_conversions_must_be_reachable() {
    let with = |client: Value, versions: Value| {
        errors(|crd| {
            crd["spec"]["conversion"] = json!({"strategy": "Webhook",
                "webhook": {"clientConfig": client, "conversionReviewVersions": versions}});
        })
    };
    assert_eq!(with(json!({"url": "https://a.b/c"}), json!(["v1"])), Vec::<String>::new());
    let service = json!({"service": {"name": "s", "namespace": "n", "path": "/a/b", "port": 1}});
    assert_eq!(with(service, json!(["v1beta1"])), Vec::<String>::new());
    let client = "spec.conversion.webhookClientConfig";
    for (config, want) in [
        (json!({}), format!("{client}: Required value: exactly one of url or service is required")),
        (
            json!({"url": "http://a"}),
            format!(
                "{client}.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]"
            ),
        ),
        (
            json!({"url": "https://a?b"}),
            format!("{client}.url: Invalid value: \"b\": query parameters are not permitted in the URL"),
        ),
        (
            json!({"service": {"name": "", "namespace": "n", "port": 1}}),
            format!("{client}.service.namespace: Required value"),
        ),
        (
            json!({"service": {"name": "s", "namespace": "n", "port": 0}}),
            format!(
                "{client}.service.port: Invalid value: 0: port is not valid: must be between 1 and 65535, inclusive"
            ),
        ),
        (
            json!({"service": {"name": "s", "namespace": "n", "path": "/a//b"}}),
            format!("{client}.service.path: Invalid value: \"/a//b\": segment[1] may not be empty"),
        ),
    ] {
        assert_eq!(with(config, json!(["v1"])), [want]);
    }
    assert_eq!(
        with(json!({"url": "https://a"}), json!(["v7"])),
        ["spec.conversion.conversionReviewVersions: Invalid value: [\"v7\"]: must include at least one of v1, v1beta1"]
    );
}

#[test]
fn warnings_name_what_will_not_happen() {
    let mut crd = crd();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = json!({"type": "object",
        "properties": {"a": {"type": "string", "format": "semver"}, "b": {"type": "string", "format": "date-time"},
            "c": {"type": "array", "x-kubernetes-list-type": "set",
                "items": {"type": "object", "x-kubernetes-map-type": "atomic"}}}});
    assert_eq!(
        warnings(&crd),
        [
            "unrecognized format \"semver\"",
            "x-kubernetes-list-type: set for items of type \"object\" is not supported by server-side apply or CEL validation rules",
        ]
    );
}
