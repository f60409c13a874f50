//! Volumes grow with their claims: which claim wants more than it has, and what is said of it on the way.
//!
//! ```text
//!   claim asks for more ──► Resizing, ControllerResizeInProgress ──► ControllerExpandVolume
//!        file system on a node: volume's capacity, FileSystemResizePending, NodeResizePending ──► kubelet does the rest
//!        otherwise:             volume's capacity, claim's capacity
//! ```
//!
//! Conditions, words and texts are those of Kubernetes' external-resizer, which this replaces. A call is repeated until
//! the claim says that it is done: drivers answer for a size that is there already.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition, SecretReference,
};
use serde_json::{Map, Value, json};
use tether_machinery::quantity::Quantity;
use tether_model::reason::Reason;
use tether_model::report::Rule;

use crate::Plan;
use crate::attacher::Content;
use crate::binding::{claim_phase, claim_ref};
use crate::event::Event;
use crate::object::{is_deleting, name, namespace, subject, uid};

const RESIZE: Rule = Rule("resize-claim");
const RESIZING: &str = "Resizing";
const PENDING: &str = "FileSystemResizePending";
const PENDING_WORDS: &str = "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
/// Of `allocatedResourceStatuses`.
const IN_PROGRESS: &str = "ControllerResizeInProgress";
const INFEASIBLE: &str = "ControllerResizeInfeasible";
const NODE_PENDING: &str = "NodeResizePending";

/// What the decision looks at.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    pub claim: &'a PersistentVolumeClaim,
    /// The volume that the claim names, if it was seen.
    pub volume: Option<&'a PersistentVolume>,
}

/// The call that makes a volume larger.
#[derive(Clone, Debug, PartialEq)]
pub struct Expand {
    pub handle: String,
    pub bytes: i64,
    /// As the claim says it.
    pub quantity: String,
    pub content: Content,
    /// In the numbers of the Container Storage Interface.
    pub mode: i32,
    pub secret: Option<SecretReference>,
    /// What the claim's status is to say before the call.
    pub begin: Option<Value>,
}

/// Decides whether the claim's volume is to be made larger.
pub fn decide(driver: &str, single_node: bool, observed: &Observed<'_>, now: Timestamp) -> Plan<Expand> {
    let mut plan = Plan::default();
    let claim = observed.claim;
    let about = || subject(claim);
    let volume = observed.volume.filter(|volume| is_of(volume, claim));
    let csi = volume.and_then(|v| v.spec.as_ref()?.csi.as_ref()).filter(|csi| csi.driver == driver);
    let (Some(volume), Some(csi)) = (volume, csi) else {
        plan.rests(RESIZE, about(), Reason::OtherDriver, "It has no volume of this driver.");
        return plan;
    };
    let (Some(wanted), Some(held)) = (requested(claim), capacity(claim)) else {
        plan.rests(RESIZE, about(), Reason::ClaimNotBound, "It is not bound yet.");
        return plan;
    };
    if is_deleting(claim) || claim_phase(claim) != "Bound" {
        plan.rests(RESIZE, about(), Reason::BeingDeleted, "It is going, or not bound.");
    } else if wanted <= held {
        plan.rests(RESIZE, about(), Reason::UpToDate, format!("It has {held} bytes and asks for {wanted}."));
    } else if is_pending(claim) && volume_bytes(volume) >= Some(wanted) {
        let words = "The volume is large enough; the file system grows on the node.";
        plan.rests(RESIZE, about(), Reason::FileSystemResizeRequired, words);
    } else {
        let note = format!("External resizer is resizing volume {}", name(volume));
        plan.tells(Event::normal(claim, Reason::Resizing, note));
        let expand = Expand {
            handle: csi.volume_handle.clone(),
            bytes: wanted,
            quantity: quantity(claim).unwrap_or_default(),
            content: content(volume),
            mode: mode(volume, single_node),
            secret: csi.controller_expand_secret_ref.clone(),
            begin: begin(claim, now),
        };
        plan.acts(RESIZE, about(), Reason::Resizing, format!("It grows from {held} to {wanted} bytes."), expand);
    }
    plan
}

/// Whether the volume is bound to this claim and not to another one of its name.
fn is_of(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    claim_ref(volume).is_some_and(|held| {
        let same = |field: &Option<String>, wanted: &str| field.as_deref() == Some(wanted);
        same(&held.name, name(claim)) && same(&held.namespace, namespace(claim)) && same(&held.uid, uid(claim))
    })
}

