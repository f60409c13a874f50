//! Owners, dependents, and who is deleted when.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use proptest::prelude::*;
use tether_plan::Plan;
use tether_plan::garbage::{Change, FOREGROUND, Graph, ORPHAN, Owner, Propagation, Resource, Uid, decide};

use crate::build::*;

fn resource(namespaced: bool) -> Arc<Resource> {
    let kind = if namespaced { "Toy" } else { "Shelf" };
    Arc::new(Resource {
        group: "example.com".into(),
        version: "v1".into(),
        kind: kind.into(),
        plural: format!("{}s", kind.to_lowercase()),
        is_namespaced: namespaced,
    })
}

fn owner(name: &str, kind: &str, blocks: bool) -> OwnerReference {
    OwnerReference {
        api_version: "example.com/v1".into(),
        kind: kind.into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        block_owner_deletion: Some(blocks),
        controller: None,
    }
}

fn toy(name: &str, owners: &[&str]) -> ObjectMeta {
    let owners = owners.iter().map(|o| owner(o, "Toy", true)).collect();
    ObjectMeta { owner_references: Some(owners), ..meta("default", name) }
}

fn dying(meta: ObjectMeta, finalizer: &str) -> ObjectMeta {
    ObjectMeta { deletion_timestamp: Some(Time(now())), finalizers: Some(vec![finalizer.into()]), ..meta }
}

fn graph(toys: &[ObjectMeta]) -> Graph {
    let mut graph = Graph::default();
    for meta in toys {
        graph.apply(&resource(true), meta);
    }
    graph
}

/// Decides about an object; owners that the graph does not have are answered with `answer`.
fn look(graph: &Graph, name: &str, answer: Owner) -> Plan<Change> {
    let mut observed = graph.observe(&Uid::from(format!("uid-{name}").as_str())).expect("the object must take part");
    for owner in &mut observed.owners {
        if *owner == Owner::Unknown {
            *owner = answer;
        }
    }
    decide(&observed)
}

const GONE: Owner = Owner::Absent { elsewhere: false };

