//! The parameters of a StorageClass, and the volume that follows from them.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::str::FromStr;

use sha2::{Digest, Sha512};
use tether_crd::IntString;
use tether_crd::volume::{AccessMode, Choice, DataEngine, DataLocality, Frontend, ReplicaAutoBalance, VolumeSpec};

/// Minutes after which a failed replica is thrown away, if the class does not say: two days.
const STALE_REPLICA_MINUTES: i64 = 2_880;
/// The longest name that is used as it is.
const LONGEST_NAME: usize = 40;
/// The same of a snapshot; it is part of a file's name.
const LONGEST_SNAPSHOT_NAME: usize = 63;
/// Volumes are made of blocks of this size.
const SIZE_STEP: i64 = 2 << 20;
/// The smallest volume.
const SMALLEST: i64 = 10 << 20;
/// What mkfs.xfs refuses to make smaller.
const SMALLEST_XFS: i64 = 300 << 20;

/// What may be asked of a volume that exists; fields of the specification have the same names.
const MUTABLE: [&str; 3] = ["numberOfReplicas", "dataLocality", "replicaAutoBalance"];

/// A parameter that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    #[error("parameter {name}: {value:?}: {why}")]
    Unusable { name: &'static str, value: String, why: String },
    #[error("size {0} is too large")]
    TooLarge(i64),
    #[error("parameter {0} cannot be changed; those that can are {can}", can = MUTABLE.join(", "))]
    Fixed(String),
    #[error("an xfs file system needs at least {SMALLEST_XFS} bytes")]
    TooSmallForXfs,
}

/// The id of a volume that is to be called `name`.
pub fn volume_id(name: &str) -> String {
    object_name(name, LONGEST_NAME, "v")
}

/// The name of a snapshot that is to be called `name`.
pub(super) fn snapshot_name(name: &str) -> String {
    object_name(name, LONGEST_SNAPSHOT_NAME, "s")
}

fn object_name(name: &str, longest: usize, fallback: &str) -> String {
    let mut id: String =
        name.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).collect();
    if id == name && id.len() <= longest && tether_crd::names::is_label(&id) {
        return id;
    }
    // Another name may become the same id: a hash of the name tells them apart.
    let mut hash = String::new();
    for byte in Sha512::digest(name).iter().take(4) {
        write!(hash, "{byte:02x}").expect("writing into a String must succeed");
    }
    id.truncate(longest - hash.len() - 1);
    let head = id.trim_matches('-');
    if head.is_empty() { format!("{fallback}-{hash}") } else { format!("{head}-{hash}") }
}

/// The size that a volume gets, at least as large as asked for.
pub(super) fn size(required: i64, limit: i64) -> Result<i64, ParameterError> {
    let wanted = required.max(SMALLEST);
    let steps = wanted.checked_add(SIZE_STEP - 1).ok_or(ParameterError::TooLarge(required))? / SIZE_STEP;
    let size = steps.checked_mul(SIZE_STEP).ok_or(ParameterError::TooLarge(required))?;
    // No disk is so large, and offsets are signed.
    if size > i64::MAX >> 8 || (limit > 0 && size > limit) {
        return Err(ParameterError::TooLarge(required));
    }
    Ok(size)
}

/// Whether the class asks for volumes that may be on two nodes while they move.
pub(super) fn is_migratable(parameters: &HashMap<String, String>) -> Result<bool, ParameterError> {
    Ok(parse::<bool>(parameters, "migratable")?.unwrap_or_default())
}

