//! The whole way from a pod to its mounted volume, on whatever cluster there is.
//!
//! `TETHER_E2E_KUBECONFIG=… cargo test --test e2e` runs the same cases on a cluster that is there already. Cases share one
//! cluster and come one after the other: starting it takes longer than most of them.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by panicking and tells what it skips")]

mod cases;
mod growth;
mod kills;
mod lab;
mod nodes;
mod room;
mod snapshots;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::lab::Lab;

/// Whether volumes can be mounted here; tells if not.
fn has_devices(test: &str) -> bool {
    let external = std::env::var_os("TETHER_E2E_KUBECONFIG").is_some();
    let found = external || (rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists());
    if !found {
        eprintln!("{test}: SKIPPED, kernel devices need root and /dev/fuse");
    }
    found
}

/// What is told while it runs, and what runs.
type Case = (&'static str, fn(&Lab));

fn run(lab: &Lab, cases: &[Case]) {
    for (name, case) in cases {
        let started = Instant::now();
        eprintln!("case {name}");
        case(lab);
        lab.nothing_is_left();
        eprintln!("case {name}: {:.1} s", started.elapsed().as_secs_f64());
    }
}

#[test]
fn pods_with_claims() {
    if !has_devices("pods_with_claims") {
        return;
    }
    let lab = Lab::start(&[]);
    run(
        &lab,
        &[
            ("data follows the pod", cases::data_follows_the_pod),
            ("a block volume is a device", cases::a_block_volume_is_a_device),
            ("a second node waits", cases::a_second_node_waits),
            ("one pod alone", cases::one_pod_alone),
            ("what containers see", cases::what_containers_see),
            ("pods restart and wait", cases::pods_restart_and_wait),
            ("the scheduler chooses", cases::the_scheduler_chooses),
            ("agents restart", nodes::agents_restart),
        ],
    );
}

#[test]
fn volumes_that_grow() {
    if !has_devices("volumes_that_grow") || !lab::has_kubectl("volumes_that_grow") {
        return;
    }
    let lab = Lab::start(&[]);
    run(
        &lab,
        &[
            ("ext4 grows under its pod", growth::ext4_under_its_pod),
            ("xfs grows under its pod", growth::xfs_under_its_pod),
            ("a device grows under its pod", growth::a_device_under_its_pod),
            ("a pod goes where there is room", room::a_pod_goes_where_there_is_room),
            ("a volume grows while nobody has it", growth::while_nobody_has_it),
            ("what cannot grow says so", growth::what_cannot_grow),
        ],
    );
}

#[test]
fn volumes_that_are_copied() {
    if !has_devices("volumes_that_are_copied") || !lab::has_kubectl("volumes_that_are_copied") {
        return;
    }
    let lab = Lab::start(&[]);
    run(
        &lab,
        &[
            ("a snapshot of a volume in use", snapshots::of_a_volume_in_use),
            ("a snapshot of a detached volume", snapshots::of_a_detached_volume),
            ("a snapshot that is kept", snapshots::one_that_is_kept),
            ("a clone", snapshots::a_clone),
            ("a source that is deleted", snapshots::a_source_that_is_deleted),
            ("what cannot be made says so", snapshots::what_cannot_be_made),
        ],
    );
}

#[test]
fn nodes_that_go_away() {
    if !has_devices("nodes_that_go_away") {
        return;
    }
    let lab = Lab::start(&["TETHER_NODE_MONITOR_GRACE=15s", "TETHER_FORCE_DETACH_AFTER=3s"]);
    run(
        &lab,
        &[
            ("a silent node keeps its volumes for a while", nodes::a_silent_node),
            ("a node out of service loses them at once", nodes::out_of_service),
            ("a deleted node leaves nothing", nodes::a_deleted_node),
        ],
    );
}

#[test]
fn pods_come_and_go_while_processes_are_killed() {
    if has_devices("pods_come_and_go_while_processes_are_killed") && std::env::var_os("TETHER_E2E_KUBECONFIG").is_none()
    {
        kills::kills(&Lab::start(&[]), 1, 4, Duration::from_secs(25), (1500, 4000));
    }
}

/// A seed is ten minutes with twenty claims.
#[test]
#[ignore = "a campaign: cargo xtask campaign run pod-kills"]
fn pods_come_and_go_in_a_long_campaign() {
    let number =
        |name: &str, default: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    for seed in number("TETHER_FIRST_SEED", 0)..number("TETHER_FIRST_SEED", 0) + number("TETHER_SEEDS", 1) {
        eprintln!("seed {seed}");
        kills::kills(&Lab::start(&[]), seed, 20, Duration::from_secs(600), (1500, 6000));
    }
}
