//! Who owns whom, as far as it was seen.
//!
//! Of most objects nothing is kept but that they exist and where: only those that name owners, or are being deleted
//! in foreground or with orphans, are held with what a decision needs.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::{FOREGROUND, ORPHAN, Observed, Owner};
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

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub resource: Arc<Resource>,
    pub namespace: Box<str>,
    pub name: Box<str>,
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

impl Object {
    /// Whether this is what would be held of an object that was seen with this metadata, its version aside.
    fn is_still(&self, resource: &Arc<Resource>, meta: &ObjectMeta) -> bool {
        let Target { namespace, name, .. } = &self.target;
        *self.resource == **resource
            && meta.namespace.as_deref().unwrap_or_default() == namespace
            && meta.name.as_deref().unwrap_or_default() == name
            && meta.owner_references.as_deref().unwrap_or_default() == self.owners
            && meta.finalizers.as_deref().unwrap_or_default() == self.finalizers
            && meta.deletion_timestamp.is_some() == self.is_deleting
    }
}

/// What is known of owners and dependents.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Every object that was seen, by uid.
    seen: HashMap<Box<str>, Identity>,
    /// Those that take part, by uid.
    objects: HashMap<Box<str>, Object>,
    /// By the uid of the owner, whether it was seen or not.
    dependents: BTreeMap<Box<str>, BTreeSet<Box<str>>>,
}

impl Graph {
    /// Takes in an object as it was just seen; returns the uids of those that are to be decided about.
    pub fn apply(&mut self, resource: &Arc<Resource>, meta: &ObjectMeta) -> BTreeSet<Box<str>> {
        let uid = meta.uid.as_deref().unwrap_or_default();
        if self.knows(uid, resource, meta) {
            return BTreeSet::new();
        }
        let target = Target::at(meta);
        let uid: Box<str> = uid.into();
        let identity = Identity {
            resource: resource.clone(),
            namespace: target.namespace.as_str().into(),
            name: target.name.as_str().into(),
        };
        self.seen.insert(uid.clone(), identity);
        let object = Object {
            resource: resource.clone(),
            target,
            owners: meta.owner_references.clone().unwrap_or_default(),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
            is_deleting: meta.deletion_timestamp.is_some(),
        };
        let waits = object.is_deleting && (object.has(FOREGROUND) || object.has(ORPHAN));
        let takes_part = waits || !object.owners.is_empty();
        let new = takes_part.then_some(object);
        let old = match &new {
            Some(object) => self.objects.insert(uid.clone(), object.clone()),
            None => self.objects.remove(&uid),
        };
        self.reindex(&uid, old.as_ref(), new.as_ref());
        self.touched(&uid, old.as_ref(), new.as_ref())
    }

    /// Whether nothing about an object that takes part differs from what was seen but its version, which is then noted. Most
    /// changes of most objects are of what they say, not of whom they belong to.
    fn knows(&mut self, uid: &str, resource: &Arc<Resource>, meta: &ObjectMeta) -> bool {
        let Some(object) = self.objects.get_mut(uid).filter(|object| object.is_still(resource, meta)) else {
            return false;
        };
        meta.resource_version.as_deref().unwrap_or_default().clone_into(&mut object.target.resource_version);
        true
    }

    /// Takes in that an object is gone; returns the uids of those that are to be decided about.
    pub fn remove(&mut self, uid: &str) -> BTreeSet<Box<str>> {
        self.seen.remove(uid);
        let old = self.objects.remove(uid);
        self.reindex(uid, old.as_ref(), None);
        let owners = old.iter().flat_map(|o| &o.owners).map(|o| o.uid.as_str());
        let mut touched: BTreeSet<Box<str>> =
            owners.filter(|owner| self.objects.get(*owner).is_some_and(|o| o.is_deleting)).map(Into::into).collect();
        touched.extend(self.dependents.get(uid).into_iter().flatten().cloned());
        touched
    }

    /// Takes in that a kind was listed anew: what is not among `listed` is gone. Returns the uids to be decided about.
    pub fn relisted(&mut self, resource: &Resource, listed: &HashSet<Box<str>>) -> BTreeSet<Box<str>> {
        let of_kind = |i: &Identity| i.resource.group == resource.group && i.resource.plural == resource.plural;
        let missing = self.seen.iter().filter(|(uid, identity)| of_kind(identity) && !listed.contains(*uid));
        let gone: Vec<Box<str>> = missing.map(|(uid, _)| uid.clone()).collect();
        gone.iter().flat_map(|uid| self.remove(uid)).collect()
    }

    /// The object, what the graph knows of its owners, and its dependents; `None` if it takes no part.
    pub fn observe(&self, uid: &str) -> Option<Observed<'_>> {
        let object = self.objects.get(uid)?;
        let owners = object.owners.iter().map(|owner| self.owner(object, owner)).collect();
        let dependents = self.dependents.get(uid).into_iter().flatten().filter_map(|d| self.objects.get(d)).collect();
        Some(Observed { object, owners, dependents })
    }

    /// Whether an object with this uid was seen outside of `namespace`.
    pub fn is_elsewhere(&self, uid: &str, namespace: &str) -> bool {
        self.seen.get(uid).is_some_and(|i| i.resource.is_namespaced && &*i.namespace != namespace)
    }

    /// Every object that takes part.
    pub fn uids(&self) -> impl Iterator<Item = Box<str>> + '_ {
        self.objects.keys().cloned()
    }

    fn owner(&self, object: &Object, owner: &OwnerReference) -> Owner {
        let Some(found) = self.seen.get(owner.uid.as_str()) else {
            return Owner::Unknown;
        };
        if found.resource.is_namespaced && object.target.namespace.is_empty() {
            return Owner::OutOfReach;
        }
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let same_place = !found.resource.is_namespaced || *found.namespace == *object.target.namespace;
        let same_kind = found.resource.group == group && found.resource.kind == owner.kind;
        if !same_place || !same_kind || *found.name != *owner.name {
            return Owner::Unknown;
        }
        match self.objects.get(owner.uid.as_str()) {
            Some(owner) if owner.is_deleting && owner.has(FOREGROUND) => Owner::Foreground,
            _ => Owner::Solid,
        }
    }

    fn reindex(&mut self, uid: &str, old: Option<&Object>, new: Option<&Object>) {
        for owner in old.into_iter().flat_map(|o| &o.owners) {
            if let Some(dependents) = self.dependents.get_mut(owner.uid.as_str()) {
                dependents.remove(uid);
                if dependents.is_empty() {
                    self.dependents.remove(owner.uid.as_str());
                }
            }
        }
        for owner in new.into_iter().flat_map(|o| &o.owners) {
            self.dependents.entry(owner.uid.as_str().into()).or_default().insert(uid.into());
        }
    }

    fn touched(&self, uid: &str, old: Option<&Object>, new: Option<&Object>) -> BTreeSet<Box<str>> {
        let mut touched = BTreeSet::new();
        let facts = |o: &Object| (o.owners.clone(), o.finalizers.clone(), o.is_deleting);
        if old.map(facts) == new.map(facts) {
            return touched;
        }
        touched.insert(uid.into());
        // Owners that wait for it: it may no longer block them.
        let owners = old.into_iter().chain(new).flat_map(|o| &o.owners).map(|o| o.uid.as_str());
        touched.extend(owners.filter(|o| self.objects.get(*o).is_some_and(|o| o.is_deleting)).map(Into::into));
        // Dependents that it now waits for.
        if new.is_some_and(|o| o.is_deleting) {
            touched.extend(self.dependents.get(uid).into_iter().flatten().cloned());
        }
        touched
    }
}
