//! What an agent makes of an engine's object, step by step.

use tether_crd::condition;

use super::*;

fn engine() -> Engine {
    let mut engine = Engine::default();
    engine.metadata.name = Some("v1-e-0".into());
    engine.spec.node_id = "node-1".into();
    engine.spec.active = true;
    engine.spec.volume_size.0 = 100;
    engine.spec.frontend = tether_crd::volume::Frontend::BlockDev;
    for (name, address) in [("r1", "a:1"), ("r2", "b:1")] {
        engine.spec.replica_address_map.insert(name.into(), address.into());
    }
    engine
}

fn member(id: &str, address: &str, in_sync: bool, connected: bool) -> Member {
    Member { id: id.into(), address: address.into(), in_sync, connected, ..Member::default() }
}

fn serving(members: Vec<Member>) -> EngineProcess {
    EngineProcess {
        process: Process { uid: "u".into(), state: ProcessState::Running, ..Process::default() },
        size: 100,
        endpoint: "/dev/longhorn/v1".into(),
        members,
        ..EngineProcess::default()
    }
}

fn step(engine: &mut Engine, manager: Manager, process: Option<&EngineProcess>) -> Vec<String> {
    let is_asked_for = engine.spec.volume_name == "asked-for";
    let started_with = BTreeSet::from(["a:1", "b:1"].map(str::to_owned));
    let observed = EngineObserved {
        engine,
        manager,
        manager_name: "im",
        process,
        start_error: None,
        stop_error: (engine.spec.volume_name == "mounted").then_some("it is mounted"),
        is_slow: true,
        is_asked_for,
        list_due: false,
        snapshots: Vec::new(),
        copy: None,
        dismissed: None,
        started_with: Some(&started_with),
    };
    let plan = decide_engine(&observed, Timestamp::UNIX_EPOCH);
    if observed.stop_error.is_some() {
        let last = plan.changes.last();
        assert!(matches!(last, Some(EngineChange::Stop { .. })), "what fails comes last: {last:?}");
    }
    let mut told = Vec::new();
    for change in plan.changes {
        match change {
            EngineChange::SetStatus { status, .. } => engine.status = *status,
            other => told.push(format!("{other:?}")),
        }
    }
    told
}

fn modes(engine: &Engine) -> String {
    let modes = engine.status.replica_mode_map.iter().map(|(name, mode)| format!("{name}={mode}"));
    modes.collect::<Vec<_>>().join(" ")
}

#[test]
fn an_engine_runs_once_it_serves_and_has_its_device() {
    let mut engine = engine();
    engine.spec.desire_state = InstanceState::Running;
    assert_eq!(step(&mut engine, Manager::Known, None), ["Start { standby: false }"]);
    let both = vec![member("m1", "a:1", true, true), member("m2", "b:1", true, true)];
    let without = EngineProcess { endpoint: String::new(), ..serving(both.clone()) };
    step(&mut engine, Manager::Known, Some(&without));
    assert_eq!(engine.status.current_state, InstanceState::Starting);
    assert_eq!(step(&mut engine, Manager::Known, Some(&serving(both.clone()))), Vec::<String>::new());
    assert_eq!(engine.status.current_state, InstanceState::Running);
    assert_eq!((engine.status.endpoint.as_str(), modes(&engine).as_str()), ("/dev/longhorn/v1", "r1=RW r2=RW"));
    let before = engine.status.clone();
    step(&mut engine, Manager::Known, Some(&serving(both)));
    assert_eq!(engine.status, before, "nothing is written twice");
    engine.spec.desire_state = InstanceState::Stopped;
    assert_eq!(step(&mut engine, Manager::Known, Some(&serving(Vec::new()))), ["Stop { keep_device: false }"]);
    step(&mut engine, Manager::Known, None);
    assert_eq!((engine.status.current_state, modes(&engine).as_str()), (InstanceState::Stopped, ""));
}

#[test]
fn what_ended_in_order_before_it_served_is_started_anew() {
    let mut engine = engine();
    engine.spec.desire_state = InstanceState::Running;
    let mut ended = serving(Vec::new());
    ended.process.state = ProcessState::Stopped;
    assert_eq!(step(&mut engine, Manager::Known, Some(&ended)), ["Start { standby: false }"]);
    let members = vec![member("m1", "a:1", true, true)];
    step(&mut engine, Manager::Known, Some(&serving(members)));
    assert_eq!(step(&mut engine, Manager::Known, Some(&ended)), Vec::<String>::new());
    assert_eq!(engine.status.current_state, InstanceState::Error, "one that served is for the volume to decide about");
}

