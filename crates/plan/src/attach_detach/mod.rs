//! Which volumes are attached to which nodes: Kubernetes' attach/detach controller as one decision for a volume and one for
//! a node.
//!
//! What is desired follows from pods; what is the case is written in VolumeAttachments and nodes. Nothing else is
//! remembered but since when a volume has not been wanted on a node, so that a restart forgets no attachment and finds every
//! one that nobody wants.
//!
//! ```text
//!               no attachment                       pod gone, not mounted (or forced)
//!   wanted ───────────────────► CREATE ──► attached ────────────────────────────────► unlisted ──► DELETE
//!                                  │          │ listed in node.status.volumesAttached     │  ▲ not in the
//!     another node has it: waits ◄─┘          └─► kubelet mounts (volumesInUse first)     └──┘ live volumesInUse
//! ```
//!
//! The two lists of the node are a handshake: each side writes its own and then reads the other's from the API server, so
//! that a volume is never taken from a node that is about to mount it. Only force and the out-of-service taint skip it.

mod names;
mod node;
mod wanted;
mod words;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use tether_model::reason::Reason;
use tether_model::report::{Rule, Subject};

pub use self::names::{attachment_name, csi_name, unique_name};
pub use self::node::{Listed, NodeChange, NodeObserved, decide_node};
pub use self::wanted::{is_attachable, is_managed, is_terminated, may_be_shared};
use crate::Plan;
use crate::event::Event;
use crate::node::{TAINT_OUT_OF_SERVICE, is_ready, taints};
use crate::object::{Target, is_deleting, name};

const ATTACH: Rule = Rule("attach-volume");
const DETACH: Rule = Rule("detach-volume");

/// What may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long an unwanted volume on a node that is not ready may stay mounted before it is taken away all the same.
    pub wait_for_unmount: SignedDuration,
    /// Never do that.
    pub disable_force_detach: bool,
}

impl Default for Settings {
    /// Kubernetes' six minutes.
    fn default() -> Self {
        Self { wait_for_unmount: SignedDuration::from_mins(6), disable_force_detach: false }
    }
}

/// A node as far as volumes are concerned.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    Here(&'a Node),
    /// Its object is gone. Whether it had the volume mounted then; `None` if nobody saw it go.
    Gone {
        mounted: Option<bool>,
    },
}

/// One node that wants the volume, has it, or both.
#[derive(Clone, Debug)]
pub struct Site<'a> {
    pub node: &'a str,
    pub place: Place<'a>,
    /// Pods on the node that use the volume, the oldest first.
    pub pods: Vec<&'a Pod>,
    pub attachment: Option<&'a VolumeAttachment>,
    /// Since when no pod has used it; `None` if that is news.
    pub unwanted_since: Option<Timestamp>,
    /// How many volumes of the driver the node has, not counting this one, and how many it can have.
    pub room: Option<(usize, usize)>,
}

/// What the decision about a volume looks at.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    pub volume: &'a PersistentVolume,
    pub sites: Vec<Site<'a>>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    Create {
        name: String,
        driver: String,
        node: String,
        volume: String,
    },
    /// Ask the API server for the node: if it has the volume neither mounted nor listed, delete the attachment. Without
    /// `check` delete it at once.
    Delete {
        attachment: Target,
        node: String,
        check: bool,
        /// Why it is not checked.
        forced: Option<&'static str>,
    },
    /// Take the volume off the node's list first.
    Unlist {
        node: String,
    },
    /// Put the volume on the node's list.
    List {
        node: String,
    },
}

/// Decides about one volume.
pub fn decide(observed: &Observed<'_>, settings: &Settings, now: Timestamp) -> Plan<Change> {
    let mut plan = Plan::default();
    let Some(csi) = observed.volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()) else { return plan };
    let unique = unique_name(&csi.driver, &csi.volume_handle);
    // Detach first, so that a volume that moves is released before it is wanted elsewhere.
    for site in observed.sites.iter().filter(|site| site.pods.is_empty()) {
        detach(&mut plan, observed, site, &unique, settings, now);
    }
    let mut wanting: Vec<&Site<'_>> = observed.sites.iter().filter(|site| !site.pods.is_empty()).collect();
    wanting.sort_by_key(|site| site.pods.first().map(|pod| (pod.metadata.creation_timestamp.clone(), site.node)));
    let mut taken: Option<&str> = None;
    for site in wanting {
        attach(&mut plan, observed, site, &unique, &mut taken);
    }
    plan
}

