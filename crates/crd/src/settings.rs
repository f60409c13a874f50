//! The settings that decisions look at, with Longhorn's names and defaults.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::setting::SettingStatus;
use crate::{NAMESPACE, Setting};

macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal: $default:literal,)+) => {
        $($(#[doc = $doc])+ pub const $name: &str = $word;)+

        /// Every setting: name, default, what it is for.
        pub const ALL: &[(&str, &str, &str)] = &[$(($word, $default, concat!($($doc),+)),)+];
    };
}

settings! {
    /// Whether a volume whose replicas all failed is started from those that hold every acknowledged write.
    AUTO_SALVAGE = "auto-salvage": "true",
    /// Seconds to wait for a failed replica to come back before a new one is made.
    REPLICA_REPLENISHMENT_WAIT_INTERVAL = "replica-replenishment-wait-interval": "600",
    /// How many replicas of a node are rebuilt at once; 0: none.
    CONCURRENT_REPLICA_REBUILD_PER_NODE_LIMIT = "concurrent-replica-rebuild-per-node-limit": "5",
    /// Whether replicas of a volume may share a node.
    REPLICA_SOFT_ANTI_AFFINITY = "replica-soft-anti-affinity": "false",
    /// Whether replicas of a volume may share a zone.
    REPLICA_ZONE_SOFT_ANTI_AFFINITY = "replica-zone-soft-anti-affinity": "true",
    /// Whether replicas of a volume may share a disk.
    REPLICA_DISK_SOFT_ANTI_AFFINITY = "replica-disk-soft-anti-affinity": "true",
    /// How much more than its space, in percent of it, a disk may promise to replicas.
    STORAGE_OVER_PROVISIONING_PERCENTAGE = "storage-over-provisioning-percentage": "100",
    /// Percent of a disk that must be free for a new replica.
    STORAGE_MINIMAL_AVAILABLE_PERCENTAGE = "storage-minimal-available-percentage": "25",
    /// Percent of a default disk that replicas leave alone.
    STORAGE_RESERVED_PERCENTAGE_FOR_DEFAULT_DISK = "storage-reserved-percentage-for-default-disk": "30",
    /// Whether replicas are moved to spread evenly.
    REPLICA_AUTO_BALANCE = "replica-auto-balance": "disabled",
    /// Percent of use above which replicas are moved off a disk.
    REPLICA_AUTO_BALANCE_DISK_PRESSURE_PERCENTAGE = "replica-auto-balance-disk-pressure-percentage": "90",
    /// What becomes of the pods of a node that is down.
    NODE_DOWN_POD_DELETION_POLICY = "node-down-pod-deletion-policy": "do-nothing",
    /// When a drain of a node has to wait.
    NODE_DRAIN_POLICY = "node-drain-policy": "block-if-contains-last-replica",
    /// Whether a volume that a person attached is detached when its node is cordoned.
    DETACH_MANUALLY_ATTACHED_VOLUMES_WHEN_CORDONED = "detach-manually-attached-volumes-when-cordoned": "false",
    /// Whether a share moves before its node is known to be down.
    RWX_VOLUME_FAST_FAILOVER = "rwx-volume-fast-failover": "false",
    /// Seconds after which an engine gives up on a replica.
    ENGINE_REPLICA_TIMEOUT = "engine-replica-timeout": "8",
    /// Whether a pod is restarted when its volume was detached under it.
    AUTO_DELETE_POD_WHEN_VOLUME_DETACHED_UNEXPECTEDLY = "auto-delete-pod-when-volume-detached-unexpectedly": "true",
    /// Whether a volume may be made although not all its replicas have a place.
    ALLOW_VOLUME_CREATION_WITH_DEGRADED_AVAILABILITY = "allow-volume-creation-with-degraded-availability": "true",
    /// Whether a cordoned node gets no new replicas.
    DISABLE_SCHEDULING_ON_CORDONED_NODE = "disable-scheduling-on-cordoned-node": "true",
    /// Whether volumes are rebuilt while they are not attached.
    OFFLINE_REPLICA_REBUILDING = "offline-replica-rebuilding": "false",
    /// Whether snapshots that the system made are removed when they have served.
    AUTO_CLEANUP_SYSTEM_GENERATED_SNAPSHOT = "auto-cleanup-system-generated-snapshot": "true",
    /// Whether replicas keep Longhorn's revision counter.
    DISABLE_REVISION_COUNTER = "disable-revision-counter": "{\"v1\":\"true\"}",
    /// How many snapshots a volume may have.
    SNAPSHOT_MAX_COUNT = "snapshot-max-count": "250",
    /// How many restores of a node go on at once.
    RESTORE_CONCURRENT_LIMIT = "restore-concurrent-limit": "2",
    /// Seconds that a long call may take.
    LONG_GRPC_TIMEOUT = "long-grpc-timeout": "86400",
    /// Seconds that the transfer of a file may take to begin.
    REPLICA_FILE_SYNC_HTTP_CLIENT_TIMEOUT = "replica-file-sync-http-client-timeout": "30",
    /// Which leftovers are deleted without asking.
    ORPHAN_RESOURCE_AUTO_DELETION = "orphan-resource-auto-deletion": "",
    /// Seconds that a leftover has to be seen before it is one.
    ORPHAN_RESOURCE_AUTO_DELETION_GRACE_PERIOD = "orphan-resource-auto-deletion-grace-period": "300",
    /// Percent of a node's CPUs that its instance manager asks for.
    GUARANTEED_INSTANCE_MANAGER_CPU = "guaranteed-instance-manager-cpu": "{\"v1\":\"12\",\"v2\":\"12\"}",
    /// How many replicas a volume gets that does not say.
    DEFAULT_REPLICA_COUNT = "default-replica-count": "{\"v1\":\"3\",\"v2\":\"3\"}",
    /// Whether a replica has to be where the volume is attached, if the volume does not say.
    DEFAULT_DATA_LOCALITY = "default-data-locality": "disabled",
    /// The directory of the disk that a new node gets.
    DEFAULT_DATA_PATH = "default-data-path": "/var/lib/longhorn/",
}

/// The default of a setting; that of a name that is none of them is empty.
pub fn default_value(name: &str) -> &'static str {
    ALL.iter().find(|(known, ..)| *known == name).map_or("", |(_, value, _)| value)
}

