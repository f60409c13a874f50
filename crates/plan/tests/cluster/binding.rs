//! Claims and volumes find each other, one to one.

use std::fmt;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use proptest::prelude::*;
use tether_plan::Plan;
use tether_plan::binding::claim::Observed;
use tether_plan::binding::protection::{self, CLAIM_FINALIZER, ClaimChange, Users};
use tether_plan::binding::{Change, claim as claims, matching, points_to, volume as volumes, volume_name};

use crate::build::*;

/// Claims, volumes and classes, on which plans are carried out.
#[derive(Clone, Default)]
struct Storage {
    claims: Vec<PersistentVolumeClaim>,
    volumes: Vec<PersistentVolume>,
    classes: Vec<StorageClass>,
}

/// One line for each object, for a failing case is otherwise too long to read.
impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for claim in &self.claims {
            let (meta, spec) = (&claim.metadata, claim.spec.as_ref().unwrap());
            let phase = claim.status.as_ref().and_then(|s| s.phase.as_ref());
            let size = matching::requested(claim) >> 30;
            writeln!(
                f,
                "claim {:?} {size}Gi {:?} {phase:?} {:?}",
                meta.name, spec.storage_class_name, spec.volume_name
            )?;
        }
        for volume in &self.volumes {
            let (meta, spec) = (&volume.metadata, volume.spec.as_ref().unwrap());
            let claim = spec.claim_ref.as_ref().map(|r| (&r.name, &r.uid));
            let phase = volume.status.as_ref().and_then(|s| s.phase.as_ref());
            let size = matching::capacity(volume) >> 30;
            let (class, annotations) = (&spec.storage_class_name, &meta.annotations);
            writeln!(f, "volume {:?} {size}Gi {class:?} {phase:?} {claim:?} {annotations:?}", meta.name)?;
        }
        Ok(())
    }
}

impl Storage {
    fn claim(&self, index: usize) -> Plan<Change> {
        claims::decide(&Observed {
            claim: &self.claims[index],
            volumes: self.volumes.iter().collect(),
            classes: self.classes.iter().collect(),
            waiting_pods: Vec::new(),
        })
    }

    fn volume(&self, index: usize) -> Plan<Change> {
        let volume = &self.volumes[index];
        let named = |c: &&PersistentVolumeClaim| {
            let reference = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
            reference.and_then(|r| r.name.as_ref()) == c.metadata.name.as_ref()
        };
        match self.claims.iter().find(named) {
            Some(claim) => volumes::decide(volume, volumes::Claim::Found(claim)),
            None => volumes::decide(volume, volumes::Claim::Gone),
        }
    }

    fn claim_mut(&mut self, name: &str) -> &mut PersistentVolumeClaim {
        self.claims.iter_mut().find(|c| c.metadata.name.as_deref() == Some(name)).unwrap()
    }

    fn volume_mut(&mut self, name: &str) -> &mut PersistentVolume {
        self.volumes.iter_mut().find(|v| v.metadata.name.as_deref() == Some(name)).unwrap()
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::SetClaimRef { volume, claim, mark } => {
                let volume = self.volume_mut(&volume.name);
                volume.spec.as_mut().unwrap().claim_ref = Some(claim);
                if mark {
                    let annotations = volume.metadata.annotations.get_or_insert_default();
                    annotations.insert("pv.kubernetes.io/bound-by-controller".into(), "yes".into());
                }
            }
            Change::ClearClaimRef { volume, keep_name } => {
                let volume = self.volume_mut(&volume.name);
                let reference = &mut volume.spec.as_mut().unwrap().claim_ref;
                if keep_name {
                    reference.as_mut().unwrap().uid = None;
                } else {
                    *reference = None;
                }
                volume.metadata.annotations = None;
            }
            Change::SetVolumePhase { volume, phase } => {
                let volume = self.volume_mut(&volume.name);
                volume.status.get_or_insert_default().phase = Some(phase.into());
            }
            Change::SetVolumeName { claim, volume, .. } => {
                let claim = self.claim_mut(&claim.name);
                claim.spec.as_mut().unwrap().volume_name = Some(volume);
                let annotations = claim.metadata.annotations.get_or_insert_default();
                annotations.insert("pv.kubernetes.io/bind-completed".into(), "yes".into());
            }
            Change::SetClaimStatus { claim, status } => {
                let claim = self.claim_mut(&claim.name);
                claim.status = Some(status);
            }
            Change::SetClass { claim, class } => {
                let claim = self.claim_mut(&claim.name);
                claim.spec.as_mut().unwrap().storage_class_name = Some(class);
            }
            Change::SetProvisioner { claim, provisioner } => {
                let claim = self.claim_mut(&claim.name);
                let annotations = claim.metadata.annotations.get_or_insert_default();
                annotations.insert("volume.kubernetes.io/storage-provisioner".into(), provisioner);
            }
            Change::CheckClaim { .. } | Change::AddFinalizer { .. } | Change::RemoveFinalizer { .. } => {}
        }
    }

    /// Carries out plans until none has anything left to change.
    fn settle(&mut self) {
        for _ in 0..32 {
            let mut changes = Vec::new();
            for index in 0..self.claims.len() {
                let plan = self.claim(index);
                changes.extend(plan.changes.clone());
                plan.changes.into_iter().for_each(|change| self.apply(change));
            }
            for index in 0..self.volumes.len() {
                let plan = self.volume(index);
                changes.extend(plan.changes.clone());
                plan.changes.into_iter().for_each(|change| self.apply(change));
            }
            if changes.is_empty() {
                return;
            }
        }
        panic!("it never settles:\n{self:?}");
    }

    fn phases(&self) -> Vec<&str> {
        let claims = self.claims.iter().filter_map(|c| c.status.as_ref()?.phase.as_deref());
        claims.chain(self.volumes.iter().filter_map(|v| v.status.as_ref()?.phase.as_deref())).collect()
    }
}

