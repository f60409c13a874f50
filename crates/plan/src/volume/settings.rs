//! The settings of the system that the life of a volume depends on, with Longhorn's names and defaults.

use jiff::SignedDuration;
use tether_crd::volume::{Choice, ReplicaAutoBalance};
use tether_crd::{Volume, settings};

use crate::drain;
use crate::placement::Policy;

/// Values in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub auto_salvage: bool,
    /// How long a failed replica is waited for before a new one is made.
    pub replenishment_wait: SignedDuration,
    /// How many replicas of a node may be rebuilt at once; 0 switches rebuilding off.
    pub rebuilds_per_node: i64,
    /// Whether a volume may begin with fewer replicas than it asks for.
    pub allow_degraded_creation: bool,
    /// Which replicas leave a cordoned node.
    pub drain_policy: drain::Policy,
    /// For a volume that does not say: whether it is rebuilt while nobody uses it.
    pub offline_rebuilding: bool,
    /// For a volume that does not say: whether its replicas move to spread evenly.
    pub auto_balance: ReplicaAutoBalance,
    /// For a volume that does not say.
    pub placement: Policy,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            auto_salvage: true,
            replenishment_wait: SignedDuration::from_secs(600),
            rebuilds_per_node: 5,
            allow_degraded_creation: true,
            drain_policy: drain::Policy::BlockIfContainsLastReplica,
            offline_rebuilding: false,
            auto_balance: ReplicaAutoBalance::Disabled,
            placement: Policy::default(),
        }
    }
}

impl Settings {
    /// What of all settings matters here.
    pub fn of(all: &settings::Settings) -> Self {
        Self {
            auto_salvage: all.flag(settings::AUTO_SALVAGE),
            replenishment_wait: seconds(all.number(settings::REPLICA_REPLENISHMENT_WAIT_INTERVAL)),
            rebuilds_per_node: all.number(settings::CONCURRENT_REPLICA_REBUILD_PER_NODE_LIMIT),
            allow_degraded_creation: all.flag(settings::ALLOW_VOLUME_CREATION_WITH_DEGRADED_AVAILABILITY),
            drain_policy: drain::Policy::parse(&all.text(settings::NODE_DRAIN_POLICY)),
            offline_rebuilding: all.flag(settings::OFFLINE_REPLICA_REBUILDING),
            auto_balance: match all.text(settings::REPLICA_AUTO_BALANCE).as_str() {
                "least-effort" => ReplicaAutoBalance::LeastEffort,
                "best-effort" => ReplicaAutoBalance::BestEffort,
                _ => ReplicaAutoBalance::Disabled,
            },
            placement: Policy {
                node_soft: all.flag(settings::REPLICA_SOFT_ANTI_AFFINITY),
                zone_soft: all.flag(settings::REPLICA_ZONE_SOFT_ANTI_AFFINITY),
                disk_soft: all.flag(settings::REPLICA_DISK_SOFT_ANTI_AFFINITY),
                over_provisioning_percent: all.number(settings::STORAGE_OVER_PROVISIONING_PERCENTAGE),
                minimal_available_percent: all.number(settings::STORAGE_MINIMAL_AVAILABLE_PERCENTAGE),
                ..Policy::default()
            },
        }
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

fn seconds(seconds: i64) -> SignedDuration {
    SignedDuration::from_secs(seconds.max(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_defaults_and_a_volume_has_the_last_word() {
        assert_eq!(Settings::of(&settings::Settings::default()), Settings::default());
        let values = [
            (settings::REPLICA_SOFT_ANTI_AFFINITY, "true"),
            (settings::REPLICA_REPLENISHMENT_WAIT_INTERVAL, "30"),
            (settings::STORAGE_OVER_PROVISIONING_PERCENTAGE, "nonsense"),
        ];
        let values = values.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let found = Settings::of(&settings::Settings(values.into()));
        assert!(found.placement.node_soft);
        assert_eq!(found.replenishment_wait, SignedDuration::from_secs(30));
        assert_eq!(found.placement.over_provisioning_percent, 100);
        let mut volume = Volume::default();
        volume.spec.replica_soft_anti_affinity = Choice::Disabled;
        let policy = found.policy(&volume);
        assert!(!policy.node_soft && policy.zone_soft);
    }
}
