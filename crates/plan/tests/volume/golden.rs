//! Longhorn's own unit-test scenarios for volumes, as far as they are about its first data engine and need no backups.
//! Where the expected outcome differs on purpose, the row says why.

use tether_crd::condition;
use tether_crd::engine::{INSTANCE_CREATION, InstanceState, ReplicaMode};
use tether_crd::volume::{DataLocality, Robustness, State};
use tether_plan::placement::{Host, Manager};
use tether_plan::volume::{Change, Kind, REPLICA_START_PATIENCE};

use crate::build::*;
use crate::world::World;

use InstanceState::{Error, Running, Stopped};
use ReplicaMode::{Error as ERR, ReadWrite as RW};

/// One decision.
fn once(mut world: World) -> World {
    world.step();
    world
}

fn scheduled(world: &World) -> (String, String) {
    let conditions = &world.volume.as_ref().unwrap().status.conditions;
    let found = condition::find(conditions, "Scheduled").unwrap();
    (found.status.clone(), found.message.clone())
}

fn desires(world: &World) -> Vec<InstanceState> {
    world.replicas.values().map(|replica| replica.spec.desire_state).collect()
}

#[test]
fn creation_makes_engine_and_replicas() {
    let world = once(new_volume(2, &["node1"]).set(|w| w.settings.placement.node_soft = true));
    assert_eq!((world.engines.len(), world.replicas.len()), (1, 2));
    assert_eq!(world.status(), (State::Creating, Robustness::Unknown, ""));
    let engine = &world.engines["v1-e-0"];
    assert_eq!(engine.spec.desire_state, Stopped);
    assert!(engine.spec.active && engine.metadata.finalizers.is_some());
    for replica in world.replicas.values() {
        assert_eq!((replica.spec.node_id.as_str(), replica.spec.disk_id.as_str()), ("node1", "disk-node1"));
        assert_eq!(replica.spec.engine_name, "v1-e-0");
        let labels = replica.metadata.labels.as_ref().unwrap();
        assert_eq!((labels["longhornvolume"].as_str(), labels["longhornnode"].as_str()), ("v1", "node1"));
    }
    assert_eq!(world.attachment.as_ref().unwrap().spec.volume, "v1");
    assert_eq!(scheduled(&world), ("True".into(), String::new()));
}

#[test]
fn creation_copies_the_revision_counter_flag() {
    let world = once(new_volume(1, &["node1"]).set(|w| w.volume().spec.revision_counter_disabled = true));
    assert!(world.engines["v1-e-0"].spec.revision_counter_disabled);
    assert!(world.replicas.values().all(|replica| replica.spec.revision_counter_disabled));
}

#[test]
fn without_a_node_there_is_no_replica_and_the_condition_says_so() {
    let world = once(new_volume(2, &["node1"]).set(|w| w.hosts.get_mut("node1").unwrap().allows_scheduling = false));
    assert_eq!(world.status(), (State::Creating, Robustness::Faulted, ""));
    assert_eq!(scheduled(&world), ("False".into(), "precheck new replica failed: nodes are unavailable".into()));
    assert!(world.replicas.is_empty());
    let event = world.events.iter().find(|event| event.contains("ReplicaSchedulingFailure")).unwrap();
    assert!(event.contains("node node1: spec.allowScheduling is false"), "{event}");

    // Replicas that are there without a place keep waiting for one.
    let world = once(fixture(State::Creating).set(|w| {
        for replica in w.replicas.values_mut() {
            replica.spec.node_id.clear();
            replica.spec.disk_id.clear();
        }
        for host in w.hosts.values_mut() {
            host.allows_scheduling = false;
        }
    }));
    assert_eq!(scheduled(&world), ("False".into(), "nodes are unavailable".into()));
    assert!(world.replicas.values().all(|replica| replica.spec.node_id.is_empty()));
}

