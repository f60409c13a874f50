//! Garbage collection by owner references: an object whose owners are all gone goes too.
//!
//! [`Graph`] is what is known of owners and dependents, kept up to date by whoever watches; [`decide`] looks at
//! one object. An owner that the graph does not have is not thereby gone: it is *unknown*, and the plan asks for it.
//! Only what the API server itself denied is absent, which is why an object with a living owner is never deleted,
//! however late or out of order the watches are.
//!
//! Three ways to delete an owner:
//! - *background*: it goes at once, and its dependents, having no owner, follow;
//! - *foreground*: finalizer `foregroundDeletion` keeps it until the dependents that block it are gone;
//! - *orphan*: finalizer `orphan` keeps it until its dependents no longer name it.

mod graph;
mod shared;
mod uid;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use tether_model::reason::Reason;
use tether_model::report::{Rule, Subject};

pub use graph::{Graph, Object, Resource};
pub use uid::Uid;

use crate::Plan;
use crate::event::Event;
use crate::object::Target;

/// Finalizer of an owner that waits for its blocking dependents.
pub const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer of an owner whose dependents are to be let go.
pub const ORPHAN: &str = "orphan";

const DEPENDENTS: Rule = Rule("foreground-deletion");
const ORPHANS: Rule = Rule("orphan-dependents");
const OWNERS: Rule = Rule("absent-owners");

/// What is known of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// It exists, and stays.
    Solid,
    /// It exists, and waits for its dependents to go.
    Foreground,
    /// The API server has no object of that kind, namespace, name and uid. `elsewhere` if the graph has one with this
    /// uid in another namespace.
    Absent { elsewhere: bool },
    /// The graph does not have it; the API server has to be asked.
    Unknown,
    /// No such kind is served, so nobody can tell.
    NoSuchKind,
    /// The owner lives in a namespace and the object does not: it can have no such owner.
    OutOfReach,
}

/// How the dependents of a deleted object fare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Ask the API server for the owner.
    CheckOwner { owner: OwnerReference },
    /// Delete the object, if it is still the version that was seen.
    Delete { object: Target, propagation: Propagation },
    /// Replace the owner references of an object (this one or a dependent).
    SetOwners { resource: Resource, object: Target, owners: Vec<OwnerReference> },
    /// Remove a finalizer from the object.
    RemoveFinalizer { object: Target, finalizer: &'static str },
}

/// One object, its owners and its dependents.
#[derive(Clone, Debug)]
pub struct Observed {
    pub object: Object,
    /// In the order of the object's owner references.
    pub owners: Vec<Owner>,
    pub dependents: Vec<Object>,
}

/// Decides about one object.
pub fn decide(observed: &Observed) -> Plan<Change> {
    let mut plan = Plan::default();
    let object = &observed.object;
    if object.is_deleting && object.has(ORPHAN) {
        orphan(&mut plan, observed);
    } else if object.is_deleting && object.has(FOREGROUND) {
        foreground(&mut plan, observed);
    } else if object.is_deleting {
        plan.rests(OWNERS, object.subject(), Reason::BeingDeleted, "The object is being deleted.");
    } else if !object.owners.is_empty() {
        owners(&mut plan, observed);
    }
    plan
}

fn orphan(plan: &mut Plan<Change>, observed: &Observed) {
    let object = &observed.object;
    for dependent in &observed.dependents {
        let owners: Vec<OwnerReference> =
            dependent.owners.iter().filter(|o| o.uid != object.target.uid).cloned().collect();
        let change =
            Change::SetOwners { resource: (*dependent.resource).clone(), object: dependent.target.clone(), owners };
        let words = format!("{} is deleted and lets its dependents go.", object.subject());
        plan.acts(ORPHANS, dependent.subject(), Reason::DependentOrphaned, words, change);
    }
    let change = Change::RemoveFinalizer { object: object.target.clone(), finalizer: ORPHAN };
    let words = "No dependent names the object any more.";
    plan.acts(ORPHANS, object.subject(), Reason::DependentOrphaned, words, change);
}

fn foreground(plan: &mut Plan<Change>, observed: &Observed) {
    let object = &observed.object;
    let blocks = |dependent: &&Object| {
        let reference = dependent.owners.iter().find(|o| o.uid == object.target.uid);
        reference.is_some_and(|o| o.block_owner_deletion == Some(true))
    };
    let blocking: Vec<String> = observed.dependents.iter().filter(blocks).map(|d| d.subject().to_string()).collect();
    if blocking.is_empty() {
        let change = Change::RemoveFinalizer { object: object.target.clone(), finalizer: FOREGROUND };
        let words = "No dependent blocks the deletion any more.";
        plan.acts(DEPENDENTS, object.subject(), Reason::DependentsGone, words, change);
    } else {
        let words = format!("{} dependents block the deletion, such as {}.", blocking.len(), blocking[0]);
        plan.blocked(DEPENDENTS, object.subject(), Reason::DependentsRemain, words);
    }
}

