//! `metadata.managedFields`: who manages which fields, since when, by which kind of write.

use std::collections::BTreeMap;
use std::sync::Arc;

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
    /// The one that an entry names. Unlike with [`ManagerId::new`] one without a name keeps having none.
    pub(super) fn of_entry(manager: &str, operation: Operation, version: &str, subresource: &str) -> Self {
        Self { manager: manager.to_owned(), ..Self::new("", operation, version, subresource) }
    }

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
#[derive(Clone, Debug)]
pub(super) struct Managed {
    fields: Fields,
    version: String,
    /// As written, RFC 3339.
    time: Option<String>,
}

/// A set of fields, with its text if that is known.
#[derive(Clone, Debug)]
struct Fields {
    set: Arc<FieldSet>,
    text: Option<Arc<str>>,
}

impl Managed {
    pub(super) fn new(set: FieldSet, version: &str, time: Option<String>) -> Self {
        Self { fields: Fields { set: Arc::new(set), text: None }, version: version.to_owned(), time }
    }

    /// One whose fields were read before.
    pub(super) fn known(set: Arc<FieldSet>, text: Arc<str>, version: &str, time: Option<String>) -> Self {
        Self { fields: Fields { set, text: Some(text) }, version: version.to_owned(), time }
    }

    pub(super) fn set(&self) -> &FieldSet {
        &self.fields.set
    }

    pub(super) fn time(&self) -> Option<&str> {
        self.time.as_deref()
    }

    pub(super) fn own(&mut self, set: FieldSet) {
        self.fields = Fields { set: Arc::new(set), text: None };
    }

    pub(super) fn written_at(&mut self, time: Option<String>) {
        self.time = time;
    }

    /// Entries are ordered by seconds; one without a time is the oldest.
    fn seconds(&self) -> i64 {
        self.time.as_deref().and_then(|time| time.parse::<Timestamp>().ok()).map_or(0, Timestamp::as_second)
    }
}

/// All managers of an object.
#[derive(Clone, Debug, Default)]
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
            let id = ManagerId::of_entry(text("manager"), operation, version, text("subresource"));
            let set = FieldSet::decode(&entry["fieldsV1"])?;
            managers.insert(id, Managed::new(set, version, entry["time"].as_str().map(str::to_owned)));
        }
        Ok(Self(managers))
    }

    /// Every field that anyone owns.
    pub(super) fn owned(&self) -> FieldSet {
        self.0.values().fold(FieldSet::new(), |all, managed| all.union(managed.set()))
    }

    /// The entries, sorted by operation, time and name; `None` if there are none.
    pub(super) fn encode(&self) -> Option<Value> {
        let entries = self.sorted();
        (!entries.is_empty()).then(|| entries.into_iter().map(|(id, managed)| encode_entry(id, managed)).collect())
    }

    /// The same as text.
    pub(super) fn write(&self) -> Option<String> {
        let mut text = String::new();
        for (id, managed) in self.sorted() {
            text.push(if text.is_empty() { '[' } else { ',' });
            write_entry(&mut text, id, managed);
        }
        if text.is_empty() {
            return None;
        }
        text.push(']');
        Some(text)
    }

    fn sorted(&self) -> Vec<(&ManagerId, &Managed)> {
        let mut entries: Vec<(&ManagerId, &Managed)> = self.0.iter().collect();
        entries.sort_by_cached_key(|(id, managed)| {
            (id.operation, managed.seconds(), &id.manager, &managed.version, &id.subresource)
        });
        entries
    }

    /// Merges the oldest updates until there are few enough, one bucket for each version.
    pub(super) fn cap(&mut self) {
        let of_updates = || self.0.iter().filter(|(id, _)| id.operation == Operation::Update);
        let mut count = of_updates().count();
        if count <= MAX_UPDATE_MANAGERS {
            return;
        }
        let mut updates: Vec<(i64, ManagerId)> =
            of_updates().map(|(id, managed)| (managed.seconds(), id.clone())).collect();
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
                ancient.own(ancient.set().union(merged.set()));
                ancient.written_at(merged.time);
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
    entry.insert("fieldsV1".to_owned(), managed.set().encode());
    Value::Object(entry)
}

/// The text of [`encode_entry`], with names in the same order.
fn write_entry(text: &mut String, id: &ManagerId, managed: &Managed) {
    let put = |text: &mut String, name: &str, value: &str| {
        if !value.is_empty() {
            text.extend([",\"", name, "\":", &Value::from(value).to_string()]);
        }
    };
    let start = text.len();
    put(text, "apiVersion", &managed.version);
    put(text, "fieldsType", "FieldsV1");
    text.push_str(",\"fieldsV1\":");
    match &managed.fields.text {
        Some(fields) => text.push_str(fields),
        None => text.push_str(&managed.set().encode().to_string()),
    }
    put(text, "manager", &id.manager);
    put(text, "operation", id.operation.name());
    put(text, "subresource", &id.subresource);
    put(text, "time", managed.time.as_deref().unwrap_or_default());
    text.push('}');
    // Instead of the first comma.
    text.replace_range(start..=start, "{");
}

/// Whether a client asks to start over: an empty list, or one empty entry.
pub(super) fn is_reset(entries: &Value) -> bool {
    match entries.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([one]) => one.as_object().is_some_and(|entry| entry.values().all(Value::is_null)),
        _ => false,
    }
}