#[test]
fn fewer_places_than_replicas_are_a_degraded_beginning_if_that_is_allowed() {
    let world = new_volume(3, &["node1", "node2"]).decided();
    assert_eq!(world.replicas.len(), 2);
    let reset = "Reset schedulable due to allow volume creation with degraded availability";
    assert_eq!(scheduled(&world), ("True".into(), reset.into()));
    let world = new_volume(3, &["node1", "node2"]).set(|w| w.settings.allow_degraded_creation = false).decided();
    assert_eq!(scheduled(&world).0, "False");
    // A third node later takes the third replica.
    let world = world.node(host("node3")).decided();
    assert_eq!((world.replicas.len(), scheduled(&world).0.as_str()), (3, "True"));
}

#[test]
fn states_without_a_wish() {
    let world = once(fixture(State::Creating));
    assert_eq!(world.status(), (State::Detaching, Robustness::Unknown, ""));
    let world = once(fixture(State::Detaching).recorded(&["r1", "r2"]));
    assert_eq!(world.status(), (State::Detached, Robustness::Unknown, ""));
    assert!(world.events.iter().any(|event| event.contains("volume v1 has been detached")));
    assert!(!fixture(State::Detached).step(), "a detached volume costs nothing");
}

#[test]
fn attaching_starts_replicas_then_the_engine_then_it_is_attached() {
    let world = once(fixture(State::Detached).wanted_on("node1"));
    assert_eq!(world.status().0, State::Attaching);
    assert_eq!(desires(&world), [Running, Running]);
    assert_eq!(world.engines["v1-e-0"].spec.desire_state, Stopped);

    let world = once(fixture(State::Attaching).wanted_on("node1").replicas_are(Running));
    let engine = &world.engines["v1-e-0"].spec;
    assert_eq!((engine.node_id.as_str(), engine.desire_state), ("node1", Running));
    let map: Vec<_> = engine.replica_address_map.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(map, ["r1=10.0.0.1:10000", "r2=10.0.0.1:10001"]);
    assert_eq!(world.engines["v1-e-0"].metadata.labels.as_ref().unwrap()["longhornnode"], "node1");

    let modes = [("r1", RW), ("r2", RW)];
    let world = once(fixture(State::Attaching).wanted_on("node1").replicas_are(Running).engine_runs(&modes));
    assert_eq!(world.status(), (State::Attached, Robustness::Healthy, "node1"));
    for replica in world.replicas.values() {
        assert_eq!(replica.spec.healthy_at, ago(0));
        assert_eq!(replica.spec.last_healthy_at, ago(0));
    }
    assert!(world.events.iter().any(|event| event.contains("volume v1 has been attached to node1")));
}

/// The note of a replica that is good travels with the write that tells it to run, where every replica is good.
#[test]
fn replicas_of_a_volume_that_begins_are_good_from_the_start() {
    let notes = |world: &World| -> Vec<(String, String)> {
        world.replicas.values().map(|r| (r.spec.healthy_at.clone(), r.spec.last_healthy_at.clone())).collect()
    };
    let alike = |at: String| vec![(at.clone(), at); 2];
    let told = once(fixture(State::Detached).wanted_on("node1"));
    assert_eq!((desires(&told), notes(&told)), (vec![Running, Running], alike(ago(0))));
    let modes = [("r1", RW), ("r2", RW)];
    let mut serves = told.recorded(&["r1", "r2"]).replicas_are(Running).engine_runs(&modes);
    serves.pass(jiff::SignedDuration::from_secs(30));
    let is_of_replica = |change: &Change| matches!(change, Change::Patch { kind: Kind::Replica, .. });
    let plan = serves.plan();
    assert!(!plan.changes.iter().any(is_of_replica), "nothing is left to note: {plan}");

    let none = (String::new(), String::new());
    let was_used = once(fixture(State::Detached).recorded(&["r1"]).wanted_on("node1"));
    assert_eq!(notes(&was_used), [none.clone(), none.clone()], "what its engine says of them counts");
    let adopted = once(fixture(State::Detached).wanted_on("node1").set(|w| {
        w.replica("r1").spec.last_healthy_at = ago(50);
        w.replica("r1").spec.healthy_at = ago(50);
    }));
    assert_eq!(notes(&adopted), [(ago(50), ago(50)), none.clone()], "one of them may be newer");
    let of_old = once(fixture(State::Detached).wanted_on("node1").set(|w| w.replica("r1").spec.healthy_at = ago(50)));
    assert_eq!(notes(&of_old)[1], none, "versions of Longhorn that knew no lastHealthyAt");
    let failed =
        once(fixture(State::Detached).wanted_on("node1").set(|w| w.replica("r1").spec.last_failed_at = ago(9)));
    assert_eq!(notes(&failed), [none.clone(), none]);
}

