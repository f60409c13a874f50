//! The rules of admission, as tables: a write, what is known beside it, and what comes of it.

use serde_json::{Value, json};
use tether_crd::admission::{Operation, Related, Review, admit};
use tether_crd::{Replica, Volume};

fn review<'a>(operation: Operation, resource: &'a str, object: &'a Value, old: Option<&'a Value>) -> Review<'a> {
    let named = if object.is_null() { old.expect("an old object") } else { object };
    Review { operation, resource, name: named["metadata"]["name"].as_str().unwrap_or_default(), object, old }
}

fn create(resource: &str, object: &Value, related: &Related) -> Result<Value, String> {
    admit(&review(Operation::Create, resource, object, None), related).map_err(|refusal| refusal.to_string())
}

fn update(resource: &str, old: &Value, object: &Value, related: &Related) -> Result<Value, String> {
    admit(&review(Operation::Update, resource, object, Some(old)), related).map_err(|refusal| refusal.to_string())
}

/// `base` with `patch` merged into it.
fn with(base: &Value, patch: &Value) -> Value {
    fn merge(into: &mut Value, patch: &Value) {
        match patch {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| merge(&mut into[name], value)),
            other => *into = other.clone(),
        }
    }
    let mut merged = base.clone();
    merge(&mut merged, patch);
    merged
}

fn volume() -> Value {
    json!({"metadata": {"name": "v1"}, "spec": {"size": "10485760", "numberOfReplicas": 2}})
}

fn admitted_volume() -> Value {
    create("volumes", &volume(), &Related::default()).expect("a volume")
}

#[test]
fn a_volume_gets_what_it_does_not_say() {
    let plain = json!({"metadata": {"name": "v1"}, "spec": {"size": "3000000"}});
    let got = create("volumes", &plain, &Related::default()).expect("a volume");
    for (path, value) in [
        ("/spec/size", json!("4194304")),
        ("/spec/numberOfReplicas", json!(3)),
        ("/spec/frontend", json!("blockdev")),
        ("/spec/accessMode", json!("rwo")),
        ("/spec/dataEngine", json!("v1")),
        ("/spec/dataLocality", json!("disabled")),
        ("/spec/snapshotMaxCount", json!(250)),
        ("/metadata/finalizers", json!(["longhorn.io"])),
        ("/metadata/labels/longhornvolume", json!("v1")),
    ] {
        assert_eq!(got.pointer(path), Some(&value), "{path}");
    }
    assert_eq!(got.get("status"), None, "a status is not made up");
    let strict = with(&volume(), &json!({"spec": {"dataLocality": "strict-local", "numberOfReplicas": 1}}));
    let got = create("volumes", &strict, &Related::default()).expect("a volume");
    assert_eq!(got["spec"]["revisionCounterDisabled"], true);
}

#[test]
fn volumes_that_cannot_be() {
    let table = [
        (json!({"metadata": {"name": "V1"}}), "metadata.name: \"V1\" cannot be the name of a volume"),
        (json!({"metadata": {"name": "a".repeat(41)}}), "metadata.name:"),
        (json!({"spec": {"size": "0"}}), "spec.size: 0 is not a size"),
        (json!({"spec": {"size": "-5"}}), "spec.size:"),
        (json!({"spec": {"size": i64::MAX.to_string()}}), "spec.size:"),
        (json!({"spec": {"numberOfReplicas": 21}}), "spec.numberOfReplicas: 21 replicas"),
        (json!({"spec": {"numberOfReplicas": -1}}), "spec.numberOfReplicas:"),
        (
            json!({"spec": {"dataLocality": "strict-local"}}),
            "spec.numberOfReplicas: number of replica count should be 1",
        ),
        (json!({"spec": {"dataEngine": "v2"}}), "spec.dataEngine: v2 is not provided"),
        (json!({"spec": {"frontend": "nvmf"}}), "spec.frontend: nvmf is not provided"),
        (json!({"spec": {"migratable": true}}), "spec.migratable: only a volume with access mode rwx"),
        (json!({"spec": {"snapshotMaxCount": 1}}), "spec.snapshotMaxCount: 1 is not between 2 and 250"),
        (json!({"spec": {"snapshotMaxSize": "10485760"}}), "spec.snapshotMaxSize:"),
        (json!({"spec": {"rebuildConcurrentSyncLimit": 6}}), "spec.rebuildConcurrentSyncLimit:"),
        (json!({"spec": {"backupBlockSize": "4096"}}), "spec.backupBlockSize:"),
        (json!({"spec": {"staleReplicaTimeout": -1}}), "spec.staleReplicaTimeout:"),
    ];
    for (patch, words) in table {
        let error = create("volumes", &with(&volume(), &patch), &Related::default()).expect_err(words);
        assert!(error.starts_with(words), "{error}\n{words}");
    }
    let standby = with(&volume(), &json!({"spec": {"Standby": true, "frontend": ""}}));
    create("volumes", &standby, &Related::default()).expect("a standby volume needs no frontend");
}

