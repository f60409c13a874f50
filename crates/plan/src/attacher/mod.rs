//! What has to be done for a VolumeAttachment by whoever attaches volumes for a CSI driver.
//!
//! ```text
//!                     publish succeeded                 unpublish succeeded
//!   attached: false ─────────────────────► true     finalizer ─────────────► none: the object goes
//!     ▲ finalizer and node id are written   │          ▲
//!     │ before the first publish            │ DELETE   │ deletionTimestamp
//!     └─────────────────────────────────────┴──────────┘
//! ```
//!
//! From the moment at which the finalizer is there an unpublish is owed, whatever came of the publish. Everything that can
//! be checked is checked before, so that a hopeless attachment can be deleted without the driver. The order of the steps,
//! the objects' names and the texts are those of Kubernetes' external-attacher, which this replaces.

mod capability;
mod errors;
mod names;
mod patches;
mod source;
mod volume;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PersistentVolume, SecretReference};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use serde_json::Value;
use tether_model::reason::Reason;
use tether_model::report::Rule;

use self::capability::capability;
pub use self::capability::{AccessMode, Capability, Content};
pub use self::errors::{Certainty, LONGEST_MESSAGE_BYTES, certainty, shortened};
pub use self::names::{NODE_ID, finalizer, lease_name, sanitise};
pub use self::patches::{
    Detached, add_finalizer, attach_failed, attached, detach_failed, detached, mark, remove_finalizer, set_finalizers,
    trivially_attached,
};
use self::source::{Lookup, Volume};
pub use self::volume::{VolumeChange, decide_volume, is_volume_of_interest};
use crate::Plan;
use crate::object::{Target, annotation, has_finalizer, is_deleting, name, subject};

const ATTACH: Rule = Rule("attach");
const DETACH: Rule = Rule("detach");

/// The driver that volumes are attached for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    pub name: String,
    /// It has no publish call: an attachment is attached as soon as it is there.
    pub trivial: bool,
    /// It can publish a volume for reading only.
    pub read_only: bool,
    /// It knows one writer on a node from many.
    pub single_node_multi_writer: bool,
    /// The file system of volumes that name none.
    pub default_fs_type: String,
}

/// What the decision looks at.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    pub attachment: &'a VolumeAttachment,
    /// The volume that the attachment names, if it was seen.
    pub volume: Option<&'a PersistentVolume>,
    /// The drivers of the attachment's node, if they were seen.
    pub node: Option<&'a CSINode>,
    /// The driver lists something else than the status says: publish or unpublish once more.
    pub again: bool,
}

/// A step; each is taken only if the one before it succeeded.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Keep the volume's object until nothing is attached any more.
    Protect {
        volume: Target,
        patch: Value,
    },
    /// Read the secret that the call needs.
    ReadSecret {
        secret: SecretReference,
    },
    /// Write down that a call will be made, and for which node.
    Mark {
        attachment: Target,
        node_id: String,
        patch: Value,
    },
    Publish(Publish),
    Unpublish(Unpublish),
    /// Set the status of a driver that has nothing to publish.
    SetAttached {
        attachment: Target,
    },
    /// Nothing more can be done; the status is to say why.
    Fail {
        attachment: Target,
        kind: Kind,
        message: String,
    },
}

/// Which of the two errors of the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Attach,
    Detach,
}

/// The call that makes a volume available to a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Publish {
    pub volume_id: String,
    pub node_id: String,
    pub capability: Capability,
    pub read_only: bool,
    pub context: BTreeMap<String, String>,
}

/// The call that takes it away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpublish {
    pub volume_id: String,
    pub node_id: String,
}

/// Which lane the attachment waits in, so that a burst of one kind never starves the other; `None` if there is nothing
/// to be done.
pub fn lane(driver: &Driver, attachment: &VolumeAttachment, again: bool) -> Option<Kind> {
    if attachment.spec.attacher != driver.name {
        return None;
    }
    if driver.trivial {
        return (!is_attached(attachment)).then_some(Kind::Attach);
    }
    match is_deleting(attachment) {
        false => (again || !is_attached(attachment)).then_some(Kind::Attach),
        true => (again || has_finalizer(attachment, &finalizer(&driver.name))).then_some(Kind::Detach),
    }
}

/// Whether a change of an attachment is worth a look: what this attacher wrote into its errors is not.
pub fn is_news(old: &VolumeAttachment, new: &VolumeAttachment) -> bool {
    let has_error = |va: &VolumeAttachment| {
        va.status.as_ref().is_some_and(|s| s.attach_error.is_some() || s.detach_error.is_some())
    };
    if old.metadata.resource_version == new.metadata.resource_version || !(has_error(old) || has_error(new)) {
        return true;
    }
    let without = |va: &VolumeAttachment| {
        let mut va = va.clone();
        va.metadata.resource_version = None;
        va.metadata.managed_fields = None;
        if let Some(status) = &mut va.status {
            status.attach_error = None;
            status.detach_error = None;
        }
        va
    };
    without(old) != without(new)
}

/// Decides what to do for one attachment.
pub fn decide(driver: &Driver, observed: &Observed<'_>) -> Plan<Change> {
    let mut plan = Plan::default();
    let attachment = observed.attachment;
    let about = || subject(attachment);
    if attachment.spec.attacher != driver.name {
        let words = format!("It is for driver {}.", attachment.spec.attacher);
        plan.rests(ATTACH, about(), Reason::OtherDriver, words);
        return plan;
    }
    match lane(driver, attachment, observed.again) {
        None if is_deleting(attachment) => {
            plan.rests(DETACH, about(), Reason::UpToDate, "It is being deleted, and nothing is owed to it.");
        }
        None => plan.rests(ATTACH, about(), Reason::VolumeAttached, "The volume is attached."),
        Some(Kind::Attach) if driver.trivial => {
            let words = "The driver has nothing to publish: the volume counts as attached.";
            let change = Change::SetAttached { attachment: Target::of(attachment) };
            plan.acts(ATTACH, about(), Reason::StatusFollows, words, change);
        }
        Some(kind) => steps(&mut plan, driver, observed, kind),
    }
    plan
}