#[test]
fn a_replica_that_comes_too_late_for_the_first_start_is_not_good_and_is_given_up_with_its_node() {
    let mut world = once(fixture(State::Detached).wanted_on("node1"));
    run(world.replica("r1"), 0);
    world.pass(REPLICA_START_PATIENCE);
    let mut world = once(world);
    assert_eq!(world.engines["v1-e-0"].spec.replica_address_map.keys().collect::<Vec<_>>(), ["r1"]);
    assert_eq!(
        (world.replicas["r1"].spec.healthy_at.clone(), world.replicas["r2"].spec.healthy_at.clone()),
        (ago(0), String::new())
    );

    world = world.recorded(&["r1"]).engine_runs(&[("r1", RW)]).set(|w| {
        let gone = down(host("node2"), "KubernetesNodeNotReady");
        w.hosts.insert("node2".into(), gone);
    });
    let world = world.decided();
    assert_eq!(world.status(), (State::Attached, Robustness::Degraded, "node1"));
    assert!(
        !world.replicas["r2"].spec.failed_at.is_empty(),
        "the engine never knew it, and cannot say that it is lost"
    );
}

#[test]
fn an_engine_without_a_good_replica_is_not_attached_yet() {
    let mut world = fixture(State::Attaching).wanted_on("node1").replicas_are(Running).engine_runs(&[]);
    world.engine().status.replica_mode_map.clear();
    assert_eq!(once(world).status().0, State::Attaching);
}

#[test]
fn detaching_stops_the_engine_first() {
    let attached = || {
        let modes = [("r1", RW), ("r2", RW)];
        fixture(State::Attached).current_on("node1").replicas_are(Running).engine_runs(&modes).healthy_since(9)
    };
    let world = once(attached());
    assert_eq!(world.status().0, State::Detaching);
    assert_eq!(world.engines["v1-e-0"].spec.desire_state, Stopped);
    assert_eq!(desires(&world), [Running, Running]);

    let stopped = fixture(State::Detaching).current_on("node1").replicas_are(Running).healthy_since(9);
    let world = once(stopped.clone());
    assert_eq!((world.status().0, desires(&world)), (State::Detaching, vec![Stopped, Stopped]));
    let world = once(stopped.set(|w| w.volume().status.current_node_id.clear()));
    assert_eq!(desires(&world), [Stopped, Stopped]);
}

#[test]
fn deletion_takes_everything_along() {
    let mut world = fixture(State::Detached);
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now());
    world.volume().metadata.deletion_timestamp = Some(now);
    let world = once(world);
    assert_eq!(world.status().0, State::Deleting);
    assert!(world.engines.values().all(|engine| engine.metadata.deletion_timestamp.is_some()));
    assert!(world.replicas.values().all(|replica| replica.metadata.deletion_timestamp.is_some()));
    assert!(world.events.iter().any(|event| event.contains("Deleting volume v1")));
}

/// An engine that ends in order needs its replicas.
#[test]
fn replicas_of_an_engine_that_runs_are_deleted_after_it() {
    let mut world = fixture(State::Attached).wanted_on("node1").current_on("node1").recorded(&["r1", "r2"]);
    world = world.replicas_are(Running).engine_runs(&[("r1", RW), ("r2", RW)]);
    world.volume().metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    let leaving = |world: &World| world.replicas.values().filter(|r| r.metadata.deletion_timestamp.is_some()).count();
    world.step();
    assert!(world.engines["v1-e-0"].metadata.deletion_timestamp.is_some());
    assert_eq!(leaving(&world), 0);
    world.agents();
    world.step();
    assert_eq!(leaving(&world), 2);
}

