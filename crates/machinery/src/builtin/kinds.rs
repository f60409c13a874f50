//! The kinds whose schemas are known, and the type that each one's schema comes from.

use k8s_openapi::api::admissionregistration::v1 as admission;
use k8s_openapi::api::{
    authentication::v1 as authentication, authorization::v1 as authorization, autoscaling::v1 as autoscaling,
    coordination::v1 as coordination, core::v1 as core, events::v1 as events, policy::v1 as policy, rbac::v1 as rbac,
    storage::v1 as storage,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use schemars::SchemaGenerator;

/// A kind that Kubernetes brings.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    /// `io.k8s.api.core.v1.Pod`
    pub definition: &'static str,
    /// There is a `PodList`, too.
    pub listable: bool,
    pub(super) generate: fn(&mut SchemaGenerator),
}

macro_rules! kinds {
    ($($listable:literal $group:literal / $version:literal $kind:literal = $ty:ty, $definition:literal;)*) => {
        /// Every kind that [`schema`](super::schema) knows, without the lists of them.
        pub static KINDS: &[Kind] = &[$(Kind {
            group: $group,
            version: $version,
            kind: $kind,
            definition: $definition,
            listable: $listable,
            generate: |generator| { generator.subschema_for::<$ty>(); },
        },)*];
    };
}

kinds! {
    true "" / "v1" "ConfigMap" = core::ConfigMap, "io.k8s.api.core.v1.ConfigMap";
    true "" / "v1" "Event" = core::Event, "io.k8s.api.core.v1.Event";
    true "" / "v1" "Namespace" = core::Namespace, "io.k8s.api.core.v1.Namespace";
    true "" / "v1" "Node" = core::Node, "io.k8s.api.core.v1.Node";
    true "" / "v1" "PersistentVolume" = core::PersistentVolume, "io.k8s.api.core.v1.PersistentVolume";
    true "" / "v1" "PersistentVolumeClaim" = core::PersistentVolumeClaim, "io.k8s.api.core.v1.PersistentVolumeClaim";
    true "" / "v1" "Pod" = core::Pod, "io.k8s.api.core.v1.Pod";
    true "" / "v1" "Secret" = core::Secret, "io.k8s.api.core.v1.Secret";
    true "" / "v1" "ServiceAccount" = core::ServiceAccount, "io.k8s.api.core.v1.ServiceAccount";
    false "" / "v1" "Binding" = core::Binding, "io.k8s.api.core.v1.Binding";
    false "" / "v1" "DeleteOptions" = meta::DeleteOptions, "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
    false "" / "v1" "Status" = meta::Status, "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
    false "" / "v1" "WatchEvent" = meta::WatchEvent<()>, "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent";
    false "" / "v1" "APIGroup" = meta::APIGroup, "io.k8s.apimachinery.pkg.apis.meta.v1.APIGroup";
    false "" / "v1" "APIGroupList" = meta::APIGroupList, "io.k8s.apimachinery.pkg.apis.meta.v1.APIGroupList";
    false "" / "v1" "APIResourceList" = meta::APIResourceList, "io.k8s.apimachinery.pkg.apis.meta.v1.APIResourceList";
    false "" / "v1" "APIVersions" = meta::APIVersions, "io.k8s.apimachinery.pkg.apis.meta.v1.APIVersions";
    true "admissionregistration.k8s.io" / "v1" "MutatingWebhookConfiguration" = admission::MutatingWebhookConfiguration,
        "io.k8s.api.admissionregistration.v1.MutatingWebhookConfiguration";
    true "admissionregistration.k8s.io" / "v1" "ValidatingWebhookConfiguration" =
        admission::ValidatingWebhookConfiguration,
        "io.k8s.api.admissionregistration.v1.ValidatingWebhookConfiguration";
    true "apiextensions.k8s.io" / "v1" "CustomResourceDefinition" = extensions::CustomResourceDefinition,
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition";
    false "authentication.k8s.io" / "v1" "SelfSubjectReview" = authentication::SelfSubjectReview,
        "io.k8s.api.authentication.v1.SelfSubjectReview";
    false "authentication.k8s.io" / "v1" "TokenRequest" = authentication::TokenRequest,
        "io.k8s.api.authentication.v1.TokenRequest";
    false "authentication.k8s.io" / "v1" "TokenReview" = authentication::TokenReview,
        "io.k8s.api.authentication.v1.TokenReview";
    false "authorization.k8s.io" / "v1" "LocalSubjectAccessReview" = authorization::LocalSubjectAccessReview,
        "io.k8s.api.authorization.v1.LocalSubjectAccessReview";
    false "authorization.k8s.io" / "v1" "SelfSubjectAccessReview" = authorization::SelfSubjectAccessReview,
        "io.k8s.api.authorization.v1.SelfSubjectAccessReview";
    false "authorization.k8s.io" / "v1" "SelfSubjectRulesReview" = authorization::SelfSubjectRulesReview,
        "io.k8s.api.authorization.v1.SelfSubjectRulesReview";
    false "authorization.k8s.io" / "v1" "SubjectAccessReview" = authorization::SubjectAccessReview,
        "io.k8s.api.authorization.v1.SubjectAccessReview";
    false "autoscaling" / "v1" "Scale" = autoscaling::Scale, "io.k8s.api.autoscaling.v1.Scale";
    true "coordination.k8s.io" / "v1" "Lease" = coordination::Lease, "io.k8s.api.coordination.v1.Lease";
    true "events.k8s.io" / "v1" "Event" = events::Event, "io.k8s.api.events.v1.Event";
    false "policy" / "v1" "Eviction" = policy::Eviction, "io.k8s.api.policy.v1.Eviction";
    true "policy" / "v1" "PodDisruptionBudget" = policy::PodDisruptionBudget, "io.k8s.api.policy.v1.PodDisruptionBudget";
    true "rbac.authorization.k8s.io" / "v1" "ClusterRole" = rbac::ClusterRole, "io.k8s.api.rbac.v1.ClusterRole";
    true "rbac.authorization.k8s.io" / "v1" "ClusterRoleBinding" = rbac::ClusterRoleBinding,
        "io.k8s.api.rbac.v1.ClusterRoleBinding";
    true "rbac.authorization.k8s.io" / "v1" "Role" = rbac::Role, "io.k8s.api.rbac.v1.Role";
    true "rbac.authorization.k8s.io" / "v1" "RoleBinding" = rbac::RoleBinding, "io.k8s.api.rbac.v1.RoleBinding";
    true "storage.k8s.io" / "v1" "CSIDriver" = storage::CSIDriver, "io.k8s.api.storage.v1.CSIDriver";
    true "storage.k8s.io" / "v1" "CSINode" = storage::CSINode, "io.k8s.api.storage.v1.CSINode";
    true "storage.k8s.io" / "v1" "CSIStorageCapacity" = storage::CSIStorageCapacity,
        "io.k8s.api.storage.v1.CSIStorageCapacity";
    true "storage.k8s.io" / "v1" "StorageClass" = storage::StorageClass, "io.k8s.api.storage.v1.StorageClass";
    true "storage.k8s.io" / "v1" "VolumeAttachment" = storage::VolumeAttachment,
        "io.k8s.api.storage.v1.VolumeAttachment";
}

/// The kind of that name; kinds of `meta.v1` belong to every group.
pub fn find(group: &str, version: &str, kind: &str) -> Option<&'static Kind> {
    let same = |known: &&Kind| known.group == group && known.version == version && known.kind == kind;
    KINDS.iter().find(same)
}
