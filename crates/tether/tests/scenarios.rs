//! Live migration under every failure: the scenarios and random schedules of `tether scenario`, as a user runs them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "figures for whoever reads the test's output")]

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long a pass over all scenarios may take.
const PASS: Duration = Duration::from_secs(600);

/// Runs `tether scenario …`; panics with what it said if something failed. Returns its report.
fn scenario(args: &[&str]) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tether"));
    command.arg("scenario").args(args).arg("--report").arg(&report);
    command.env_remove("KUBECONFIG").env_remove("TETHER_DATA_DIR");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complained}");
    eprintln!("{said}");
    serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap()
}

#[test]
fn every_scenario_ends_in_an_accepted_way() {
    let began = Instant::now();
    let verdicts = scenario(&["run", "all"]);
    assert!(began.elapsed() < PASS, "it took {:?}", began.elapsed());
    for verdict in &verdicts {
        assert_eq!(verdict["problems"], Value::Array(Vec::new()), "{verdict:#}");
        assert!(verdict["acknowledged"].as_u64() > Some(100), "the guest worked: {verdict:#}");
        assert!(verdict.get("skipped").is_none(), "{verdict:#}");
        // People are told what happens in every phase.
        let explained = verdict["explained"].as_array().unwrap();
        assert!(explained.iter().all(|at| at["text"].as_str().unwrap().starts_with("Volume ")), "{verdict:#}");
    }
    for (id, after, words) in EXPLAINED {
        let verdict = verdicts.iter().find(|verdict| verdict["id"] == *id).unwrap();
        let mut steps = verdict["explained"].as_array().unwrap().iter();
        let step = steps.find(|at| at["after"].as_str().unwrap().contains(after));
        let text = step.unwrap_or_else(|| panic!("{id}: no step {after:?}"))["text"].as_str().unwrap();
        assert!(text.contains(words), "{id}, {after}: it does not say {words:?}:\n{text}");
    }
}

/// What `tether explain volume` says in the phases of a migration that last: scenario, step, words.
const EXPLAINED: &[(&str, &str, &str)] = &[
    (
        "1.1",
        "wait until it is ready",
        "✓ The volume moves from node node-1 to node node-2. Volume migration engine is ready",
    ),
    ("1.1", "wait until it is ready", "It is confirmed when the attachment to node node-1 goes"),
    ("2.1", "it ended", "detach volume from extra node to resume"),
    ("5.1", "it ended", "✗ The engine is to start on node \"node-2\", which is down."),
    ("6.2", "it ended", "✗ Node \"node-1\", where the engine runs, is not heard of."),
    ("7.1", "nothing comes of it", "moves from node node-1 to node node-2 when that is ready"),
    ("7.3", "write on node-2", "✓ The engine serves on node node-2"),
    ("7.3", "write on node-2", "has written and thereby taken the volume over"),
];

/// What shows that the guest checks its data at all.
#[test]
fn a_wrong_byte_fails_a_scenario() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tether"));
    command.args(["scenario", "run", "7.2", "--plant-wrong-byte"]);
    command.env_remove("KUBECONFIG").env_remove("TETHER_DATA_DIR");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("7.2: data: block 0: torn or foreign content"), "{said}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("again: tether scenario run 7.2 --keep"));
}

#[test]
fn random_schedules_break_nothing() {
    scenario(&["random", "--seeds", "3", "--first-seed", "1"]);
}

#[test]
#[ignore = "a campaign: cargo xtask campaign run scenarios"]
fn all_scenarios_in_a_long_campaign() {
    for pass in 1..=number("TETHER_SEEDS", 3) {
        let began = Instant::now();
        scenario(&["run", "all"]);
        eprintln!("pass {pass}: {:.0} s", began.elapsed().as_secs_f64());
        assert!(began.elapsed() < PASS, "it took {:?}", began.elapsed());
    }
}

#[test]
#[ignore = "a campaign: cargo xtask campaign run random-migrations"]
fn random_schedules_in_a_long_campaign() {
    let (first, seeds) = (number("TETHER_FIRST_SEED", 0), number("TETHER_SEEDS", 50));
    scenario(&["random", "--seeds", &seeds.to_string(), "--first-seed", &first.to_string()]);
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn a_scenario_that_does_not_exist_is_refused_with_those_that_do() {
    let output = Command::new(env!("CARGO_BIN_EXE_tether")).args(["scenario", "run", "9.9"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("there is no scenario \"9.9\"") && said.contains("6.2"),
        "{said}"
    );
}