#[test]
fn a_replica_on_a_node_that_is_gone_fails_and_the_other_starts() {
    let gone = down(host("node2"), "KubernetesNodeGone");
    let world = once(fixture(State::Attaching).wanted_on("node1").node(gone));
    assert_eq!(desires(&world), [Running, Stopped]);
    assert_eq!(
        (world.replicas["r1"].spec.failed_at.as_str(), world.replicas["r2"].spec.failed_at.clone()),
        ("", ago(0))
    );

    // An agent that is away is not a node that is down.
    let mut agentless = host("node2");
    agentless.not_ready = Some("ManagerPodDown".into());
    let world = once(fixture(State::Attaching).wanted_on("node1").node(agentless));
    assert_eq!(desires(&world), [Running, Running]);
}

/// Longhorn clears `failedAt` by times; here the record decides, and no engine is asked to guess (`salvageRequested`).
#[test]
fn auto_salvage_follows_the_record() {
    let all_failed = || {
        let world = fixture(State::Detached).robustness(Robustness::Faulted).healthy_since(100);
        world.failed("r1", 10).failed("r2", 5)
    };
    let salvaged = |world: &World| -> Vec<bool> {
        world.replicas.values().map(|replica| replica.spec.failed_at.is_empty()).collect()
    };
    let world = once(all_failed().recorded(&["r1", "r2"]));
    assert_eq!((world.status().1, salvaged(&world)), (Robustness::Unknown, vec![true, true]));
    let status = &world.volume.as_ref().unwrap().status;
    assert_eq!((&status.last_auto_salvaged_at, &status.remount_requested_at), (&ago(0), &ago(0)));
    assert!(world.events.iter().any(|event| event.contains("Replica r1 of volume v1 will be automatically salvaged")));

    // The one that failed last is not the one that has the data.
    let world = once(all_failed().recorded(&["r1"]));
    assert_eq!((world.status().1, salvaged(&world)), (Robustness::Unknown, vec![true, false]));

    let world = once(all_failed().recorded(&["r1"]).node(down(host("node1"), "KubernetesNodeNotReady")));
    assert_eq!((world.status().1, salvaged(&world)), (Robustness::Faulted, vec![false, false]));
    let report = world.plan().report.to_string();
    assert!(report.contains("Its node \"node1\" is down or gone."), "{report}");
    assert!(report.contains("the record does not name it as in sync"), "{report}");

    // A disk that takes nothing new still has what is on it.
    let mut full = host("node1");
    full.disks[0].unschedulable = Some("DiskPressure".into());
    let world = once(all_failed().recorded(&["r1"]).node(full));
    assert_eq!(salvaged(&world), [true, false]);

    let world = once(all_failed().recorded(&["r1"]).set(|w| w.settings.auto_salvage = false));
    assert_eq!(world.status().1, Robustness::Faulted);
}

fn degraded() -> World {
    let world = fixture(State::Attached).wanted_on("node1").current_on("node1").recorded(&["r1"]);
    let world = world.robustness(Robustness::Degraded).healthy_since(100).failed("r2", 30);
    world.replicas_are(Running).engine_runs(&[("r1", RW)])
}

#[test]
fn a_failed_replica_is_used_again_first() {
    let world = once(degraded());
    let spec = &world.replicas["r2"].spec;
    assert_eq!((spec.failed_at.as_str(), spec.healthy_at.as_str(), spec.rebuild_retry_count), ("", "", 1));
    assert_eq!((&spec.last_failed_at, &spec.last_healthy_at), (&ago(30), &ago(100)));
    assert_eq!(spec.desire_state, Running);
    assert_eq!(world.replicas.len(), 2);

    // A second failure in a row is not tried again at once.
    let again = degraded().set(|w| w.replica("r2").spec.rebuild_retry_count = 1);
    assert!(once(again.clone()).replicas["r2"].spec.failed_at == ago(30));
    let later = again.clone().set(|w| w.pass(jiff::SignedDuration::from_secs(31)));
    assert!(once(later).replicas["r2"].spec.failed_at.is_empty());

    // What failed before its instance manager was started anew says nothing about that one: the count starts over.
    let again = again.set(|w| w.replica("r2").spec.rebuild_retry_count = 4);
    let since = |seconds: i64| {
        let manager_since = Some(now() - jiff::SignedDuration::from_secs(seconds));
        once(again.clone().node(Host { manager_since, ..host("node2") }))
    };
    let spec = &since(29).replicas["r2"].spec;
    assert_eq!((spec.failed_at.as_str(), spec.rebuild_retry_count), ("", 1));
    let spec = &since(31).replicas["r2"].spec;
    assert_eq!((spec.failed_at.as_str(), spec.rebuild_retry_count), (ago(30).as_str(), 4), "it failed in this one");
}

