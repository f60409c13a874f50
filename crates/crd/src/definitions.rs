//! The custom resource definitions that a cluster is given: group, names, schema, columns.

use k8s_openapi::Resource;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Map, Value, json};

use crate::volume_snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};
use crate::{Engine, InstanceManager, Node, Replica, Setting, Snapshot, Volume, VolumeAttachment, labels};

/// One column of `kubectl get`.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its heading.
    pub name: &'static str,
    /// `string`, `integer`, `boolean` or `date`.
    pub kind: &'static str,
    /// Where the value is.
    pub path: &'static str,
    /// Above zero: only in wide output.
    pub priority: i32,
}

impl Column {
    /// A column of text.
    pub const fn text(name: &'static str, path: &'static str) -> Self {
        Self { name, kind: "string", path, priority: 0 }
    }

    /// The column that nearly every kind ends with.
    pub const AGE: Self = Self { name: "Age", kind: "date", path: ".metadata.creationTimestamp", priority: 0 };
}

/// Whether objects are in a namespace, in the words of a definition.
pub trait Scoped {
    /// `Namespaced` or `Cluster`.
    const WORD: &'static str;
}

impl Scoped for k8s_openapi::NamespaceResourceScope {
    const WORD: &'static str = "Namespaced";
}

impl Scoped for k8s_openapi::ClusterResourceScope {
    const WORD: &'static str = "Cluster";
}

/// What a definition is made of; `resource!` implements it.
pub trait Defined: Resource {
    /// As in `kubectl get lhv`.
    const SHORT_NAME: &'static str;
    /// `Namespaced` or `Cluster`.
    const SCOPE: &'static str;
    /// What `kubectl get` prints.
    const COLUMNS: &'static [Column];
    /// What the kind is for.
    fn description() -> &'static str;
    /// What stands beside `metadata`, with its schema.
    fn fields() -> Vec<(&'static str, Value)>;
}

/// The definition of one kind.
pub fn definition<K: Defined>() -> CustomResourceDefinition {
    let singular = K::KIND.to_lowercase();
    let mut properties = Map::new();
    properties.insert("apiVersion".to_owned(), json!({"type": "string"}));
    properties.insert("kind".to_owned(), json!({"type": "string"}));
    properties.insert("metadata".to_owned(), json!({"type": "object"}));
    properties.extend(K::fields().into_iter().map(|(name, schema)| (name.to_owned(), schema)));
    let columns: Vec<Value> = K::COLUMNS.iter().map(column).collect();
    let definition = json!({
        "metadata": {
            "name": format!("{}.{}", K::URL_PATH_SEGMENT, K::GROUP),
            "labels": {labels::MANAGED_BY: labels::MANAGER},
        },
        "spec": {
            "group": K::GROUP,
            "scope": K::SCOPE,
            "names": {
                "kind": K::KIND,
                "listKind": format!("{}List", K::KIND),
                "plural": K::URL_PATH_SEGMENT,
                "singular": singular,
                "shortNames": [K::SHORT_NAME],
            },
            "versions": [{
                "name": K::VERSION,
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": columns,
                "schema": {"openAPIV3Schema": {"type": "object", "description": K::description(), "properties": properties}},
            }],
        },
    });
    serde_json::from_value(definition).expect("a definition must be one")
}

fn column(column: &Column) -> Value {
    let mut json = json!({"name": column.name, "type": column.kind, "jsonPath": column.path});
    if column.priority > 0 {
        json["priority"] = column.priority.into();
    }
    json
}

/// The definitions of all kinds.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![
        definition::<Engine>(),
        definition::<InstanceManager>(),
        definition::<Node>(),
        definition::<Replica>(),
        definition::<Setting>(),
        definition::<Snapshot>(),
        definition::<VolumeAttachment>(),
        definition::<Volume>(),
    ]
}

/// The definitions of Kubernetes' own snapshots, for a cluster that does not have them.
pub fn volume_snapshots() -> Vec<CustomResourceDefinition> {
    let approved = |mut definition: CustomResourceDefinition| {
        // A group of Kubernetes' own is served only with a word on who agreed to it.
        let annotations = definition.metadata.annotations.get_or_insert_default();
        annotations.insert(
            "api-approved.kubernetes.io".to_owned(),
            "https://github.com/kubernetes-csi/external-snapshotter/pull/814".to_owned(),
        );
        definition
    };
    vec![
        approved(definition::<VolumeSnapshotClass>()),
        approved(definition::<VolumeSnapshotContent>()),
        approved(definition::<VolumeSnapshot>()),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde::Serialize;
    use serde::de::DeserializeOwned;

    use super::*;

    /// Every field of the default object is in the schema and the other way round, unless it is optional.
    fn agree(path: &str, schema: &Value, value: &Value) {
        let (Some(properties), Some(fields)) = (schema["properties"].as_object(), value.as_object()) else { return };
        let fields: BTreeSet<&String> =
            fields.keys().filter(|name| path != "/" || name.as_str() != "metadata").collect();
        for name in fields {
            assert!(properties.contains_key(name), "{path}{name} is written and not in the schema");
            agree(&format!("{path}{name}/"), &properties[name], &value[name]);
        }
    }

    fn schema(definition: &CustomResourceDefinition) -> Value {
        let json = serde_json::to_value(definition).expect("JSON");
        json["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
    }

    fn check<K: Defined + Default + Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>() {
        let written = serde_json::to_value(K::default()).expect("JSON");
        assert_eq!((written["apiVersion"].as_str(), written["kind"].as_str()), (Some(K::API_VERSION), Some(K::KIND)));
        agree("/", &schema(&definition::<K>()), &written);
        assert_eq!(serde_json::from_value::<K>(written).expect(K::KIND), K::default());
        assert_eq!(serde_json::from_value::<K>(json!({})).expect("an empty object"), K::default());
    }

    #[test]
    fn what_is_written_is_in_the_schema_and_can_be_read() {
        check::<Engine>();
        check::<InstanceManager>();
        check::<Node>();
        check::<Replica>();
        check::<Setting>();
        check::<Snapshot>();
        check::<VolumeAttachment>();
        check::<Volume>();
        check::<VolumeSnapshot>();
        check::<VolumeSnapshotClass>();
        check::<VolumeSnapshotContent>();
    }

    #[test]
    fn short_names_are_those_of_longhorn() {
        let names: Vec<String> =
            all().into_iter().flat_map(|crd| crd.spec.names.short_names.unwrap_or_default()).collect();
        assert_eq!(names, ["lhe", "lhim", "lhn", "lhr", "lhs", "lhsnap", "lhva", "lhv"]);
    }

    /// A path of a column leads to a field of the schema.
    #[test]
    fn columns_show_fields_that_exist() {
        for crd in all().into_iter().chain(volume_snapshots()) {
            let root = schema(&crd);
            let columns = crd.spec.versions[0].additional_printer_columns.clone().unwrap_or_default();
            for column in columns.iter().filter(|column| !column.json_path.starts_with(".metadata")) {
                let plain = column.json_path.split("[?").next().unwrap_or_default();
                let found = plain.split('.').skip(1).fold(&root, |schema, name| &schema["properties"][name]);
                assert!(found.is_object(), "{}: {}", crd.spec.names.kind, column.json_path);
            }
        }
    }
}
