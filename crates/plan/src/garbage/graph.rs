//! Who owns whom, as far as it was seen.
//!
//! Of most objects nothing is kept but that they exist and where: only those that name owners, or are being deleted
//! in foreground or with orphans, are held with what a decision needs. There is an entry for every object of the cluster, so
//! that what many have in common is held once, and uids are held as the numbers that they are.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::shared::Shared;
use super::{FOREGROUND, ORPHAN, Observed, Owner, Uid};
use crate::object::Target;

/// A kind of object as it is served.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub plural: String,
    pub is_namespaced: bool,
}

impl Resource {
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

/// An object that takes part in garbage collection.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    pub resource: Arc<Resource>,
    pub target: Target,
    pub owners: Vec<OwnerReference>,
    pub finalizers: Vec<String>,
    pub is_deleting: bool,
}

/// An object that was seen.
#[derive(Clone, Debug)]
struct Known {
    resource: Arc<Resource>,
    namespace: Arc<str>,
    name: Box<str>,
    /// None: it takes no part.
    part: Option<Box<Part>>,
}

/// What is held of an object that takes part.
#[derive(Clone, Debug)]
struct Part {
    version: Box<str>,
    owners: Box<[Reference]>,
    finalizers: Arc<[String]>,
    is_deleting: bool,
}

/// An owner, as its dependent names it.
#[derive(Clone, Debug, PartialEq)]
struct Reference {
    uid: Uid,
    name: Box<str>,
    api_version: Arc<str>,
    kind: Arc<str>,
    blocks: Option<bool>,
    controls: Option<bool>,
}

impl Reference {
    fn is(&self, owner: &OwnerReference) -> bool {
        self.uid == Uid::from(owner.uid.as_str())
            && *self.name == *owner.name
            && *self.api_version == *owner.api_version
            && *self.kind == *owner.kind
            && self.blocks == owner.block_owner_deletion
            && self.controls == owner.controller
    }

    fn named(&self) -> OwnerReference {
        OwnerReference {
            api_version: self.api_version.to_string(),
            kind: self.kind.to_string(),
            name: self.name.to_string(),
            uid: self.uid.to_string(),
            block_owner_deletion: self.blocks,
            controller: self.controls,
        }
    }
}

impl Part {
    fn has(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|held| held == finalizer)
    }

    /// Whether everything about the two is the same but their version.
    fn is_like(&self, other: &Self) -> bool {
        self.owners == other.owners && self.finalizers == other.finalizers && self.is_deleting == other.is_deleting
    }
}

impl Known {
    /// The object as it is decided about, if it takes part.
    fn object(&self, uid: &Uid) -> Option<Object> {
        let part = self.part.as_ref()?;
        let target = Target {
            namespace: self.namespace.to_string(),
            name: self.name.to_string(),
            uid: uid.to_string(),
            resource_version: part.version.to_string(),
        };
        Some(Object {
            resource: self.resource.clone(),
            target,
            owners: part.owners.iter().map(Reference::named).collect(),
            finalizers: part.finalizers.to_vec(),
            is_deleting: part.is_deleting,
        })
    }

    /// Whether this is what would be held of an object that was seen with this metadata, its version aside.
    fn is_still(&self, resource: &Arc<Resource>, meta: &ObjectMeta) -> bool {
        let Some(part) = &self.part else { return false };
        let owners = meta.owner_references.as_deref().unwrap_or_default();
        *self.resource == **resource
            && meta.namespace.as_deref().unwrap_or_default() == &*self.namespace
            && meta.name.as_deref().unwrap_or_default() == &*self.name
            && owners.len() == part.owners.len()
            && part.owners.iter().zip(owners).all(|(held, owner)| held.is(owner))
            && meta.finalizers.as_deref().unwrap_or_default() == &*part.finalizers
            && meta.deletion_timestamp.is_some() == part.is_deleting
    }
}

/// What is known of owners and dependents.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Every object that was seen.
    seen: HashMap<Uid, Known>,
    /// An owner, whether it was seen or not, and one that names it.
    dependents: BTreeSet<(Uid, Uid)>,
    texts: Shared<str>,
    finalizers: Shared<[String]>,
}

impl Graph {
    /// Takes in an object as it was just seen; returns the uids of those that are to be decided about.
    pub fn apply(&mut self, resource: &Arc<Resource>, meta: &ObjectMeta) -> BTreeSet<Uid> {
        let uid = Uid::from(meta.uid.as_deref().unwrap_or_default());
        if self.knows(&uid, resource, meta) {
            return BTreeSet::new();
        }
        let new = Known {
            resource: resource.clone(),
            namespace: self.texts.get(meta.namespace.as_deref().unwrap_or_default()),
            name: meta.name.as_deref().unwrap_or_default().into(),
            part: self.part(meta).map(Box::new),
        };
        let is = new.part.clone();
        let was = self.seen.insert(uid.clone(), new).and_then(|before| before.part);
        self.reindex(&uid, was.as_deref(), is.as_deref());
        self.touched(&uid, was.as_deref(), is.as_deref())
    }

    /// What is held of an object that takes part; none: it does not.
    fn part(&mut self, meta: &ObjectMeta) -> Option<Part> {
        let owners = meta.owner_references.as_deref().unwrap_or_default();
        let reference = |owner: &OwnerReference| Reference {
            uid: owner.uid.as_str().into(),
            name: owner.name.as_str().into(),
            api_version: self.texts.get(&owner.api_version),
            kind: self.texts.get(&owner.kind),
            blocks: owner.block_owner_deletion,
            controls: owner.controller,
        };
        let part = Part {
            version: meta.resource_version.as_deref().unwrap_or_default().into(),
            owners: owners.iter().map(reference).collect(),
            finalizers: self.finalizers.get(meta.finalizers.as_deref().unwrap_or_default()),
            is_deleting: meta.deletion_timestamp.is_some(),
        };
        let waits = part.is_deleting && (part.has(FOREGROUND) || part.has(ORPHAN));
        (waits || !part.owners.is_empty()).then_some(part)
    }