#[test]
fn an_attempt_that_ended_with_the_instance_manager_does_not_count() {
    let tried = || {
        degraded().set(|w| {
            let spec = &mut w.replica("r2").spec;
            (spec.failed_at, spec.rebuild_retry_count, spec.desire_state) = (String::new(), 1, Running);
        })
    };
    let count = |world: World| once(world).replicas["r2"].spec.rebuild_retry_count;
    let ended = |w: &mut World| w.replica("r2").status.current_state = InstanceState::Error;
    let by_itself = |w: &mut World| {
        let conditions = &mut w.replica("r2").status.conditions;
        condition::set(conditions, INSTANCE_CREATION, condition::FALSE, "", "the disk failed", now());
    };
    assert_eq!(count(tried().set(ended)), 0);
    assert_eq!(count(tried().set(ended).set(by_itself)), 1);
    let given_up = || tried().engine_runs(&[("r1", RW), ("r2", ReplicaMode::Error)]);
    assert_eq!(count(given_up()), 1, "its process runs, and the engine gave it up");
    assert_eq!(count(given_up().set(ended)), 0);
    let gone = Host { manager: Manager::Error, ..host("node2") };
    assert_eq!(count(given_up().node(gone)), 0);
    assert_eq!(count(given_up().node(down(host("node2"), "KubernetesNodeNotReady"))), 0);
}

#[test]
fn a_new_replica_waits_for_one_that_may_come_back() {
    let waiting = || degraded().node(down(host("node2"), "KubernetesNodeNotReady")).node(host("node3"));
    let world = once(waiting());
    assert_eq!(world.replicas.len(), 2);
    assert_eq!(world.plan().wake_at(), Some(now() + jiff::SignedDuration::from_secs(600 - 60)));
    let world = once(waiting().set(|w| w.pass(jiff::SignedDuration::from_secs(540))));
    assert_eq!(world.replicas.len(), 3);
    let made = world.replicas.values().find(|replica| replica.spec.node_id == "node3").unwrap();
    assert_eq!((made.spec.desire_state, made.spec.rebuild_retry_count), (Running, 5));
}

/// Replicas on a node that is down, in an attached volume: those that were asked to start and never did have failed; the
/// others are the engine's to judge.
#[test]
fn a_replica_that_never_started_on_a_node_that_is_down() {
    type Set = fn(&mut tether_crd::Replica);
    let table: &[(&str, Set, bool)] = &[
        ("was asked to run", |r| r.spec.desire_state = Running, true),
        ("is starting, as its agent said", |r| r.status.starting = true, true),
        ("was never asked", |_| (), false),
        (
            "ran before",
            |r| {
                r.spec.desire_state = Running;
                r.status.started = true;
                r.status.current_state = Running;
            },
            false,
        ),
        (
            "was good once",
            |r| {
                r.spec.desire_state = Running;
                r.spec.healthy_at = ago(5);
            },
            false,
        ),
        (
            "has a process that starts",
            |r| {
                r.spec.desire_state = Running;
                r.status.current_state = InstanceState::Starting;
            },
            false,
        ),
    ];
    for (what, set, fails) in table {
        let modes = [("r1", RW)];
        let mut world = fixture(State::Attached).wanted_on("node1").current_on("node1").recorded(&["r1"]);
        run(world.replica("r1"), 0);
        world.replica("r1").spec.healthy_at = ago(50);
        world = world.engine_runs(&modes).node(down(host("node2"), "KubernetesNodeNotReady"));
        set(world.replica("r2"));
        let world = once(world);
        assert_eq!(!world.replicas["r2"].spec.failed_at.is_empty(), *fails, "a replica that {what}");
        assert_eq!(world.engines["v1-e-0"].spec.replica_address_map.len(), 1, "a replica that {what}");
    }
}

