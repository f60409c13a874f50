//! What is to be done for an attachment: order of the steps, capabilities, patches, names.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolume, SecretReference};
use k8s_openapi::api::storage::v1::{
    CSINode, CSINodeDriver, VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec, VolumeAttachmentStatus,
    VolumeError,
};
use serde_json::{Value, json};
use tether_plan::attacher::*;

use crate::build::{meta, now, volume};

fn driver() -> Driver {
    Driver {
        name: "csi.test".into(),
        trivial: false,
        read_only: true,
        single_node_multi_writer: false,
        default_fs_type: String::new(),
    }
}

fn attachment() -> VolumeAttachment {
    let source = VolumeAttachmentSource { persistent_volume_name: Some("pv".into()), ..Default::default() };
    let spec = VolumeAttachmentSpec { attacher: "csi.test".into(), node_name: "node".into(), source };
    VolumeAttachment { metadata: meta("", "va"), spec, status: None }
}

fn pv() -> PersistentVolume {
    let mut pv = volume("pv", "1Gi", "");
    pv.metadata.finalizers = Some(vec![finalizer("csi.test")]);
    pv.spec.as_mut().unwrap().csi = Some(CSIPersistentVolumeSource {
        driver: "csi.test".into(),
        volume_handle: "handle".into(),
        ..Default::default()
    });
    pv
}

fn node() -> CSINode {
    let mut node = CSINode { metadata: meta("", "node"), ..Default::default() };
    node.spec.drivers = vec![CSINodeDriver { name: "csi.test".into(), node_id: "id".into(), ..Default::default() }];
    node
}

/// The steps in a word each.
fn steps(driver: &Driver, va: &VolumeAttachment, pv: Option<&PersistentVolume>, node: Option<&CSINode>) -> Vec<String> {
    let observed = Observed { attachment: va, volume: pv, node, again: false };
    let word = |change: Change| match change {
        Change::Protect { .. } => "protect".into(),
        Change::ReadSecret { .. } => "secret".into(),
        Change::Mark { .. } => "mark".into(),
        Change::Publish(p) => {
            format!("publish {} to {}{}", p.volume_id, p.node_id, if p.read_only { " ro" } else { "" })
        }
        Change::Unpublish(u) => format!("unpublish {} from {}", u.volume_id, u.node_id),
        Change::SetAttached { .. } => "set attached".into(),
        Change::Fail { message, .. } => format!("fail: {message}"),
    };
    decide(driver, &observed).changes.into_iter().map(word).collect()
}

