//! `tether replica diff` and `scrub`: whether directories hold the same volume, byte by byte and snapshot by snapshot.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tether_engine::instance::boot_id;
use tether_store::files::real::{Caching, StdFiles};
use tether_store::volume::Open;
use tether_store::{Reply, Request, View, Volume, host};

use crate::commands::data_plane::{Size, human};
use crate::output::{self, Exit};

/// What is compared at a time: a region of the activity log.
const STEP_BYTES: u64 = 4 << 20;
/// Differing ranges that are listed; more are counted.
const SHOWN: usize = 20;

/// Compares replica directories that are not served
///
/// Reads every directory in full and compares live contents and snapshots. `scrub` is the same at a limited rate.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit codes: 0 all are equal, 1 they differ or cannot be read.\n\n\
                  Example:\n  tether replica diff /data/v1-r1 /data/v1-r2 /data/v1-r3\n  \
                  tether replica scrub --rate 50MiB /data/v1-r1 /data/v1-r2")]
pub(crate) struct Args {
    /// Directories of replicas
    #[arg(required = true, num_args = 2..)]
    dirs: Vec<PathBuf>,
    /// Bytes per second and directory [default for scrub: 100MiB]
    #[arg(long)]
    rate: Option<Size>,
}

/// A scrub's rate unless told otherwise: a tenth of what a disk does.
const SCRUB_RATE: u64 = 100 << 20;

struct Replica<'a> {
    dir: &'a Path,
    volume: Volume<StdFiles>,
}

pub(crate) fn run(args: &Args, scrub: bool) -> Result<Exit> {
    let rate = args.rate.map(|rate| rate.0).or(scrub.then_some(SCRUB_RATE)).filter(|rate| *rate > 0);
    let mut replicas = Vec::new();
    for dir in &args.dirs {
        let files = StdFiles::open(dir, Caching::Direct, false)?;
        let open = Open { volume: None, boot_id: boot_id()? };
        let (volume, _) = Volume::open(files, &open).with_context(|| dir.display().to_string())?;
        replicas.push(Replica { dir, volume });
    }
    let result = compare(&mut replicas, rate);
    for replica in replicas {
        replica.volume.close().with_context(|| replica.dir.display().to_string())?;
    }
    let differences = result?;
    if differences == 0 {
        output::say(&format!("{} replicas are equal\n", args.dirs.len()));
        return Ok(Exit::Success);
    }
    bail!("the replicas differ in {differences} places")
}

fn compare(replicas: &mut [Replica<'_>], rate: Option<u64>) -> Result<usize> {
    let first = replicas.first().context("nothing to compare")?;
    let (dir, size, chain) = (first.dir.display().to_string(), first.volume.size(), first.volume.chain());
    let mut differences = 0;
    for other in &replicas[1..] {
        if other.volume.size() != size || other.volume.chain().identity() != chain.identity() {
            output::say(&format!("size or snapshots differ: {dir} and {}\n", other.dir.display()));
            differences += 1;
        }
    }
    if differences > 0 {
        return Ok(differences);
    }
    let snapshots = chain.snapshots.iter().map(|snapshot| View::Snapshot(snapshot.name.clone()));
    let (start, mut read) = (Instant::now(), 0);
    for view in snapshots.chain([View::Live]) {
        for offset in (0..size).step_by(STEP_BYTES as usize) {
            let len = STEP_BYTES.min(size - offset);
            if let Some(other) = differs(replicas, &view, offset, len)? {
                differences += 1;
                if differences <= SHOWN {
                    let what = match &view {
                        View::Live => "volume".to_owned(),
                        View::Snapshot(name) => format!("snapshot {name}"),
                    };
                    let text = format!("{what}: {} at {}: {dir} and {other}\n", human(len), human(offset));
                    output::say(&text);
                }
            }
            read += len;
            if let Some(rate) = rate {
                let due = Duration::from_secs_f64(read as f64 / rate as f64);
                std::thread::sleep(due.saturating_sub(start.elapsed()));
            }
        }
    }
    Ok(differences)
}

/// The first directory whose contents differ from the first one's.
fn differs(replicas: &mut [Replica<'_>], view: &View, offset: u64, len: u64) -> Result<Option<String>> {
    let mut expected = None;
    for replica in replicas {
        let request = Request::Checksum { view: view.clone(), offset, len };
        let reply = host::run(&mut replica.volume, request).with_context(|| replica.dir.display().to_string())?;
        let Reply::Checksum(digest) = reply else { bail!("unexpected reply {reply:?}") };
        match expected {
            None => expected = Some(digest),
            Some(expected) if expected != digest => return Ok(Some(replica.dir.display().to_string())),
            Some(_) => {}
        }
    }
    Ok(None)
}