#[test]
fn expansion_is_asserted_until_the_engine_serves_the_size() {
    let grown = |served: i64| {
        let modes = [("r1", RW), ("r2", RW)];
        let world = fixture(State::Attached).wanted_on("node1").current_on("node1").recorded(&["r1", "r2"]);
        world.replicas_are(Running).engine_runs(&modes).healthy_since(9).robustness(Robustness::Healthy).set(|w| {
            w.volume().spec.size.0 = 2 * GIB;
            w.engine().spec.volume_size.0 = 2 * GIB;
            w.engine().status.current_size.0 = served;
            for replica in w.replicas.values_mut() {
                replica.spec.volume_size.0 = 2 * GIB;
            }
        })
    };
    let world = once(grown(GIB));
    assert!(world.volume.as_ref().unwrap().status.expansion_required);
    let ticket = &world.attachment.as_ref().unwrap().spec.attachment_tickets["volume-expansion-controller-v1"];
    assert_eq!((ticket.node_id.as_str(), ticket.parameters["disableFrontend"].as_str()), ("node1", "false"));

    let done = world.set(|w| w.engine().status.current_size.0 = 2 * GIB).decided();
    assert!(!done.volume.as_ref().unwrap().status.expansion_required);
    assert!(done.attachment.as_ref().unwrap().spec.attachment_tickets.is_empty());

    // The wish comes first, and only if the disks have room.
    let wish = |size: i64| {
        grown(GIB).set(|w| {
            w.volume().spec.size.0 = size;
            w.engine().spec.volume_size.0 = GIB;
            for replica in w.replicas.values_mut() {
                replica.spec.volume_size.0 = GIB;
            }
        })
    };
    let world = once(wish(3 * GIB));
    assert_eq!(world.engines["v1-e-0"].spec.volume_size.0, 3 * GIB);
    assert!(world.replicas.values().all(|replica| replica.spec.volume_size.0 == 3 * GIB));
    let world = once(wish(300 * GIB));
    assert_eq!(world.engines["v1-e-0"].spec.volume_size.0, GIB);
    assert!(world.plan().report.to_string().contains("InsufficientStorage"));
    // Taken back before the engine began.
    let world = once(wish(3 * GIB)).set(|w| w.volume().spec.size.0 = GIB);
    let world = once(world);
    assert_eq!(world.engines["v1-e-0"].spec.volume_size.0, GIB);
    assert!(world.events.iter().any(|event| event.contains("CanceledExpansion")));
}

/// Longhorn deletes the remote replica at once; here the engine lets it go first.
#[test]
fn best_effort_locality_keeps_the_local_replica() {
    let modes = [("r1", RW), ("r2", RW)];
    let mut world = fixture(State::Attached).wanted_on("node2").current_on("node2").recorded(&["r1", "r2"]);
    world = world.replicas_are(Running).engine_runs(&modes).healthy_since(9).robustness(Robustness::Healthy);
    world.volume().spec.number_of_replicas = 1;
    world.volume().spec.data_locality = DataLocality::BestEffort;
    world.step();
    assert_eq!(world.engines["v1-e-0"].spec.replica_address_map.keys().collect::<Vec<_>>(), ["r2"]);
    assert!(world.replicas["r1"].metadata.deletion_timestamp.is_none(), "the record still names it");
    world.agents();
    world.step();
    assert!(world.replicas["r1"].metadata.deletion_timestamp.is_some());
    assert!(world.replicas["r2"].metadata.deletion_timestamp.is_none());
}