fn owners(plan: &mut Plan<Change>, observed: &Observed) {
    let object = &observed.object;
    let states = || object.owners.iter().zip(observed.owners.iter().copied());
    for (owner, state) in states() {
        match state {
            Owner::Unknown => {
                let question = Change::CheckOwner { owner: owner.clone() };
                let words = format!("Owner {} was not seen.", text(owner, &object.target.namespace));
                plan.asks(OWNERS, object.subject(), Reason::OwnerNotSeen, words, question);
            }
            Owner::NoSuchKind => {
                let words = format!("Kind {} of {} is not served.", owner.kind, owner.api_version);
                plan.blocked(OWNERS, object.subject(), Reason::OwnerKindUnknown, words);
            }
            Owner::OutOfReach | Owner::Absent { elsewhere: true } => {
                let (text, namespace) = (text(owner, &object.target.namespace), &object.target.namespace);
                let note = format!("ownerRef {text} does not exist in namespace {namespace:?}");
                plan.blocked(OWNERS, object.subject(), Reason::OwnerRefInvalidNamespace, note.clone());
                let about = object.reference();
                plan.tells(Event { about, warning: true, reason: Reason::OwnerRefInvalidNamespace, note });
            }
            Owner::Solid | Owner::Foreground | Owner::Absent { elsewhere: false } => {}
        }
    }
    if states().any(|(_, state)| matches!(state, Owner::Unknown | Owner::NoSuchKind | Owner::OutOfReach)) {
        return;
    }
    let solid: Vec<OwnerReference> = states().filter(|(_, s)| *s == Owner::Solid).map(|(o, _)| o.clone()).collect();
    let waiting = states().any(|(_, state)| state == Owner::Foreground);
    if solid.len() == object.owners.len() {
        plan.rests(OWNERS, object.subject(), Reason::OwnerExists, "Every owner exists.");
    } else if !solid.is_empty() {
        let words = format!("{} of {} owners are gone.", object.owners.len() - solid.len(), object.owners.len());
        plan.acts(OWNERS, object.subject(), Reason::OwnerGone, words, set_owners(object, solid));
    } else if waiting && !observed.dependents.is_empty() {
        delete_with_dependents(plan, observed);
    } else {
        let propagation = match (object.has(ORPHAN), object.has(FOREGROUND)) {
            (true, _) => Propagation::Orphan,
            (false, true) => Propagation::Foreground,
            (false, false) => Propagation::Background,
        };
        let words = if waiting { "The owner waits for its dependents to go." } else { "No owner exists any more." };
        let change = Change::Delete { object: object.target.clone(), propagation };
        plan.acts(OWNERS, object.subject(), Reason::OwnerGone, words, change);
    }
}

/// The owner waits in foreground, and the object has dependents of its own: they go first, and so does a circle.
fn delete_with_dependents(plan: &mut Plan<Change>, observed: &Observed) {
    let object = &observed.object;
    let circular = observed.dependents.iter().any(|d| d.is_deleting && d.has(FOREGROUND));
    let blocking = object.owners.iter().any(|o| o.block_owner_deletion == Some(true));
    if circular && blocking {
        let unblocked = |o: &OwnerReference| OwnerReference { block_owner_deletion: Some(false), ..o.clone() };
        let change = set_owners(object, object.owners.iter().map(unblocked).collect());
        let words = "The owner and the object wait for each other; the object no longer blocks.";
        plan.acts(OWNERS, object.subject(), Reason::OwnersInCircle, words, change);
        return;
    }
    let change = Change::Delete { object: object.target.clone(), propagation: Propagation::Foreground };
    let words = "The owner waits for its dependents to go, and the object has dependents too.";
    plan.acts(OWNERS, object.subject(), Reason::OwnerGone, words, change);
}

fn set_owners(object: &Object, owners: Vec<OwnerReference>) -> Change {
    Change::SetOwners { resource: (*object.resource).clone(), object: object.target.clone(), owners }
}

/// A reference as Kubernetes writes it in texts.
fn text(owner: &OwnerReference, namespace: &str) -> String {
    let OwnerReference { api_version, kind, name, uid, .. } = owner;
    format!("[{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}]")
}

impl Object {
    pub fn has(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|f| f == finalizer)
    }

    pub fn subject(&self) -> Subject {
        Subject::new(&*self.resource.kind, &self.target.namespace, &self.target.name)
    }

    fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(self.resource.api_version()),
            kind: Some(self.resource.kind.clone()),
            namespace: (!self.target.namespace.is_empty()).then(|| self.target.namespace.clone()),
            name: Some(self.target.name.clone()),
            uid: Some(self.target.uid.clone()),
            ..Default::default()
        }
    }
}
