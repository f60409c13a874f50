//! Volumes: what they get when they do not say, and what they cannot be.

use serde_json::Value;

use super::{Operation, Refusal, Related, Review, old, read, set_label};
use crate::settings::{DEFAULT_DATA_LOCALITY, DEFAULT_REPLICA_COUNT, SNAPSHOT_MAX_COUNT};
use crate::volume::{AccessMode, DataEngine, DataLocality, Frontend, State, VolumeSpec};
use crate::{IntString, Volume, labels, names};

/// Sizes are whole multiples of this, so that every data block and every backup block fits.
pub const SIZE_UNIT_BYTES: i64 = 2 << 20;
/// Longhorn's limit; more copies would only be slower.
const REPLICAS_MAX: i64 = 20;
/// Longhorn's limits of the number of snapshots: rebuilding needs a second one.
const SNAPSHOTS: std::ops::RangeInclusive<i64> = 2..=250;
/// Longhorn's limit of concurrent file transfers in a rebuild.
const SYNC_LIMIT_MAX: i64 = 5;
/// Block sizes of backups that exist; 0: the default.
const BACKUP_BLOCKS: [i64; 3] = [0, 2 << 20, 16 << 20];

pub(super) fn mutate(review: &Review<'_>, related: &Related, object: &mut Value) -> Result<(), Refusal> {
    if review.operation == Operation::Create {
        let said = |field: &str| {
            let value = &review.object["spec"][field];
            !value.is_null() && *value != ""
        };
        let mut spec: VolumeSpec = read(&review.object["spec"])?;
        if spec.number_of_replicas == 0 {
            spec.number_of_replicas = related.settings.number(DEFAULT_REPLICA_COUNT);
        }
        if !said("dataLocality") {
            spec.data_locality = related.settings.text(DEFAULT_DATA_LOCALITY).parse().unwrap_or_default();
        }
        if !said("frontend") && !spec.standby {
            spec.frontend = Frontend::BlockDev;
        }
        if spec.snapshot_max_count == 0 {
            spec.snapshot_max_count = related.settings.number(SNAPSHOT_MAX_COUNT);
        }
        if spec.data_locality == DataLocality::StrictLocal {
            spec.revision_counter_disabled = true;
        }
        object["spec"] = serde_json::to_value(spec).expect("a spec must be JSON");
        set_label(object, labels::VOLUME, review.name);
    }
    let size: IntString = read(&object["spec"]["size"])?;
    let rounded = round_up(size.0);
    if rounded != size.0 {
        object["spec"]["size"] = rounded.to_string().into();
    }
    Ok(())
}

/// The next multiple of the unit; a size that is none, or beyond all disks, is left to the validation.
fn round_up(size: i64) -> i64 {
    let over = size.rem_euclid(SIZE_UNIT_BYTES);
    if size <= 0 || over == 0 { size } else { size.checked_add(SIZE_UNIT_BYTES - over).unwrap_or(size) }
}

pub(super) fn validate(review: &Review<'_>, volume: &Volume) -> Result<(), Refusal> {
    if review.operation == Operation::Create {
        name(review.name)?;
        return spec(&volume.spec);
    }
    let before: Volume = old(review)?;
    // The status says what is; it is the controllers' and is not weighed here.
    if before.spec == volume.spec {
        return Ok(());
    }
    spec(&volume.spec)?;
    unchangeable(&before, volume)?;
    size(&before, volume)?;
    locality(&before, volume)?;
    migration(&before, volume)
}

fn name(name: &str) -> Result<(), Refusal> {
    if names::is_volume_name(name) {
        return Ok(());
    }
    let message = format!(
        "{name:?} cannot be the name of a volume: at most {} lower case letters, digits and '-', beginning and ending with a letter or digit",
        names::VOLUME_NAME_MAX
    );
    Err(Refusal::new("metadata.name", message))
}

