//! Which rooms a driver has, and what is published of each.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSINodeDriver, CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use tether_plan::Plan;
use tether_plan::provisioner::Driver;
use tether_plan::provisioner::capacity::*;

use crate::build::*;

const HOST: &str = "kubernetes.io/hostname";

fn driver() -> Driver {
    Driver {
        name: "driver.example.com".into(),
        topology: true,
        single_node_multi_writer: false,
        default_fs_type: String::new(),
    }
}

fn registered(name: &str, keys: &[&str]) -> CSINode {
    let mut node = CSINode { metadata: meta("", name), ..Default::default() };
    node.spec.drivers = vec![CSINodeDriver {
        name: "driver.example.com".into(),
        node_id: name.into(),
        topology_keys: Some(keys.iter().map(|key| (*key).to_owned()).collect()),
        ..Default::default()
    }];
    node
}

fn room(class: &str, place: &[(&str, &str)]) -> Room {
    Room { class: class.into(), place: place.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect() }
}

#[test]
fn there_is_a_room_for_each_class_that_waits_and_each_place_of_the_drivers_nodes() {
    let (late, now) = (class("late", "WaitForFirstConsumer"), class("now", "Immediate"));
    let mut foreign = class("foreign", "WaitForFirstConsumer");
    foreign.provisioner = "other.example.com".into();
    let nodes: Vec<Node> = ["a", "b"].map(|name| node(name).labelled(HOST, name).labelled("zone", "z")).into();
    let bare = node("c");
    let by_host: Vec<CSINode> = ["a", "b"].map(|name| registered(name, &[HOST])).into();
    let not_labelled = registered("c", &[HOST]);
    let elsewhere = CSINode { metadata: meta("", "d"), ..Default::default() };
    let other = node("d").labelled(HOST, "d");
    let all = || {
        let known = nodes.iter().zip(&by_host);
        known.chain([(&bare, &not_labelled), (&other, &elsewhere)])
    };
    let classes: [&StorageClass; 3] = [&late, &now, &foreign];
    let found = rooms(&driver(), classes, all(), false);
    assert_eq!(Vec::from_iter(found), [room("late", &[(HOST, "a")]), room("late", &[(HOST, "b")])]);
    assert_eq!(rooms(&driver(), classes, all(), true).len(), 4, "classes that bind at once were asked for");
    let by_zone: Vec<CSINode> = ["a", "b"].map(|name| registered(name, &["zone"])).into();
    let found = rooms(&driver(), classes, nodes.iter().zip(&by_zone), false);
    assert_eq!(Vec::from_iter(found), [room("late", &[("zone", "z")])], "two nodes share a place");
    let anywhere = Driver { topology: false, ..driver() };
    assert_eq!(Vec::from_iter(rooms(&anywhere, classes, all(), false)), [room("late", &[])]);
}

fn decided(held: &[&CSIStorageCapacity], class: Option<&StorageClass>, answer: Option<Answer>) -> Plan<RoomChange> {
    let room = room("late", &[(HOST, "a")]);
    let object = CSIDriver { metadata: meta("", "driver.example.com"), ..Default::default() };
    let observed = RoomObserved { room: &room, class, held: held.to_vec(), answer, owner: Some(owner(&object)) };
    decide_room(&driver(), &observed)
}

fn made(answer: Answer) -> CSIStorageCapacity {
    let class = class("late", "WaitForFirstConsumer");
    match decided(&[], Some(&class), Some(answer)).changes.as_slice() {
        [RoomChange::Create(object)] => {
            let mut object = (**object).clone();
            object.metadata.uid = Some("uid".into());
            object.metadata.resource_version = Some("7".into());
            object
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_driver_is_asked_and_its_answer_published_once() {
    let mut late = class("late", "WaitForFirstConsumer");
    late.parameters = Some([("mode".into(), "x".into()), ("csi.storage.k8s.io/fstype".into(), "xfs".into())].into());
    let asked = decided(&[], Some(&late), None).changes;
    assert_eq!(asked, [RoomChange::Ask { parameters: [("mode".to_owned(), "x".to_owned())].into() }]);

    let answer = Answer { bytes: 3 << 30, largest: Some(1 << 30) };
    let object = made(answer);
    assert!(is_ours(&driver(), &object));
    assert_eq!(room_of(&object), room("late", &[(HOST, "a")]));
    assert_eq!(object.capacity.as_ref().unwrap().0, "3Gi");
    assert_eq!(object.maximum_volume_size.as_ref().unwrap().0, "1Gi");
    let owner = &object.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("CSIDriver", "uid-driver.example.com"));
    assert_eq!(made(answer).metadata.name, object.metadata.name, "asked twice, it is the same object");

    assert!(decided(&[&object], Some(&late), Some(answer)).changes.is_empty(), "nothing is written at rest");
    let less = Answer { bytes: 2 << 30, largest: None };
    let [RoomChange::Update { capacity, answer: new, owners: None }] =
        &decided(&[&object], Some(&late), Some(less)).changes[..]
    else {
        panic!()
    };
    assert_eq!((capacity.name.as_str(), *new), (object.metadata.name.as_deref().unwrap(), less));
    let mut orphan = object.clone();
    orphan.metadata.owner_references = None;
    let plan = decided(&[&orphan], Some(&late), Some(answer));
    assert!(matches!(&plan.changes[..], [RoomChange::Update { owners: Some(owners), .. }] if owners.len() == 1));
}

#[test]
fn what_nobody_asks_for_is_deleted_and_so_is_what_is_said_twice() {
    let answer = Answer { bytes: 1, largest: None };
    let object = made(answer);
    let plan = decided(&[&object], None, None);
    assert!(matches!(&plan.changes[..], [RoomChange::Delete { capacity }] if capacity.uid == "uid"), "{plan}");

    let late = class("late", "WaitForFirstConsumer");
    let mut older = object.clone();
    older.metadata.uid = Some("older".into());
    older.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(after(-1)));
    let mut newer = object;
    newer.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(after(0)));
    let plan = decided(&[&newer, &older], Some(&late), Some(answer));
    assert!(matches!(&plan.changes[..], [RoomChange::Delete { capacity }] if capacity.uid == "uid"), "{plan}");

    let mut strange = newer;
    let requirement = LabelSelectorRequirement { key: HOST.into(), operator: "Exists".into(), values: None };
    strange.node_topology = Some(LabelSelector { match_expressions: Some(vec![requirement]), match_labels: None });
    let all = rooms(&driver(), [&late], [(&node("a").labelled(HOST, "a"), &registered("a", &[HOST]))], false);
    assert!(!all.contains(&room_of(&strange)), "it is about no room of ours");
    assert_ne!(room_of(&strange).place, Place::new());
}
