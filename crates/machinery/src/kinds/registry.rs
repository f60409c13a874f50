//! The table of built-in kinds, and the values of their field labels.

use serde_json::Value;

use super::edit::{flag, text};
use super::{
    Kind, Strategy, Subresource, configmap, crd, disruption, event, lease, namespace, node, persistentvolume,
    persistentvolumeclaim, pod, rbac, secret, serviceaccount, storage, webhook,
};

const ALL_VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// Deleting every namespace in one call is not offered.
const NAMESPACE_VERBS: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];
const CREATE: &[&str] = &["create"];

const fn status(kind: &'static str) -> Subresource {
    Subresource { name: "status", group: "", version: "", kind, verbs: &["get", "patch", "update"] }
}

const BINDING: Subresource = Subresource { name: "binding", group: "", version: "", kind: "Binding", verbs: CREATE };
const EVICTION: Subresource =
    Subresource { name: "eviction", group: "policy", version: "v1", kind: "Eviction", verbs: CREATE };
const FINALIZE: Subresource =
    Subresource { name: "finalize", group: "", version: "", kind: "Namespace", verbs: &["update"] };
/// `get` is how WebSockets open, `create` how SPDY does; a WebSocket needs the permission for both.
const CONNECT: &[&str] = &["create", "get"];
const ATTACH: Subresource =
    Subresource { name: "attach", group: "", version: "", kind: "PodAttachOptions", verbs: CONNECT };
const EXEC: Subresource = Subresource { name: "exec", group: "", version: "", kind: "PodExecOptions", verbs: CONNECT };
const LOG: Subresource = Subresource { name: "log", group: "", version: "", kind: "Pod", verbs: &["get"] };
const TOKEN: Subresource =
    Subresource { name: "token", group: "authentication.k8s.io", version: "v1", kind: "TokenRequest", verbs: CREATE };

/// What most kinds are: namespaced, all verbs, nothing special. Names are filled in by each entry.
const COMMON: Kind = Kind {
    group: "",
    version: "v1",
    kind: "",
    list_kind: "",
    plural: "",
    singular: "",
    short_names: &[],
    categories: &[],
    namespaced: true,
    verbs: ALL_VERBS,
    subresources: &[],
    selectable: &[],
    create_on_update: false,
    unconditional_update: true,
    garbage_collected: true,
    face: None,
    strategy: Strategy::PLAIN,
};

const fn review(group: &'static str, kind: &'static str, plural: &'static str, singular: &'static str) -> Kind {
    Kind { group, kind, plural, singular, namespaced: false, verbs: CREATE, ..COMMON }
}

const STORAGE: &str = "storage.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";

