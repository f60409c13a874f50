//! What is particular to each built-in kind: defaults, what may change, what is refused.
//!
//! [`ALL`] is the table of what the server serves; a [`Kind`] names the resource and carries its
//! [`Strategy`]. The request path calls, in this order:
//!
//! ```text
//! create   default → admit_create → (webhooks) → default → prepare_create → validate_create
//! update   default → admit_update → (webhooks) → default → prepare_update → validate_update
//! status   default →                (webhooks) → default → prepare_status → validate_status
//! ```
//!
//! All functions take the object as the client sees it at this group and version. A kind that is stored
//! under another one's shape (events) has a [`Face`] to go to and fro.

use jiff::Timestamp;
use serde_json::Value;

use crate::field::{FieldError, Path};
use crate::meta;
use crate::names::NameRule;

mod checks;
mod diff;
pub(crate) mod edit;
mod registry;

pub mod configmap;
pub mod crd;
mod disruption;
pub mod event;
mod lease;
pub mod namespace;
pub mod node;
pub mod persistentvolume;
pub mod persistentvolumeclaim;
pub mod pod;
mod rbac;
pub mod secret;
mod serviceaccount;
mod storage;
mod warnings;
mod webhook;

pub use registry::ALL;

/// A built-in kind: how it is named, where it lives, what it does.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "a table row: each answers its own question")]
pub struct Kind {
    /// API group, "" for core.
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    /// Kind of a list, "" where there is none.
    pub list_kind: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub short_names: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub namespaced: bool,
    /// Verbs in the order that discovery lists them. Only `create`: a review, answered and not stored.
    pub verbs: &'static [&'static str],
    pub subresources: &'static [Subresource],
    /// Field labels besides `metadata.name` and `metadata.namespace`; see [`Kind::field`].
    pub selectable: &'static [&'static str],
    /// Whether PUT to a name that does not exist creates it.
    pub create_on_update: bool,
    /// Whether PUT without a resourceVersion overwrites.
    pub unconditional_update: bool,
    /// Whether deletion may wait for dependents and finalizers of the garbage collector.
    pub garbage_collected: bool,
    /// How it is stored, where that is not its own shape.
    pub face: Option<Face>,
    pub strategy: Strategy,
}

/// A subresource as discovery lists it.
#[derive(Clone, Copy, Debug)]
pub struct Subresource {
    pub name: &'static str,
    /// Group, version and kind of the body; empty group and version mean those of the resource.
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub verbs: &'static [&'static str],
}

/// The two conversions of a kind that shares another one's storage.
#[derive(Clone, Copy, Debug)]
pub struct Face {
    /// Group and plural under which objects are stored.
    pub stored_group: &'static str,
    pub stored_plural: &'static str,
    pub to_stored: fn(&mut Value),
    pub from_stored: fn(&mut Value),
}

/// The functions of a kind. [`Strategy::PLAIN`] has no defaults, no status and checks metadata only.
#[derive(Clone, Copy, Debug)]
pub struct Strategy {
    /// Why the admission plugins of a stock server forbid a new object, as far as no other object is needed.
    pub refuse_create: fn(&Value) -> Option<String>,
    /// Defaults of decoding, on every write.
    pub default: fn(&mut Value),
    /// What the admission plugins of a stock server add on create, as far as no other object is needed.
    pub admit_create: fn(&mut Value),
    /// The same for updates.
    pub admit_update: fn(&mut Value),
    /// Clears and sets what a client may not choose at creation.
    pub prepare_create: fn(&mut Value, Timestamp),
    /// Puts back what an update of the main resource may not touch; bumps the generation.
    pub prepare_update: fn(&mut Value, &Value),
    /// Puts back what an update of `status` may not touch. `None`: there is no status subresource.
    pub prepare_status: Option<fn(&mut Value, &Value, Timestamp)>,
    pub validate_create: fn(&Value) -> Vec<FieldError>,
    /// New, old.
    pub validate_update: fn(&Value, &Value) -> Vec<FieldError>,
    /// New, old.
    pub validate_status: fn(&Value, &Value) -> Vec<FieldError>,
    /// What is likely not meant, though it is allowed: new, and old if it is an update.
    pub warnings: fn(&Value, Option<&Value>) -> Vec<String>,
    /// The rule for `metadata.name`.
    pub name: NameRule,
}

impl Strategy {
    /// Nothing special.
    pub const PLAIN: Self = Self {
        refuse_create: |_| None,
        default: |_| {},
        admit_create: |_| {},
        admit_update: |_| {},
        prepare_create: |_, _| {},
        prepare_update: |_, _| {},
        prepare_status: None,
        validate_create: |_| Vec::new(),
        validate_update: |_, _| Vec::new(),
        validate_status: |_, _| Vec::new(),
        warnings: |_, _| Vec::new(),
        name: NameRule::Subdomain,
    };
}

