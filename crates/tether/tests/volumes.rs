//! Volumes on a whole cluster: tickets, engines, replicas, instance managers and kernel devices, as a user meets them.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by panicking and tells what it skips")]

use std::fs;

use k8s_openapi::api::core::v1::{Node as KubeNode, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::conditions::is_deleted;
use serde_json::json;
use tether_crd::engine::InstanceState;
use tether_crd::instance_manager::InstanceManagerState;
use tether_crd::volume::{Robustness, State};
use tether_crd::{InstanceManager, Node, Replica, Snapshot, Volume, VolumeAttachment};
use tether_plan::clone::is_pending;
use tether_testkit::Lab;
use tether_testkit::cluster::eventually;
use tether_testkit::lab::{NODES, manager as manager_of};

fn lab() -> Lab {
    Lab::new(env!("CARGO_BIN_EXE_tether"))
}

/// Whether kernel devices can be had; tells if not.
fn has_devices(test: &str) -> bool {
    let found = tether_testkit::lab::has_devices();
    if !found {
        eprintln!("{test}: SKIPPED, kernel devices need root and /dev/fuse");
    }
    found
}

#[test]
fn a_volume_keeps_its_data_from_node_to_node() {
    if !has_devices("a_volume_keeps_its_data_from_node_to_node") {
        return;
    }
    let mut lab = lab();
    lab.create("v1", 3);
    let volume = lab.attach("v1", "node-1");
    let record = volume.status.record.unwrap();
    assert_eq!((record.epoch, record.in_sync.len()), (1, 3));
    let engine = lab.engine("v1");
    assert_eq!(engine.status.endpoint, "/dev/longhorn/v1");
    assert_eq!(record.holder.as_deref(), Some(engine.status.uuid.as_str()), "the process that runs holds the volume");
    let mount = lab.cluster.dir().join("mount");
    fs::create_dir(&mount).unwrap();
    let mount = mount.display();
    let write = format!(
        "mkfs.ext4 -q /dev/longhorn/v1; mount /dev/longhorn/v1 {mount}; dd if=/dev/urandom of={mount}/data bs=1M count=8 2>&1; \
         sync; sha256sum < {mount}/data | tee {mount}/sum"
    );
    let sum = lab.must("node-1", &write).lines().last().unwrap_or_default().to_owned();
    assert!(!lab.on("node-2", "test -e /dev/longhorn/v1").status.success(), "other nodes do not have the device");
    lab.must("node-1", &format!("umount {mount}"));
    lab.detach("v1");
    assert!(!lab.on("node-1", "test -e /dev/longhorn/v1").status.success(), "nothing is left there");

    let record = lab.attach("v1", "node-2").status.record.unwrap();
    assert_eq!((record.epoch, record.in_sync.len()), (2, 3));
    let read = format!("mount /dev/longhorn/v1 {mount}; sha256sum < {mount}/data; cat {mount}/sum; umount {mount}");
    assert_eq!(lab.must("node-2", &read), format!("{sum}\n{sum}"));

    // It comes back where it was after the whole cluster was killed.
    lab.cluster.kill();
    lab.cluster.up();
    lab.reconnect();
    let again = |v: Option<&Volume>| {
        v.is_some_and(|v| {
            v.status.state == State::Attached
                && v.status.robustness == Robustness::Healthy
                && v.status.record.as_ref().is_some_and(|record| record.epoch > 2)
        })
    };
    lab.wait::<Volume>("v1", again);
    assert_eq!(lab.must("node-2", &read), format!("{sum}\n{sum}"));

    // And goes with everything that belongs to it.
    lab.detach("v1");
    let uid = lab.runtime.block_on(lab.api::<Volume>().get("v1")).unwrap().metadata.uid.unwrap();
    lab.runtime.block_on(lab.api::<Volume>().delete("v1", &DeleteParams::default())).unwrap();
    lab.wait::<Volume>("v1", is_deleted(&uid));
    let replicas = lab.runtime.block_on(lab.api::<Replica>().list(&ListParams::default())).unwrap();
    assert!(replicas.items.is_empty());
    for node in ["node-1", "node-2", "node-3"] {
        let folder = lab.cluster.dir().join("nodes").join(node).join("disk/replicas");
        assert_eq!(fs::read_dir(folder).unwrap().count(), 0, "{node} still has data");
    }
}

#[test]
fn an_instance_manager_whose_pod_is_deleted_comes_back_unless_its_node_is_cordoned() {
    if !has_devices("an_instance_manager_whose_pod_is_deleted_comes_back_unless_its_node_is_cordoned") {
        return;
    }
    let lab = lab();
    lab.create("v1", 3);
    let engine = lab.attach("v1", "node-1").status.record.unwrap().holder;
    let manager = manager_of("node-1");
    let pods = lab.api::<Pod>();
    let uid = lab.runtime.block_on(pods.get(&manager)).unwrap().metadata.uid.unwrap();
    lab.runtime.block_on(pods.delete(&manager, &DeleteParams::default().grace_period(0))).unwrap();
    lab.wait::<Pod>(&manager, move |pod: Option<&Pod>| {
        pod.is_some_and(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            pod.metadata.uid.as_ref() != Some(&uid) && phase == Some("Running")
        })
    });
    // What ran in it is started again, as another process, with every replica.
    let back = move |v: Option<&Volume>| {
        v.is_some_and(|v| {
            v.status.state == State::Attached
                && v.status.robustness == Robustness::Healthy
                && v.status.record.as_ref().is_some_and(|record| record.holder != engine && record.in_sync.len() == 3)
        })
    };
    lab.wait::<Volume>("v1", back);

    let nodes: Api<KubeNode> = Api::all(lab.client.clone());
    let cordon = |value: bool| {
        let patch = Patch::Merge(json!({"spec": {"unschedulable": value}}));
        lab.runtime.block_on(nodes.patch("node-3", &PatchParams::default(), &patch)).unwrap();
    };
    cordon(true);
    lab.wait::<Node>("node-3", |node: Option<&Node>| {
        node.is_some_and(|node| node.status.conditions.iter().any(|c| c.reason == "KubernetesNodeCordoned"))
    });
    let manager = manager_of("node-3");
    lab.runtime.block_on(pods.delete(&manager, &DeleteParams::default().grace_period(0))).unwrap();
    lab.wait::<InstanceManager>(&manager, |im: Option<&InstanceManager>| {
        im.is_some_and(|im| im.status.current_state == InstanceManagerState::Error)
    });
    lab.wait::<Volume>("v1", |v: Option<&Volume>| v.is_some_and(|v| v.status.robustness == Robustness::Degraded));
    assert!(lab.runtime.block_on(pods.get_opt(&manager)).unwrap().is_none(), "a cordoned node gets no new one");
    assert_eq!(lab.engine("v1").status.current_state, InstanceState::Running, "the others go on");
    cordon(false);
    lab.wait::<InstanceManager>(&manager, |im: Option<&InstanceManager>| {
        im.is_some_and(|im| im.status.current_state == InstanceManagerState::Running)
    });
}