#[test]
fn why_an_engine_does_not_end_is_told_before_that_is_tried_again() {
    let mut engine = engine();
    engine.spec.desire_state = InstanceState::Running;
    let serving = serving(vec![member("m1", "a:1", true, true)]);
    step(&mut engine, Manager::Known, Some(&serving));
    engine.spec.desire_state = InstanceState::Stopped;
    engine.spec.volume_name = "mounted".into();
    let removal = |engine: &Engine| {
        let found = condition::find(&engine.status.conditions, INSTANCE_REMOVAL).unwrap();
        (found.status.clone(), found.message.clone())
    };
    assert_eq!(step(&mut engine, Manager::Known, Some(&serving)), ["Stop { keep_device: false }"]);
    assert_eq!(removal(&engine), (condition::FALSE.to_owned(), "it is mounted".to_owned()));
    // The same for one that is being deleted.
    engine.status.conditions.clear();
    engine.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    engine.metadata.finalizers = Some(vec![FINALIZER.into()]);
    assert_eq!(step(&mut engine, Manager::Known, Some(&serving)), ["Stop { keep_device: false }"]);
    assert_eq!(removal(&engine).0, condition::FALSE);
}

#[test]
fn why_there_is_no_device_is_told_until_there_is_one() {
    let mut engine = engine();
    engine.spec.desire_state = InstanceState::Running;
    let mut waits = serving(vec![member("m1", "a:1", true, true)]);
    waits.endpoint.clear();
    waits.process.reason = "no free loop device".into();
    step(&mut engine, Manager::Known, Some(&waits));
    let told = |engine: &Engine| {
        let found = condition::find(&engine.status.conditions, INSTANCE_CREATION).unwrap();
        (found.status.clone(), found.message.clone())
    };
    assert_eq!(engine.status.current_state, InstanceState::Starting);
    assert_eq!(told(&engine), (condition::FALSE.to_owned(), "no free loop device".to_owned()));
    step(&mut engine, Manager::Known, Some(&serving(vec![member("m1", "a:1", true, true)])));
    assert_eq!(told(&engine), (condition::TRUE.to_owned(), String::new()));
}

#[test]
fn modes_follow_the_record_and_the_connection() {
    let mut engine = engine();
    engine.spec.desire_state = InstanceState::Running;
    let first = member("m1", "a:1", true, true);
    let rows = [
        (member("m2", "b:1", true, true), "r1=RW r2=RW"),
        (member("m2", "b:1", true, false), "r1=RW r2=RW"),
        (member("m2", "b:1", false, false), "r1=RW r2=ERR"),
        (Member { resync: Some(10), ..member("m2", "b:1", false, true) }, "r1=RW r2=WO"),
        (member("m2", "b:1", true, true), "r1=RW r2=RW"),
    ];
    for (second, expected) in rows {
        step(&mut engine, Manager::Known, Some(&serving(vec![first.clone(), second])));
        assert_eq!(modes(&engine), expected);
    }
}