fn quantity(claim: &PersistentVolumeClaim) -> Option<String> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    Some(requests.get("storage")?.0.clone())
}

/// How much the claim asks for, in bytes.
pub fn requested(claim: &PersistentVolumeClaim) -> Option<i64> {
    Quantity::parse(&quantity(claim)?).ok().map(|amount| amount.value())
}

fn capacity(claim: &PersistentVolumeClaim) -> Option<i64> {
    let held = claim.status.as_ref()?.capacity.as_ref()?.get("storage")?;
    Quantity::parse(&held.0).ok().map(|amount| amount.value())
}

fn volume_bytes(volume: &PersistentVolume) -> Option<i64> {
    let held = volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?;
    Quantity::parse(&held.0).ok().map(|amount| amount.value())
}

fn conditions(claim: &PersistentVolumeClaim) -> &[PersistentVolumeClaimCondition] {
    claim.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default()
}

fn is_pending(claim: &PersistentVolumeClaim) -> bool {
    conditions(claim).iter().any(|condition| condition.type_ == PENDING && condition.status == "True")
}

fn content(volume: &PersistentVolume) -> Content {
    let spec = volume.spec.as_ref();
    if spec.and_then(|spec| spec.volume_mode.as_deref()) == Some("Block") {
        return Content::Block;
    }
    let fs_type = spec.and_then(|spec| spec.csi.as_ref()?.fs_type.clone()).unwrap_or_default();
    Content::Mount { fs_type, flags: spec.and_then(|spec| spec.mount_options.clone()).unwrap_or_default() }
}

fn mode(volume: &PersistentVolume, single_node: bool) -> i32 {
    let modes = volume.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    match modes.first().map(String::as_str) {
        Some("ReadWriteMany") => 5,
        Some("ReadOnlyMany") => 3,
        Some("ReadWriteOncePod") if single_node => 6,
        _ if single_node => 7,
        _ => 1,
    }
}

/// The status of a claim whose volume is about to grow; none if it says so already.
fn begin(claim: &PersistentVolumeClaim, now: Timestamp) -> Option<Value> {
    let status = claim.status.as_ref();
    let allocated = status.and_then(|status| status.allocated_resources.as_ref()?.get("storage"));
    let word = status.and_then(|status| status.allocated_resource_statuses.as_ref()?.get("storage"));
    let resizing = conditions(claim).iter().any(|held| held.type_ == RESIZING && held.status == "True");
    let told = resizing && word.map(String::as_str) == Some(IN_PROGRESS);
    let wanted = quantity(claim);
    if told && allocated.map(|held| held.0.clone()) == wanted {
        return None;
    }
    let mut next = others(claim, &[RESIZING]);
    next.push(condition(RESIZING, "", now));
    Some(json!({ "status": {
        "conditions": next,
        "allocatedResources": { "storage": wanted },
        "allocatedResourceStatuses": { "storage": IN_PROGRESS },
    }}))
}

/// The status of a claim whose volume is as large as was asked for. `node`: its file system has yet to grow.
pub fn grown(claim: &PersistentVolumeClaim, quantity: &str, node: bool, now: Timestamp) -> Value {
    let mut next = others(claim, &[RESIZING, PENDING]);
    let mut status = Map::new();
    if node {
        next.push(condition(PENDING, PENDING_WORDS, now));
        status.insert("allocatedResourceStatuses".into(), json!({ "storage": NODE_PENDING }));
    } else {
        status.insert("capacity".into(), json!({ "storage": quantity }));
        status.insert("allocatedResourceStatuses".into(), json!({ "storage": null }));
    }
    status.insert("conditions".into(), json!(next));
    json!({ "status": status })
}

/// The status of a claim whose volume cannot become so large, if `code` says that trying again is of no use.
pub fn failed(code: i32) -> Option<Value> {
    /// InvalidArgument, NotFound, OutOfRange: the same question gets the same answer.
    const FINAL: [i32; 3] = [3, 5, 11];
    FINAL.contains(&code).then(|| json!({ "status": { "allocatedResourceStatuses": { "storage": INFEASIBLE } } }))
}

/// The volume's capacity as it is now.
pub fn volume_capacity(quantity: &str) -> Value {
    json!({ "spec": { "capacity": { "storage": quantity } } })
}

