//! The line of engines at one place: a killed engine's successor need not wait, and clients that replay are told the truth.

use serde_json::Value;
use tether_testkit::nbd::Client;

use crate::lab::Lab;

/// Seconds between two phases, as the engine's events tell.
fn between(info: &Value, from: &str, to: &str) -> f64 {
    let events: Vec<_> = info["events"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let at = |phase: &str| {
        let event = events.iter().find(|event| event.ends_with(&format!("engine is {phase}")));
        let event = event.unwrap_or_else(|| panic!("no {phase}: {events:#?}"));
        event.split(' ').next().and_then(|time| time.parse::<f64>().ok()).unwrap()
    };
    at(to) - at(from)
}

#[test]
fn an_engine_that_is_started_again_serves_at_once_and_keeps_its_line() {
    let mut lab = Lab::new(2);
    let engine = lab.start_engine("e1");
    let line = lab.info("e1")["line"].as_str().unwrap().to_owned();
    let export = format!("v1@{line}");
    let mut client = Client::connect_to(&lab.socket("e1"), &export).unwrap();
    client.write(0, &[1; 4096]).unwrap();
    engine.kill();

    let engine = lab.start_engine("e1");
    let info = lab.info("e1");
    assert_eq!(info["line"], line, "nobody else had the volume");
    let waited = between(&info, "Waiting", "Serving");
    assert!(waited < 1.0, "the killed engine is known to be dead, and yet its lease was waited for: {waited} s");
    let mut client = Client::connect_to(&lab.socket("e1"), &export).unwrap();
    client.write(0, &[2; 4096]).unwrap();
    engine.kill();

    // Somebody elsewhere knows nothing of that engine.
    let elsewhere = lab.start_engine("e2");
    let waited = between(&lab.info("e2"), "Waiting", "Serving");
    assert!(waited > 2.0, "an engine of another place may live: {waited} s");
    let mut other = Client::connect(&lab.socket("e2")).unwrap();
    other.write(0, &[3; 4096]).unwrap();
    elsewhere.kill();

    let engine = lab.start_engine("e1");
    let info = lab.info("e1");
    assert_ne!(info["line"], line, "another engine had the volume in between");
    assert!(between(&info, "Waiting", "Serving") > 2.0, "and may live");
    let refused = Client::connect_to(&lab.socket("e1"), &export).map(drop);
    assert!(refused.is_err(), "an old write must not be sent again");
    let mut client = Client::connect(&lab.socket("e1")).unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), [3; 4096]);
    engine.terminate();
    lab.assert_equal();
}