/// The words of a parameter, which commas part.
pub(super) fn list(parameters: &HashMap<String, String>, name: &str) -> Vec<String> {
    let words = parameters.get(name).map(String::as_str).unwrap_or_default().split(',');
    words.map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// What is wanted of a volume of this class.
pub(super) fn spec(
    parameters: &HashMap<String, String>,
    size: i64,
    access_mode: AccessMode,
    fs_type: &str,
) -> Result<VolumeSpec, ParameterError> {
    if fs_type == "xfs" && size < SMALLEST_XFS {
        return Err(ParameterError::TooSmallForXfs);
    }
    for (name, why) in [
        ("encrypted", "encrypted volumes are not provided"),
        ("share", "shares are not provided; ask for access mode ReadWriteMany with volumeMode Block"),
    ] {
        if parameters.get(name).is_some_and(|value| value == "true") {
            return Err(ParameterError::Unusable { name, value: "true".into(), why: why.into() });
        }
    }
    for (name, why) in [
        ("fromBackup", "restores from backups are not provided yet"),
        ("backingImage", "backing images are not provided yet"),
    ] {
        if let Some(value) = parameters.get(name).filter(|value| !value.is_empty()) {
            return Err(ParameterError::Unusable { name, value: value.clone(), why: why.into() });
        }
    }
    let choice = |name| Ok::<_, ParameterError>(parse::<Choice>(parameters, name)?.unwrap_or_default());
    let stale = parse::<i64>(parameters, "staleReplicaTimeout")?.filter(|minutes| *minutes > 0);
    let replicas = parse::<i64>(parameters, "numberOfReplicas")?;
    if let Some(count) = replicas.filter(|count| !(1..=20).contains(count)) {
        let why = "between 1 and 20 copies can be kept".to_owned();
        return Err(ParameterError::Unusable { name: "numberOfReplicas", value: count.to_string(), why });
    }
    let engine = parse::<DataEngine>(parameters, "dataEngine")?.unwrap_or_default();
    if engine != DataEngine::V1 {
        let why = "only v1 is provided".to_owned();
        return Err(ParameterError::Unusable { name: "dataEngine", value: engine.to_string(), why });
    }
    Ok(VolumeSpec {
        size: IntString(size),
        frontend: Frontend::BlockDev,
        data_locality: parse::<DataLocality>(parameters, "dataLocality")?.unwrap_or_default(),
        stale_replica_timeout: stale.unwrap_or(STALE_REPLICA_MINUTES),
        disk_selector: list(parameters, "diskSelector"),
        node_selector: list(parameters, "nodeSelector"),
        revision_counter_disabled: parse::<bool>(parameters, "disableRevisionCounter")?.unwrap_or(true),
        unmap_mark_snap_chain_removed: choice("unmapMarkSnapChainRemoved")?,
        replica_soft_anti_affinity: choice("replicaSoftAntiAffinity")?,
        replica_zone_soft_anti_affinity: choice("replicaZoneSoftAntiAffinity")?,
        replica_disk_soft_anti_affinity: choice("replicaDiskSoftAntiAffinity")?,
        freeze_filesystem_for_snapshot: choice("freezeFilesystemForSnapshot")?,
        replica_auto_balance: parse::<ReplicaAutoBalance>(parameters, "replicaAutoBalance")?.unwrap_or_default(),
        access_mode,
        migratable: is_migratable(parameters)? && access_mode == AccessMode::ReadWriteMany,
        number_of_replicas: replicas.unwrap_or(0),
        data_engine: engine,
        ..Default::default()
    })
}

/// What changes in the specification of a volume that is given these parameters.
pub(super) fn changes(parameters: &HashMap<String, String>) -> Result<serde_json::Value, ParameterError> {
    if let Some(name) = parameters.keys().find(|name| !MUTABLE.contains(&name.as_str())) {
        return Err(ParameterError::Fixed(name.clone()));
    }
    let asked = spec(parameters, SMALLEST, AccessMode::default(), "")?;
    let mut changes = serde_json::to_value(asked).expect("a specification must be JSON");
    if let Some(fields) = changes.as_object_mut() {
        fields.retain(|name, _| parameters.get(name).is_some_and(|value| !value.is_empty()));
    }
    Ok(changes)
}

fn parse<T: FromStr<Err: std::fmt::Display>>(
    parameters: &HashMap<String, String>,
    name: &'static str,
) -> Result<Option<T>, ParameterError> {
    let Some(value) = parameters.get(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    let unusable = |why: T::Err| ParameterError::Unusable { name, value: value.clone(), why: why.to_string() };
    value.parse().map(Some).map_err(unusable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_changed_is_checked_and_nothing_else_is_touched() {
        let changes = |pairs: &[(&str, &str)]| {
            changes(&pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
        };
        let asked = changes(&[("numberOfReplicas", "2"), ("dataLocality", "best-effort")]).unwrap();
        assert_eq!(asked, serde_json::json!({ "numberOfReplicas": 2, "dataLocality": "best-effort" }));
        assert_eq!(changes(&[]).unwrap(), serde_json::json!({}));
        let refused = |pairs| changes(pairs).unwrap_err().to_string();
        assert!(refused(&[("numberOfReplicas", "0")]).contains("between 1 and 20"));
        assert!(
            refused(&[("migratable", "true")]).starts_with("parameter migratable cannot be changed; those that can")
        );
    }

    #[test]
    fn ids_fit_and_stay_apart() {
        assert_eq!(volume_id("pvc-0f9d7a3c-1f0e-4f5b-8d8b-111111111111"), "pvc-0f9d7a3c-1f0e-4f5b-8d8b-111111111111");
        let (long, longer) = ("x".repeat(41), "x".repeat(42));
        assert!(volume_id(&long).len() <= LONGEST_NAME && volume_id(&long) != volume_id(&longer));
        for name in ["With Space", "UPPER", "--", "ü", "a/b", "a.b"] {
            let id = volume_id(name);
            assert!(tether_crd::names::is_volume_name(&id), "{name:?}: {id}");
            assert_eq!(id, volume_id(name));
        }
        assert_ne!(volume_id("A"), volume_id("a"));
    }

    #[test]
    fn sizes_are_rounded_up_within_the_limit() {
        for (required, limit, expected) in [
            (0, 0, Some(10 << 20)),
            (1, 0, Some(10 << 20)),
            (1 << 30, 0, Some(1 << 30)),
            ((1 << 30) + 1, 0, Some((1 << 30) + (2 << 20))),
            ((1 << 30) + 1, (1 << 30) + 1, None),
            (i64::MAX, 0, None),
        ] {
            assert_eq!(size(required, limit).ok(), expected, "{required} {limit}");
        }
    }

    #[test]
    fn parameters_become_a_volume_or_a_clear_refusal() {
        let with = |pairs: &[(&str, &str)]| -> HashMap<String, String> {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        let given = with(&[
            ("numberOfReplicas", "2"),
            ("staleReplicaTimeout", "30"),
            ("dataLocality", "best-effort"),
            ("diskSelector", "ssd, fast"),
            ("migratable", "true"),
            ("unknown", "ignored"),
        ]);
        let made = spec(&given, 1 << 30, AccessMode::ReadWriteMany, "").unwrap();
        assert_eq!((made.number_of_replicas, made.stale_replica_timeout, made.migratable), (2, 30, true));
        assert_eq!((made.data_locality, made.disk_selector.len()), (DataLocality::BestEffort, 2));
        assert!(!spec(&given, 1 << 30, AccessMode::ReadWriteOnce, "").unwrap().migratable, "for rwx only");
        for (name, value) in
            [("numberOfReplicas", "many"), ("numberOfReplicas", "0"), ("encrypted", "true"), ("dataEngine", "v2")]
        {
            let error = spec(&with(&[(name, value)]), 1 << 30, AccessMode::ReadWriteOnce, "").unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
        assert!(spec(&with(&[]), 1 << 20, AccessMode::ReadWriteOnce, "xfs").is_err());
    }
}