#[test]
fn killing_the_agent_stops_nothing() {
    if !has_devices("killing_the_agent_stops_nothing") {
        return;
    }
    let lab = lab();
    lab.create("v1", 3);
    let before = lab.attach("v1", "node-1").status.record.unwrap();
    let agent = lab.cluster.pid("node-1").unwrap();
    tether_testkit::cluster::signal(agent, rustix::process::Signal::KILL);
    eventually("the agent is back", || lab.cluster.pid("node-1").filter(|pid| *pid != agent));
    lab.must("node-1", "dd if=/dev/zero of=/dev/longhorn/v1 bs=1M count=4 oflag=direct 2>&1");
    // The new agent finds the engine: it can stop it.
    let volume = lab.runtime.block_on(lab.api::<Volume>().get("v1")).unwrap();
    assert_eq!(volume.status.record.unwrap(), before, "the same process still holds the volume");
    lab.detach("v1");
    assert!(!lab.on("node-1", "test -e /dev/longhorn/v1").status.success());
}

/// With a grace of ten minutes no node counts as down here.
#[test]
fn a_replica_on_a_node_that_stands_still_does_not_keep_a_volume_where_it_is() {
    let lab = Lab::with(env!("CARGO_BIN_EXE_tether"), &["--node-grace", "10m"]);
    lab.create("v1", 2);
    let replicas = lab.runtime.block_on(lab.api::<Replica>().list(&ListParams::default())).unwrap();
    let with_replica = |node: &&str| replicas.items.iter().any(|replica| replica.spec.node_id == **node);
    let (with, without): (Vec<_>, Vec<_>) = NODES.into_iter().partition(with_replica);
    let (here, frozen, there) = (with[0], with[1], without[0]);
    lab.attach("v1", here);
    let fault = |fault: &str| assert!(lab.cluster.tether(&["fault", fault, frozen]).status.success());
    fault("partition");
    lab.ticket("v1", Some(there));
    lab.until_attached("v1", there);
    assert!(lab.get::<Node>(frozen).is_ready(), "nobody has noticed yet");
    fault("heal");
    lab.until_healthy("v1", there);
}

