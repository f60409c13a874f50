//! Events: one storage, two faces. Stored as core/v1; `events.k8s.io/v1` names the same facts differently.

use serde_json::{Map, Value};

use super::checks::{IMMUTABLE, Problems};
use super::edit::{integer, is_zero, present, same, text};
use super::{Face, Strategy};
use crate::field::{FieldError, Path};
use crate::names;

/// Through the core API only what was always checked is checked.
pub(super) const CORE: Strategy = Strategy {
    validate_create: |event| legacy(event, "reportingComponent"),
    validate_update: |new, _old| legacy(new, "reportingComponent"),
    ..Strategy::PLAIN
};

pub(super) const NEW: Strategy = Strategy { validate_create, validate_update, ..Strategy::PLAIN };

const MAX_WORD_BYTES: usize = 128;
const MAX_NOTE_BYTES: usize = 1024;

pub(super) const FACE: Face =
    Face { stored_group: "", stored_plural: "events", to_stored: to_core, from_stored: from_core };

/// Field names: `events.k8s.io/v1`, core/v1.
const RENAMED: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// An `events.k8s.io/v1` event as core/v1.
pub fn to_core(event: &mut Value) {
    if let Some(event) = event.as_object_mut() {
        for (new, core) in RENAMED {
            rename(event, new, core);
        }
        event.insert("apiVersion".to_owned(), "v1".into());
    }
}

/// A core/v1 event as `events.k8s.io/v1`.
pub fn from_core(event: &mut Value) {
    if let Some(event) = event.as_object_mut() {
        for (new, core) in RENAMED {
            rename(event, core, new);
        }
        // Core always shows these two, this group only if there is something to show.
        for field in ["reportingController", "reportingInstance"] {
            if event.get(field).is_some_and(|v| v == "") {
                event.remove(field);
            }
        }
        event.insert("apiVersion".to_owned(), "events.k8s.io/v1".into());
    }
}

fn rename(event: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = event.remove(from) {
        event.insert(to.to_owned(), value);
    }
}

/// What both faces check, on the core shape. Errors name core's fields, whichever face was used.
fn legacy(event: &Value, controller: &str) -> Vec<FieldError> {
    let mut problems = Problems::new();
    let about = Path::new("involvedObject.namespace");
    let (namespace, object) = (text(event, "/metadata/namespace"), text(event, "/involvedObject/namespace"));
    let detail = "does not match event.namespace";
    if present(event, "/eventTime").is_none() {
        let agrees = if object.is_empty() { matches!(namespace, "" | "default") } else { namespace == object };
        if !agrees {
            problems.invalid(&about, object, detail);
        }
        return problems.0;
    }
    if object.is_empty() && !matches!(namespace, "default" | "kube-system") {
        problems.invalid(&about, object, detail);
    }
    let reporter = text(event, "/reportingComponent");
    if reporter.is_empty() {
        problems.required(&Path::new(controller), "");
    }
    problems.messages(&Path::new(controller), reporter, names::qualified_name(reporter));
    for field in ["reportingInstance", "action", "reason"] {
        problems.present(event, field, &Path::root());
        at_most(&mut problems, event, field, MAX_WORD_BYTES);
    }
    at_most(&mut problems, event, "message", MAX_NOTE_BYTES);
    problems.0
}

fn at_most(problems: &mut Problems, event: &Value, field: &str, bytes: usize) {
    if text(event, &format!("/{field}")).len() > bytes {
        problems.invalid(&Path::new(field), "", format!("can have at most {bytes} characters"));
    }
}

fn core_of(event: &Value) -> Value {
    let mut core = event.clone();
    to_core(&mut core);
    core
}

fn series(problems: &mut Problems, event: &Value) {
    let Some(series) = present(event, "/series") else { return };
    if integer(series, "/count").unwrap_or_default() < 2 {
        problems.invalid(&Path::new("series.count"), "", "should be at least 2");
    }
    if present(series, "/lastObservedTime").is_none() {
        problems.required(&Path::new("series.lastObservedTime"), "");
    }
}

fn validate_create(event: &Value) -> Vec<FieldError> {
    let core = core_of(event);
    let mut problems = Problems(legacy(&core, "reportingController"));
    series(&mut problems, &core);
    if present(&core, "/eventTime").is_none() {
        problems.required(&Path::new("eventTime"), "");
    }
    let ty = text(&core, "/type");
    if !matches!(ty, "Normal" | "Warning") {
        problems.invalid(&Path::new("type"), "", format!("has invalid value: {ty}"));
    }
    for field in ["firstTimestamp", "lastTimestamp", "count", "source"] {
        let value = core.get(field).unwrap_or(&Value::Null);
        let unset = is_zero(value) || value.as_object().is_some_and(|o| o.values().all(is_zero));
        if !unset {
            problems.invalid(&Path::new(field), "", "needs to be unset");
        }
    }
    problems.0
}