fn others(claim: &PersistentVolumeClaim, but: &[&str]) -> Vec<Value> {
    let kept = conditions(claim).iter().filter(|held| !but.contains(&held.type_.as_str()));
    kept.map(|held| json!(held)).collect()
}

fn condition(kind: &str, message: &str, now: Timestamp) -> Value {
    let at = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({ "type": kind, "status": "True", "lastTransitionTime": at, "message": message })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object<T: serde::de::DeserializeOwned>(json: Value) -> T {
        serde_json::from_value(json).unwrap()
    }

    fn claim(asks: &str, has: &str, conditions: &Value) -> PersistentVolumeClaim {
        object(json!({
            "metadata": {"name": "c", "namespace": "d", "uid": "u"},
            "spec": {"volumeName": "pv", "resources": {"requests": {"storage": asks}}},
            "status": {"phase": "Bound", "capacity": {"storage": has}, "conditions": conditions},
        }))
    }

    fn volume(capacity: &str, driver: &str, uid: &str) -> PersistentVolume {
        object(json!({
            "metadata": {"name": "pv"},
            "spec": {
                "capacity": {"storage": capacity}, "accessModes": ["ReadWriteOnce"],
                "claimRef": {"name": "c", "namespace": "d", "uid": uid},
                "csi": {"driver": driver, "volumeHandle": "h", "fsType": "ext4"},
            },
        }))
    }

    fn asked(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<Expand> {
        let observed = Observed { claim, volume: Some(volume) };
        decide("d1", true, &observed, Timestamp::UNIX_EPOCH).changes.pop()
    }

    #[test]
    fn a_claim_that_asks_for_more_than_it_has_makes_its_volume_grow() {
        let none = json!([]);
        let pending = json!([{"type": "FileSystemResizePending", "status": "True"}]);
        for (asks, has, conditions, capacity, driver, owner, expected) in [
            ("2Gi", "1Gi", &none, "1Gi", "d1", "u", true),
            ("1Gi", "1Gi", &none, "1Gi", "d1", "u", false),
            ("2Gi", "1Gi", &none, "1Gi", "other", "u", false),
            ("2Gi", "1Gi", &none, "1Gi", "d1", "another claim", false),
            // The answer was lost: the driver is asked again what is left to do.
            ("2Gi", "1Gi", &none, "2Gi", "d1", "u", true),
            ("2Gi", "1Gi", &pending, "2Gi", "d1", "u", false),
            ("3Gi", "1Gi", &pending, "2Gi", "d1", "u", true),
        ] {
            let found = asked(&claim(asks, has, conditions), &volume(capacity, driver, owner));
            assert_eq!(found.is_some(), expected, "{asks} {has} {conditions} {capacity} {driver} {owner}");
        }
        let call = asked(&claim("2Gi", "1Gi", &none), &volume("1Gi", "d1", "u")).unwrap();
        assert_eq!((call.handle.as_str(), call.bytes, call.mode), ("h", 2 << 30, 7));
    }

    #[test]
    fn the_claim_says_what_goes_on_and_nothing_twice() {
        let old = json!([{"type": "Other", "status": "True"}]);
        let first = claim("2Gi", "1Gi", &old);
        let begun = asked(&first, &volume("1Gi", "d1", "u")).unwrap().begin.unwrap();
        assert_eq!(begun["status"]["allocatedResourceStatuses"]["storage"], IN_PROGRESS);
        assert_eq!(begun["status"]["conditions"][1]["type"], RESIZING);
        let mut status = begun["status"].clone();
        status["phase"] = json!("Bound");
        status["capacity"] = json!({"storage": "1Gi"});
        let mut second = first;
        second.status = Some(object(status));
        assert_eq!(asked(&second, &volume("1Gi", "d1", "u")).unwrap().begin, None);
        let on_node = grown(&second, "2Gi", true, Timestamp::UNIX_EPOCH);
        assert_eq!(on_node["status"]["conditions"][1]["type"], PENDING);
        assert_eq!(on_node["status"].get("capacity"), None, "kubelet says when the file system has grown");
        let done = grown(&second, "2Gi", false, Timestamp::UNIX_EPOCH);
        assert_eq!(done["status"]["conditions"].as_array().unwrap().len(), 1);
        assert_eq!(done["status"]["capacity"]["storage"], "2Gi");
        assert!(failed(11).is_some() && failed(14).is_none());
    }
}
