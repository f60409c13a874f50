//! Which volume a claim gets, and when it goes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, StorageClass};
use tether_plan::attacher::Content;
use tether_plan::provisioner::*;

use crate::build::*;

const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const SELECTED: &str = "volume.kubernetes.io/selected-node";

fn driver() -> Driver {
    Driver {
        name: "driver.example.com".into(),
        topology: true,
        single_node_multi_writer: false,
        default_fs_type: "ext4".into(),
    }
}

fn asking(name: &str) -> PersistentVolumeClaim {
    annotated(claim(name, "64Mi", "fast"), PROVISIONER, "driver.example.com")
}

fn annotated(mut claim: PersistentVolumeClaim, key: &str, value: &str) -> PersistentVolumeClaim {
    claim.metadata.annotations.get_or_insert_default().insert(key.into(), value.into());
    claim
}

fn fast(parameters: &[(&str, &str)]) -> StorageClass {
    let mut class = class("fast", "Immediate");
    class.parameters = Some(parameters.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
    class
}

fn asked(
    claim: &PersistentVolumeClaim,
    class: Option<&StorageClass>,
    node: Option<(&Node, &CSINode)>,
) -> Option<Create> {
    let plan = decide_claim(&driver(), &ClaimObserved { claim, class, node, origin: Ok(None) });
    plan.changes.into_iter().next().map(|ClaimChange::Create(call)| *call)
}

#[test]
fn a_volume_is_made_only_for_claims_that_ask_this_driver_and_have_none() {
    let class = fast(&[]);
    assert!(asked(&asking("data"), Some(&class), None).is_some());
    assert!(asked(&claim("data", "64Mi", "fast"), Some(&class), None).is_none(), "nobody was named");
    let other = annotated(claim("data", "64Mi", "fast"), PROVISIONER, "other.example.com");
    assert!(asked(&other, Some(&class), None).is_none());
    assert!(asked(&asking("data"), None, None).is_none(), "its class is not known");
    let mut bound = asking("data");
    bound.spec.as_mut().unwrap().volume_name = Some("pv".into());
    assert!(asked(&bound, Some(&class), None).is_none());
    let mut lazy = class;
    lazy.volume_binding_mode = Some("WaitForFirstConsumer".into());
    assert!(asked(&asking("data"), Some(&lazy), None).is_none(), "no pod was scheduled");
    assert!(asked(&annotated(asking("data"), SELECTED, "a"), Some(&lazy), None).is_some());
}

#[test]
fn parameters_for_the_provisioner_are_not_the_drivers() {
    let class = fast(&[
        ("numberOfReplicas", "2"),
        ("csi.storage.k8s.io/fstype", "xfs"),
        ("csi.storage.k8s.io/provisioner-secret-name", "key-${pvc.name}"),
        ("csi.storage.k8s.io/provisioner-secret-namespace", "${pvc.namespace}"),
        ("csi.storage.k8s.io/node-stage-secret-name", "${pv.name}"),
        ("csi.storage.k8s.io/node-stage-secret-namespace", "system"),
    ]);
    let claim = asking("data");
    let call = asked(&claim, Some(&class), None).unwrap();
    assert_eq!((call.name.as_str(), call.bytes, &call.modes[..]), ("pvc-uid-data", 64 << 20, &[1][..]));
    assert_eq!(call.parameters, BTreeMap::from([("numberOfReplicas".to_owned(), "2".to_owned())]));
    assert_eq!(call.content, Content::Mount { fs_type: "xfs".into(), flags: vec![] });
    let secret = call.secret.clone().unwrap();
    assert_eq!((secret.name.as_deref(), secret.namespace.as_deref()), (Some("key-data"), Some("default")));

    let made = Made { handle: "h".into(), bytes: 1 << 30, ..Default::default() };
    let pv = persistent_volume(&driver(), &claim, &class, &call, &made);
    let spec = pv.spec.unwrap();
    assert_eq!(spec.capacity.unwrap()["storage"].0, "1Gi");
    assert_eq!(spec.persistent_volume_reclaim_policy.as_deref(), Some("Delete"));
    assert_eq!(spec.claim_ref.unwrap().uid.as_deref(), Some("uid-data"));
    let csi = spec.csi.unwrap();
    assert_eq!((csi.volume_handle.as_str(), csi.fs_type.as_deref()), ("h", Some("xfs")));
    assert_eq!(csi.node_stage_secret_ref.unwrap().name.as_deref(), Some("pvc-uid-data"));
    assert_eq!(pv.metadata.annotations.unwrap()[DELETION_SECRET_NAME], "key-data");
    assert_eq!(pv.metadata.finalizers.unwrap(), [FINALIZER]);
}

#[test]
fn the_chosen_node_becomes_a_place_and_the_place_an_affinity() {
    let class = fast(&[]);
    let node = node("a").labelled("zone", "z1").labelled("other", "x");
    let mut csi_node = CSINode { metadata: meta("", "a"), ..Default::default() };
    let claim = annotated(asking("data"), SELECTED, "a");
    assert!(asked(&claim, Some(&class), Some((&node, &csi_node))).is_none(), "the driver is not there");
    csi_node.spec.drivers = vec![CSINodeDriver {
        name: "driver.example.com".into(),
        node_id: "a".into(),
        topology_keys: Some(vec!["zone".into()]),
        ..Default::default()
    }];
    let call = asked(&claim, Some(&class), Some((&node, &csi_node))).unwrap();
    let place = BTreeMap::from([("zone".to_owned(), "z1".to_owned())]);
    assert_eq!(call.topology, Some(place.clone()));
    let made = Made { handle: "h".into(), topology: vec![place], ..Default::default() };
    let pv = persistent_volume(&driver(), &claim, &class, &call, &made);
    let terms = pv.spec.unwrap().node_affinity.unwrap().required.unwrap().node_selector_terms;
    assert_eq!(terms[0].match_expressions.as_ref().unwrap()[0].key, "zone");
}

#[test]
fn only_a_released_volume_whose_policy_says_so_is_deleted() {
    let made = |phase: &str, policy: &str| -> PersistentVolume {
        let mut pv = volume("pv", "1Gi", "fast");
        pv.metadata.annotations.get_or_insert_default().insert("pv.kubernetes.io/provisioned-by".into(), driver().name);
        pv.metadata.finalizers = Some(vec![FINALIZER.into()]);
        pv.status.as_mut().unwrap().phase = Some(phase.into());
        let spec = pv.spec.as_mut().unwrap();
        spec.persistent_volume_reclaim_policy = Some(policy.into());
        spec.csi = Some(k8s_openapi::api::core::v1::CSIPersistentVolumeSource {
            driver: driver().name,
            volume_handle: "h".into(),
            ..Default::default()
        });
        pv
    };
    let decide = |pv: &PersistentVolume, attachments| {
        decide_volume(&driver(), &VolumeObserved { volume: pv, attachments }).changes
    };
    assert!(
        matches!(&decide(&made("Released", "Delete"), 0)[..], [VolumeChange::Delete { handle, .. }] if handle == "h")
    );
    assert!(decide(&made("Released", "Delete"), 1).is_empty(), "it is attached");
    for (phase, policy) in [("Bound", "Delete"), ("Available", "Delete"), ("Released", "Retain")] {
        assert!(decide(&made(phase, policy), 0).is_empty(), "{phase} {policy}");
    }
    let mut kept = made("Released", "Retain");
    kept.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    assert!(matches!(&decide(&kept, 0)[..], [VolumeChange::LetGo { .. }]));
    let mut foreign = made("Released", "Delete");
    foreign.metadata.annotations = None;
    assert!(decide(&foreign, 0).is_empty());
}
