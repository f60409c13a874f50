//! Attachment tickets through the API: who gets the volume, who gives way, and what goes with its owner.

use k8s_openapi::api::core::v1::{ConfigMap, Node as KubernetesNode};
use kube::api::{Api, DeleteParams};
use serde_json::{Value, json};
use tether_crd::volume::State;
use tether_crd::{NAMESPACE, Setting, Volume, VolumeAttachment};

use crate::agents;
use crate::harness::*;

/// A volume on three nodes, detached and wanted by nobody.
struct Scene {
    cluster: Cluster,
    volumes: Api<Volume>,
    attachments: Api<VolumeAttachment>,
}

impl Scene {
    async fn set() -> Self {
        let mut cluster = Cluster::start().await;
        let nodes = ["a", "b", "c"];
        for node in nodes {
            agents::add_storage_node(&cluster, node).await;
        }
        cluster.spawn(agents::run(cluster.client.clone(), nodes.map(str::to_owned).to_vec()));
        let volumes: Api<Volume> = Api::namespaced(cluster.client.clone(), NAMESPACE);
        let attachments = Api::namespaced(cluster.client.clone(), NAMESPACE);
        let spec = json!({"size": "1073741824", "numberOfReplicas": 2});
        create(&volumes, json!({"metadata": {"name": "v1", "namespace": NAMESPACE}, "spec": spec})).await;
        until(&volumes, "v1", "detached", |volume| volume.status.state == State::Detached).await;
        until(&attachments, "v1", "there", |_| true).await;
        Self { cluster, volumes, attachments }
    }

    async fn tickets(&self, tickets: Value) {
        patch(&self.attachments, "v1", json!({"spec": {"attachmentTickets": tickets}})).await;
    }

    async fn satisfied(&self, ticket: &'static str) -> VolumeAttachment {
        until(&self.attachments, "v1", "satisfied", move |attachment| attachment.is_satisfied(ticket)).await
    }

    async fn on(&self, node: &'static str) -> Volume {
        let there =
            move |volume: &Volume| volume.status.state == State::Attached && volume.status.current_node_id == node;
        until(&self.volumes, "v1", node, there).await
    }

    async fn detached(&self) {
        let gone = |volume: &Volume| volume.status.state == State::Detached && volume.spec.node_id.is_empty();
        until(&self.volumes, "v1", "detached", gone).await;
        until(&self.attachments, "v1", "nobody is told anything", |va| va.status.attachment_ticket_statuses.is_empty())
            .await;
    }
}

fn ticket(id: &str, kind: &str, node: &str) -> Value {
    json!({"id": id, "type": kind, "nodeID": node, "parameters": {"disableFrontend": if kind == "csi-attacher" {"false"} else {"any"}}})
}

fn csi(node: &str) -> Value {
    ticket("csi-1", "csi-attacher", node)
}

fn backup(node: &str) -> Value {
    ticket("backup-controller-b1", "backup-controller", node)
}

/// Scenarios 1 and 2 of Longhorn's documentation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_lives_beside_a_pod_and_gives_way_to_one_elsewhere() {
    let scene = Scene::set().await;
    scene.tickets(json!({"csi-1": csi("a")})).await;
    scene.satisfied("csi-1").await;
    scene.tickets(json!({"backup-controller-b1": backup("a")})).await;
    let both = scene.satisfied("backup-controller-b1").await;
    assert!(both.is_satisfied("csi-1"));
    scene.tickets(json!({"csi-1": null})).await;
    until(&scene.attachments, "v1", "told", |va| !va.status.attachment_ticket_statuses.contains_key("csi-1")).await;
    assert_eq!(scene.on("a").await.spec.node_id, "a", "the backup holds it");

    scene.tickets(json!({"csi-1": csi("b")})).await;
    scene.on("b").await;
    let moved = scene.satisfied("csi-1").await;
    assert!(!moved.is_satisfied("backup-controller-b1"));
    let waits = |va: &VolumeAttachment| {
        let waiting = va.status.attachment_ticket_statuses["backup-controller-b1"].waiting.clone();
        waiting.is_some_and(|waiting| waiting.reason == "AttachedElsewhere")
    };
    until(&scene.attachments, "v1", "the backup waits", waits).await;
    assert_eq!(scene.cluster.event("Detached", "v1").await, "volume v1 has been detached");
    scene.tickets(json!({"backup-controller-b1": backup("b")})).await;
    let follows = scene.satisfied("backup-controller-b1").await;
    assert_eq!(follows.spec.attachment_tickets["backup-controller-b1"].generation, 1);
    scene.tickets(json!({"backup-controller-b1": null, "csi-1": null})).await;
    scene.detached().await;
}