fn about(observed: &Observed<'_>, site: &Site<'_>) -> Subject {
    Subject::new("Volume", "", format!("{} on node {}", name(observed.volume), site.node))
}

fn detach(
    plan: &mut Plan<Change>,
    observed: &Observed<'_>,
    site: &Site<'_>,
    unique: &str,
    settings: &Settings,
    now: Timestamp,
) {
    let about = || about(observed, site);
    let Some(attachment) = site.attachment else { return };
    if is_deleting(attachment) {
        let error = attachment.status.as_ref().and_then(|s| s.detach_error.as_ref()).and_then(|e| e.message.as_deref());
        let words =
            error.map_or_else(|| "The driver is asked to take it away.".to_owned(), |e| format!("Not yet: {e}"));
        plan.blocked(DETACH, about(), Reason::OperationUnderWay, words);
        return;
    }
    let release = release(site, unique, settings, now);
    match release {
        Release::Wait { until: Some(until) } => {
            let words = "Nobody wants it, the node is not ready and has it mounted: it is taken away by force then.";
            plan.waits(DETACH, about(), Reason::VolumeStillMounted, words, until);
        }
        Release::Wait { until: None } => {
            let words = "Nobody wants it; the node has it mounted.";
            plan.blocked(DETACH, about(), Reason::VolumeStillMounted, words);
        }
        Release::Checked | Release::Forced(_) => {
            if let Place::Here(node) = site.place
                && node::lists(node, unique)
            {
                let words = "Nobody wants it: the node must not mount it any more.";
                let change = Change::Unlist { node: site.node.to_owned() };
                plan.acts(DETACH, about(), Reason::VolumeNotWanted, words, change);
                return;
            }
            let (reason, forced) = match release {
                Release::Forced(why) if why == OUT_OF_SERVICE => (Reason::NodeOutOfService, Some(why)),
                Release::Forced(why) => (Reason::ForceDetachTimeout, Some(why)),
                _ => (Reason::VolumeNotWanted, None),
            };
            let change = Change::Delete {
                attachment: Target::of(attachment),
                node: site.node.to_owned(),
                check: forced.is_none(),
                forced,
            };
            plan.acts(DETACH, about(), reason, "Nobody wants it any more.", change);
        }
    }
}

/// Whether an unwanted volume may be taken from a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    Wait {
        until: Option<Timestamp>,
    },
    /// After a look at what the node says now.
    Checked,
    /// Without, and why.
    Forced(&'static str),
}

pub(crate) const OUT_OF_SERVICE: &str = "out-of-service";
pub(crate) const TIMEOUT: &str = "timeout";

pub(crate) fn release(site: &Site<'_>, unique: &str, settings: &Settings, now: Timestamp) -> Release {
    let deadline = site.unwanted_since.unwrap_or(now) + settings.wait_for_unmount;
    let expired = now > deadline && !settings.disable_force_detach;
    let (mounted, healthy, tainted) = match site.place {
        Place::Here(node) => {
            let tainted = taints(node).iter().any(|taint| taint.key == TAINT_OUT_OF_SERVICE);
            (node::uses(node, unique), is_ready(node), tainted)
        }
        // A node that nobody saw go may have been using it.
        Place::Gone { mounted } => (mounted.unwrap_or(true), false, false),
    };
    match (tainted, mounted) {
        (true, _) => Release::Forced(if expired { TIMEOUT } else { OUT_OF_SERVICE }),
        // Kubernetes skips the check here after six minutes, even on a healthy node; nothing speaks for that.
        (false, false) => Release::Checked,
        (false, true) if healthy || settings.disable_force_detach => Release::Wait { until: None },
        (false, true) if expired => Release::Forced(TIMEOUT),
        // Strictly later than the deadline.
        (false, true) => Release::Wait { until: Some(deadline + SignedDuration::from_millis(1)) },
    }
}

