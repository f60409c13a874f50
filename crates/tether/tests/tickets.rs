//! Attachment tickets as kubectl patches them, on a whole cluster: who gets the volume, who waits, who is told what.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by panicking and tells what it skips")]

use serde_json::{Value, json};
use tether_crd::attachment::TicketStatus;
use tether_crd::volume::State;
use tether_crd::{Engine, Volume, VolumeAttachment};
use tether_testkit::Lab;
use tether_testkit::lab::{has_kubectl, ticket};

/// One volume of a cluster, and its tickets.
struct Tickets<'a> {
    lab: &'a Lab,
    volume: &'static str,
}

impl Tickets<'_> {
    /// Patches tickets as a person would.
    fn patch(&self, tickets: Value) {
        let patch = json!({"spec": {"attachmentTickets": tickets}}).to_string();
        self.lab.must_kubectl(&["patch", "lhva", self.volume, "--type=merge", "-p", &patch]);
    }

    /// Waits until the statuses of the named tickets are as wanted.
    fn until(&self, wanted: &[(&'static str, bool)]) {
        let wanted = wanted.to_vec();
        self.lab.wait::<VolumeAttachment>(self.volume, move |found: Option<&VolumeAttachment>| {
            found.is_some_and(|found| {
                wanted.iter().all(|(id, satisfied)| {
                    let status = found.status.attachment_ticket_statuses.get(*id);
                    let generation = found.spec.attachment_tickets.get(*id).map(|ticket| ticket.generation);
                    status.is_some_and(|s| s.satisfied == *satisfied && Some(s.generation) == generation)
                })
            })
        });
    }

    fn status(&self, id: &str) -> TicketStatus {
        self.lab.get::<VolumeAttachment>(self.volume).status.attachment_ticket_statuses[id].clone()
    }

    fn volume(&self) -> Volume {
        self.lab.get(self.volume)
    }

    /// Takes all tickets out; nothing may be left of them.
    fn clear(&self) {
        let held = self.lab.get::<VolumeAttachment>(self.volume).spec.attachment_tickets;
        let nothing: serde_json::Map<String, Value> = held.into_keys().map(|id| (id, Value::Null)).collect();
        self.patch(nothing.into());
        self.lab.until_detached(self.volume);
        self.lab.wait::<VolumeAttachment>(self.volume, |found: Option<&VolumeAttachment>| {
            found.is_some_and(|found| found.status.attachment_ticket_statuses.is_empty())
        });
    }

    /// How often the volume was attached so far: each time an engine starts, the epoch is raised.
    fn epoch(&self) -> u64 {
        self.volume().status.record.map_or(0, |record| record.epoch)
    }
}

#[test]
fn tickets_share_wait_interrupt_and_go() {
    if !has_kubectl() {
        eprintln!("tickets_share_wait_interrupt_and_go: SKIPPED, there is no kubectl");
        return;
    }
    let lab = Lab::new(env!("CARGO_BIN_EXE_tether"));
    for volume in ["shared", "taken", "snapped", "equal", "shown"] {
        lab.create(volume, 2);
    }
    let of = |volume: &'static str| Tickets { lab: &lab, volume };
    beside_a_pod(&of("shared"));
    interrupted_by_a_pod(&of("taken"));
    snapshot_of_a_detached_volume(&of("snapped"));
    equal_priorities(&of("equal"));
    frontends(&of("shown"));
    expansion_and_a_pod(&of("equal"));
    owner_goes(&of("shown"));
    refused(&of("shared"));
}

/// A backup works beside the pod that uses the volume; the volume does not move.
fn beside_a_pod(volume: &Tickets<'_>) {
    volume.patch(json!({"csi-1": ticket("csi-1", "csi-attacher", "node-1", "false")}));
    volume.until(&[("csi-1", true)]);
    let epoch = volume.epoch();
    volume.patch(json!({"backup-1": ticket("backup-1", "backup-controller", "node-1", "any")}));
    volume.until(&[("csi-1", true), ("backup-1", true)]);
    volume.patch(json!({"backup-1": null}));
    assert_eq!((volume.volume().spec.node_id.as_str(), volume.epoch()), ("node-1", epoch), "it did not move");
    volume.clear();
}

/// A backup gives way to a pod on another node, and goes on there.
fn interrupted_by_a_pod(volume: &Tickets<'_>) {
    volume.patch(json!({"backup-1": ticket("backup-1", "backup-controller", "node-1", "any")}));
    volume.until(&[("backup-1", true)]);
    volume.patch(json!({"csi-1": ticket("csi-1", "csi-attacher", "node-2", "false")}));
    volume.until(&[("csi-1", true), ("backup-1", false)]);
    assert_eq!(volume.volume().status.current_node_id, "node-2");
    let waiting = volume.status("backup-1").waiting.unwrap();
    assert!(waiting.message.contains("node-2"), "{}", waiting.message);
    volume.patch(json!({"backup-1": {"nodeID": "node-2"}}));
    volume.until(&[("csi-1", true), ("backup-1", true)]);
    volume.clear();
}

/// A snapshot attaches a detached volume, and the volume is detached when its ticket goes.
fn snapshot_of_a_detached_volume(volume: &Tickets<'_>) {
    let id = "snapshot-controller-s1";
    volume.patch(json!({id: ticket(id, "snapshot-controller", "node-3", "any")}));
    volume.until(&[("snapshot-controller-s1", true)]);
    let none = volume.lab.must_kubectl(&["get", "volumeattachments.storage.k8s.io", "-o", "name"]);
    assert_eq!(none, "", "Kubernetes knows nothing of it");
    volume.clear();
}

/// Of two that want it with equal right, the smaller id gets it, and the other waits without interrupting.
fn equal_priorities(volume: &Tickets<'_>) {
    volume.patch(json!({
        "snapshot-b": ticket("snapshot-b", "snapshot-controller", "node-1", "any"),
        "backup-a": ticket("backup-a", "backup-controller", "node-2", "any"),
    }));
    volume.until(&[("backup-a", true), ("snapshot-b", false)]);
    let status = volume.status("snapshot-b");
    assert_eq!(status.conditions[0].message, "the volume is currently attached to different node node-2 ");
    let epoch = volume.epoch();
    volume.patch(json!({"backup-a": null}));
    volume.until(&[("snapshot-b", true)]);
    assert_eq!((volume.volume().status.current_node_id.as_str(), volume.epoch()), ("node-1", epoch + 1));
    volume.clear();
}

/// Two wishes about the frontend do not go together on one node; `any` goes with both.
fn frontends(volume: &Tickets<'_>) {
    volume.patch(json!({"hidden": ticket("hidden", "longhorn-api", "node-1", "true")}));
    volume.until(&[("hidden", true)]);
    volume.patch(json!({
        "csi-1": ticket("csi-1", "csi-attacher", "node-1", "false"),
        "backup-1": ticket("backup-1", "backup-controller", "node-1", "any"),
    }));
    volume.until(&[("hidden", true), ("csi-1", false), ("backup-1", true)]);
    assert_eq!(volume.status("csi-1").conditions[0].reason, "AttachedWithIncompatibleParameters");
    assert!(volume.volume().status.frontend_disabled);
    volume.patch(json!({"hidden": null, "backup-1": null}));
    volume.lab.wait::<Volume>(volume.volume, |found: Option<&Volume>| {
        found.is_some_and(|found| found.status.state == State::Attached && !found.status.frontend_disabled)
    });
    volume.until(&[("csi-1", true)]);
    volume.clear();
}

/// A volume grows under the pod that uses it, and a detached one by a ticket of its own that comes before a pod's.
fn expansion_and_a_pod(volume: &Tickets<'_>) {
    let grow = |bytes: i64| {
        let patch = json!({"spec": {"size": bytes.to_string()}}).to_string();
        volume.lab.must_kubectl(&["patch", "lhv", volume.volume, "--type=merge", "-p", &patch]);
    };
    let until_grown = |bytes: i64| {
        let engine = tether_crd::names::engine(volume.volume, 0);
        volume.lab.wait::<Engine>(&engine, move |found: Option<&Engine>| {
            found.is_some_and(|found| found.status.current_size.0 == bytes)
        });
        volume.lab.wait::<Volume>(volume.volume, move |found: Option<&Volume>| {
            found.is_some_and(|found| !found.status.expansion_required && found.spec.size.0 == bytes)
        });
    };
    let size = volume.volume().spec.size.0;
    volume.patch(json!({"csi-1": ticket("csi-1", "csi-attacher", "node-1", "false")}));
    volume.until(&[("csi-1", true)]);
    grow(size + (64 << 20));
    until_grown(size + (64 << 20));
    volume.until(&[("csi-1", true)]);
    assert_eq!(volume.volume().status.current_node_id, "node-1");
    volume.clear();
    grow(size + (128 << 20));
    until_grown(size + (128 << 20));
    volume.lab.until_detached(volume.volume);
    let tickets = volume.lab.get::<VolumeAttachment>(volume.volume).spec.attachment_tickets;
    assert!(tickets.is_empty(), "its ticket went when it was done: {tickets:?}");
}

/// A ticket goes with the object that it is for.
fn owner_goes(volume: &Tickets<'_>) {
    let lab = volume.lab;
    lab.must_kubectl(&["create", "configmap", "job"]);
    let uid = lab.must_kubectl(&["get", "configmap", "job", "-o", "jsonpath={.metadata.uid}"]);
    let mut owned = ticket("owned", "longhorn-api", "node-2", "false");
    owned["owner"] =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "namespace": "longhorn-system", "name": "job", "uid": uid});
    volume.patch(json!({"owned": owned}));
    volume.until(&[("owned", true)]);
    lab.must_kubectl(&["delete", "configmap", "job"]);
    lab.until_detached(volume.volume);
    let attachment: VolumeAttachment = lab.get(volume.volume);
    assert!(attachment.spec.attachment_tickets.is_empty());
}

/// What makes no sense is refused, with the field that is wrong.
fn refused(volume: &Tickets<'_>) {
    let patch =
        json!({"spec": {"attachmentTickets": {"a": ticket("b", "longhorn-api", "node-1", "false")}}}).to_string();
    let output = volume.lab.kubectl(&["patch", "lhva", volume.volume, "--type=merge", "-p", &patch]);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && words.contains("spec.attachmentTickets"), "{words}");
    assert_eq!(volume.volume().status.state, State::Detached);
}
