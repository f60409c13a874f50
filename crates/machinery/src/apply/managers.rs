//! `metadata.managedFields`: who manages which fields, since when, by which kind of write.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::set::{DecodeError, FieldSet};

/// Entries for updates that an object keeps; older ones are merged into [`ANCIENT_CHANGES`].
pub const MAX_UPDATE_MANAGERS: usize = 10;
/// The manager that older updates are merged into.
pub const ANCIENT_CHANGES: &str = "ancient-changes";

/// Why `managedFields` cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ManagersError {
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    #[error("apiVersion must not be empty")]
    NoVersion,
    #[error("missing fieldsType in managed fields entry {0}")]
    NoFieldsType(usize),
    #[error("invalid fieldsType {0:?} in managed fields entry {1}")]
    FieldsType(String, usize),
    #[error("error decoding set: {0}")]
    Set(#[from] DecodeError),
}

/// How a manager writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// What tells managers apart. One that applies is the same in every version; one that updates is not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ManagerId {
    pub(super) manager: String,
    pub(super) operation: Operation,
    /// Empty for [`Operation::Apply`].
    version: String,
    pub(super) subresource: String,
}

impl ManagerId {
    pub(super) fn new(manager: &str, operation: Operation, version: &str, subresource: &str) -> Self {
        let manager = if manager.is_empty() { "unknown" } else { manager };
        let version = if operation == Operation::Apply { "" } else { version };
        Self {
            manager: manager.to_owned(),
            operation,
            version: version.to_owned(),
            subresource: subresource.to_owned(),
        }
    }

    /// The manager as conflicts name it: `"kubectl" using v1`.
    pub(super) fn shown(&self) -> String {
        let subresource = match self.subresource.as_str() {
            "" => String::new(),
            name => format!(" with subresource {name:?}"),
        };
        match self.operation {
            Operation::Apply => format!("{:?}{subresource}", self.manager),
            Operation::Update => format!("{:?}{subresource} using {}", self.manager, self.version),
        }
    }
}

/// What a manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Managed {
    pub(super) set: FieldSet,
    pub(super) version: String,
    /// As written, RFC 3339.
    pub(super) time: Option<String>,
}

impl Managed {
    /// Entries are ordered by seconds; one without a time is the oldest.
    fn seconds(&self) -> i64 {
        self.time.as_deref().and_then(|time| time.parse::<Timestamp>().ok()).map_or(0, Timestamp::as_second)
    }
}

/// All managers of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Managers(pub(super) BTreeMap<ManagerId, Managed>);

impl Managers {
    pub(super) fn decode(entries: &Value) -> Result<Self, ManagersError> {
        let mut managers = BTreeMap::new();
        for (i, entry) in entries.as_array().into_iter().flatten().enumerate() {
            let text = |name: &str| entry[name].as_str().unwrap_or_default();
            let operation = match text("operation") {
                "Apply" => Operation::Apply,
                "Update" => Operation::Update,
                _ => return Err(ManagersError::Operation),
            };
            let version = text("apiVersion");
            if version.is_empty() {
                return Err(ManagersError::NoVersion);
            }
            match text("fieldsType") {
                "FieldsV1" => {}
                "" => return Err(ManagersError::NoFieldsType(i)),
                other => return Err(ManagersError::FieldsType(other.to_owned(), i)),
            }
            // Not `new`: an entry without a name keeps having none.
            let id = ManagerId {
                manager: text("manager").to_owned(),
                operation,
                version: if operation == Operation::Apply { String::new() } else { version.to_owned() },
                subresource: text("subresource").to_owned(),
            };
            let managed = Managed {
                set: FieldSet::decode(&entry["fieldsV1"])?,
                version: version.to_owned(),
                time: entry["time"].as_str().map(str::to_owned),
            };
            managers.insert(id, managed);
        }
        Ok(Self(managers))
    }

    /// Every field that anyone owns.
    pub(super) fn owned(&self) -> FieldSet {
        self.0.values().fold(FieldSet::new(), |all, managed| all.union(&managed.set))
    }

    /// The entries, sorted by operation, time and name; `None` if there are none.
    pub(super) fn encode(&self) -> Option<Value> {
        if self.0.is_empty() {
            return None;
        }
        let mut entries: Vec<(&ManagerId, &Managed)> = self.0.iter().collect();
        entries.sort_by_cached_key(|(id, managed)| {
            (id.operation, managed.seconds(), &id.manager, &managed.version, &id.subresource)
        });
        Some(entries.into_iter().map(|(id, managed)| encode_entry(id, managed)).collect())
    }

    /// Merges the oldest updates until there are few enough, one bucket for each version.
    pub(super) fn cap(&mut self) {
        let mut updates: Vec<(i64, ManagerId)> = self
            .0
            .iter()
            .filter(|(id, _)| id.operation == Operation::Update)
            .map(|(id, managed)| (managed.seconds(), id.clone()))
            .collect();
        let mut count = updates.len();
        if count <= MAX_UPDATE_MANAGERS {
            return;
        }
        updates.sort();
        let mut first_of_version: BTreeMap<String, ManagerId> = BTreeMap::new();
        for (_, id) in updates {
            if count <= MAX_UPDATE_MANAGERS {
                break;
            }
            let bucket = ManagerId::new(ANCIENT_CHANGES, Operation::Update, &id.version, "");
            let Some(first) = first_of_version.get(&id.version) else {
                first_of_version.insert(id.version.clone(), id);
                continue;
            };
            if id == bucket {
                continue;
            }
            if !self.0.contains_key(&bucket)
                && let Some(oldest) = self.0.remove(first)
            {
                self.0.insert(bucket.clone(), oldest);
            }
            if let Some(merged) = self.0.remove(&id)
                && let Some(ancient) = self.0.get_mut(&bucket)
            {
                ancient.set = ancient.set.union(&merged.set);
                ancient.time = merged.time;
            }
            count -= 1;
        }
    }
}

fn encode_entry(id: &ManagerId, managed: &Managed) -> Value {
    let mut entry = Map::new();
    let mut put = |name: &str, value: &str| {
        if !value.is_empty() {
            entry.insert(name.to_owned(), value.into());
        }
    };
    put("manager", &id.manager);
    put("operation", id.operation.name());
    put("apiVersion", &managed.version);
    put("fieldsType", "FieldsV1");
    put("subresource", &id.subresource);
    put("time", managed.time.as_deref().unwrap_or_default());
    entry.insert("fieldsV1".to_owned(), managed.set.encode());
    Value::Object(entry)
}

/// Whether a client asks to start over: an empty list, or one empty entry.
pub(super) fn is_reset(entries: &Value) -> bool {
    match entries.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([one]) => one.as_object().is_some_and(|entry| entry.values().all(Value::is_null)),
        _ => false,
    }
}