/// The objects that a new cluster gets.
pub fn defaults() -> Vec<Setting> {
    let object = |&(name, value, _): &(&str, &str, &str)| Setting {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        value: value.to_owned(),
        // Nothing has to be restarted for any of them.
        status: SettingStatus { applied: true },
    };
    ALL.iter().map(object).collect()
}

/// The settings as a decision sees them. One that is missing or cannot be read has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(pub BTreeMap<String, String>);

impl Settings {
    /// Those of a list of objects.
    pub fn of<'a>(settings: impl IntoIterator<Item = &'a Setting>) -> Self {
        let named = settings.into_iter().filter_map(|s| Some((s.metadata.name.clone()?, s.value.clone())));
        Self(named.collect())
    }

    /// The value; of one that differs by data engine, that of the first.
    pub fn text(&self, name: &str) -> String {
        let value = self.0.get(name).map_or(default_value(name), String::as_str);
        match serde_json::from_str::<BTreeMap<String, String>>(value) {
            Ok(by_engine) => by_engine.get("v1").cloned().unwrap_or_default(),
            Err(_) => value.to_owned(),
        }
    }

    /// The value as a flag.
    pub fn flag(&self, name: &str) -> bool {
        self.text(name).parse().unwrap_or_else(|_| Self::default().text(name) == "true")
    }

    /// The value as a number.
    pub fn number(&self, name: &str) -> i64 {
        self.text(name).parse().or_else(|_| Self::default().text(name).parse()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_has_its_default_unless_it_says_otherwise() {
        let mut settings = Settings::default();
        assert!(settings.flag(AUTO_SALVAGE));
        assert_eq!(settings.number(DEFAULT_REPLICA_COUNT), 3);
        let mut say = |name: &str, value: &str| settings.0.insert(name.to_owned(), value.to_owned());
        say(AUTO_SALVAGE, "false");
        say(DEFAULT_REPLICA_COUNT, "2");
        say(REPLICA_REPLENISHMENT_WAIT_INTERVAL, "soon");
        assert!(!settings.flag(AUTO_SALVAGE));
        assert_eq!(settings.number(DEFAULT_REPLICA_COUNT), 2);
        assert_eq!(settings.number(REPLICA_REPLENISHMENT_WAIT_INTERVAL), 600, "what cannot be read is the default");
    }
}