#[test]
fn an_owner_that_was_not_seen_is_asked_for() {
    let graph = graph(&[toy("leaf", &["root"])]);
    golden(
        &look(&graph, "leaf", Owner::Unknown),
        "asks    absent-owners: Toy default/leaf: OwnerNotSeen: Owner [example.com/v1/Toy, namespace: default, \
                 name: root, uid: uid-root] was not seen.
         => CheckOwner { owner: OwnerReference { api_version: \"example.com/v1\", block_owner_deletion: Some(true), \
            controller: None, kind: \"Toy\", name: \"root\", uid: \"uid-root\" } }",
    );
    golden(
        &look(&graph, "leaf", GONE),
        "acts    absent-owners: Toy default/leaf: OwnerGone: No owner exists any more.
         => Delete { object: default/leaf@1, propagation: Background }",
    );
    golden(
        &look(&graph, "leaf", Owner::Solid),
        "rests   absent-owners: Toy default/leaf: OwnerExists: Every owner exists.",
    );
}

#[test]
fn one_of_two_owners_that_is_gone_is_dropped() {
    let graph = graph(&[toy("here", &[]), toy("leaf", &["here", "gone"])]);
    let plan = look(&graph, "leaf", GONE);
    let [Change::SetOwners { owners, .. }] = plan.changes.as_slice() else { panic!("{plan}") };
    assert_eq!(owners.iter().map(|o| o.name.as_str()).collect::<Vec<_>>(), ["here"]);
}

#[test]
fn a_foreground_owner_waits_for_those_that_block_it() {
    let root = dying(toy("root", &[]), FOREGROUND);
    let mut idle = toy("idle", &["root"]);
    idle.owner_references.as_mut().unwrap()[0].block_owner_deletion = None;
    let mut graph = graph(&[root, toy("leaf", &["root"]), idle]);
    assert_eq!(look(&graph, "root", GONE).report.findings[0].verdict.word(), "blocked");
    let plan = look(&graph, "leaf", GONE);
    assert!(matches!(plan.changes.as_slice(), [Change::Delete { propagation: Propagation::Background, .. }]), "{plan}");

    let touched = graph.remove(&"uid-leaf".into());
    assert!(touched.contains(&Uid::from("uid-root")), "the owner is looked at again: {touched:?}");
    let plan = look(&graph, "root", GONE);
    assert!(matches!(plan.changes.as_slice(), [Change::RemoveFinalizer { finalizer: FOREGROUND, .. }]), "{plan}");
}

#[test]
fn a_dependent_with_dependents_goes_in_foreground_too_and_a_circle_is_broken() {
    let root = dying(toy("root", &["leaf"]), FOREGROUND);
    let graph = graph(&[root, toy("leaf", &["root"]), toy("twig", &["leaf"])]);
    let plan = look(&graph, "leaf", GONE);
    let [Change::SetOwners { owners, .. }] = plan.changes.as_slice() else { panic!("{plan}") };
    assert_eq!(owners[0].block_owner_deletion, Some(false));

    let root = dying(toy("root", &[]), FOREGROUND);
    let graph = self::graph(&[root, toy("leaf", &["root"]), toy("twig", &["leaf"])]);
    let plan = look(&graph, "leaf", GONE);
    assert!(matches!(plan.changes.as_slice(), [Change::Delete { propagation: Propagation::Foreground, .. }]), "{plan}");
}

#[test]
fn orphans_are_let_go_before_their_owner_is() {
    let graph = graph(&[dying(toy("root", &[]), ORPHAN), toy("leaf", &["root", "other"])]);
    let plan = look(&graph, "root", GONE);
    let [Change::SetOwners { object, owners, .. }, Change::RemoveFinalizer { finalizer: ORPHAN, .. }] =
        plan.changes.as_slice()
    else {
        panic!("{plan}")
    };
    assert_eq!((object.name.as_str(), owners.len()), ("leaf", 1));
}

#[test]
fn an_owner_in_another_namespace_is_none() {
    let mut graph = Graph::default();
    graph.apply(&resource(true), &ObjectMeta { namespace: Some("far".into()), ..toy("root", &[]) });
    graph.apply(&resource(true), &toy("leaf", &["root"]));
    assert!(graph.is_elsewhere("uid-root", "default"));
    let plan = look(&graph, "leaf", Owner::Absent { elsewhere: true });
    let events = format!("{:?}", plan.events);
    assert!(
        events.starts_with("[Warning OwnerRefInvalidNamespace Toy/leaf: ownerRef [example.com/v1/Toy, "),
        "{events}"
    );
    assert!(events.ends_with("does not exist in namespace \"default\"]"), "{events}");
    assert!(matches!(plan.changes.as_slice(), [Change::Delete { .. }]), "{plan}");

    let shelf = ObjectMeta { namespace: None, ..toy("shelf", &["root"]) };
    graph.apply(&resource(false), &shelf);
    let plan = look(&graph, "shelf", Owner::Unknown);
    assert!(plan.changes.is_empty(), "what belongs to no namespace can have no owner in one: {plan}");
}

/// The world as the API server has it.
#[derive(Clone, Debug, Default)]
struct World {
    toys: BTreeMap<String, ObjectMeta>,
}

impl World {
    fn answer(&self, owner: &OwnerReference) -> Owner {
        match self.toys.get(&owner.name) {
            None => GONE,
            Some(o) if o.deletion_timestamp.is_some() && o.finalizers.iter().flatten().any(|f| f == FOREGROUND) => {
                Owner::Foreground
            }
            Some(_) => Owner::Solid,
        }
    }

    /// As an API server deletes: what has finalizers stays and is marked.
    fn delete(&mut self, name: &str, propagation: Propagation) {
        let Some(toy) = self.toys.get_mut(name) else { return };
        let finalizer = match propagation {
            Propagation::Background => None,
            Propagation::Foreground => Some(FOREGROUND),
            Propagation::Orphan => Some(ORPHAN),
        };
        let finalizers = toy.finalizers.get_or_insert_default();
        if let Some(finalizer) = finalizer.filter(|f| !finalizers.iter().any(|held| held == f)) {
            finalizers.push(finalizer.into());
        }
        toy.deletion_timestamp = Some(Time(now()));
        self.reap(name);
    }

    fn reap(&mut self, name: &str) {
        if self
            .toys
            .get(name)
            .is_some_and(|t| t.deletion_timestamp.is_some() && t.finalizers.iter().flatten().count() == 0)
        {
            self.toys.remove(name);
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::CheckOwner { .. } => {}
            Change::Delete { object, propagation } => self.delete(&object.name, propagation),
            Change::SetOwners { object, owners, .. } => {
                if let Some(toy) = self.toys.get_mut(&object.name) {
                    toy.owner_references = Some(owners);
                }
            }
            Change::RemoveFinalizer { object, finalizer } => {
                if let Some(toy) = self.toys.get_mut(&object.name) {
                    toy.finalizers.get_or_insert_default().retain(|f| f != finalizer);
                }
                self.reap(&object.name);
            }
        }
    }
}

fn name_of(uid: &str) -> &str {
    uid.trim_start_matches("uid-")
}

/// Brings the graph up to the world, but for the `late` objects, of which it has not heard.
fn catch_up(graph: &mut Graph, world: &World, late: &BTreeSet<String>) {
    let known: Vec<Box<str>> = (0..8).map(|i| format!("uid-t{i}").into_boxed_str()).collect();
    for uid in known {
        let name = name_of(&uid);
        if late.contains(name) {
            continue;
        }
        match world.toys.get(name) {
            Some(meta) => drop(graph.apply(&resource(true), meta)),
            None => drop(graph.remove(&Uid::from(&*uid))),
        }
    }
}

prop_compose! {
    /// Up to eight toys; each may name any other as its owner, circles included.
    fn any_world()(
        owners in prop::collection::vec(prop::collection::btree_set(0..8_usize, 0..3), 1..8),
        missing in prop::collection::btree_set(0..8_usize, 0..4),
    ) -> World {
        let mut world = World::default();
        for (i, owners) in owners.into_iter().enumerate() {
            if missing.contains(&i) { continue }
            let names: Vec<String> = owners.into_iter().filter(|o| *o != i).map(|o| format!("t{o}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            world.toys.insert(format!("t{i}"), toy(&format!("t{i}"), &names));
        }
        world
    }
}

proptest! {
    /// However late the graph is, an object with a living owner is never deleted; and in the end, when the graph has
    /// heard everything, every object that is left has a living owner or never had one.
    #[test]
    fn nothing_with_a_living_owner_is_deleted(
        world in any_world(),
        doomed in prop::option::of((0..8_usize, 0..3_u8)),
        late in prop::collection::btree_set(0..8_usize, 0..8),
    ) {
        let mut world = world;
        let mut graph = Graph::default();
        let late: BTreeSet<String> = late.into_iter().map(|i| format!("t{i}")).collect();
        let innocent: BTreeSet<String> =
            world.toys.iter().filter(|(_, t)| t.owner_references.iter().flatten().count() == 0).map(|(n, _)| n.clone()).collect();
        catch_up(&mut graph, &world, &late);
        if let Some((index, how)) = doomed {
            let how = [Propagation::Background, Propagation::Foreground, Propagation::Orphan][how as usize];
            world.delete(&format!("t{index}"), how);
        }
        let doomed = doomed.map(|(index, _)| format!("t{index}"));
        for round in 0..64 {
            let mut uids: Vec<Uid> = graph.uids().collect();
            uids.sort();
            let mut quiet = true;
            for uid in uids {
                let Some(mut observed) = graph.observe(&uid) else { continue };
                // The answers are the world's own; deletes carry a version, so a stale view of the object itself is refused.
                let current = world.toys.get(name_of(&uid.to_string())).map(|t| t.owner_references.clone().unwrap_or_default());
                if current.as_ref() != Some(&observed.object.owners) { continue }
                for (state, owner) in observed.owners.iter_mut().zip(&observed.object.owners) {
                    if *state == Owner::Unknown { *state = world.answer(owner); }
                }
                for change in decide(&observed).changes {
                    if let Change::Delete { object, .. } = &change {
                        let owners = world.toys[&object.name].owner_references.clone().unwrap_or_default();
                        let living = owners.iter().find(|o| world.answer(o) == Owner::Solid);
                        prop_assert!(living.is_none(), "{} is deleted but owned by {:?}", object.name, living);
                    }
                    quiet = false;
                    world.apply(change);
                }
            }
            let late = if round < 4 { late.clone() } else { BTreeSet::new() };
            catch_up(&mut graph, &world, &late);
            if quiet && round > 4 { break }
            prop_assert!(round < 63, "it never settles: {world:?}");
        }
        for (name, toy) in &world.toys {
            let owners = toy.owner_references.clone().unwrap_or_default();
            prop_assert!(owners.iter().all(|o| world.answer(o) == Owner::Solid), "{name} is left with {owners:?}");
            prop_assert!(toy.deletion_timestamp.is_none(), "{name} never went");
        }
        for name in innocent.iter().filter(|n| Some(*n) != doomed.as_ref()) {
            prop_assert!(world.toys.contains_key(name), "{name} had no owner and must stay");
        }
    }
}
