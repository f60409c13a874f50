//! Room for volumes: published for each node, and kept to by the scheduler.

use serde_json::json;

use crate::lab::{Lab, until};

const LATE: &str = "tether-e2e-room";

pub(crate) fn a_pod_goes_where_there_is_room(lab: &Lab) {
    lab.apply(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": LATE},
        "provisioner": "driver.longhorn.io", "parameters": {"numberOfReplicas": "2"},
        "volumeBindingMode": "WaitForFirstConsumer",
    }));
    let print = "jsonpath={range .items[*]}{.storageClassName} {.nodeTopology.matchLabels.kubernetes\\.io/hostname} {.capacity}{\"\\n\"}{end}";
    let published = || {
        let all = lab.kubectl(&["get", "csistoragecapacities", "-A", "-o", print], None);
        let mut ours: Vec<String> =
            all.lines().filter(|line| line.starts_with(&format!("{LATE} "))).map(ToOwned::to_owned).collect();
        ours.sort();
        ours
    };
    let rooms = until("the room of three nodes", || Some(published()).filter(|rooms| rooms.len() == 3));
    for (room, node) in rooms.iter().zip(&lab.nodes) {
        assert!(room.starts_with(&format!("{LATE} {node} ")) && !room.ends_with(" 0"), "{rooms:?}");
    }

    let request = |size: &str| json!({"storageClassName": LATE, "resources": {"requests": {"storage": size}}});
    // The scheduler has to find a node.
    let anywhere = || json!({"nodeName": ""});
    lab.claim("fits", request("64Mi"));
    lab.pod("fits", 0, "fits", "echo data > /data/file", anywhere());
    lab.succeeds("fits");
    lab.delete_claim("fits");

    // More than any disk has.
    lab.claim("too-large", request("8000Ti"));
    lab.pod("too-large", 0, "too-large", "true", anywhere());
    lab.event("too-large", "FailedScheduling", "3 node(s) did not have enough free storage");
    lab.delete("too-large");
    lab.delete_claim("too-large");

    lab.kubectl(&["delete", "storageclass", LATE], None);
    until("no room for a class that is gone", || published().is_empty().then_some(()));
}