/// Whether the volume has to be on the node's list: it is attached, and wanted there or still mounted.
pub fn is_to_be_listed(site: &Site<'_>, unique: &str, settings: &Settings, now: Timestamp) -> bool {
    let Some(attachment) = site.attachment else { return false };
    let is_attached = !is_deleting(attachment) && attachment.status.as_ref().is_some_and(|s| s.attached);
    let stays = !site.pods.is_empty() || matches!(release(site, unique, settings, now), Release::Wait { .. });
    is_attached && stays
}

fn attach<'a>(
    plan: &mut Plan<Change>,
    observed: &Observed<'a>,
    site: &Site<'a>,
    unique: &str,
    taken: &mut Option<&'a str>,
) {
    let about = || about(observed, site);
    let csi = observed.volume.spec.as_ref().and_then(|s| s.csi.as_ref()).expect("the volume must be one of a driver");
    if let Some(attachment) = site.attachment {
        attached(plan, observed, site, unique, attachment);
        return;
    }
    if matches!(site.place, Place::Gone { .. }) {
        plan.blocked(ATTACH, about(), Reason::NodeNotSeen, "The node does not exist.");
        return;
    }
    if !may_be_shared(observed.volume) {
        let elsewhere: Vec<&Site<'_>> =
            observed.sites.iter().filter(|other| other.node != site.node && other.attachment.is_some()).collect();
        if !elsewhere.is_empty() || taken.is_some_and(|node| node != site.node) {
            for pod in &site.pods {
                let note = words::waiting_for_detach(pod, name(observed.volume), &elsewhere);
                plan.tells(Event::warning(*pod, Reason::FailedAttachVolume, note));
            }
            let holder = elsewhere.first().map(|other| other.node).or(*taken).unwrap_or_default();
            let words = format!("It may be attached to one node only, and node {holder} has it.");
            plan.blocked(ATTACH, about(), Reason::WaitingForDetach, words);
            return;
        }
    }
    if let Some((has, most)) = site.room
        && has >= most
    {
        let error = format!("node {} has {has} volumes of driver {}, and cannot have more", site.node, csi.driver);
        tell_failure(plan, observed, site, &error);
        plan.blocked(ATTACH, about(), Reason::TooManyVolumes, error);
        return;
    }
    *taken = Some(site.node);
    let change = Change::Create {
        name: attachment_name(&csi.volume_handle, &csi.driver, site.node),
        driver: csi.driver.clone(),
        node: site.node.to_owned(),
        volume: name(observed.volume).to_owned(),
    };
    plan.acts(ATTACH, about(), Reason::VolumeWanted, "A pod on the node uses it.", change);
}

fn attached(
    plan: &mut Plan<Change>,
    observed: &Observed<'_>,
    site: &Site<'_>,
    unique: &str,
    attachment: &VolumeAttachment,
) {
    let about = || about(observed, site);
    let status = attachment.status.as_ref();
    if is_deleting(attachment) {
        let words = "volume attachment is being deleted";
        plan.blocked(ATTACH, about(), Reason::AttachmentUncertain, words);
    } else if status.is_some_and(|s| s.attached) {
        match site.place {
            Place::Here(node) if !node::lists(node, unique) => {
                let change = Change::List { node: site.node.to_owned() };
                plan.acts(ATTACH, about(), Reason::VolumeAttached, "It is attached; the node may mount it.", change);
            }
            _ => plan.rests(ATTACH, about(), Reason::VolumeAttached, "It is attached."),
        }
    } else if let Some(error) = status.and_then(|s| s.attach_error.as_ref()).and_then(|e| e.message.as_deref()) {
        tell_failure(plan, observed, site, error);
        plan.blocked(ATTACH, about(), Reason::FailedAttachVolume, format!("Not yet: {error}"));
    } else {
        plan.blocked(ATTACH, about(), Reason::OperationUnderWay, "The driver is asked to attach it.");
    }
}

fn tell_failure(plan: &mut Plan<Change>, observed: &Observed<'_>, site: &Site<'_>, error: &str) {
    for pod in &site.pods {
        let note = words::attach_failed(name(observed.volume), error);
        plan.tells(Event::warning(*pod, Reason::FailedAttachVolume, note));
    }
}