#[test]
fn changes_of_a_volume() {
    let none = json!({});
    let attached = json!({"status": {"state": "attached"}});
    let migrating = json!({"status": {"state": "attached", "currentMigrationNodeID": "node2"}});
    let strict = json!({"spec": {"dataLocality": "strict-local", "numberOfReplicas": 1, "nodeID": "node1"}, "status": {"state": "attached"}});
    let table = [
        (&none, json!({"spec": {"size": "20971520"}}), ""),
        (&none, json!({"spec": {"size": "2097152"}}), "spec.size: cannot become smaller"),
        (&json!({"status": {"expansionRequired": true}}), json!({"spec": {"size": "2097152"}}), ""),
        (&none, json!({"spec": {"encrypted": true}}), "spec.encrypted: cannot be changed"),
        (&none, json!({"spec": {"backingImage": "x"}}), "spec.backingImage: cannot be changed"),
        (&none, json!({"spec": {"topologyRequirement": [{"zone": "a"}]}}), "spec.topologyRequirement: cannot"),
        (
            &attached,
            json!({"spec": {"dataLocality": "strict-local", "numberOfReplicas": 1}}),
            "spec.dataLocality: data locality cannot be converted",
        ),
        (
            &json!({"status": {"state": "detached"}}),
            json!({"spec": {"dataLocality": "strict-local", "numberOfReplicas": 1}}),
            "",
        ),
        (&strict, json!({"spec": {"nodeID": "node2"}}), "spec.nodeID: moving a strict-local volume"),
        (&strict, json!({"spec": {"nodeID": ""}}), ""),
        (&migrating, json!({"spec": {"migrationNodeID": "node3"}}), "spec.migrationNodeID: cannot become node3"),
        (&migrating, json!({"spec": {"migrationNodeID": "node2"}}), ""),
        (&migrating, json!({"spec": {"migrationNodeID": ""}}), ""),
        (&none, json!({"spec": {"numberOfReplicas": 0}}), "spec.numberOfReplicas:"),
    ];
    for (is, wished, words) in table {
        let old = with(&admitted_volume(), is);
        let result = update("volumes", &old, &with(&old, &wished), &Related::default());
        match result {
            Ok(_) => assert_eq!(words, "", "{wished}"),
            Err(error) => assert!(!words.is_empty() && error.starts_with(words), "{wished}: {error}"),
        }
    }
    let deleting =
        with(&admitted_volume(), &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": []}}));
    let got = update("volumes", &deleting, &deleting, &Related::default()).expect("it may go");
    assert_eq!(got["metadata"]["finalizers"], json!([]), "the finalizer is not put back");
}

fn attachment(tickets: Value) -> Value {
    json!({"metadata": {"name": "v1"}, "spec": {"volume": "v1", "attachmentTickets": tickets}})
}

fn csi(id: &str, node: &str) -> Value {
    json!({"id": id, "type": "csi-attacher", "nodeID": node, "parameters": {}, "generation": 0})
}

fn related(spec: Value, state: &str) -> Related {
    let volume = json!({"metadata": {"name": "v1", "uid": "u1"}, "spec": spec, "status": {"state": state}});
    Related { volume: Some(serde_json::from_value::<Volume>(volume).expect("a volume")), ..Related::default() }
}

#[test]
fn a_change_of_a_ticket_raises_its_generation() {
    let none = Related::default();
    let first = create(
        "volumeattachments",
        &attachment(json!({"a": with(&csi("a", "node1"), &json!({"generation": 9}))})),
        &none,
    );
    let first = first.expect("an attachment");
    let generation = |object: &Value| object["spec"]["attachmentTickets"]["a"]["generation"].clone();
    assert_eq!(generation(&first), 0, "clients do not count");
    let moved = with(&first, &json!({"spec": {"attachmentTickets": {"a": {"nodeID": "node2"}}}}));
    let moved = update("volumeattachments", &first, &moved, &none).expect("a change");
    assert_eq!(generation(&moved), 1);
    let forged = with(&moved, &json!({"spec": {"attachmentTickets": {"a": {"generation": 7}}}}));
    assert_eq!(generation(&update("volumeattachments", &moved, &forged, &none).expect("no change")), 1);
    let told = json!({"status": {"attachmentTicketStatuses": {"a": {"id": "a", "generation": 4}}}});
    let gone = with(&attachment(json!({})), &told);
    let back = with(&attachment(json!({"a": csi("a", "node1")})), &told);
    assert_eq!(generation(&update("volumeattachments", &gone, &back, &none).expect("it is back")), 5);
    let last = json!({"spec": {"attachmentTickets": {"a": {"generation": i64::MAX}}}});
    let old = with(&moved, &last);
    let changed = with(&old, &json!({"spec": {"attachmentTickets": {"a": {"nodeID": "node3"}}}}));
    assert_eq!(
        generation(&update("volumeattachments", &old, &changed, &none).expect("a change")),
        0,
        "and begins anew"
    );
}

#[test]
fn an_attachment_belongs_to_its_volume() {
    let got =
        create("volumeattachments", &attachment(json!({})), &related(json!({}), "detached")).expect("an attachment");
    assert_eq!(got["metadata"]["labels"]["longhornvolume"], "v1");
    assert_eq!(got["metadata"]["ownerReferences"][0]["uid"], "u1");
    let other = with(&got, &json!({"spec": {"volume": "v2"}}));
    let error = update("volumeattachments", &got, &other, &Related::default()).expect_err("another volume");
    assert_eq!(error, "spec.volume: cannot be changed from \"v1\" to \"v2\"");
    let error = create("volumeattachments", &other, &Related::default()).expect_err("another name");
    assert!(error.starts_with("spec.volume: must be the attachment's name"), "{error}");
    let error = create("volumeattachments", &attachment(json!({"a": csi("b", "node1")})), &Related::default());
    assert_eq!(
        error.expect_err("another key"),
        "spec.attachmentTickets[a].id: must be the ticket's key, \"a\", and is \"b\""
    );
}

#[test]
fn pods_of_a_migratable_volume() {
    let migratable = || json!({"migratable": true, "accessMode": "rwx"});
    let one = attachment(json!({"a": csi("a", "node1")}));
    let two = attachment(json!({"a": csi("a", "node1"), "b": csi("b", "node2")}));
    let three = attachment(json!({"a": csi("a", "node1"), "b": csi("b", "node2"), "c": csi("c", "node3")}));
    let table = [
        (&one, &two, related(migratable(), "attached"), ""),
        (
            &one,
            &two,
            related(migratable(), "attaching"),
            "cannot have second CSI ticket for migratable volume v1 while it is in state attaching",
        ),
        (
            &two,
            &three,
            related(migratable(), "attached"),
            "cannot have more than 2 CSI tickets for migratable volume v1: [",
        ),
        (&two, &two, related(migratable(), "detached"), ""),
        (&two, &one, related(migratable(), "detached"), ""),
        (&two, &three, related(json!({}), "detached"), ""),
        (&one, &three, Related::default(), ""),
    ];
    for (old, new, related, words) in table {
        match update("volumeattachments", old, new, &related) {
            Ok(_) => assert_eq!(words, "", "{new}"),
            Err(error) => {
                let expected = format!("spec.attachmentTickets: {words}");
                assert!(!words.is_empty() && error.starts_with(&expected), "{error}");
            }
        }
    }
}

fn replica(name: &str, spec: Value) -> Replica {
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).expect("a replica")
}