#[test]
fn replicas_join_before_others_leave() {
    let mut engine = engine();
    engine.spec.desire_state = InstanceState::Running;
    engine.spec.replica_address_map.insert("r2".into(), "b:2".into());
    let old = vec![member("m1", "a:1", true, true), member("m2", "b:1", false, false)];
    assert_eq!(step(&mut engine, Manager::Known, Some(&serving(old))), [r#"AddReplica { address: "b:2" }"#]);
    let new = vec![member("m1", "a:1", true, true), member("m2", "b:2", false, true), member("m3", "c:1", true, true)];
    assert_eq!(step(&mut engine, Manager::Known, Some(&serving(new))), [r#"RemoveReplica { id: "m3" }"#]);
}

#[test]
fn a_volume_grows_and_a_standby_is_promoted() {
    let mut engine = engine();
    engine.spec.desire_state = InstanceState::Running;
    let both = vec![member("m1", "a:1", true, true), member("m2", "b:1", true, true)];
    let small = EngineProcess { size: 50, ..serving(both.clone()) };
    assert_eq!(step(&mut engine, Manager::Known, Some(&small)), ["Expand { size: 100 }"]);
    assert!(engine.status.is_expanding);
    let standby = EngineProcess { is_standby: true, size: 50, ..serving(Vec::new()) };
    assert_eq!(step(&mut engine, Manager::Known, Some(&standby)), ["Promote"]);
    assert_eq!(modes(&engine), "r1=RW r2=RW", "it has what the engine has that it reads through");
}

#[test]
fn an_engine_that_ends_by_itself_is_in_error_and_waits_to_be_told() {
    let mut engine = engine();
    engine.spec.desire_state = InstanceState::Running;
    let both = vec![member("m1", "a:1", true, true), member("m2", "b:1", true, true)];
    step(&mut engine, Manager::Known, Some(&serving(both)));
    let mut failed = serving(Vec::new());
    failed.process.state = ProcessState::Error;
    failed.process.reason = "fenced".into();
    assert_eq!(step(&mut engine, Manager::Known, Some(&failed)), Vec::<String>::new());
    assert_eq!((engine.status.current_state, engine.status.endpoint.as_str()), (InstanceState::Error, ""));
    assert_eq!(condition::find(&engine.status.conditions, INSTANCE_CREATION).unwrap().message, "fenced");
    engine.spec.desire_state = InstanceState::Stopped;
    assert_eq!(step(&mut engine, Manager::Known, Some(&failed)), ["Stop { keep_device: false }"]);
    assert_eq!(step(&mut engine, Manager::Down, None), ["RemoveDevice"]);
    assert_eq!(engine.status.current_state, InstanceState::Stopped, "it is known that nothing runs");
}

#[test]
fn a_device_outlives_an_engine_that_will_be_back() {
    let mut engine = engine();
    engine.spec.volume_name = "asked-for".into();
    engine.spec.desire_state = InstanceState::Running;
    step(&mut engine, Manager::Known, Some(&serving(vec![member("m1", "a:1", true, true)])));
    engine.spec.desire_state = InstanceState::Stopped;
    let mut failed = serving(Vec::new());
    failed.process.state = ProcessState::Error;
    assert_eq!(step(&mut engine, Manager::Known, Some(&failed)), ["Stop { keep_device: true }"]);
    assert_eq!(step(&mut engine, Manager::Known, None), Vec::<String>::new());
}

#[test]
fn an_engine_whose_replicas_were_all_started_anew_while_it_looked_for_them_is_started_anew() {
    let mut engine = engine();
    engine.spec.desire_state = InstanceState::Running;
    let mut looking = serving(Vec::new());
    looking.process.state = ProcessState::Starting;
    assert_eq!(step(&mut engine, Manager::Known, Some(&looking)), Vec::<String>::new());
    engine.spec.replica_address_map.insert("r1".into(), "a:2".into());
    assert_eq!(step(&mut engine, Manager::Known, Some(&looking)), Vec::<String>::new(), "it finds the other one");
    engine.spec.replica_address_map.insert("r2".into(), "b:2".into());
    assert_eq!(step(&mut engine, Manager::Known, Some(&looking)), ["Stop { keep_device: true }"]);
    assert_eq!(step(&mut engine, Manager::Known, None), ["Start { standby: false }"]);
}

#[test]
fn a_volume_is_filled_only_while_nobody_is_shown_it() {
    let fill = r#"Fill { volume: "v0", snapshot: "s1" }"#;
    let mut engine = engine();
    engine.spec.desire_state = InstanceState::Running;
    engine.spec.requested_data_source = "snap://v0/s1".into();
    let members = vec![member("r1", "a:1", true, true), member("r2", "b:1", true, true)];
    let shown = serving(members);
    let hidden = EngineProcess { endpoint: String::new(), ..shown.clone() };
    assert!(!step(&mut engine, Manager::Known, Some(&shown)).contains(&fill.to_owned()), "it is shown");
    engine.spec.disable_frontend = true;
    assert!(!step(&mut engine, Manager::Known, Some(&shown)).contains(&fill.to_owned()), "it is still shown");
    assert!(step(&mut engine, Manager::Known, Some(&hidden)).contains(&fill.to_owned()));
}