impl Kind {
    /// `v1`, `storage.k8s.io/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The group that validation errors name: that of the stored shape, which is the one that is validated.
    pub fn error_group(&self) -> &'static str {
        self.face.map_or(self.group, |face| face.stored_group)
    }

    /// Finalizers without a domain, which the older groups refuse unless Kubernetes itself made them up.
    pub fn validate_finalizers(&self, object: &Value) -> Vec<FieldError> {
        let mut problems = checks::Problems::new();
        if matches!(self.group, "" | "storage.k8s.io" | rbac::GROUP) && self.kind != "Event" {
            let path = Path::new("metadata.finalizers");
            for (index, finalizer) in edit::items(object, "/metadata/finalizers").iter().enumerate() {
                checks::finalizer_domain(&mut problems, &path.index(index), finalizer.as_str().unwrap_or_default());
            }
        }
        problems.0
    }

    /// Whether objects of this kind are kept; reviews are answered and forgotten.
    pub fn stored(&self) -> bool {
        self.verbs.contains(&"get")
    }

    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// The name under which the store keeps objects: `pods`, `leases.coordination.k8s.io`.
    pub fn storage_resource(&self) -> String {
        let (group, plural) = self.face.map_or((self.group, self.plural), |f| (f.stored_group, f.stored_plural));
        if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
    }

    /// Readies a new object: generic metadata first, then the kind's own rules.
    pub fn prepare_create(&self, object: &mut Value, now: Timestamp) {
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
            edit::set_in(object, "metadata", field, Value::Null);
        }
        (self.strategy.prepare_create)(object, now);
    }

    /// Readies an update of the main resource. Whatever generation the client sent, the old one counts.
    pub fn prepare_update(&self, new: &mut Value, old: &Value) {
        keep_generation(new, old);
        (self.strategy.prepare_update)(new, old);
    }

    /// Readies an update of `status`; false if the kind has no such subresource.
    pub fn prepare_status(&self, new: &mut Value, old: &Value, now: Timestamp) -> bool {
        keep_generation(new, old);
        match self.strategy.prepare_status {
            Some(prepare) => {
                prepare(new, old, now);
                true
            }
            None => false,
        }
    }

    /// Everything that is wrong with a new object, its metadata included.
    pub fn validate_create(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = self.validate_metadata(object, None);
        errors.extend((self.strategy.validate_create)(object));
        errors
    }

    /// Everything that is wrong with an update of the main resource.
    pub fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        let mut errors = self.validate_metadata(new, Some(old));
        errors.extend((self.strategy.validate_update)(new, old));
        errors
    }

    /// Everything that is wrong with an update of the status.
    pub fn validate_status(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        let mut errors = self.validate_metadata(new, Some(old));
        errors.extend((self.strategy.validate_status)(new, old));
        errors
    }

    fn validate_metadata(&self, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let old = old.map(|o| o.get("metadata").unwrap_or(&Value::Null));
        let metadata = new.get("metadata").unwrap_or(&Value::Null);
        let mut errors = meta::validate_named(metadata, self.namespaced, self.strategy.name, old);
        errors.extend(self.validate_finalizers(new));
        errors
    }

    /// The value of a field label for selectors; `None` if the label is not supported.
    pub fn field(&self, object: &Value, label: &str) -> Option<String> {
        // Kinds without a list of their own take both names, though a cluster-scoped object has no namespace.
        let known = label == "metadata.name"
            || (label == "metadata.namespace" && (self.namespaced || self.selectable.is_empty()))
            || self.selectable.contains(&label);
        known.then(|| registry::field_value(self, object, label))
    }

    /// What a selector is told that names a field which [`Kind::field`] does not know.
    pub fn not_selectable(&self, label: &str) -> String {
        if self.selectable.is_empty() {
            return format!("{label:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"");
        }
        format!("field label not supported: {label}")
    }
}

fn keep_generation(new: &mut Value, old: &Value) {
    let generation = old.pointer("/metadata/generation").cloned().unwrap_or_default();
    edit::set_in(new, "metadata", "generation", generation);
}

/// The built-in kind that is served at `/apis/{group}/{version}/{plural}`.
pub fn by_plural(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    ALL.iter().find(|k| k.group == group && k.version == version && k.plural == plural)
}

/// Whether this group has built-in kinds at this version.
pub fn serves(group: &str, version: &str) -> bool {
    ALL.iter().any(|k| k.group == group && k.version == version)
}