/// Of an event that was reported, only the series goes on.
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    const FIXED: [&str; 12] = [
        "involvedObject",
        "reason",
        "message",
        "source",
        "firstTimestamp",
        "lastTimestamp",
        "count",
        "type",
        "eventTime",
        "action",
        "related",
        "reportingInstance",
    ];
    let (new, old) = (core_of(new), core_of(old));
    let mut problems = Problems(legacy(&new, "reportingController"));
    if !same(new.get("series").unwrap_or(&Value::Null), old.get("series").unwrap_or(&Value::Null)) {
        series(&mut problems, &new);
    }
    for field in FIXED {
        fixed(&mut problems, &new, &old, field, field);
    }
    fixed(&mut problems, &new, &old, "reportingComponent", "reportingController");
    problems.0
}

/// A word that is gone is an empty word.
fn fixed(problems: &mut Problems, new: &Value, old: &Value, field: &str, reported: &str) {
    let of = |event: &Value| event.get(field).cloned().unwrap_or_default();
    let (now, before) = (of(new), of(old));
    if !same(&now, &before) {
        let shown = if now.is_null() && before.is_string() { "".into() } else { now };
        problems.invalid(&Path::new(reported), shown, IMMUTABLE);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::checks::texts;

    #[test]
    fn both_faces_carry_the_same_facts() {
        let core = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "reason": "BackOff", "message": "m",
            "involvedObject": {"kind": "Pod"}, "source": {"component": "kubelet"}, "count": 3,
            "reportingComponent": "kubelet", "firstTimestamp": "a", "lastTimestamp": "b", "type": "Warning",
        });
        let mut event = core.clone();
        from_core(&mut event);
        assert_eq!(event["apiVersion"], "events.k8s.io/v1");
        assert_eq!(event["regarding"]["kind"], "Pod");
        assert_eq!(event["note"], "m");
        assert_eq!(event["deprecatedCount"], 3);
        assert_eq!(event.get("message"), None);
        to_core(&mut event);
        assert_eq!(event, core);
    }

    fn reported() -> Value {
        json!({
            "metadata": {"name": "e", "namespace": "a"}, "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal",
            "regarding": {"kind": "Pod", "namespace": "a", "name": "web"}, "reason": "Started", "action": "Start",
            "reportingController": "tether.io/agent", "reportingInstance": "node-a", "note": "started",
        })
    }

    #[test]
    fn new_events_are_complete() {
        assert_eq!(validate_create(&reported()), []);
        let mut event = reported();
        for field in ["action", "reportingController"] {
            event.as_object_mut().unwrap().remove(field);
        }
        event["type"] = "Odd".into();
        event["deprecatedCount"] = 2.into();
        let errors = texts(validate_create(&event));
        assert_eq!(errors[0], "reportingController: Required value");
        assert!(errors.contains(&"action: Required value".to_owned()));
        assert!(errors.contains(&"type: Invalid value: \"\": has invalid value: Odd".to_owned()));
        assert!(errors.contains(&"count: Invalid value: \"\": needs to be unset".to_owned()));
    }

    #[test]
    fn only_the_series_of_an_event_goes_on() {
        let mut event = reported();
        event["series"] = json!({"count": 2, "lastObservedTime": "2026-01-01T00:01:00.000000Z"});
        assert_eq!(validate_update(&event, &reported()), []);
        event["note"] = "other".into();
        assert_eq!(
            texts(validate_update(&event, &reported())),
            ["message: Invalid value: \"other\": field is immutable"]
        );
    }

    #[test]
    fn core_events_live_where_their_object_lives() {
        let mut event = json!({"metadata": {"namespace": "a"}, "involvedObject": {"kind": "Pod", "namespace": "b"}});
        let validate = |event: &Value| (CORE.validate_create)(event);
        assert_eq!(
            texts(validate(&event)),
            ["involvedObject.namespace: Invalid value: \"b\": does not match event.namespace"]
        );
        event["involvedObject"] = json!({"kind": "Node"});
        assert_eq!(validate(&event).len(), 1);
        event["metadata"]["namespace"] = "default".into();
        assert_eq!(validate(&event), []);
    }
}