fn pointing_to(mut volume: PersistentVolume, claim: &str, uid: Option<&str>) -> PersistentVolume {
    volume.spec.as_mut().unwrap().claim_ref = Some(ObjectReference {
        namespace: Some("default".into()),
        name: Some(claim.into()),
        uid: uid.map(Into::into),
        ..Default::default()
    });
    volume
}

fn named(mut claim: PersistentVolumeClaim, volume: &str) -> PersistentVolumeClaim {
    claim.spec.as_mut().unwrap().volume_name = Some(volume.into());
    claim
}

#[test]
fn a_claim_gets_the_smallest_volume_that_fits() {
    let mut storage = Storage {
        claims: vec![claim("data", "5Gi", "slow")],
        volumes: vec![
            volume("big", "20Gi", "slow"),
            volume("fit", "8Gi", "slow"),
            volume("small", "1Gi", "slow"),
            volume("fast", "5Gi", "fast"),
        ],
        ..Default::default()
    };
    golden(
        &storage.claim(0),
        "acts    bind-claim: PersistentVolumeClaim default/data: Binding: The claim is bound to \"fit\".
         => SetClaimRef { volume: fit@1, claim: ObjectReference { api_version: Some(\"v1\"), field_path: None, kind: \
            Some(\"PersistentVolumeClaim\"), name: Some(\"data\"), namespace: Some(\"default\"), resource_version: \
            Some(\"1\"), uid: Some(\"uid-data\") }, mark: true }
         => SetVolumePhase { volume: fit@1, phase: \"Bound\" }
         => SetVolumeName { claim: default/data@1, volume: \"fit\", mark: true }
         => SetClaimStatus { claim: default/data@1, status: PersistentVolumeClaimStatus { access_modes: \
            Some([\"ReadWriteOnce\"]), allocated_resource_statuses: None, allocated_resources: None, capacity: \
            Some({\"storage\": Quantity(\"8Gi\")}), conditions: None, current_volume_attributes_class_name: None, \
            modify_volume_status: None, phase: Some(\"Bound\") } }",
    );
    storage.settle();
    assert_eq!(storage.phases(), ["Bound", "Available", "Bound", "Available", "Available"]);
}

#[test]
fn either_side_may_be_bound_beforehand() {
    let mut storage = Storage {
        claims: vec![named(claim("asks", "1Gi", ""), "asked"), claim("promised", "1Gi", "")],
        volumes: vec![
            volume("asked", "1Gi", ""),
            pointing_to(volume("promises", "50Gi", ""), "promised", None),
            volume("free", "1Gi", ""),
        ],
        ..Default::default()
    };
    storage.settle();
    assert_eq!(volume_name(&storage.claims[0]), "asked");
    assert_eq!(volume_name(&storage.claims[1]), "promises", "a volume that points to the claim beats a better fit");
    assert_eq!(storage.phases(), ["Bound", "Bound", "Bound", "Bound", "Available"]);
}

#[test]
fn a_claim_that_cannot_have_its_volume_says_why() {
    let taken = pointing_to(volume("taken", "1Gi", ""), "somebody", Some("uid-somebody"));
    let cases: [(&str, PersistentVolumeClaim, Vec<PersistentVolume>, &str); 4] = [
        (
            "too small",
            named(claim("c", "9Gi", ""), "v"),
            vec![volume("v", "1Gi", "")],
            "Warning VolumeMismatch PersistentVolumeClaim/c: Cannot bind to requested volume \"v\": requested PV is too small",
        ),
        (
            "another class",
            named(claim("c", "1Gi", "fast"), "v"),
            vec![volume("v", "1Gi", "")],
            "Warning VolumeMismatch PersistentVolumeClaim/c: Cannot bind to requested volume \"v\": storageClassName does not match",
        ),
        (
            "taken",
            named(claim("c", "1Gi", ""), "taken"),
            vec![taken],
            "Warning FailedBinding PersistentVolumeClaim/c: volume \"taken\" already bound to a different claim.",
        ),
        (
            "nothing there",
            claim("c", "1Gi", ""),
            vec![],
            "Normal FailedBinding PersistentVolumeClaim/c: no persistent volumes available for this claim and no storage class is set",
        ),
    ];
    for (what, claim, volumes, expected) in cases {
        let storage = Storage { claims: vec![claim], volumes, classes: vec![] };
        let plan = storage.claim(0);
        assert_eq!(plan.events.iter().map(|e| format!("{e:?}")).collect::<Vec<_>>(), [expected], "{what}");
        assert!(plan.changes.iter().all(|c| matches!(c, Change::SetClaimStatus { .. })), "{what}: {plan}");
    }
}

#[test]
fn classes_decide_when_and_by_whom_a_volume_is_made() {
    let mut default = class("usual", "Immediate");
    let key = "storageclass.kubernetes.io/is-default-class";
    default.metadata.annotations = Some([(key.into(), "true".into())].into());
    let mut no_class = claim("c", "1Gi", "");
    no_class.spec.as_mut().unwrap().storage_class_name = None;
    let look = |claim: PersistentVolumeClaim, classes: Vec<StorageClass>| {
        Storage { claims: vec![claim], volumes: vec![], classes }.claim(0)
    };

    let plan = look(no_class, vec![class("other", "Immediate"), default.clone()]);
    assert!(matches!(plan.changes.as_slice(), [Change::SetClass { class, .. }] if class == "usual"), "{plan}");

    let plan = look(claim("c", "1Gi", "usual"), vec![default]);
    assert!(matches!(plan.changes.as_slice(), [Change::SetProvisioner { .. }]), "{plan}");
    assert!(plan.events[0].note.starts_with(
        "Waiting for a volume to be created either by the external provisioner 'driver.example.com' or manually"
    ));

    let late = class("late", "WaitForFirstConsumer");
    let plan = look(claim("c", "1Gi", "late"), vec![late.clone()]);
    assert!(plan.changes.is_empty(), "{plan}");
    assert_eq!(plan.events[0].note, "waiting for first consumer to be created before binding");

    let mut selected = claim("c", "1Gi", "late");
    selected.metadata.annotations = Some([("volume.kubernetes.io/selected-node".into(), "a".into())].into());
    assert!(matches!(look(selected, vec![late]).changes.as_slice(), [Change::SetProvisioner { .. }]));

    let plan = look(claim("c", "1Gi", "missing"), vec![]);
    assert_eq!(plan.events[0].note, "storageclass.storage.k8s.io \"missing\" not found");
}

#[test]
fn a_volume_is_released_when_its_claim_is_gone_and_a_claim_is_lost_without_its_volume() {
    let mut storage =
        Storage { claims: vec![claim("data", "1Gi", "")], volumes: vec![volume("v", "1Gi", "")], ..Default::default() };
    storage.settle();
    let mut widowed = storage.clone();
    widowed.claims.clear();
    widowed.settle();
    assert_eq!(widowed.phases(), ["Released"]);
    let mut orphaned = storage.clone();
    orphaned.volumes.clear();
    let plan = orphaned.claim(0);
    assert_eq!(plan.events[0].note, "Bound claim has lost its PersistentVolume. Data on the volume is lost!");
    orphaned.settle();
    assert_eq!(orphaned.phases(), ["Lost"]);
}

#[test]
fn a_claim_that_was_not_seen_is_asked_for_before_its_volume_is_released() {
    let mut bound = pointing_to(volume("v", "1Gi", ""), "c", Some("uid-c"));
    bound.status.as_mut().unwrap().phase = Some("Bound".into());
    let plan = volumes::decide(&bound, volumes::Claim::Unknown);
    assert!(matches!(plan.changes.as_slice(), [Change::CheckClaim { .. }]), "{plan}");
    let another = claim("c2", "1Gi", "");
    let plan = volumes::decide(&bound, volumes::Claim::Found(&another));
    assert!(matches!(plan.changes.as_slice(), [Change::CheckClaim { .. }]), "a claim of another uid: {plan}");
    let plan = volumes::decide(&bound, volumes::Claim::Gone);
    assert!(matches!(plan.changes.as_slice(), [Change::SetVolumePhase { phase: "Released", .. }]), "{plan}");
}

#[test]
fn a_claim_in_use_outlives_its_deletion() {
    let mut claim = claim("c", "1Gi", "");
    let look = |claim: &PersistentVolumeClaim, users: Users<'_>| protection::decide_claim(claim, &users).changes;
    assert!(
        matches!(look(&claim, Users::Seen(vec![])).as_slice(), [ClaimChange::Make(c)] if matches!(**c, Change::AddFinalizer { .. }))
    );
    claim.metadata.finalizers = Some(vec![CLAIM_FINALIZER.into()]);
    claim.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    let (on_node, pending): (Pod, Pod) = (pod("p").on("a").using("c"), pod("q").using("c"));
    assert!(look(&claim, Users::Listed(vec![&on_node])).is_empty());
    assert!(matches!(look(&claim, Users::Seen(vec![&pending])).as_slice(), [ClaimChange::ListPods { .. }]));
    let freed = look(&claim, Users::Listed(vec![&pending]));
    assert!(matches!(freed.as_slice(), [ClaimChange::Make(c)] if matches!(**c, Change::RemoveFinalizer { .. })));
}

prop_compose! {
    fn any_storage()(
        claims in prop::collection::vec((1..6_u8, 0..2_u8, prop::option::of(0..6_usize)), 0..6),
        volumes in prop::collection::vec((1..8_u8, 0..2_u8, prop::option::of((0..6_usize, any::<bool>())), any::<bool>()), 0..6),
    ) -> Storage {
        let class = |c: u8| ["", "late"][c as usize];
        let mut storage = Storage { classes: vec![self::class("late", "WaitForFirstConsumer")], ..Default::default() };
        for (i, (size, c, wanted)) in claims.into_iter().enumerate() {
            let built = claim(&format!("c{i}"), &format!("{size}Gi"), class(c));
            storage.claims.push(match wanted { Some(v) => named(built, &format!("v{v}")), None => built });
        }
        for (i, (size, c, promised, made)) in volumes.into_iter().enumerate() {
            let mut built = volume(&format!("v{i}"), &format!("{size}Gi"), class(c));
            if made {
                built.metadata.annotations = Some([("pv.kubernetes.io/provisioned-by".into(), "driver.example.com".into())].into());
                built.spec.as_mut().unwrap().persistent_volume_reclaim_policy = Some("Delete".into());
            }
            storage.volumes.push(match promised {
                Some((c, known)) => pointing_to(built, &format!("c{c}"), known.then(|| format!("uid-c{c}")).as_deref()),
                None => built,
            });
        }
        storage
    }
}

proptest! {
    /// Whatever it starts from, it settles; and then every bound claim has one volume that fits (or that a person named
    /// on both sides), and no other has it.
    #[test]
    fn binding_is_one_to_one(storage in any_storage()) {
        let before = storage.clone();
        let by_hand = |claim: &PersistentVolumeClaim, volume: &PersistentVolume| {
            let claim = before.claims.iter().find(|c| c.metadata.name == claim.metadata.name).unwrap();
            let volume = before.volumes.iter().find(|v| v.metadata.name == volume.metadata.name).unwrap();
            Some(volume_name(claim)) == volume.metadata.name.as_deref() && points_to(volume, claim)
        };
        let mut storage = storage;
        storage.settle();
        for claim in storage.claims.iter().filter(|c| c.status.as_ref().unwrap().phase.as_deref() == Some("Bound")) {
            let volume = storage.volumes.iter().find(|v| v.metadata.name.as_deref() == Some(volume_name(claim))).unwrap();
            prop_assert!(points_to(volume, claim));
            prop_assert!(matching::capacity(volume) >= matching::requested(claim) || by_hand(claim, volume));
            let rivals = storage.claims.iter().filter(|c| {
                volume_name(c) == volume_name(claim) && c.status.as_ref().unwrap().phase.as_deref() == Some("Bound")
            });
            prop_assert_eq!(rivals.count(), 1);
        }
        for volume in storage.volumes.iter().filter(|v| v.status.as_ref().unwrap().phase.as_deref() == Some("Bound")) {
            prop_assert_eq!(storage.claims.iter().filter(|c| points_to(volume, c)).count(), 1);
        }
    }
}
