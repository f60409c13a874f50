//! Protection of storage in use: a claim stays while a pod on a node uses it, a volume while it is bound.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::{Change, volume_phase};
use crate::Plan;
use crate::object::{Target, has_finalizer, is_deleting, key, subject};
use crate::pod::node_name;

const CLAIM: Rule = Rule("claim-protection");
const VOLUME: Rule = Rule("volume-protection");

/// Finalizer of a claim that is protected.
pub const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
/// Finalizer of a volume that is protected.
pub const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";

/// What is known of a claim's users.
#[derive(Clone, Debug)]
pub enum Users<'a> {
    /// Pods that use the claim, as far as they were seen; there may be more.
    Seen(Vec<&'a Pod>),
    /// Pods that use the claim, by the API server's word.
    Listed(Vec<&'a Pod>),
}

/// What is to be done about a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimChange {
    /// Ask the API server for the pods of the claim's namespace.
    ListPods {
        namespace: String,
    },
    Make(Box<Change>),
}

/// Decides whether a claim has to stay.
pub fn decide_claim(claim: &PersistentVolumeClaim, users: &Users<'_>) -> Plan<ClaimChange> {
    let mut plan = Plan::default();
    let about = subject(claim);
    let protected = has_finalizer(claim, CLAIM_FINALIZER);
    let (pods, certain) = match users {
        Users::Seen(pods) => (pods, false),
        Users::Listed(pods) => (pods, true),
    };
    let user = pods.iter().find(|pod| !node_name(pod).is_empty());
    match (is_deleting(claim), protected, user) {
        (false, true, _) | (true, false, _) => {
            plan.rests(CLAIM, about, Reason::UpToDate, "The finalizer is as it has to be.");
        }
        (false, false, _) => {
            let change = Change::AddFinalizer { object: Target::of(claim), finalizer: CLAIM_FINALIZER };
            plan.acts(CLAIM, about, Reason::Protected, "Claims are protected.", ClaimChange::Make(Box::new(change)));
        }
        (true, true, Some(pod)) => {
            let words = format!("Pod {} uses the claim, which stays until the pod is gone.", key(*pod));
            plan.blocked(CLAIM, about, Reason::InUse, words);
        }
        (true, true, None) if !certain => {
            let question = ClaimChange::ListPods { namespace: about.namespace.clone() };
            plan.asks(CLAIM, about, Reason::UsersNotSeen, "No pod was seen that uses the claim.", question);
        }
        (true, true, None) => {
            let change = Change::RemoveFinalizer { object: Target::of(claim), finalizer: CLAIM_FINALIZER };
            plan.acts(CLAIM, about, Reason::NotInUse, "No pod uses the claim.", ClaimChange::Make(Box::new(change)));
        }
    }
    plan
}

/// Decides whether a volume has to stay.
pub fn decide_volume(volume: &PersistentVolume) -> Plan<Change> {
    let mut plan = Plan::default();
    let about = subject(volume);
    match (is_deleting(volume), has_finalizer(volume, VOLUME_FINALIZER)) {
        (false, true) | (true, false) => {
            plan.rests(VOLUME, about, Reason::UpToDate, "The finalizer is as it has to be.");
        }
        (false, false) => {
            let change = Change::AddFinalizer { object: Target::of(volume), finalizer: VOLUME_FINALIZER };
            plan.acts(VOLUME, about, Reason::Protected, "Volumes are protected.", change);
        }
        (true, true) if volume_phase(volume) == "Bound" => {
            plan.blocked(VOLUME, about, Reason::InUse, "The volume is bound to a claim.");
        }
        (true, true) => {
            let change = Change::RemoveFinalizer { object: Target::of(volume), finalizer: VOLUME_FINALIZER };
            plan.acts(VOLUME, about, Reason::NotInUse, "The volume is not bound.", change);
        }
    }
    plan
}