#[test]
fn each_step_comes_after_what_it_needs() {
    let (va, node) = (attachment(), node());
    assert_eq!(steps(&driver(), &va, Some(&pv()), Some(&node)), ["mark", "publish handle to id"]);

    let mut unprotected = pv();
    unprotected.metadata.finalizers = None;
    unprotected.spec.as_mut().unwrap().csi.as_mut().unwrap().controller_publish_secret_ref =
        Some(SecretReference { name: Some("s".into()), namespace: Some("ns".into()) });
    assert_eq!(
        steps(&driver(), &va, Some(&unprotected), Some(&node)),
        ["protect", "secret", "mark", "publish handle to id"]
    );
    assert_eq!(
        steps(&driver(), &va, Some(&unprotected), None),
        ["protect", "secret", r#"fail: csinode.storage.k8s.io "node" not found"#]
    );

    let mut read_only = pv();
    read_only.spec.as_mut().unwrap().csi.as_mut().unwrap().read_only = Some(true);
    assert_eq!(steps(&driver(), &va, Some(&read_only), Some(&node)), ["mark", "publish handle to id ro"]);
    let plain = Driver { read_only: false, ..driver() };
    assert_eq!(steps(&plain, &va, Some(&read_only), Some(&node)), ["mark", "publish handle to id"]);

    let mut bare = node;
    bare.spec.drivers.clear();
    let fail = ["fail: CSINode node does not contain driver csi.test"];
    assert_eq!(steps(&driver(), &va, Some(&pv()), Some(&bare)), fail);
}

#[test]
fn an_attachment_names_one_volume() {
    let mut va = attachment();
    va.spec.source.persistent_volume_name = None;
    let none = "fail: neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source";
    assert_eq!(steps(&driver(), &va, None, Some(&node())), [none]);
    let mut va = attachment();
    va.spec.source.inline_volume_spec = pv().spec;
    let both = "fail: both InlineCSIVolumeSource and PersistentVolumeName specified in VA source";
    assert_eq!(steps(&driver(), &va, Some(&pv()), Some(&node())), [both]);
    va.spec.source.persistent_volume_name = None;
    assert_eq!(steps(&driver(), &va, None, Some(&node())), ["mark", "publish handle to id"]);
    va.spec.source.inline_volume_spec.as_mut().unwrap().csi = None;
    assert_eq!(steps(&driver(), &va, None, Some(&node())), ["fail: inline volume spec contains nil CSI source"]);
}

#[test]
fn a_deleted_attachment_is_unpublished_while_it_has_the_finalizer() {
    let mut va = attachment();
    va.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    assert_eq!(steps(&driver(), &va, Some(&pv()), Some(&node())), [""; 0]);
    va.metadata.finalizers = Some(vec![finalizer("csi.test")]);
    assert_eq!(lane(&driver(), &va, false), Some(Kind::Detach));
    assert_eq!(steps(&driver(), &va, Some(&pv()), Some(&node())), ["unpublish handle from id"]);
    let missing = [r#"fail: csinode.storage.k8s.io "node" not found"#];
    assert_eq!(steps(&driver(), &va, Some(&pv()), None), missing);
    va.metadata.annotations = Some([(NODE_ID.to_owned(), "old-id".to_owned())].into());
    assert_eq!(steps(&driver(), &va, Some(&pv()), None), ["unpublish handle from old-id"]);
    assert_eq!(steps(&driver(), &va, None, None), [r#"fail: persistentvolume "pv" not found"#]);
}

#[test]
fn access_modes_become_one_capability() {
    let cases: &[(&[&str], Option<i32>, Option<i32>)] = &[
        (&["ReadWriteMany"], Some(5), Some(5)),
        (&["ReadWriteOnce"], Some(1), Some(7)),
        (&["ReadOnlyMany"], Some(3), Some(3)),
        (&["ReadWriteMany", "ReadOnlyMany", "ReadWriteOnce"], Some(5), Some(5)),
        (&["ReadOnlyMany", "ReadWriteOnce"], None, None),
        (&[], None, None),
        (&["ReadWriteOncePod"], Some(1), Some(6)),
        (&["ReadWriteOncePod", "ReadOnlyMany"], None, None),
        (&["ReadWriteOncePod", "ReadWriteOnce"], None, None),
    ];
    for (modes, plain, knows_single_node) in cases {
        let mut pv = pv();
        pv.spec.as_mut().unwrap().access_modes = Some(modes.iter().map(|m| (*m).to_owned()).collect());
        for (multi, expected) in [(false, plain), (true, knows_single_node)] {
            let driver = Driver { single_node_multi_writer: multi, ..driver() };
            let observed = Observed { attachment: &attachment(), volume: Some(&pv), node: Some(&node()), again: false };
            let mode = decide(&driver, &observed).changes.into_iter().find_map(|change| match change {
                Change::Publish(publish) => Some(publish.capability.mode as i32),
                _ => None,
            });
            assert_eq!(mode, *expected, "{modes:?}, single-node modes: {multi}");
        }
    }
}

#[test]
fn names_follow_from_the_driver() {
    for (name, expected) in
        [("no-Change", "no-Change"), ("not!allowed/characters", "not-allowed-characters"), ("trailing\\", "trailing-X")]
    {
        assert_eq!(sanitise(name), expected);
    }
    assert_eq!(finalizer("s!a@n#i$t(i%z^e&d*"), "external-attacher/s-a-n-i-t-i-z-e-d-X");
    assert_eq!(finalizer("ebs.csi.aws.com"), "external-attacher/ebs-csi-aws-com");
    assert_eq!(lease_name("ebs.csi.aws.com"), "external-attacher-leader-ebs-csi-aws-com");
}

/// A finalizer is added or removed only if the others are those that were seen.
#[test]
fn patches_test_what_they_change() {
    let held = |finalizers: Option<&[&str]>| {
        let mut meta = meta("", "pv");
        meta.finalizers = finalizers.map(|all| all.iter().map(|f| (*f).to_owned()).collect());
        meta
    };
    let ops = |patch: Option<Value>| -> Vec<String> {
        let steps = patch.map(|p| p.as_array().unwrap().clone()).unwrap_or_default();
        steps
            .iter()
            .map(|s| format!("{} {} {}", s["op"].as_str().unwrap(), s["path"].as_str().unwrap(), s["value"]))
            .collect()
    };
    let path = "/metadata/finalizers";
    let uid = r#"test /metadata/uid "uid-pv""#.to_owned();
    let cases: [(Option<&[&str]>, &[String]); 4] = [
        (None, &[uid.clone(), format!("test {path} null"), format!(r#"add {path} ["f"]"#)]),
        (Some(&[]), &[uid.clone(), format!("test {path} []"), format!(r#"replace {path} ["f"]"#)]),
        (Some(&["x"]), &[uid.clone(), format!(r#"test {path} ["x"]"#), format!(r#"add {path}/- "f""#)]),
        (Some(&["x", "f"]), &[]),
    ];
    for (finalizers, expected) in cases {
        assert_eq!(ops(add_finalizer(&held(finalizers), "f")), expected, "{finalizers:?}");
    }
    for (finalizers, at) in [(&["f"][..], 0), (&["f", "x"], 0), (&["x", "f", "y"], 1), (&["x", "f"], 1)] {
        let expected = [uid.clone(), format!(r#"test {path}/{at} "f""#), format!("remove {path}/{at} null")];
        assert_eq!(ops(remove_finalizer(&held(Some(finalizers)), "f")), expected);
    }
    assert_eq!(remove_finalizer(&held(Some(&["x"])), "f"), None);
    assert_eq!(remove_finalizer(&held(None), "f"), None);
}

#[test]
fn what_an_earlier_publish_left_in_the_metadata_goes() {
    let mut va = attachment();
    let old = [("gone".to_owned(), "1".to_owned()), ("kept".to_owned(), "1".to_owned())].into();
    va.status = Some(VolumeAttachmentStatus { attachment_metadata: Some(old), ..Default::default() });
    let patch = attached(&va, &[("kept".to_owned(), "2".to_owned())].into());
    assert_eq!(patch["status"]["attachmentMetadata"], json!({ "gone": null, "kept": "2" }));
    assert_eq!(patch["metadata"]["uid"], "uid-va");
}

#[test]
fn what_we_wrote_into_the_errors_is_no_news() {
    let version = |va: &VolumeAttachment, version: &str| {
        let mut va = va.clone();
        va.metadata.resource_version = Some(version.into());
        va
    };
    let failed = |va: &VolumeAttachment, message: &str| {
        let error = VolumeError { message: Some(message.into()), ..Default::default() };
        let mut va = va.clone();
        va.status.get_or_insert_default().attach_error = Some(error);
        va
    };
    let mut old = attachment();
    old.status = Some(VolumeAttachmentStatus::default());
    assert!(is_news(&old, &old), "a resync looks again");
    assert!(!is_news(&old, &version(&failed(&old, "no"), "2")));
    assert!(!is_news(&failed(&old, "no"), &version(&failed(&old, "still no"), "2")));
    let mut changed = version(&failed(&old, "no"), "2");
    changed.metadata.finalizers = Some(vec!["x".into()]);
    assert!(is_news(&old, &changed));
    assert!(is_news(&old, &version(&old, "2")), "nothing else is filtered out");
}

#[test]
fn the_driver_disagrees_when_it_lists_something_else() {
    let listed = |nodes: &[&str]| -> BTreeMap<String, BTreeSet<String>> {
        [("handle".to_owned(), nodes.iter().map(|n| (*n).to_owned()).collect())].into()
    };
    let (pv, node) = (pv(), node());
    let mut va = attachment();
    for (attached, nodes, expected) in
        [(true, &["id"][..], false), (true, &[], true), (false, &["id"], true), (false, &["other"], false)]
    {
        va.status = Some(VolumeAttachmentStatus { attached, ..Default::default() });
        let observed = Observed { attachment: &va, volume: Some(&pv), node: Some(&node), again: false };
        assert_eq!(disagrees(&driver(), &observed, &listed(nodes)), Some(expected), "{attached} {nodes:?}");
    }
    let unknown = Observed { attachment: &va, volume: None, node: Some(&node), again: false };
    assert_eq!(disagrees(&driver(), &unknown, &listed(&[])), None, "its volume is not known");
}

#[test]
fn errors_are_final_or_ambiguous() {
    let ambiguous = [1, 4, 8, 10, 14];
    for code in 0..=16 {
        let expected = if ambiguous.contains(&code) { Certainty::Ambiguous } else { Certainty::Final };
        assert_eq!(certainty(Some(code)), expected, "{code}");
    }
    assert_eq!(certainty(None), Certainty::Ambiguous);
}

#[test]
fn a_deleted_volume_goes_when_no_attachment_names_it() {
    let mut pv = pv();
    assert!(decide_volume(&driver(), &pv, 0).changes.is_empty(), "it is not being deleted");
    pv.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    assert!(decide_volume(&driver(), &pv, 1).changes.is_empty(), "an attachment names it");
    assert_eq!(decide_volume(&driver(), &pv, 0).changes.len(), 1);
    let other = Driver { name: "other".into(), ..driver() };
    assert!(decide_volume(&other, &pv, 0).changes.is_empty(), "another driver keeps it");
}
