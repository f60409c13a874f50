//! Objects at rest, as a few hundred bytes each: most of an object as a value is room for what it does not say.
//!
//! The form says itself what it holds, so that every type that is written and read as JSON is written and read as this, and
//! an object that was packed is the same object again. Names of fields and words of enumerations are numbers of one
//! dictionary ([`Words`]); texts, numbers and lists begin with one byte that holds most of them whole. It is never stored
//! and never sent: it lasts as long as the process.
//!
//! ```text
//!   00 null   01 false   02 true   03 number   04 number below zero   05 floating point
//!   06 text   07 word    08 list   09 map      0a end of a list or map
//!   10–3f number 0–47    40–7f text of 0–63 bytes    80–ff word 0–127
//! ```

mod read;
mod write;

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use self::read::Reader;
use self::write::Writer;

mod tag {
    pub(super) const NULL: u8 = 0x00;
    pub(super) const FALSE: u8 = 0x01;
    pub(super) const TRUE: u8 = 0x02;
    pub(super) const NUMBER: u8 = 0x03;
    pub(super) const BELOW_ZERO: u8 = 0x04;
    pub(super) const FLOAT: u8 = 0x05;
    pub(super) const TEXT: u8 = 0x06;
    pub(super) const WORD: u8 = 0x07;
    pub(super) const LIST: u8 = 0x08;
    pub(super) const MAP: u8 = 0x09;
    pub(super) const END: u8 = 0x0a;
    pub(super) const SMALL_NUMBER: u8 = 0x10;
    pub(super) const SHORT_TEXT: u8 = 0x40;
    pub(super) const LOW_WORD: u8 = 0x80;
}

/// An object in its packed form.
pub(super) type Packed = Box<[u8]>;

/// Texts that are part of the program, by number. There are as many as types have fields and words.
#[derive(Debug, Default)]
pub(super) struct Words {
    numbers: HashMap<&'static str, u64>,
    texts: Vec<&'static str>,
}

impl Words {
    fn number(&mut self, word: &'static str) -> u64 {
        *self.numbers.entry(word).or_insert_with(|| {
            self.texts.push(word);
            self.texts.len() as u64 - 1
        })
    }

    /// Packs an object.
    pub(super) fn pack<T: Serialize>(&mut self, object: &T) -> Result<Packed, Error> {
        let mut writer = Writer { words: self, bytes: Vec::with_capacity(USUAL_BYTES) };
        object.serialize(&mut writer)?;
        Ok(writer.bytes.into_boxed_slice())
    }

    /// The object that was packed.
    pub(super) fn unpack<T: DeserializeOwned>(&self, packed: &[u8]) -> Result<T, Error> {
        T::deserialize(&mut Reader { words: &self.texts, bytes: packed })
    }
}

/// What an object of a volume takes, or a little less.
const USUAL_BYTES: usize = 1_024;

/// Why something cannot be packed or unpacked: a type that has no form as JSON either.
#[derive(Debug)]
pub(super) struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl serde::ser::Error for Error {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Self(text.to_string())
    }
}

impl serde::de::Error for Error {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Self(text.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::{Map, Number, Value, json};
    use tether_crd::{Engine, Replica, Snapshot, Volume, VolumeAttachment};

    use super::*;

    fn again<T: Serialize + DeserializeOwned>(object: &T) -> T {
        let mut words = Words::default();
        let packed = words.pack(object).unwrap();
        words.unpack(&packed).unwrap()
    }

    fn anything() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-60_i64..60).prop_map(Value::from),
            any::<f64>().prop_map(|float| Number::from_f64(float).map_or(Value::Null, Value::Number)),
            ".{0,80}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(".{0,70}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    proptest! {
        #[test]
        fn whatever_json_says_is_there_again(value in anything()) {
            prop_assert_eq!(again(&value), value);
        }

        #[test]
        fn what_is_broken_is_refused_and_nothing_else_happens(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut words = Words::default();
            words.number("spec");
            let _ = words.unpack::<Value>(&bytes);
            let _ = words.unpack::<Volume>(&bytes);
        }
    }