#[test]
fn a_strict_local_volume_is_where_its_replica_is() {
    let mut related = related(json!({"dataLocality": "strict-local"}), "detached");
    let away = attachment(json!({"a": csi("a", "node2")}));
    create("volumeattachments", &away, &related).expect("the replica has no place yet");
    related.replicas.push(replica("v1-r-1", json!({"nodeID": "node1"})));
    let error = create("volumeattachments", &away, &related).expect_err("another node");
    assert!(error.starts_with("spec.attachmentTickets[a].nodeID: strict-local volume v1"), "{error}");
    create("volumeattachments", &attachment(json!({"a": csi("a", "node1")})), &related).expect("its own node");
    let both = attachment(json!({"a": csi("a", "node2"), "b": csi("b", "node3")}));
    update("volumeattachments", &both, &away, &related).expect("a ticket of before may go, and the other stay");
}

#[test]
fn the_last_good_replica_stays() {
    let good = json!({"healthyAt": "x", "volumeName": "v1", "dataDirectoryName": "d1"});
    let mut related = related(json!({}), "attached");
    let last = serde_json::to_value(replica("v1-r-1", good.clone())).expect("JSON");
    let delete = |related: &Related| {
        admit(&review(Operation::Delete, "replicas", &Value::Null, Some(&last)), related)
            .map_err(|refusal| refusal.to_string())
    };
    related.replicas = vec![
        replica("v1-r-1", good.clone()),
        replica("v1-r-2", with(&good, &json!({"failedAt": "x", "dataDirectoryName": "d2"}))),
    ];
    let error = delete(&related).expect_err("the only one");
    assert!(error.contains("cannot delete replica v1-r-1: it is the only healthy replica of volume v1"), "{error}");
    let twin = replica("v1-r-3", good.clone());
    related.replicas.push(twin.clone());
    delete(&related).expect("its twin of a migration keeps the copy");
    let leaving = json!({"metadata": {"deletionTimestamp": "2027-01-15T08:00:00Z"}});
    let leaving = with(&serde_json::to_value(twin).expect("JSON"), &leaving);
    related.replicas[2] = serde_json::from_value(leaving).expect("a replica");
    delete(&related).expect_err("the twin goes as well");
    related.replicas.push(replica("v1-r-4", with(&good, &json!({"dataDirectoryName": "d4"}))));
    delete(&related).expect("another good one is there");
    related.replicas.truncate(1);
    delete(&Related { volume: None, ..related.clone() }).expect("the volume is gone");
}

