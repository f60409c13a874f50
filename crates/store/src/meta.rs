//! Longhorn's metadata files: `volume.meta` and `<image>.meta`, JSON as Go writes it.
//!
//! Read leniently, as Go does: names of fields in any case, `null` for absent, text after the first value
//! ignored. Fields of newer versions are kept and written back.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub const VOLUME_META: &str = "volume.meta";
pub const META_SUFFIX: &str = ".meta";
pub const CHECKSUM_SUFFIX: &str = ".checksum";
/// Written first, then renamed.
pub const TEMPORARY_SUFFIX: &str = ".tmp";
pub(crate) const HEAD_PREFIX: &str = "volume-head-";
pub(crate) const SNAPSHOT_PREFIX: &str = "volume-snap-";
const IMAGE_SUFFIX: &str = ".img";

/// Sector size that Longhorn records, in bytes; it is not the unit of I/O.
pub const SECTOR_SIZE: i64 = 512;

/// No metadata file is longer; labels are the only part without a natural bound, and Longhorn's are short.
pub const META_BYTES_MAX: u64 = 1 << 20;

/// Contents of `volume.meta`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct VolumeMeta {
    pub size: i64,
    /// File name of the image that writes go to.
    pub head: String,
    /// True while someone has the replica open.
    pub dirty: bool,
    /// True while the contents are being rebuilt: not to be read.
    pub rebuilding: bool,
    pub error: String,
    /// File name of the snapshot below the head, or empty.
    pub parent: String,
    pub sector_size: i64,
    pub backing_file_path: String,
    pub encrypted: bool,
    /// What this version does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Contents of `<image>.meta`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DiskMeta {
    /// Not reliable in what Longhorn wrote: a snapshot may carry the name of the head it was.
    pub name: String,
    /// File name of the image below, or empty.
    pub parent: String,
    pub removed: bool,
    pub user_created: bool,
    /// RFC 3339.
    pub created: String,
    pub labels: Option<BTreeMap<String, String>>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A metadata file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    #[error("{file} is not JSON: {reason}; restore it from a backup, or rebuild this replica from another one")]
    NotJson { file: String, reason: String },
    #[error("{file}: {reason}; correct the field, or rebuild this replica from another one")]
    Field { file: String, reason: String },
    #[error("{file} is empty")]
    Empty { file: String },
}

const VOLUME_FIELDS: &[&str] =
    &["Size", "Head", "Dirty", "Rebuilding", "Error", "Parent", "SectorSize", "BackingFilePath", "Encrypted"];
const DISK_FIELDS: &[&str] = &["Name", "Parent", "Removed", "UserCreated", "Created", "Labels"];

impl VolumeMeta {
    pub fn parse(file: &str, contents: &[u8]) -> Result<Self, MetaError> {
        parse(file, contents, VOLUME_FIELDS)
    }
}

impl DiskMeta {
    pub fn parse(file: &str, contents: &[u8]) -> Result<Self, MetaError> {
        parse(file, contents, DISK_FIELDS)
    }
}

fn parse<T: for<'de> Deserialize<'de>>(file: &str, contents: &[u8], fields: &[&str]) -> Result<T, MetaError> {
    let file = file.to_owned();
    let mut values = serde_json::Deserializer::from_slice(contents).into_iter::<Value>();
    let object = match values.next() {
        None => return Err(MetaError::Empty { file }),
        Some(Err(error)) => return Err(MetaError::NotJson { file, reason: error.to_string() }),
        Some(Ok(Value::Object(object))) => object,
        Some(Ok(_)) => return Err(MetaError::NotJson { file, reason: "not an object".to_owned() }),
    };
    let mut known = Map::new();
    for (name, value) in object {
        let name = fields.iter().find(|field| field.eq_ignore_ascii_case(&name)).map_or(name, |f| (*f).to_owned());
        if !value.is_null() {
            known.insert(name, value);
        }
    }
    serde_json::from_value(Value::Object(known.clone())).map_err(|error| {
        let culprit = fields.iter().find(|field| {
            let one = known.get(**field).map(|value| Map::from_iter([((**field).to_owned(), value.clone())]));
            one.is_some_and(|one| serde_json::from_value::<T>(Value::Object(one)).is_err())
        });
        let reason = culprit.map_or_else(|| error.to_string(), |f| format!("field {f} is {}: {error}", known[*f]));
        MetaError::Field { file, reason }
    })
}

/// As Go's encoder writes it: one line.
pub fn render(meta: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec(meta).expect("metadata must be representable as JSON");
    text.push(b'\n');
    text
}

pub fn meta_name(image: &str) -> String {
    format!("{image}{META_SUFFIX}")
}

pub fn checksum_name(image: &str) -> String {
    format!("{image}{CHECKSUM_SUFFIX}")
}

/// `volume-snap-<name>.img`.
pub fn snapshot_image(name: &str) -> String {
    format!("{SNAPSHOT_PREFIX}{name}{IMAGE_SUFFIX}")
}

/// The name of a snapshot from its image's.
pub fn snapshot_name(image: &str) -> Option<&str> {
    image.strip_prefix(SNAPSHOT_PREFIX)?.strip_suffix(IMAGE_SUFFIX)
}

/// Whether this is the image of a head.
pub fn is_head(image: &str) -> bool {
    head_number(image).is_some()
}

fn head_number(image: &str) -> Option<u64> {
    let digits = image.strip_prefix(HEAD_PREFIX)?.strip_suffix(IMAGE_SUFFIX)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// `volume-head-NNN.img`.
pub fn head_image(number: u64) -> String {
    format!("{HEAD_PREFIX}{number:03}{IMAGE_SUFFIX}")
}

/// The name after `head`. Longhorn counts with the last digit only (…009, 010, 001…), so numbers say nothing
/// about age; the caller skips names that exist.
pub fn next_head(head: &str) -> String {
    head_image(head_number(head).map_or(0, |number| number.wrapping_add(1) % 1000))
}

/// What a snapshot may be called: it becomes part of a file name that Longhorn must find too.
pub fn valid_snapshot_name(name: &str) -> bool {
    const NAME_BYTES_MAX: usize = 200;
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:+@".contains(&byte))
}
