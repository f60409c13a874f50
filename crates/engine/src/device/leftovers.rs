//! What processes that died left of kernel devices: holders nobody needs, loop devices without a holder, nodes
//! without a device.
//!
//! A reboot leaves nothing. `kill -9` of an engine leaves a holder that waits for the next one, on purpose. So only a
//! holder whose volume is not wanted here any more is in the way, and whatever a dead holder left.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use super::link::Link;
use super::loops::{self, Loop};
use super::place::{Name, Place, TAG};

/// Something that was in the way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leftover {
    /// A living holder of a volume that is not wanted here, and its device.
    Holder { volume: String, pid: u32 },
    /// The directory of a holder that died.
    Directory { path: PathBuf },
    /// A loop device whose holder died; it only fails.
    Loop { number: u32, tag: String },
    /// A node that leads nowhere, or to a device of somebody else.
    Node { path: PathBuf },
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holder { volume, pid } => write!(f, "device of volume {volume}, held by process {pid}"),
            Self::Directory { path } => write!(f, "directory {} of a holder that died", path.display()),
            Self::Loop { number, tag } => write!(f, "/dev/loop{number} ({tag}) without a holder"),
            Self::Node { path } => write!(f, "node {} without a device", path.display()),
        }
    }
}

/// A leftover that could not be removed.
#[derive(Debug)]
pub struct Kept {
    pub leftover: Leftover,
    pub why: String,
}

/// What [`clean`] did.
#[derive(Debug, Default)]
pub struct Report {
    pub removed: Vec<Leftover>,
    pub kept: Vec<Kept>,
}

impl Report {
    fn note(&mut self, leftover: Leftover, result: Result<(), String>) {
        match result {
            Ok(()) => self.removed.push(leftover),
            Err(why) => self.kept.push(Kept { leftover, why }),
        }
    }
}

/// Removes everything at `place` but the devices of the volumes in `wanted` whose holders live. Call it before engines
/// start: a volume that is not wanted must have no engine here.
pub fn clean(place: &Place, wanted: &BTreeSet<Name>) -> io::Result<Report> {
    let mut report = Report::default();
    let mut held = BTreeSet::new();
    for volume in directories(place)? {
        match Link::find(place, &volume) {
            Ok(Some(_)) if wanted.contains(&volume) => {
                held.insert(place.tag(&volume));
            }
            Ok(Some(link)) => {
                let leftover = Leftover::Holder { volume: volume.as_str().to_owned(), pid: link.pid };
                report.note(leftover, link.retire().map_err(|error| error.to_string()));
                remove_directory(place, &volume, None);
            }
            Ok(None) => remove_directory(place, &volume, Some(&mut report)),
            Err(error) => {
                let path = place.directory(&volume);
                report.note(Leftover::Directory { path }, Err(error.to_string()));
                held.insert(place.tag(&volume));
            }
        }
    }
    let bound = loops(place, &held, &mut report)?;
    nodes(place, &bound, &mut report)?;
    Ok(report)
}

fn directories(place: &Place) -> io::Result<Vec<Name>> {
    let entries = match fs::read_dir(&place.run) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().to_str().and_then(|name| Name::new(name).ok()));
    }
    names.sort();
    Ok(names)
}

fn remove_directory(place: &Place, volume: &Name, report: Option<&mut Report>) {
    let path = place.directory(volume);
    let result = fs::remove_dir_all(&path).map_err(|error| error.to_string());
    if let Some(report) = report {
        report.note(Leftover::Directory { path }, result);
    }
}

/// Lets go what nobody holds; returns the numbers and names of all that stay, also of others.
fn loops(place: &Place, held: &BTreeSet<String>, report: &mut Report) -> io::Result<BTreeMap<u32, String>> {
    let prefix = place.tag_prefix();
    let mut bound = BTreeMap::new();
    for device in Loop::bound()? {
        // One that cannot be looked at is not ours.
        let Ok(Some(tag)) = device.tag() else { continue };
        if held.contains(&tag) || !tag.starts_with(&prefix) {
            bound.insert(device.0, tag);
        } else {
            let result = device.clear().map_err(|error| error.to_string());
            report.note(Leftover::Loop { number: device.0, tag }, result);
        }
    }
    Ok(bound)
}

fn nodes(place: &Place, bound: &BTreeMap<u32, String>, report: &mut Report) -> io::Result<()> {
    let entries = match fs::read_dir(&place.dev) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        let major = rustix::fs::major(metadata.rdev());
        if !metadata.file_type().is_block_device() || major != loops::MAJOR {
            continue;
        }
        let name = path.file_name().and_then(|name| Name::new(name.to_str()?).ok());
        let tag = bound.get(&rustix::fs::minor(metadata.rdev()));
        let ours = name.is_some_and(|name| tag == Some(&place.tag(&name)));
        // Another Tether on this machine may keep its devices in the same directory.
        let theirs = tag.is_some_and(|tag| tag.starts_with(TAG) && !tag.starts_with(&place.tag_prefix()));
        if !ours && !theirs {
            let result = fs::remove_file(&path).map_err(|error| error.to_string());
            report.note(Leftover::Node { path }, result);
        }
    }
    Ok(())
}