const CORE_EVENT_LABELS: &[&str] = &[
    "involvedObject.apiVersion",
    "involvedObject.fieldPath",
    "involvedObject.kind",
    "involvedObject.name",
    "involvedObject.namespace",
    "involvedObject.resourceVersion",
    "involvedObject.uid",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

const NEW_EVENT_LABELS: &[&str] = &[
    "reason",
    "regarding.apiVersion",
    "regarding.fieldPath",
    "regarding.kind",
    "regarding.name",
    "regarding.namespace",
    "regarding.resourceVersion",
    "regarding.uid",
    "reportingController",
    "type",
];

/// Every built-in kind that is served.
pub static ALL: &[Kind] = &[
    Kind { kind: "Binding", plural: "bindings", singular: "binding", verbs: CREATE, ..COMMON },
    Kind {
        kind: "ConfigMap",
        list_kind: "ConfigMapList",
        plural: "configmaps",
        singular: "configmap",
        short_names: &["cm"],
        strategy: configmap::STRATEGY,
        ..COMMON
    },
    Kind {
        kind: "Event",
        list_kind: "EventList",
        plural: "events",
        singular: "event",
        short_names: &["ev"],
        selectable: CORE_EVENT_LABELS,
        create_on_update: true,
        garbage_collected: false,
        strategy: event::CORE,
        ..COMMON
    },
    Kind {
        kind: "Namespace",
        list_kind: "NamespaceList",
        plural: "namespaces",
        singular: "namespace",
        short_names: &["ns"],
        namespaced: false,
        verbs: NAMESPACE_VERBS,
        subresources: &[FINALIZE, status("Namespace")],
        selectable: &["status.phase"],
        strategy: namespace::STRATEGY,
        ..COMMON
    },
    Kind {
        kind: "Node",
        list_kind: "NodeList",
        plural: "nodes",
        singular: "node",
        short_names: &["no"],
        namespaced: false,
        subresources: &[status("Node")],
        selectable: &["spec.unschedulable"],
        strategy: node::STRATEGY,
        ..COMMON
    },
    Kind {
        kind: "PersistentVolumeClaim",
        list_kind: "PersistentVolumeClaimList",
        plural: "persistentvolumeclaims",
        singular: "persistentvolumeclaim",
        short_names: &["pvc"],
        subresources: &[status("PersistentVolumeClaim")],
        strategy: persistentvolumeclaim::STRATEGY,
        ..COMMON
    },
    Kind {
        kind: "PersistentVolume",
        list_kind: "PersistentVolumeList",
        plural: "persistentvolumes",
        singular: "persistentvolume",
        short_names: &["pv"],
        namespaced: false,
        subresources: &[status("PersistentVolume")],
        strategy: persistentvolume::STRATEGY,
        ..COMMON
    },
    Kind {
        kind: "Pod",
        list_kind: "PodList",
        plural: "pods",
        singular: "pod",
        short_names: &["po"],
        categories: &["all"],
        subresources: &[ATTACH, BINDING, EVICTION, EXEC, LOG, status("Pod")],
        selectable: &[
            "spec.host",
            "spec.hostNetwork",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.nominatedNodeName",
            "status.phase",
            "status.podIP",
            "status.podIPs",
        ],
        strategy: pod::STRATEGY,
        ..COMMON
    },
    Kind {
        kind: "Secret",
        list_kind: "SecretList",
        plural: "secrets",
        singular: "secret",
        selectable: &["type"],
        strategy: secret::STRATEGY,
        ..COMMON
    },
    Kind {
        kind: "ServiceAccount",
        list_kind: "ServiceAccountList",
        plural: "serviceaccounts",
        singular: "serviceaccount",
        short_names: &["sa"],
        subresources: &[TOKEN],
        strategy: serviceaccount::STRATEGY,
        ..COMMON
    },
    Kind {
        group: "events.k8s.io",
        kind: "Event",
        list_kind: "EventList",
        plural: "events",
        singular: "event",
        short_names: &["ev"],
        selectable: NEW_EVENT_LABELS,
        create_on_update: true,
        garbage_collected: false,
        face: Some(event::FACE),
        strategy: event::NEW,
        ..COMMON
    },
    Kind {
        group: "coordination.k8s.io",
        kind: "Lease",
        list_kind: "LeaseList",
        plural: "leases",
        singular: "lease",
        create_on_update: true,
        unconditional_update: false,
        strategy: lease::STRATEGY,
        ..COMMON
    },
    Kind {
        group: "policy",
        kind: "PodDisruptionBudget",
        list_kind: "PodDisruptionBudgetList",
        plural: "poddisruptionbudgets",
        singular: "poddisruptionbudget",
        short_names: &["pdb"],
        subresources: &[status("PodDisruptionBudget")],
        unconditional_update: false,
        strategy: disruption::STRATEGY,
        ..COMMON
    },
    Kind {
        group: STORAGE,
        kind: "CSIDriver",
        list_kind: "CSIDriverList",
        plural: "csidrivers",
        singular: "csidriver",
        namespaced: false,
        unconditional_update: false,
        strategy: storage::CSI_DRIVER,
        ..COMMON
    },
    Kind {
        group: STORAGE,
        kind: "CSINode",
        list_kind: "CSINodeList",
        plural: "csinodes",
        singular: "csinode",
        namespaced: false,
        unconditional_update: false,
        strategy: storage::CSI_NODE,
        ..COMMON
    },
    Kind {
        group: STORAGE,
        kind: "CSIStorageCapacity",
        list_kind: "CSIStorageCapacityList",
        plural: "csistoragecapacities",
        singular: "csistoragecapacity",
        unconditional_update: false,
        strategy: storage::CSI_STORAGE_CAPACITY,
        ..COMMON
    },
    Kind {
        group: STORAGE,
        kind: "StorageClass",
        list_kind: "StorageClassList",
        plural: "storageclasses",
        singular: "storageclass",
        short_names: &["sc"],
        namespaced: false,
        strategy: storage::STORAGE_CLASS,
        ..COMMON
    },
    Kind {
        group: STORAGE,
        kind: "VolumeAttachment",
        list_kind: "VolumeAttachmentList",
        plural: "volumeattachments",
        singular: "volumeattachment",
        namespaced: false,
        subresources: &[status("VolumeAttachment")],
        unconditional_update: false,
        strategy: storage::VOLUME_ATTACHMENT,
        ..COMMON
    },
    Kind {
        group: "apiextensions.k8s.io",
        kind: "CustomResourceDefinition",
        list_kind: "CustomResourceDefinitionList",
        plural: "customresourcedefinitions",
        singular: "customresourcedefinition",
        short_names: &["crd", "crds"],
        categories: &["api-extensions"],
        namespaced: false,
        subresources: &[status("CustomResourceDefinition")],
        unconditional_update: false,
        strategy: crd::STRATEGY,
        ..COMMON
    },
    Kind {
        group: rbac::GROUP,
        kind: "ClusterRoleBinding",
        list_kind: "ClusterRoleBindingList",
        plural: "clusterrolebindings",
        singular: "clusterrolebinding",
        namespaced: false,
        create_on_update: true,
        strategy: rbac::CLUSTER_ROLE_BINDING,
        ..COMMON
    },
    Kind {
        group: rbac::GROUP,
        kind: "ClusterRole",
        list_kind: "ClusterRoleList",
        plural: "clusterroles",
        singular: "clusterrole",
        namespaced: false,
        create_on_update: true,
        strategy: rbac::CLUSTER_ROLE,
        ..COMMON
    },
    Kind {
        group: rbac::GROUP,
        kind: "RoleBinding",
        list_kind: "RoleBindingList",
        plural: "rolebindings",
        singular: "rolebinding",
        create_on_update: true,
        strategy: rbac::ROLE_BINDING,
        ..COMMON
    },
    Kind {
        group: rbac::GROUP,
        kind: "Role",
        list_kind: "RoleList",
        plural: "roles",
        singular: "role",
        create_on_update: true,
        strategy: rbac::ROLE,
        ..COMMON
    },
    Kind {
        group: ADMISSION,
        kind: "MutatingWebhookConfiguration",
        list_kind: "MutatingWebhookConfigurationList",
        plural: "mutatingwebhookconfigurations",
        singular: "mutatingwebhookconfiguration",
        categories: &["api-extensions"],
        namespaced: false,
        unconditional_update: false,
        strategy: webhook::MUTATING,
        ..COMMON
    },
    Kind {
        group: ADMISSION,
        kind: "ValidatingWebhookConfiguration",
        list_kind: "ValidatingWebhookConfigurationList",
        plural: "validatingwebhookconfigurations",
        singular: "validatingwebhookconfiguration",
        categories: &["api-extensions"],
        namespaced: false,
        unconditional_update: false,
        strategy: webhook::VALIDATING,
        ..COMMON
    },
    review(AUTHENTICATION, "SelfSubjectReview", "selfsubjectreviews", "selfsubjectreview"),
    review(AUTHENTICATION, "TokenReview", "tokenreviews", "tokenreview"),
    Kind {
        namespaced: true,
        ..review(AUTHORIZATION, "LocalSubjectAccessReview", "localsubjectaccessreviews", "localsubjectaccessreview")
    },
    review(AUTHORIZATION, "SelfSubjectAccessReview", "selfsubjectaccessreviews", "selfsubjectaccessreview"),
    review(AUTHORIZATION, "SelfSubjectRulesReview", "selfsubjectrulesreviews", "selfsubjectrulesreview"),
    review(AUTHORIZATION, "SubjectAccessReview", "subjectaccessreviews", "subjectaccessreview"),
];

/// The value that a selector compares for `label`: strings as they are, absent as "", booleans in words.
pub(super) fn field_value(kind: &Kind, object: &Value, label: &str) -> String {
    match (kind.kind, label) {
        ("Pod", "spec.hostNetwork") => flag(object, "/spec/hostNetwork").to_string(),
        // An old name of the same thing.
        ("Pod", "spec.host") => text(object, "/spec/nodeName").to_owned(),
        ("Pod", "status.podIP") => text(object, "/status/podIPs/0/ip").to_owned(),
        ("Node", "spec.unschedulable") => flag(object, "/spec/unschedulable").to_string(),
        ("Event", "source") => event_source(object).to_owned(),
        // Events are stored in their core shape, whichever group asks.
        ("Event", "reportingController") => text(object, "/reportingComponent").to_owned(),
        ("Event", label) if label.starts_with("regarding.") => {
            text(object, &label.replace("regarding.", "/involvedObject/")).to_owned()
        }
        _ => text(object, &format!("/{}", label.replace('.', "/"))).to_owned(),
    }
}

/// The component of either face of an event; reporters that fill only the newer field count as well.
fn event_source(event: &Value) -> &str {
    ["/source/component", "/deprecatedSource/component", "/reportingComponent", "/reportingController"]
        .into_iter()
        .map(|pointer| text(event, pointer))
        .find(|source| !source.is_empty())
        .unwrap_or_default()
}