/// Whoever wants a volume that is made from a snapshot waits for the copy, and then reads what the snapshot shows.
#[test]
fn a_ticket_on_a_copy_waits_until_it_is_complete() {
    if !has_devices("a_ticket_on_a_copy_waits_until_it_is_complete") {
        return;
    }
    let lab = lab();
    lab.create("original", 2);
    lab.attach("original", "node-1");
    lab.must("node-1", "head -c 67108864 /dev/urandom | dd of=/dev/longhorn/original bs=1M iflag=fullblock conv=fsync");
    let sum = |node: &str, volume: &str| lab.must(node, &format!("sha256sum < /dev/longhorn/{volume}"));
    let early = sum("node-1", "original");
    let wish = json!({"metadata": {"name": "s1"}, "spec": {"volume": "original", "createSnapshot": true}});
    let wish: Snapshot = serde_json::from_value(wish).unwrap();
    lab.runtime.block_on(lab.api::<Snapshot>().create(&PostParams::default(), &wish)).unwrap();
    lab.wait::<Snapshot>("s1", |found: Option<&Snapshot>| found.is_some_and(|found| found.status.ready_to_use));
    lab.must("node-1", "head -c 1048576 /dev/urandom | dd of=/dev/longhorn/original bs=1M iflag=fullblock conv=fsync");
    assert_ne!(sum("node-1", "original"), early);

    let copy = json!({"metadata": {"name": "copy"}, "spec": {
        "size": lab.get::<Volume>("original").spec.size, "numberOfReplicas": 2, "frontend": "blockdev",
        "dataSource": "snap://original/s1",
    }});
    let copy: Volume = serde_json::from_value(copy).unwrap();
    lab.runtime.block_on(lab.api::<Volume>().create(&PostParams::default(), &copy)).unwrap();
    lab.wait::<VolumeAttachment>("copy", |found: Option<&VolumeAttachment>| found.is_some());
    lab.ticket("copy", Some("node-3"));
    let mut reasons = Vec::new();
    eventually("the ticket is satisfied", || {
        // In this order: a copy that is not complete now was not complete before.
        let tickets = lab.get::<VolumeAttachment>("copy").status.attachment_ticket_statuses;
        let volume = lab.get::<Volume>("copy");
        let told = tickets.get("t")?;
        assert!(!told.satisfied || !is_pending(&volume), "{told:?}, {:?}", volume.status.clone_status);
        reasons.extend(told.waiting.as_ref().map(|waiting| waiting.reason.clone()));
        told.satisfied.then_some(())
    });
    assert!(reasons.iter().any(|reason| reason == "CopyIncomplete"), "{reasons:?}");
    assert_eq!(sum("node-3", "copy"), early, "what the snapshot shows, not what was written since");
}