fn spec(spec: &VolumeSpec) -> Result<(), Refusal> {
    let refuse = |field: &str, message: String| Err(Refusal::new(format!("spec.{field}"), message));
    if spec.size.0 <= 0 {
        return refuse("size", format!("{} is not a size in bytes; it must be above zero", spec.size));
    }
    if spec.size.0 % SIZE_UNIT_BYTES != 0 {
        return refuse("size", format!("{} is more than any volume can have", spec.size));
    }
    if !(1..=REPLICAS_MAX).contains(&spec.number_of_replicas) {
        let message = format!("{} replicas are not possible; from 1 to {REPLICAS_MAX} are", spec.number_of_replicas);
        return refuse("numberOfReplicas", message);
    }
    if spec.data_locality == DataLocality::StrictLocal && spec.number_of_replicas != 1 {
        let message = format!(
            "number of replica count should be 1 when data locality is strict-local, not {}",
            spec.number_of_replicas
        );
        return refuse("numberOfReplicas", message);
    }
    if spec.data_engine == DataEngine::V2 {
        return refuse("dataEngine", "v2 is not provided; use v1".to_owned());
    }
    match spec.frontend {
        Frontend::BlockDev | Frontend::Iscsi => {}
        Frontend::None if spec.standby => {}
        Frontend::None => {
            return refuse("frontend", "only a standby volume has none; use blockdev or iscsi".to_owned());
        }
        other => {
            return refuse("frontend", format!("{other} is not provided by data engine v1; use blockdev or iscsi"));
        }
    }
    if spec.migratable && spec.access_mode != AccessMode::ReadWriteMany {
        let message =
            format!("only a volume with access mode rwx can be migratable, and this one has {}", spec.access_mode);
        return refuse("migratable", message);
    }
    if spec.stale_replica_timeout < 0 {
        return refuse("staleReplicaTimeout", format!("{} minutes; 0 means never", spec.stale_replica_timeout));
    }
    if !SNAPSHOTS.contains(&spec.snapshot_max_count) {
        let message =
            format!("{} is not between {} and {}", spec.snapshot_max_count, SNAPSHOTS.start(), SNAPSHOTS.end());
        return refuse("snapshotMaxCount", message);
    }
    if spec.snapshot_max_size.0 != 0 && spec.snapshot_max_size.0 < spec.size.0.saturating_mul(2) {
        let message = format!("{} is less than twice the volume's size; 0 means any", spec.snapshot_max_size);
        return refuse("snapshotMaxSize", message);
    }
    if !(0..=SYNC_LIMIT_MAX).contains(&spec.rebuild_concurrent_sync_limit) {
        let message = format!("{} is not between 0 and {SYNC_LIMIT_MAX}", spec.rebuild_concurrent_sync_limit);
        return refuse("rebuildConcurrentSyncLimit", message);
    }
    if !BACKUP_BLOCKS.contains(&spec.backup_block_size.0) {
        let message = format!("{} is not a block size of backups; 2097152 and 16777216 are", spec.backup_block_size);
        return refuse("backupBlockSize", message);
    }
    Ok(())
}

fn unchangeable(before: &Volume, after: &Volume) -> Result<(), Refusal> {
    let (before, after) = (&before.spec, &after.spec);
    let changed = [
        ("encrypted", before.encrypted != after.encrypted),
        ("dataEngine", before.data_engine != after.data_engine),
        // What is there would be overwritten by the copy.
        ("dataSource", before.data_source != after.data_source),
        ("backingImage", before.backing_image != after.backing_image),
        ("topologyRequirement", before.topology_requirement != after.topology_requirement),
    ];
    match changed.iter().find(|(_, changed)| *changed) {
        Some((field, _)) => Err(Refusal::new(format!("spec.{field}"), "cannot be changed once the volume exists")),
        None => Ok(()),
    }
}

fn size(before: &Volume, after: &Volume) -> Result<(), Refusal> {
    if after.spec.size >= before.spec.size || before.status.expansion_required {
        return Ok(());
    }
    let message = format!("cannot become smaller: it is {} and was to be {}", before.spec.size, after.spec.size);
    Err(Refusal::new("spec.size", message))
}

fn locality(before: &Volume, after: &Volume) -> Result<(), Refusal> {
    let strict = |volume: &Volume| volume.spec.data_locality == DataLocality::StrictLocal;
    if strict(before) != strict(after) && before.status.state != State::Detached {
        let message = format!(
            "data locality cannot be converted between {} and {} when volume is not detached",
            before.spec.data_locality, after.spec.data_locality
        );
        return Err(Refusal::new("spec.dataLocality", message));
    }
    let (from, to) = (&before.spec.node_id, &after.spec.node_id);
    if strict(after) && !from.is_empty() && !to.is_empty() && from != to {
        let message = format!("moving a strict-local volume from node {from} to node {to} is not supported");
        return Err(Refusal::new("spec.nodeID", message));
    }
    Ok(())
}

fn migration(before: &Volume, after: &Volume) -> Result<(), Refusal> {
    let (current, target) = (&before.status.current_migration_node_id, &after.spec.migration_node_id);
    if current.is_empty() || target.is_empty() || target == current {
        return Ok(());
    }
    let message = format!("cannot become {target} while the volume is migrating to node {current}");
    Err(Refusal::new("spec.migrationNodeID", message))
}
