//! Random lives: nodes come and go, the volume is wanted here and there. What must hold at every moment, and in the end.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use proptest::prelude::*;
use tether_crd::engine::InstanceState;
use tether_crd::volume::{Robustness, State};

use crate::build::*;
use crate::world::World;

const NODES: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Clone, Copy, Debug)]
enum Happens {
    Decide,
    Agents,
    Tickets,
    Crash(usize),
    ComeBack(usize),
    Want(usize),
    Unwant,
    Pass(i64),
    Replicas(i64),
    /// A replica's process dies.
    Kill(usize),
    Cordon(usize),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        8 => Just(Happens::Decide),
        6 => Just(Happens::Agents),
        4 => Just(Happens::Tickets),
        1 => (0..4_usize).prop_map(Happens::Crash),
        2 => (0..4_usize).prop_map(Happens::ComeBack),
        2 => (0..4_usize).prop_map(Happens::Want),
        1 => Just(Happens::Unwant),
        2 => (1..700_i64).prop_map(Happens::Pass),
        1 => (1..4_i64).prop_map(Happens::Replicas),
        1 => (0..8_usize).prop_map(Happens::Kill),
        1 => (0..4_usize).prop_map(Happens::Cordon),
    ]
}

/// The data of replicas that ever held everything at the newest epoch: what the record names must be among them.
fn act(world: &mut World, wanted: &mut String, what: Happens) {
    match what {
        Happens::Decide => drop(world.step()),
        Happens::Agents => drop(world.agents()),
        Happens::Tickets => world.tickets(wanted),
        Happens::Crash(node) => world.crash(NODES[node]),
        Happens::ComeBack(node) => world.come_back(NODES[node]),
        Happens::Want(node) => NODES[node].clone_into(wanted),
        Happens::Unwant => wanted.clear(),
        Happens::Pass(seconds) => world.pass(SignedDuration::from_secs(seconds)),
        Happens::Replicas(count) => world.volume().spec.number_of_replicas = count,
        Happens::Kill(index) => {
            let running = world.replicas.values_mut().filter(|r| r.status.current_state == InstanceState::Running);
            if let Some(replica) = running.into_iter().nth(index) {
                replica.status.current_state = InstanceState::Error;
            }
        }
        Happens::Cordon(node) => {
            let host = world.hosts.get_mut(NODES[node]).unwrap();
            host.unschedulable =
                if host.unschedulable.is_some() { None } else { Some("KubernetesNodeCordoned".into()) };
        }
    }
}

/// Every write that is decided on twice would be a loop that never ends.
fn deciding_twice_changes_nothing(world: &World) -> Result<(), TestCaseError> {
    let mut once = world.clone();
    for _ in 0..12 {
        if !once.step() {
            return Ok(());
        }
    }
    Err(TestCaseError::fail(format!("decisions never end: {}", once.plan())))
}

fn safe(world: &World) -> Result<(), TestCaseError> {
    let active = world.engines.values().filter(|engine| engine.spec.active).count();
    prop_assert!(active <= 1, "two active engines");
    let Some(record) = world.record() else { return Ok(()) };
    let members: BTreeSet<&String> = world.replicas.values().map(|r| &r.spec.data_directory_name).collect();
    prop_assert!(
        record.in_sync.iter().any(|member| members.contains(member)),
        "no replica is left that holds everything"
    );
    Ok(())
}

proptest! {
    // Each case is a whole life; PROPTEST_CASES asks for more.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

    /// Whatever happens, a replica that holds everything is left; and when all nodes are up, the volume gets where it is
    /// wanted, with as many replicas as it asks for, and comes to rest.
    #[test]
    fn a_volume_survives_and_converges(script in prop::collection::vec(happens(), 0..120), end in 0..5_usize) {
        let mut world = new_volume(3, &NODES);
        world.volume().spec.stale_replica_timeout = 30;
        let mut wanted = "a".to_owned();
        for what in script {
            act(&mut world, &mut wanted, what);
            safe(&world)?;
            deciding_twice_changes_nothing(&world)?;
        }
        for node in NODES {
            world.come_back(node);
            world.hosts.get_mut(node).unwrap().unschedulable = None;
        }
        let wanted = NODES.get(end).copied().unwrap_or_default();
        // Longer than every wait, more often than a replica may fail.
        for _ in 0..8 {
            world.settle(wanted);
            world.pass(SignedDuration::from_mins(11));
        }
        world.settle(wanted);
        safe(&world)?;
        let (state, robustness, node) = world.status();
        if wanted.is_empty() {
            prop_assert_eq!((state, node), (State::Detached, ""), "{}", world.plan());
        } else {
            prop_assert_eq!((state, robustness, node), (State::Attached, Robustness::Healthy, wanted), "{}", world.plan());
            let count = usize::try_from(world.volume().spec.number_of_replicas).unwrap();
            prop_assert_eq!(world.record().unwrap().in_sync.len(), count);
            prop_assert_eq!(world.replicas.len(), count, "{}", world.plan());
        }
        prop_assert!(!world.step(), "{}", world.plan());
        prop_assert_eq!(world.plan().wake_at(), None);
    }
}