#[test]
fn a_volume_has_one_engine_and_two_while_it_moves() {
    let engine = |number: u32| json!({"metadata": {"name": format!("v1-e-{number}")}, "spec": {"volumeName": "v1"}});
    let mut plain = related(json!({}), "detached");
    let got = create("engines", &engine(0), &plain).expect("the first");
    assert_eq!(
        (&got["metadata"]["finalizers"], &got["metadata"]["labels"]["longhornvolume"]),
        (&json!(["longhorn.io"]), &json!("v1"))
    );
    plain.engines.push(serde_json::from_value(engine(0)).expect("an engine"));
    let error = create("engines", &engine(1), &plain).expect_err("a second");
    assert_eq!(error, "spec.volumeName: volume v1 has 1 engines already, and cannot have more than 1");
    let mut moving = related(json!({"migratable": true, "accessMode": "rwx"}), "attached");
    moving.engines = plain.engines;
    create("engines", &engine(1), &moving).expect("a second");
}

#[test]
fn nodes_settings_and_snapshots() {
    let none = Related::default();
    let node = |disks: Value| json!({"metadata": {"name": "node1"}, "spec": {"disks": disks}});
    let setting = |name: &str, value: &str| json!({"metadata": {"name": name}, "value": value});
    let snapshot = json!({"metadata": {"name": "s1"}, "spec": {"volume": "v1"}});
    let table = [
        ("nodes", node(json!({"d1": {"path": "data"}})), "spec.disks[d1].path: \"data\" is not an absolute path"),
        (
            "nodes",
            node(json!({"d1": {"path": "/a"}, "d2": {"path": "/a/"}})),
            "spec.disks[d2].path: \"/a/\" is the path of disk d1 already",
        ),
        (
            "nodes",
            node(json!({"d1": {"path": "/a", "storageReserved": -1}})),
            "spec.disks[d1].storageReserved: -1 is below zero",
        ),
        (
            "settings",
            setting("auto-salvage", "maybe"),
            "value: \"maybe\" cannot be the value of auto-salvage; it must be true or false",
        ),
        ("settings", setting("snapshot-max-count", "-2"), "value: \"-2\" cannot be the value of snapshot-max-count"),
        ("settings", setting("default-replica-count", "{\"v1\":\"many\"}"), "value: \"many\" cannot"),
        ("settings", setting("default-replica-count", "{\"v1\":\"2\"}"), ""),
        ("settings", setting("somebody-elses", "anything"), ""),
        ("snapshots", snapshot, "spec.volume: volume \"v1\" does not exist"),
    ];
    for (resource, object, words) in table {
        match create(resource, &object, &none) {
            Ok(_) => assert_eq!(words, "", "{object}"),
            Err(error) => assert!(!words.is_empty() && error.starts_with(words), "{error}"),
        }
    }
}
