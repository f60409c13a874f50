//! Objects as Longhorn's clients write them, read and written again.

use serde_json::{Value, json};
use tether_crd::attachment::TicketType;
use tether_crd::engine::{InstanceState, ReplicaMode};
use tether_crd::volume::{AccessMode, Robustness, State};
use tether_crd::{Engine, IntString, Volume, VolumeAttachment};

#[test]
fn a_volume_keeps_its_odd_names() {
    let text = json!({
        "apiVersion": "longhorn.io/v1beta2",
        "kind": "Volume",
        "metadata": {"name": "v1", "namespace": "longhorn-system"},
        "spec": {
            "size": "1073741824", "numberOfReplicas": 3, "nodeID": "node-1", "migrationNodeID": "", "Standby": true,
            "accessMode": "rwx", "migratable": true, "nodeSelector": null, "frontend": "", "dataLocality": "",
        },
        "status": {
            "state": "attached", "robustness": "healthy", "currentNodeID": "node-1", "ownerID": "node-1",
            "kubernetesStatus": {"lastPVCRefAt": "x"},
            "record": {"version": 1, "epoch": 7, "holder": "h", "inSync": ["v1-00000001"], "generation": 9},
        },
    });
    let volume: Volume = serde_json::from_value(text.clone()).expect("a volume");
    assert_eq!(volume.spec.size, IntString(1 << 30));
    assert!(volume.spec.standby && volume.is_migratable());
    assert_eq!((volume.spec.access_mode, volume.status.state), (AccessMode::ReadWriteMany, State::Attached));
    assert_eq!(volume.status.robustness, Robustness::Healthy);
    let written = serde_json::to_value(&volume).expect("JSON");
    for path in [
        "/spec/size",
        "/spec/nodeID",
        "/spec/Standby",
        "/status/currentNodeID",
        "/status/kubernetesStatus/lastPVCRefAt",
    ] {
        assert_eq!(written.pointer(path), text.pointer(path), "{path}");
    }
    assert_eq!(
        written["status"]["record"],
        json!({"version": 1, "epoch": 7, "holder": "h", "inSync": ["v1-00000001"], "generation": 9, "released": false, "alone": false}),
        "what nobody holds is left out, so that a test of the old value compares equal"
    );
    assert_eq!(serde_json::from_value::<Volume>(written).expect("its own text"), volume);
}

#[test]
fn a_ticket_of_an_unknown_type_is_kept() {
    let text = json!({
        "metadata": {"name": "v1"},
        "spec": {"volume": "v1", "attachmentTickets": {
            "a": {"id": "a", "type": "csi-attacher", "nodeID": "node-1", "parameters": {"disableFrontend": "false"}, "generation": 2},
            "b": {"id": "b", "type": "something-else", "nodeID": "node-2", "parameters": null},
        }},
        "status": {"attachmentTicketStatuses": {"a": {"id": "a", "satisfied": true, "generation": 2, "conditions": null}}},
    });
    let va: VolumeAttachment = serde_json::from_value(text).expect("an attachment");
    let tickets = &va.spec.attachment_tickets;
    assert_eq!((&tickets["a"].kind, tickets["a"].kind.priority()), (&TicketType::Csi, 900));
    assert_eq!((tickets["b"].kind.as_str(), tickets["b"].kind.priority()), ("something-else", 0));
    assert!(va.is_satisfied("a") && !va.is_satisfied("b"));
    let written = serde_json::to_value(&va).expect("JSON");
    assert_eq!(written["spec"]["attachmentTickets"]["b"]["type"], "something-else");
    assert_eq!(written["spec"]["attachmentTickets"]["b"].get("owner"), None::<&Value>);
}

#[test]
fn an_engine_is_available_where_it_runs_with_a_good_replica() {
    let text = json!({
        "metadata": {"name": "v1-e-0"},
        "spec": {"nodeID": "node-1", "desireState": "running"},
        "status": {"currentState": "running", "replicaModeMap": {"v1-r-1": "ERR", "v1-r-2": "RW"}, "storageIP": "10.0.0.1"},
    });
    let mut engine: Engine = serde_json::from_value(text).expect("an engine");
    assert!(engine.is_available_on("node-1") && !engine.is_available_on("node-2"));
    engine.status.replica_mode_map.insert("v1-r-2".to_owned(), ReplicaMode::WriteOnly);
    assert!(!engine.is_available_on("node-1"));
    assert_eq!(engine.spec.desire_state, InstanceState::Running);
}

/// The table of Longhorn's priorities.
#[test]
fn priorities_of_tickets() {
    let table = [
        ("volume-restore-controller", 2000),
        ("volume-expansion-controller", 2000),
        ("longhorn-api", 1000),
        ("csi-attacher", 900),
        ("salvage-controller", 900),
        ("share-manager-controller", 900),
        ("snapshot-controller", 800),
        ("backup-controller", 800),
        ("volume-clone-controller", 800),
        ("volume-eviction-controller", 800),
        ("bim-ds-controller", 800),
        ("volume-rebuilding-controller", 800),
        ("", 0),
    ];
    for (word, priority) in table {
        let kind = TicketType::from(word);
        assert_eq!((kind.as_str(), kind.priority()), (word, priority));
    }
    assert_eq!(TicketType::KNOWN.len() + 1, table.len());
}