#[test]
fn robustness_follows_the_engine() {
    let attached = |modes: &[(&str, ReplicaMode)], robustness| {
        let world = fixture(State::Attached).wanted_on("node1").current_on("node1").recorded(&["r1", "r2"]);
        world.replicas_are(Running).engine_runs(modes).healthy_since(9).robustness(robustness)
    };
    // Faulted, but the engine runs and has a good replica: it recovers.
    let world = once(attached(&[("r1", RW), ("r2", RW)], Robustness::Faulted));
    assert_eq!(world.status().1, Robustness::Healthy);

    let world = once(attached(&[("r1", RW), ("r2", ERR)], Robustness::Healthy));
    assert_eq!(world.status().1, Robustness::Degraded);
    assert_eq!(world.volume.as_ref().unwrap().status.last_degraded_at, ago(0));
    assert_eq!(
        (world.replicas["r2"].spec.failed_at.clone(), world.replicas["r2"].spec.desire_state),
        (ago(0), Stopped)
    );
    assert!(!world.engines["v1-e-0"].spec.replica_address_map.contains_key("r2"));
    assert!(world.events.iter().any(|event| event == "Normal Degraded Volume/v1: volume v1 became degraded"));

    let world = once(attached(&[("r1", RW), ("r2", RW)], Robustness::Degraded));
    assert_eq!(world.volume.as_ref().unwrap().status.last_degraded_at, "");
    assert!(world.events.iter().any(|event| event == "Normal Healthy Volume/v1: volume v1 became healthy"));

    // The engine died: whoever decides about tickets sees a faulted volume.
    let dead = attached(&[("r1", RW), ("r2", RW)], Robustness::Healthy).set(|w| {
        w.engine().status.current_state = Error;
        w.engine().status.replica_mode_map.clear();
    });
    let world = once(dead);
    assert_eq!(world.status(), (State::Attached, Robustness::Faulted, "node1"));
    let note = "Engine of volume v1 dead unexpectedly, setting v.Status.Robustness to faulted";
    assert!(world.events.iter().any(|event| event == &format!("Warning DetachedUnexpectedly Volume/v1: {note}")));

    // Its node is not heard of: nobody knows.
    let world = once(
        attached(&[("r1", RW), ("r2", RW)], Robustness::Healthy).node(down(host("node1"), "KubernetesNodeNotReady")),
    );
    assert_eq!(world.status(), (State::Attached, Robustness::Unknown, "node1"));
    assert!(world.events.iter().any(|event| event == "Warning Unknown Volume/v1: volume v1 robustness is unknown"));

    // Detached after a fault, with replicas that can be used: it may be attached again.
    let world = once(fixture(State::Detached).recorded(&["r1", "r2"]).robustness(Robustness::Faulted).healthy_since(9));
    assert_eq!(world.status().1, Robustness::Unknown);
    assert_eq!(world.volume.as_ref().unwrap().status.remount_requested_at, ago(0));
    assert!(world.events.iter().any(|event| event.contains("Normal Remount")));
}

/// A replica that failed is deleted when it failed too long ago or too often, but never one that the record names.
#[test]
fn stale_replicas_go_and_the_last_good_one_stays() {
    let stale = |recorded: &[&str]| {
        degraded().recorded(recorded).set(|w| {
            w.volume().spec.stale_replica_timeout = 20;
            w.replica("r2").spec.failed_at = ago(20 * 60);
            w.hosts.get_mut("node2").unwrap().manager = tether_plan::placement::Manager::Error;
        })
    };
    let gone = |world: &World| world.replicas["r2"].metadata.deletion_timestamp.is_some();
    assert!(gone(&once(stale(&["r1"]))));
    assert!(!gone(&once(stale(&["r1", "r2"]))), "the record still names it");
    let unproven = stale(&["r1"]).set(|w| w.replica("r1").spec.last_failed_at = ago(1));
    let unproven = unproven.set(|w| w.engine().status.replica_mode_map.clear());
    assert!(!gone(&once(unproven)), "no other is known to be good");
    let often = stale(&["r1"]).set(|w| {
        w.replica("r2").spec.failed_at = ago(1);
        w.replica("r2").spec.rebuild_retry_count = 5;
    });
    assert!(gone(&once(often)));
}

#[test]
fn an_engine_on_another_node_is_not_touched() {
    let world = fixture(State::Attaching).wanted_on("node1").replicas_are(Running).set(|w| {
        w.engine().spec.node_id = "node2".into();
        w.engine().spec.desire_state = Running;
        w.engine().status.current_state = Running;
    });
    let plan = world.plan();
    assert!(plan.report.to_string().contains("engine is on node node2 vs volume on node1, must detach first"));
    assert!(
        !plan.changes.iter().any(|change| matches!(change, Change::Patch { target, .. } if target.name == "v1-e-0"))
    );
}