/// Scenario 3, with the ticket tied to what it is for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_goes_with_its_owner_and_the_volume_with_the_ticket() {
    let scene = Scene::set().await;
    let owners: Api<ConfigMap> = scene.cluster.in_default();
    let owner = create(&owners, json!({"metadata": {"name": "job"}})).await;
    let mut owned = ticket("snapshot-controller-s1", "snapshot-controller", "c");
    let uid = owner.metadata.uid.clone();
    owned["owner"] =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "namespace": "default", "name": "job", "uid": uid});
    scene.tickets(json!({"snapshot-controller-s1": owned.clone()})).await;
    scene.satisfied("snapshot-controller-s1").await;
    scene.on("c").await;
    delete(&owners, "job", DeleteParams::default()).await;
    until(&scene.attachments, "v1", "no tickets", |va| va.spec.attachment_tickets.is_empty()).await;
    scene.detached().await;

    // Another object of the same name is not the owner.
    create(&owners, json!({"metadata": {"name": "job"}})).await;
    scene.tickets(json!({"snapshot-controller-s1": owned})).await;
    until(&scene.attachments, "v1", "no tickets", |va| va.spec.attachment_tickets.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_a_person_attached_leaves_a_cordoned_node_if_the_setting_says_so() {
    const SETTING: &str = "detach-manually-attached-volumes-when-cordoned";
    let scene = Scene::set().await;
    scene.cluster.add_node("a").await;
    scene.tickets(json!({"ui": {"id": "ui", "type": "longhorn-api", "nodeID": "a"}})).await;
    scene.satisfied("ui").await;
    let nodes: Api<KubernetesNode> = scene.cluster.all();
    patch(&nodes, "a", json!({"spec": {"unschedulable": true}})).await;
    let words = scene.cluster.event("DetachedUnexpectedly", "v1").await;
    assert_eq!(words, format!("Failed to detach manually attached volume due to {SETTING} is set to false"));
    scene.on("a").await;
    let settings: Api<Setting> = Api::namespaced(scene.cluster.client.clone(), NAMESPACE);
    patch(&settings, SETTING, json!({"value": "true"})).await;
    scene.detached().await;
}

/// What waits behind a ticket that cannot be interrupted is told so, and gets its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tickets_that_cannot_be_had_together_take_turns() {
    let scene = Scene::set().await;
    scene.tickets(json!({"csi-1": csi("a")})).await;
    scene.satisfied("csi-1").await;
    let expansion = json!({"id": "grow", "type": "volume-expansion-controller", "nodeID": "b", "parameters": {"disableFrontend": "false"}});
    let restore = json!({"id": "restore", "type": "volume-restore-controller", "nodeID": "a", "parameters": {"disableFrontend": "true"}});
    scene.tickets(json!({"grow": expansion, "restore": restore})).await;
    let told = |va: &VolumeAttachment| va.status.attachment_ticket_statuses.len() == 3;
    let va = until(&scene.attachments, "v1", "all told", told).await;
    assert!(va.is_satisfied("csi-1"));
    let statuses = &va.status.attachment_ticket_statuses;
    assert_eq!(statuses["grow"].conditions[0].message, "the volume is currently attached to different node a ");
    assert_eq!(statuses["restore"].conditions[0].reason, "AttachedWithIncompatibleParameters");
    scene.tickets(json!({"csi-1": null})).await;
    scene.satisfied("grow").await;
    scene.on("b").await;
    scene.tickets(json!({"grow": null})).await;
    scene.satisfied("restore").await;
    assert!(scene.on("a").await.spec.disable_frontend);
}
