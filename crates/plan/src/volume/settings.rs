//! The settings of the system that the life of a volume depends on, with Longhorn's names and defaults.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use tether_crd::volume::Choice;
use tether_crd::{Setting, Volume};

use crate::object::name;
use crate::placement::Policy;

/// Values in force.
// Settings are yes or no, and independent of each other.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub auto_salvage: bool,
    /// How long a failed replica is waited for before a new one is made.
    pub replenishment_wait: SignedDuration,
    /// How many replicas of a node may be rebuilt at once; 0 switches rebuilding off.
    pub rebuilds_per_node: i64,
    /// Whether a volume may begin with fewer replicas than it asks for.
    pub allow_degraded_creation: bool,
    /// For a volume that does not say.
    pub placement: Policy,
    /// Whether replicas go from where they are to where there is more room.
    pub default_replica_count: i64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            auto_salvage: true,
            replenishment_wait: SignedDuration::from_secs(600),
            rebuilds_per_node: 5,
            allow_degraded_creation: true,
            placement: Policy::default(),
            default_replica_count: 3,
        }
    }
}

impl Settings {
    /// The settings as the objects say; what is missing or makes no sense keeps its default.
    pub fn of<'a>(settings: impl IntoIterator<Item = &'a Setting>) -> Self {
        let values: BTreeMap<&str, &str> = settings.into_iter().map(|s| (name(s), s.value.trim())).collect();
        let mut found = Self::default();
        let flag = |held: &mut bool, key: &str| {
            if let Some(value) = values.get(key).and_then(|value| value.parse().ok()) {
                *held = value;
            }
        };
        let number = |key: &str| values.get(key).and_then(|value| value.parse::<i64>().ok()).filter(|n| *n >= 0);
        flag(&mut found.auto_salvage, "auto-salvage");
        flag(&mut found.allow_degraded_creation, "allow-volume-creation-with-degraded-availability");
        flag(&mut found.placement.node_soft, "replica-soft-anti-affinity");
        flag(&mut found.placement.zone_soft, "replica-zone-soft-anti-affinity");
        flag(&mut found.placement.disk_soft, "replica-disk-soft-anti-affinity");
        flag(&mut found.placement.empty_node_selector_fits_all, "allow-empty-node-selector-volume");
        flag(&mut found.placement.empty_disk_selector_fits_all, "allow-empty-disk-selector-volume");
        if let Some(seconds) = number("replica-replenishment-wait-interval") {
            found.replenishment_wait = SignedDuration::from_secs(seconds);
        }
        if let Some(limit) = number("concurrent-replica-rebuild-per-node-limit") {
            found.rebuilds_per_node = limit;
        }
        if let Some(percent) = number("storage-over-provisioning-percentage") {
            found.placement.over_provisioning_percent = percent;
        }
        if let Some(percent) = number("storage-minimal-available-percentage") {
            found.placement.minimal_available_percent = percent;
        }
        if let Some(count) = number("default-replica-count").filter(|count| *count > 0) {
            found.default_replica_count = count;
        }
        found
    }

    /// Where replicas of a volume may go: what the volume says comes before what the settings say.
    pub fn policy(&self, volume: &Volume) -> Policy {
        let choose = |choice: Choice, default: bool| match choice {
            Choice::Ignored => default,
            Choice::Enabled => true,
            Choice::Disabled => false,
        };
        let (spec, default) = (&volume.spec, &self.placement);
        Policy {
            node_soft: choose(spec.replica_soft_anti_affinity, default.node_soft),
            zone_soft: choose(spec.replica_zone_soft_anti_affinity, default.zone_soft),
            disk_soft: choose(spec.replica_disk_soft_anti_affinity, default.disk_soft),
            ..default.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_defaults_and_a_volume_has_the_last_word() {
        let setting = |key: &str, value: &str| {
            let mut setting = Setting { value: value.into(), ..Default::default() };
            setting.metadata.name = Some(key.into());
            setting
        };
        assert_eq!(Settings::of(&[]), Settings::default());
        let found = Settings::of(&[
            setting("replica-soft-anti-affinity", "true"),
            setting("replica-replenishment-wait-interval", "30"),
            setting("storage-over-provisioning-percentage", "nonsense"),
            setting("concurrent-replica-rebuild-per-node-limit", "-1"),
        ]);
        assert!(found.placement.node_soft);
        assert_eq!(found.replenishment_wait, SignedDuration::from_secs(30));
        assert_eq!((found.placement.over_provisioning_percent, found.rebuilds_per_node), (100, 5));
        let mut volume = Volume::default();
        volume.spec.replica_soft_anti_affinity = Choice::Disabled;
        let policy = found.policy(&volume);
        assert!(!policy.node_soft && policy.zone_soft);
    }
}
