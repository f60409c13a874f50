//! Objects in a few words: `pod("web").on("a").tolerating("k", 300)`.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{
    Container, Node, NodeCondition, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod,
    PodCondition, Taint, Toleration, Volume, VolumeResourceRequirements,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use tether_plan::Plan;

/// The moment at which tests decide.
pub(crate) const NOW_SECOND: i64 = 1_800_000_000;

pub(crate) fn now() -> Timestamp {
    after(0)
}

/// So many seconds after [`now`].
pub(crate) fn after(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW_SECOND + seconds).unwrap()
}

pub(crate) fn seconds(seconds: i64) -> SignedDuration {
    SignedDuration::from_secs(seconds)
}

pub(crate) fn meta(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta {
        namespace: (!namespace.is_empty()).then(|| namespace.into()),
        name: Some(name.into()),
        uid: Some(format!("uid-{name}")),
        resource_version: Some("1".into()),
        creation_timestamp: Some(Time(after(-3600))),
        ..Default::default()
    }
}

pub(crate) fn node(name: &str) -> Node {
    Node { metadata: meta("", name), ..Default::default() }
}

pub(crate) trait NodeExt: Sized {
    fn ready(self, status: &str) -> Self;
    fn tainted(self, key: &str, effect: &str, seconds_ago: i64) -> Self;
    fn labelled(self, key: &str, value: &str) -> Self;
    fn cordoned(self) -> Self;
    fn has(self, resource: &str, amount: &str) -> Self;
}

impl NodeExt for Node {
    fn ready(mut self, status: &str) -> Self {
        let conditions = self.status.get_or_insert_default().conditions.get_or_insert_default();
        for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
            let status = if kind == "Ready" || status == "Unknown" { status } else { "False" };
            conditions.push(NodeCondition { type_: kind.into(), status: status.into(), ..Default::default() });
        }
        self
    }

    fn tainted(mut self, key: &str, effect: &str, seconds_ago: i64) -> Self {
        let taint =
            Taint { key: key.into(), effect: effect.into(), value: None, time_added: Some(Time(after(-seconds_ago))) };
        self.spec.get_or_insert_default().taints.get_or_insert_default().push(taint);
        self
    }

    fn labelled(mut self, key: &str, value: &str) -> Self {
        self.metadata.labels.get_or_insert_default().insert(key.into(), value.into());
        self
    }

    fn cordoned(mut self) -> Self {
        self.spec.get_or_insert_default().unschedulable = Some(true);
        self
    }

    fn has(mut self, resource: &str, amount: &str) -> Self {
        let allocatable = self.status.get_or_insert_default().allocatable.get_or_insert_default();
        allocatable.insert(resource.into(), Quantity(amount.into()));
        self
    }
}

pub(crate) fn pod(name: &str) -> Pod {
    Pod { metadata: meta("default", name), ..Default::default() }
}

pub(crate) trait PodExt: Sized {
    fn on(self, node: &str) -> Self;
    fn phase(self, phase: &str) -> Self;
    fn deleting(self) -> Self;
    fn ready(self) -> Self;
    fn tolerating(self, key: &str, seconds: Option<i64>) -> Self;
    fn asking(self, resource: &str, amount: &str) -> Self;
    fn using(self, claim: &str) -> Self;
    fn created(self, seconds_ago: i64) -> Self;
}

impl PodExt for Pod {
    fn on(mut self, node: &str) -> Self {
        self.spec.get_or_insert_default().node_name = Some(node.into());
        self
    }

    fn phase(mut self, phase: &str) -> Self {
        self.status.get_or_insert_default().phase = Some(phase.into());
        self
    }

    fn deleting(mut self) -> Self {
        self.metadata.deletion_timestamp = Some(Time(after(-10)));
        self
    }

    fn ready(mut self) -> Self {
        let condition = PodCondition { type_: "Ready".into(), status: "True".into(), ..Default::default() };
        self.status.get_or_insert_default().conditions.get_or_insert_default().push(condition);
        self
    }

    fn tolerating(mut self, key: &str, seconds: Option<i64>) -> Self {
        let toleration = Toleration {
            key: Some(key.into()),
            operator: Some("Exists".into()),
            toleration_seconds: seconds,
            ..Default::default()
        };
        self.spec.get_or_insert_default().tolerations.get_or_insert_default().push(toleration);
        self
    }

    fn asking(mut self, resource: &str, amount: &str) -> Self {
        let containers = &mut self.spec.get_or_insert_default().containers;
        if containers.is_empty() {
            containers.push(Container::default());
        }
        let requests = containers[0].resources.get_or_insert_default().requests.get_or_insert_default();
        requests.insert(resource.into(), Quantity(amount.into()));
        self
    }

    fn using(mut self, claim: &str) -> Self {
        let source = PersistentVolumeClaimVolumeSource { claim_name: claim.into(), read_only: None };
        let volume = Volume { name: claim.into(), persistent_volume_claim: Some(source), ..Default::default() };
        self.spec.get_or_insert_default().volumes.get_or_insert_default().push(volume);
        self
    }

    fn created(mut self, seconds_ago: i64) -> Self {
        self.metadata.creation_timestamp = Some(Time(after(-seconds_ago)));
        self
    }
}

pub(crate) fn class(name: &str, mode: &str) -> StorageClass {
    StorageClass {
        metadata: meta("", name),
        provisioner: "driver.example.com".into(),
        volume_binding_mode: Some(mode.into()),
        ..Default::default()
    }
}

pub(crate) fn claim(name: &str, size: &str, class: &str) -> PersistentVolumeClaim {
    let mut claim = PersistentVolumeClaim { metadata: meta("default", name), ..Default::default() };
    let spec = claim.spec.get_or_insert_default();
    spec.access_modes = Some(vec!["ReadWriteOnce".into()]);
    spec.storage_class_name = Some(class.into());
    spec.resources = Some(VolumeResourceRequirements {
        requests: Some([("storage".into(), Quantity(size.into()))].into()),
        ..Default::default()
    });
    claim.status.get_or_insert_default().phase = Some("Pending".into());
    claim
}

pub(crate) fn volume(name: &str, size: &str, class: &str) -> PersistentVolume {
    let mut volume = PersistentVolume { metadata: meta("", name), ..Default::default() };
    let spec = volume.spec.get_or_insert_default();
    spec.access_modes = Some(vec!["ReadWriteOnce".into()]);
    spec.storage_class_name = Some(class.into());
    spec.persistent_volume_reclaim_policy = Some("Retain".into());
    spec.capacity = Some([("storage".into(), Quantity(size.into()))].into());
    volume.status.get_or_insert_default().phase = Some("Available".into());
    volume
}

/// Compares a plan with its golden text, which may be indented.
#[track_caller]
pub(crate) fn golden<C: fmt::Debug>(plan: &Plan<C>, expected: &str) {
    let lines = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
    };
    let (found, expected) = (lines(&plan.to_string()), lines(expected));
    assert_eq!(found, expected, "the plan is:\n{plan}");
}