    fn metadata() -> Value {
        json!({
            "name": "v1", "namespace": "longhorn-system", "uid": "5e2f9f4e-1b1a-4f0e-9d7b-0d3c6f1f3a11", "resourceVersion": "42",
            "generation": 3, "creationTimestamp": "2026-01-02T03:04:05Z", "deletionTimestamp": "2026-01-02T03:04:06Z",
            "labels": {"longhornvolume": "v1", "empty": ""}, "annotations": {"a": "b"}, "finalizers": ["longhorn.io"],
            "ownerReferences": [{"apiVersion": "longhorn.io/v1beta2", "kind": "Volume", "name": "v1", "uid": "u",
                "blockOwnerDeletion": false}],
        })
    }

    fn object<T: DeserializeOwned>(spec: Value, status: Value) -> T {
        serde_json::from_value(json!({"metadata": metadata(), "spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn objects_of_volumes_are_the_same_again() {
        let condition = json!({"type": "Scheduled", "status": "True", "message": "m", "lastTransitionTime": "t"});
        let record =
            json!({"version": 1, "epoch": 7, "holder": "h", "inSync": ["a", "b"], "generation": 9, "alone": true});
        let volume: Volume = object(
            json!({"size": "1073741824", "numberOfReplicas": 3, "frontend": "blockdev", "Standby": true, "nodeID": "n",
                "dataLocality": "best-effort", "nodeSelector": ["x"], "topologyRequirement": [{"zone": "z", "region": ""}]}),
            json!({"state": "attached", "robustness": "faulted", "conditions": [condition], "record": record,
                "actualSize": -1, "cloneStatus": {"state": "failed", "attemptCount": 99},
                "kubernetesStatus": {"pvName": "p", "workloadsStatus": [{"podName": "w"}]}}),
        );
        assert_eq!(again(&volume), volume);
        assert_eq!(again(&Volume::default()), Volume::default());
        let engine: Engine = object(
            json!({"volumeName": "v1", "desireState": "running", "replicaAddressMap": {"r": "10.0.0.1:10000"}}),
            json!({"replicaModeMap": {"r": "RW", "s": "WO"}, "snapshots": {"volume-head": {"children": {"c": true}}},
                "rebuildStatus": {"x": {"progress": 50, "isRebuilding": true}}, "port": 10_000}),
        );
        assert_eq!(again(&engine), engine);
        let replica: Replica = object(
            json!({"volumeName": "v1", "healthyAt": "2026-01-02T03:04:05Z", "rebuildRetryCount": 5, "active": true}),
            json!({"currentState": "error", "storageIP": "10.0.0.1", "port": 65_535}),
        );
        assert_eq!(again(&replica), replica);
        let ticket = json!({"id": "t", "type": "longhorn-api", "nodeID": "a", "parameters": {"disableFrontend": "false"},
            "owner": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}});
        let told = json!({"id": "t", "satisfied": false, "waiting": {"reason": "Attaching", "position": 2}});
        let attachment: VolumeAttachment = object(
            json!({"volume": "v1", "attachmentTickets": {"t": ticket, "u": {"id": "u", "type": "somebody-else"}}}),
            json!({"attachmentTicketStatuses": {"t": told}}),
        );
        assert_eq!(again(&attachment), attachment);
        let snapshot: Snapshot = object(json!({"volume": "v1", "createSnapshot": true}), json!({"readyToUse": true}));
        assert_eq!(again(&snapshot), snapshot);
    }

    #[test]
    fn what_has_no_form_as_an_object_but_one_as_json_works_too() {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        enum Shape {
            Point,
            Circle(u8),
            Line(i8, f32),
            Box { wide: Option<char> },
        }
        for shape in [Shape::Point, Shape::Circle(7), Shape::Line(-1, 0.5), Shape::Box { wide: Some('ß') }] {
            assert_eq!(again(&shape), shape);
        }
        let numbers = BTreeMap::from([(-5_i32, true), (300, false)]);
        assert_eq!(again(&numbers), numbers);
    }
}
