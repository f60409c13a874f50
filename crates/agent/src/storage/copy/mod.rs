//! Copies of snapshots into new volumes: read from a replica of the source on this node, written through the engine.

mod nbd;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tether_crd::engine::CloneProgress;
use tether_crd::{Engine, Replica, Volume, names};
use tether_engine::control::proto;
use tether_plan::clone::{COMPLETE, FAILED, IN_PROGRESS};
use tether_plan::object::name;
use tether_store::diff::observe;
use tether_store::host::read;
use tether_store::{BLOCK, View};

use self::nbd::Client;
use super::Shared;

/// Read and written at a time: long enough to stream, short enough that other requests of the volume's disk go between.
const STEP_BYTES: u64 = 1 << 20;

/// What is being copied, by engine.
#[derive(Default)]
pub(super) struct Copies(Mutex<BTreeMap<String, Copy>>);

struct Copy {
    /// The run of the engine that is written to.
    uid: String,
    snapshot: String,
    progress: Arc<Mutex<CloneProgress>>,
    stop: Arc<AtomicBool>,
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Copies {
    /// How far the copy into this run of an engine is. A copy into another run, or of something that is not wanted any
    /// more, ends.
    pub fn progress(&self, engine: &Engine, uid: &str) -> Option<CloneProgress> {
        let mut copies = self.0.lock();
        let copy = copies.get(name(engine))?;
        let wanted = engine.spec.requested_data_source.ends_with(&format!("/{}", copy.snapshot));
        if copy.uid == uid && wanted {
            return Some(copy.progress.lock().clone());
        }
        copies.remove(name(engine));
        None
    }

    /// Begins a copy; `changed` is called whenever there is something to tell.
    pub async fn begin(
        &self,
        shared: &Shared,
        engine: &Engine,
        instance: &proto::Instance,
        replicas: &[Arc<Replica>],
        (volume, snapshot): (String, String),
        changed: impl Fn() + Send + 'static,
    ) {
        let told = CloneProgress {
            is_cloning: true,
            state: IN_PROGRESS.to_owned(),
            snapshot_name: snapshot.clone(),
            ..CloneProgress::default()
        };
        let (progress, stop) = (Arc::new(Mutex::new(told)), Arc::new(AtomicBool::new(false)));
        let copy = Copy {
            uid: instance.uid.clone(),
            snapshot: snapshot.clone(),
            progress: progress.clone(),
            stop: stop.clone(),
        };
        self.0.lock().insert(name(engine).to_owned(), copy);
        let places = places(shared, engine, instance, replicas, &volume).await;
        tokio::task::spawn_blocking(move || {
            let tell = |percent: i64| {
                let mut told = progress.lock();
                if told.progress != percent {
                    told.progress = percent;
                    drop(told);
                    changed();
                }
            };
            let done = places.and_then(|places| run(&places, &snapshot, &stop, &tell));
            let mut told = progress.lock();
            told.is_cloning = false;
            match done {
                Ok(()) => COMPLETE.clone_into(&mut told.state),
                Err(why) => {
                    tracing::warn!(volume, snapshot, why, "a snapshot could not be copied");
                    (told.state, told.error) = (FAILED.to_owned(), why);
                }
            }
            drop(told);
            changed();
        });
    }
}

/// Where is read and where is written.
struct Places {
    directory: PathBuf,
    socket: PathBuf,
    export: String,
}

async fn places(
    shared: &Shared,
    engine: &Engine,
    instance: &proto::Instance,
    replicas: &[Arc<Replica>],
    source: &str,
) -> Result<Places, String> {
    let volume = shared.api::<Volume>().get(source).await.map_err(|error| format!("volume {source}: {error}"))?;
    let in_sync = volume.status.record.map(|record| record.in_sync).unwrap_or_default();
    // The record, not what anybody remembers, says who holds every acknowledged write.
    let good = |replica: &&Arc<Replica>| {
        replica.spec.volume_name == source && in_sync.contains(&replica.spec.data_directory_name)
    };
    let replica = replicas.iter().find(good);
    let replica = replica.ok_or_else(|| format!("no good replica of volume {source} is on node {}", shared.node))?;
    let directory = names::data_path(&replica.spec.disk_path, &replica.spec.data_directory_name).into();
    let info = instance.engine.as_ref();
    let unix = |uri: &String| uri.split_once("?socket=").map(|(_, path)| PathBuf::from(path));
    let socket = info.and_then(|info| info.nbd.iter().find_map(unix));
    let socket = socket.ok_or_else(|| format!("engine {} serves no NBD on this machine", name(engine)))?;
    Ok(Places { directory, socket, export: engine.spec.volume_name.clone() })
}

fn run(places: &Places, snapshot: &str, stop: &AtomicBool, tell: &impl Fn(i64)) -> Result<(), String> {
    let directory = places.directory.display();
    let mut source = observe(&places.directory).map_err(|error| format!("{directory}: {error}"))?;
    let mut target =
        Client::connect(&places.socket, &places.export).map_err(|error| written(&places.socket, &error))?;
    let size = source.size();
    if target.size() < size {
        return Err(format!("the clone has {} bytes, its source {size}", target.size()));
    }
    let view = View::Snapshot(snapshot.to_owned());
    for offset in (0..size).step_by(STEP_BYTES as usize) {
        if stop.load(Ordering::Relaxed) {
            return Err("the copy is not wanted any more".to_owned());
        }
        let len = STEP_BYTES.min(size - offset);
        let data = read(&mut source, view.clone(), offset, len).map_err(|error| format!("{directory}: {error}"))?;
        for (start, end) in filled(&data) {
            let done = target.write(offset + start as u64, &data[start..end]);
            done.map_err(|error| written(&places.socket, &error))?;
        }
        tell(percent(offset + len, size));
    }
    target.flush().map_err(|error| written(&places.socket, &error))
}

fn written(socket: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", socket.display())
}

/// The ranges of a piece that are not zero: the clone begins empty, and space that nobody filled stays free.
fn filled(data: &[u8]) -> Vec<(usize, usize)> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for (index, block) in data.chunks(BLOCK as usize).enumerate() {
        if block.iter().all(|byte| *byte == 0) {
            continue;
        }
        let start = index * BLOCK as usize;
        match ranges.last_mut() {
            Some((_, end)) if *end == start => *end = start + block.len(),
            _ => ranges.push((start, start + block.len())),
        }
    }
    ranges
}

/// Steps of ten: a status for each percent would be a hundred writes.
fn percent(done: u64, total: u64) -> i64 {
    i64::try_from(done.saturating_mul(10).checked_div(total).unwrap_or(10) * 10).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_zero_is_written() {
        let block = BLOCK as usize;
        let mut data = vec![0; 4 * block + 100];
        assert_eq!(filled(&data), []);
        data[block] = 1;
        data[3 * block - 1] = 1;
        data[4 * block + 99] = 1;
        assert_eq!(filled(&data), [(block, 3 * block), (4 * block, 4 * block + 100)]);
    }
}