    /// Whether nothing about an object that takes part differs from what was seen but its version, which is then noted. Most
    /// changes of most objects are of what they say, not of whom they belong to.
    fn knows(&mut self, uid: &Uid, resource: &Arc<Resource>, meta: &ObjectMeta) -> bool {
        let Some(known) = self.seen.get_mut(uid).filter(|known| known.is_still(resource, meta)) else {
            return false;
        };
        if let Some(part) = &mut known.part {
            part.version = meta.resource_version.as_deref().unwrap_or_default().into();
        }
        true
    }

    /// Takes in that an object is gone; returns the uids of those that are to be decided about.
    pub fn remove(&mut self, uid: &Uid) -> BTreeSet<Uid> {
        let was = self.seen.remove(uid).and_then(|known| known.part);
        self.reindex(uid, was.as_deref(), None);
        let owners = was.iter().flat_map(|part| &part.owners).map(|owner| &owner.uid);
        let mut touched: BTreeSet<Uid> = owners.filter(|owner| self.is_deleting(owner)).cloned().collect();
        touched.extend(self.dependents_of(uid).cloned());
        touched
    }

    /// Takes in that a kind was listed anew: what is not among `listed` is gone. Returns the uids to be decided about.
    pub fn relisted(&mut self, resource: &Resource, listed: &HashSet<Box<str>>) -> BTreeSet<Uid> {
        let listed: HashSet<Uid> = listed.iter().map(|uid| Uid::from(&**uid)).collect();
        let of_kind = |k: &Known| k.resource.group == resource.group && k.resource.plural == resource.plural;
        let missing = self.seen.iter().filter(|(uid, known)| of_kind(known) && !listed.contains(*uid));
        let gone: Vec<Uid> = missing.map(|(uid, _)| uid.clone()).collect();
        gone.iter().flat_map(|uid| self.remove(uid)).collect()
    }

    /// The object, what the graph knows of its owners, and its dependents; `None` if it takes no part.
    pub fn observe(&self, uid: &Uid) -> Option<Observed> {
        let known = self.seen.get(uid)?;
        let object = known.object(uid)?;
        let owners = known.part.iter().flat_map(|part| &part.owners).map(|owner| self.owner(known, owner)).collect();
        let dependents = self.dependents_of(uid).filter_map(|uid| self.seen.get(uid)?.object(uid)).collect();
        Some(Observed { object, owners, dependents })
    }

    /// Whether an object with this uid was seen outside of `namespace`.
    pub fn is_elsewhere(&self, uid: &str, namespace: &str) -> bool {
        self.seen.get(&uid.into()).is_some_and(|k| k.resource.is_namespaced && &*k.namespace != namespace)
    }

    /// Every object that takes part.
    pub fn uids(&self) -> impl Iterator<Item = Uid> + '_ {
        self.seen.iter().filter(|(_, known)| known.part.is_some()).map(|(uid, _)| uid.clone())
    }

    fn is_deleting(&self, uid: &Uid) -> bool {
        self.seen.get(uid).and_then(|known| known.part.as_ref()).is_some_and(|part| part.is_deleting)
    }

    fn dependents_of<'a>(&'a self, owner: &'a Uid) -> impl Iterator<Item = &'a Uid> {
        let first = (owner.clone(), Uid::FIRST);
        self.dependents.range(first..).take_while(move |(of, _)| of == owner).map(|(_, dependent)| dependent)
    }

    fn owner(&self, object: &Known, owner: &Reference) -> Owner {
        let Some(found) = self.seen.get(&owner.uid) else {
            return Owner::Unknown;
        };
        if found.resource.is_namespaced && object.namespace.is_empty() {
            return Owner::OutOfReach;
        }
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let same_place = !found.resource.is_namespaced || found.namespace == object.namespace;
        let same_kind = found.resource.group == group && *found.resource.kind == *owner.kind;
        if !same_place || !same_kind || found.name != owner.name {
            return Owner::Unknown;
        }
        match &found.part {
            Some(owner) if owner.is_deleting && owner.has(FOREGROUND) => Owner::Foreground,
            _ => Owner::Solid,
        }
    }

    fn reindex(&mut self, uid: &Uid, was: Option<&Part>, is: Option<&Part>) {
        for owner in was.into_iter().flat_map(|part| &part.owners) {
            self.dependents.remove(&(owner.uid.clone(), uid.clone()));
        }
        for owner in is.into_iter().flat_map(|part| &part.owners) {
            self.dependents.insert((owner.uid.clone(), uid.clone()));
        }
    }

    fn touched(&self, uid: &Uid, was: Option<&Part>, is: Option<&Part>) -> BTreeSet<Uid> {
        let mut touched = BTreeSet::new();
        let is_same = match (was, is) {
            (None, None) => true,
            (Some(was), Some(is)) => was.is_like(is),
            _ => false,
        };
        if is_same {
            return touched;
        }
        touched.insert(uid.clone());
        // Owners that wait for it: it may no longer block them.
        let owners = was.into_iter().chain(is).flat_map(|part| &part.owners).map(|owner| &owner.uid);
        touched.extend(owners.filter(|owner| self.is_deleting(owner)).cloned());
        // Dependents that it now waits for.
        if is.is_some_and(|part| part.is_deleting) {
            touched.extend(self.dependents_of(uid).cloned());
        }
        touched
    }
}