/// The built-in kind with this `apiVersion` and `kind`.
pub fn by_kind(group: &str, version: &str, kind: &str) -> Option<&'static Kind> {
    ALL.iter().find(|k| k.group == group && k.version == version && k.kind == kind)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::{Strategy as PropStrategy, *};
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_is_found_by_plural_and_by_kind() {
        let mut seen = BTreeSet::new();
        for kind in ALL {
            assert!(seen.insert((kind.group, kind.version, kind.plural)), "{} twice", kind.plural);
            assert!(std::ptr::eq(by_plural(kind.group, kind.version, kind.plural).unwrap(), kind));
            assert!(std::ptr::eq(by_kind(kind.group, kind.version, kind.kind).unwrap(), kind));
            assert_eq!(kind.subresource("status").is_some(), kind.strategy.prepare_status.is_some(), "{}", kind.kind);
        }
    }

    #[test]
    fn both_event_faces_share_one_storage() {
        let core = by_plural("", "v1", "events").unwrap();
        let new = by_plural("events.k8s.io", "v1", "events").unwrap();
        assert_eq!(core.storage_resource(), new.storage_resource());
    }

    #[test]
    fn a_client_does_not_choose_the_generation() {
        let pods = by_plural("", "v1", "pods").unwrap();
        let old = json!({"metadata": {"generation": 3}, "spec": {"nodeName": "a"}});
        let mut new = json!({"metadata": {"generation": 9}, "spec": {"nodeName": "a"}});
        pods.prepare_update(&mut new, &old);
        assert_eq!(new["metadata"]["generation"], 3);
        new["spec"]["nodeName"] = "b".into();
        pods.prepare_update(&mut new, &old);
        assert_eq!(new["metadata"]["generation"], 4);
    }

    #[test]
    fn field_labels_read_as_selectors_compare_them() {
        let pods = by_plural("", "v1", "pods").unwrap();
        let pod = json!({"metadata": {"name": "web", "namespace": "a"}, "spec": {"nodeName": "n1"}});
        assert_eq!(pods.field(&pod, "spec.nodeName").as_deref(), Some("n1"));
        assert_eq!(pods.field(&pod, "spec.hostNetwork").as_deref(), Some("false"));
        assert_eq!(pods.field(&pod, "status.phase").as_deref(), Some(""));
        assert_eq!(pods.field(&pod, "metadata.namespace").as_deref(), Some("a"));
        assert_eq!(pods.field(&pod, "spec.volumes"), None);
        let nodes = by_plural("", "v1", "nodes").unwrap();
        assert_eq!(nodes.field(&pod, "metadata.namespace"), None);
        assert_eq!(nodes.not_selectable("status.phase"), "field label not supported: status.phase");
        let volumes = by_plural("", "v1", "persistentvolumes").unwrap();
        assert_eq!(volumes.field(&json!({}), "metadata.namespace").as_deref(), Some(""));
        assert!(volumes.not_selectable("status.phase").starts_with("\"status.phase\" is not a known field selector"));
    }

    /// JSON that looks like objects, with the right names in the wrong places.
    fn anything() -> impl PropStrategy<Value = Value> {
        const WORDS: &[&str] = &[
            "metadata",
            "spec",
            "status",
            "name",
            "namespace",
            "labels",
            "finalizers",
            "containers",
            "initContainers",
            "volumes",
            "volumeMounts",
            "env",
            "valueFrom",
            "fieldRef",
            "image",
            "ports",
            "containerPort",
            "resources",
            "limits",
            "requests",
            "cpu",
            "storage",
            "tolerations",
            "affinity",
            "nodeAffinity",
            "accessModes",
            "capacity",
            "csi",
            "driver",
            "claimRef",
            "webhooks",
            "rules",
            "resources",
            "verbs",
            "subjects",
            "roleRef",
            "data",
            "stringData",
            "type",
            "taints",
            "podCIDRs",
            "drivers",
            "topologyKeys",
            "versions",
            "storage",
            "conditions",
            "dataSource",
            "kind",
            "tokenRequests",
            "source",
        ];
        let word = prop::sample::select(WORDS);
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            word.clone().prop_map(Value::from),
            "[-a-z0-9./:{}@ ]{0,9}".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 80, 8, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((word.clone(), inner), 0..8).prop_map(|entries| entries
                    .into_iter()
                    .map(|(k, v)| (k.to_owned(), v))
                    .collect::<serde_json::Map<_, _>>()
                    .into()),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_object_panics(object in anything(), other in anything()) {
            let now = Timestamp::UNIX_EPOCH;
            for kind in ALL {
                let mut new = object.clone();
                (kind.strategy.default)(&mut new);
                (kind.strategy.admit_create)(&mut new);
                (kind.strategy.admit_update)(&mut new);
                kind.validate_create(&new);
                kind.validate_update(&new, &other);
                kind.validate_status(&new, &other);
                kind.prepare_create(&mut new, now);
                kind.prepare_update(&mut new, &other);
                kind.prepare_status(&mut new, &other, now);
                for label in kind.selectable {
                    kind.field(&new, label);
                }
                if let Some(face) = kind.face {
                    (face.to_stored)(&mut new);
                    (face.from_stored)(&mut new);
                }
                crate::table::Printer::builtin(kind).table([&new], &Value::Null, now, crate::table::Options::default());
                crate::proto::trim(&kind.api_version(), kind.kind, &mut new);
                crate::proto::complete(&kind.api_version(), kind.kind, &mut new);
            }
        }

        #[test]
        fn defaults_are_set_once(object in anything()) {
            for kind in ALL {
                let mut once = object.clone();
                (kind.strategy.default)(&mut once);
                let mut twice = once.clone();
                (kind.strategy.default)(&mut twice);
                prop_assert_eq!(&twice, &once, "{}", kind.kind);
            }
        }
    }
}
