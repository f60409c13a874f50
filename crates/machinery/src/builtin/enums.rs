//! Fields of built-in types that take one of a few words.
//!
//! The schemas of `k8s-openapi` call them strings. Clients learn the words from OpenAPI documents (`kubectl explain`
//! lists them); whether a value is one of them is checked with the rest of its kind, in [`crate::kinds`].

use std::sync::Arc;

use serde_json::Value;

use super::overlay::{ADMISSION, CORE, EXTENSIONS, STORAGE};
use crate::schema::Schema;

/// `(type, field, words)`, the words in alphabetical order; a word may be empty. In a list, they are those of its items.
type Row = (&'static str, &'static str, &'static str);

const WORDS: &[(&str, &[Row])] = &[
    (
        ADMISSION,
        &[
            ("MutatingWebhook", "failurePolicy", "Fail Ignore"),
            ("MutatingWebhook", "matchPolicy", "Equivalent Exact"),
            ("MutatingWebhook", "reinvocationPolicy", "IfNeeded Never"),
            ("MutatingWebhook", "sideEffects", "None NoneOnDryRun Some Unknown"),
            ("RuleWithOperations", "operations", "* CONNECT CREATE DELETE UPDATE"),
            ("RuleWithOperations", "scope", "* Cluster Namespaced"),
            ("ValidatingWebhook", "failurePolicy", "Fail Ignore"),
            ("ValidatingWebhook", "matchPolicy", "Equivalent Exact"),
            ("ValidatingWebhook", "sideEffects", "None NoneOnDryRun Some Unknown"),
        ],
    ),
    (
        CORE,
        &[
            ("AppArmorProfile", "type", "Localhost RuntimeDefault Unconfined"),
            ("AzureDiskVolumeSource", "cachingMode", "None ReadOnly ReadWrite"),
            ("AzureDiskVolumeSource", "kind", "Dedicated Managed Shared"),
            ("Container", "imagePullPolicy", "Always IfNotPresent Never"),
            ("Container", "terminationMessagePolicy", "FallbackToLogsOnError File"),
            ("ContainerPort", "protocol", "SCTP TCP UDP"),
            ("EphemeralContainer", "imagePullPolicy", "Always IfNotPresent Never"),
            ("EphemeralContainer", "terminationMessagePolicy", "FallbackToLogsOnError File"),
            ("HTTPGetAction", "scheme", "HTTP HTTPS"),
            (
                "HostPathVolumeSource",
                "type",
                " BlockDevice CharDevice Directory DirectoryOrCreate File FileOrCreate Socket",
            ),
            ("ImageVolumeSource", "pullPolicy", "Always IfNotPresent Never"),
            ("ModifyVolumeStatus", "status", "InProgress Infeasible Pending"),
            ("NamespaceStatus", "phase", "Active Terminating"),
            ("NodeSelectorRequirement", "operator", "DoesNotExist Exists Gt In Lt NotIn"),
            ("NodeStatus", "phase", "Pending Running Terminated"),
            ("PersistentVolumeClaimSpec", "accessModes", "ReadOnlyMany ReadWriteMany ReadWriteOnce ReadWriteOncePod"),
            ("PersistentVolumeClaimSpec", "volumeMode", "Block Filesystem"),
            ("PersistentVolumeClaimStatus", "accessModes", "ReadOnlyMany ReadWriteMany ReadWriteOnce ReadWriteOncePod"),
            ("PersistentVolumeClaimStatus", "phase", "Bound Lost Pending"),
            ("PersistentVolumeSpec", "accessModes", "ReadOnlyMany ReadWriteMany ReadWriteOnce ReadWriteOncePod"),
            ("PersistentVolumeSpec", "persistentVolumeReclaimPolicy", "Delete Recycle Retain"),
            ("PersistentVolumeSpec", "volumeMode", "Block Filesystem"),
            ("PersistentVolumeStatus", "phase", "Available Bound Failed Pending Released"),
            ("PodSecurityContext", "fsGroupChangePolicy", "Always OnRootMismatch"),
            ("PodSecurityContext", "supplementalGroupsPolicy", "Merge Strict"),
            ("PodSpec", "dnsPolicy", "ClusterFirst ClusterFirstWithHostNet Default None"),
            ("PodSpec", "preemptionPolicy", "Never PreemptLowerPriority"),
            ("PodSpec", "restartPolicy", "Always Never OnFailure"),
            ("PodStatus", "phase", "Failed Pending Running Succeeded Unknown"),
            ("PodStatus", "qosClass", "BestEffort Burstable Guaranteed"),
            ("SeccompProfile", "type", "Localhost RuntimeDefault Unconfined"),
            ("SecurityContext", "procMount", "Default Unmasked"),
            ("Taint", "effect", "NoExecute NoSchedule PreferNoSchedule"),
            ("Toleration", "effect", "NoExecute NoSchedule PreferNoSchedule"),
            ("Toleration", "operator", "Equal Exists Gt Lt"),
            ("TopologySpreadConstraint", "nodeAffinityPolicy", "Honor Ignore"),
            ("TopologySpreadConstraint", "nodeTaintsPolicy", "Honor Ignore"),
            ("TopologySpreadConstraint", "whenUnsatisfiable", "DoNotSchedule ScheduleAnyway"),
            ("VolumeMount", "mountPropagation", "Bidirectional HostToContainer None"),
        ],
    ),
    (
        STORAGE,
        &[
            ("StorageClass", "reclaimPolicy", "Delete Recycle Retain"),
            ("StorageClass", "volumeBindingMode", "Immediate WaitForFirstConsumer"),
        ],
    ),
    (
        EXTENSIONS,
        &[("ValidationRule", "reason", "FieldValueDuplicate FieldValueForbidden FieldValueInvalid FieldValueRequired")],
    ),
];

/// Fields of core types that name a signal.
const SIGNAL_FIELDS: &[(&str, &str)] = &[("ContainerStatus", "stopSignal"), ("Lifecycle", "stopSignal")];

const SIGNALS: &str = "ABRT ALRM BUS CHLD CLD CONT FPE HUP ILL INT IO IOT KILL PIPE POLL PROF PWR QUIT RTMAX RTMIN SEGV \
    STKFLT STOP SYS TERM TRAP TSTP TTIN TTOU URG USR1 USR2 VTALRM WINCH XCPU XFSZ";
/// Real-time signals are counted from both ends.
const BELOW_RTMAX: u32 = 14;
const ABOVE_RTMIN: u32 = 15;

/// Adds the words of a definition's fields.
pub(super) fn apply(definition: &str, schema: &mut Schema) {
    for (package, rows) in WORDS {
        let Some(ty) = definition.strip_prefix(package) else { continue };
        for (_, field, words) in rows.iter().filter(|row| row.0 == ty) {
            enumerate(schema, field, words.split(' ').map(str::to_owned).collect());
        }
    }
    for (_, field) in SIGNAL_FIELDS.iter().filter(|row| definition.strip_prefix(CORE) == Some(row.0)) {
        enumerate(schema, field, signals());
    }
}

fn signals() -> Vec<String> {
    let named = SIGNALS.split_whitespace().map(|name| format!("SIG{name}"));
    let below = (1..=BELOW_RTMAX).map(|n| format!("SIGRTMAX-{n}"));
    let above = (1..=ABOVE_RTMIN).map(|n| format!("SIGRTMIN+{n}"));
    let mut all: Vec<String> = named.chain(below).chain(above).collect();
    all.sort();
    all
}

fn enumerate(schema: &mut Schema, field: &str, words: Vec<String>) {
    let Some(field) = schema.properties.get_mut(field) else { return };
    let field = Arc::make_mut(field);
    let values = words.iter().map(|word| Value::from(word.as_str())).collect();
    if let Some(items) = &mut field.items {
        Arc::make_mut(items).limits.enumeration = Some(values);
        return;
    }
    field.limits.enumeration = Some(values);
    let list: String = words.iter().map(|word| format!("\n - `{word:?}`")).collect::<Vec<_>>().concat();
    field.description = format!("{}\n\nPossible enum values:{list}", field.description.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;

    #[test]
    fn every_line_names_a_field_that_exists() {
        let signals = SIGNAL_FIELDS.iter().map(|(ty, field)| (CORE, *ty, *field));
        let words = WORDS.iter().flat_map(|(package, rows)| rows.iter().map(|(ty, field, _)| (*package, *ty, *field)));
        for (package, ty, field) in words.chain(signals) {
            let definition = builtin::definition(&format!("{package}{ty}")).unwrap_or_else(|| panic!("{ty}"));
            let node = definition.properties.get(field).unwrap_or_else(|| panic!("{ty}.{field}"));
            let words = node.items.as_deref().unwrap_or(node).limits.enumeration.as_ref();
            let words = words.unwrap_or_else(|| panic!("{ty}.{field} has no words"));
            assert!(words.is_sorted_by_key(|word| word.as_str()), "{ty}.{field}: {words:?}");
        }
    }

    #[test]
    fn there_are_as_many_signals_as_linux_has_names_for() {
        assert_eq!(signals().len(), 65);
    }
}