/// Why a call cannot be made.
struct Refusal {
    reason: Reason,
    message: String,
}

impl Refusal {
    fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

fn steps(plan: &mut Plan<Change>, driver: &Driver, observed: &Observed<'_>, kind: Kind) {
    let (rule, about) = (if kind == Kind::Attach { ATTACH } else { DETACH }, subject(observed.attachment));
    let done = match kind {
        Kind::Attach => publish(plan, driver, observed),
        Kind::Detach => unpublish(plan, driver, observed),
    };
    match done {
        Ok(words) => {
            plan.fires(rule, about, if observed.again { Reason::DriverDisagrees } else { reason(kind) }, words);
        }
        Err(Refusal { reason, message }) => {
            let target = Target::of(observed.attachment);
            let change = Change::Fail { attachment: target, kind, message: message.clone() };
            plan.acts(rule, about, reason, message, change);
        }
    }
}

fn reason(kind: Kind) -> Reason {
    match kind {
        Kind::Attach => Reason::VolumeWanted,
        Kind::Detach => Reason::BeingDeleted,
    }
}

fn publish(plan: &mut Plan<Change>, driver: &Driver, observed: &Observed<'_>) -> Result<String, Refusal> {
    let attachment = observed.attachment;
    let lookup = source::lookup(attachment, observed.volume)?;
    if let Lookup::Volume(volume) = lookup {
        if is_deleting(volume) {
            let message = format!("PersistentVolume {:?} is marked for deletion", name(volume));
            return Err(Refusal::new(Reason::BeingDeleted, message));
        }
        if let Some(patch) = add_finalizer(&volume.metadata, &finalizer(&driver.name)) {
            plan.changes.push(Change::Protect { volume: Target::of(volume), patch });
        }
    }
    let Volume { spec, csi } = lookup.volume()?;
    let read_only = csi.read_only.unwrap_or_default() && driver.read_only;
    let capability = capability(spec, csi, driver)?;
    if let Some(secret) = &csi.controller_publish_secret_ref {
        plan.changes.push(Change::ReadSecret { secret: secret.clone() });
    }
    let node_id = node_id(driver, observed)?;
    if let Some(patch) = mark(attachment, &finalizer(&driver.name), &node_id) {
        let target = Target::of(attachment);
        plan.changes.push(Change::Mark { attachment: target, node_id: node_id.clone(), patch });
    }
    let words = format!("Volume {} is to be made available to node {node_id}.", csi.volume_handle);
    plan.changes.push(Change::Publish(Publish {
        volume_id: csi.volume_handle.clone(),
        node_id,
        capability,
        read_only,
        context: csi.volume_attributes.clone().unwrap_or_default(),
    }));
    Ok(words)
}

fn unpublish(plan: &mut Plan<Change>, driver: &Driver, observed: &Observed<'_>) -> Result<String, Refusal> {
    let Volume { csi, .. } = source::lookup(observed.attachment, observed.volume)?.volume()?;
    if let Some(secret) = &csi.controller_publish_secret_ref {
        plan.changes.push(Change::ReadSecret { secret: secret.clone() });
    }
    // A node that was taken out of the cluster is not in CSINode any more; what it was called was written down.
    let node_id = node_id(driver, observed)
        .or_else(|refusal| annotation(observed.attachment, NODE_ID).map(str::to_owned).ok_or(refusal))?;
    let words = format!("Volume {} is to be taken from node {node_id}.", csi.volume_handle);
    plan.changes.push(Change::Unpublish(Unpublish { volume_id: csi.volume_handle.clone(), node_id }));
    Ok(words)
}

/// What the driver calls the node.
fn node_id(driver: &Driver, observed: &Observed<'_>) -> Result<String, Refusal> {
    let node = &observed.attachment.spec.node_name;
    let Some(found) = observed.node else {
        let message = format!("csinode.storage.k8s.io {node:?} not found");
        return Err(Refusal::new(Reason::DriverNotOnNode, message));
    };
    let registered = found.spec.drivers.iter().find(|d| d.name == driver.name);
    registered.map(|d| d.node_id.clone()).ok_or_else(|| {
        let message = format!("CSINode {node} does not contain driver {}", driver.name);
        Refusal::new(Reason::DriverNotOnNode, message)
    })
}

/// Whether the status says that the volume is attached.
pub fn is_attached(attachment: &VolumeAttachment) -> bool {
    attachment.status.as_ref().is_some_and(|s| s.attached)
}

/// Whether what the driver lists differs from what the attachment's status says. `None` where that cannot be told.
pub fn disagrees(
    driver: &Driver,
    observed: &Observed<'_>,
    published: &BTreeMap<String, BTreeSet<String>>,
) -> Option<bool> {
    if observed.attachment.spec.attacher != driver.name {
        return None;
    }
    let Volume { csi, .. } = source::lookup(observed.attachment, observed.volume).ok()?.volume().ok()?;
    let node_id =
        node_id(driver, observed).ok().or_else(|| annotation(observed.attachment, NODE_ID).map(str::to_owned));
    let is_there = published.get(&csi.volume_handle).is_some_and(|nodes| node_id.is_some_and(|id| nodes.contains(&id)));
    Some(is_there != is_attached(observed.attachment))
}
