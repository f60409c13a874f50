//! What a start may find from a `tether up` that was killed, or from before a reboot: processes, mounts, loop devices.
//!
//! Only called by whoever holds the directory's lock, so nothing that is found here is in use.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tether_agent::{loops, namespace};
use tether_engine::device::place::{DEVICES, Place};

use super::{Layout, Marker, end_all, node_name};

/// What was found and removed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Cleaned {
    /// Command lines.
    pub(crate) processes: Vec<String>,
    pub(crate) mounts: Vec<PathBuf>,
    /// Device names.
    pub(crate) loops: Vec<String>,
}

impl Cleaned {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Removes what is left, in the order in which one thing holds another: processes, mounts, loop devices, files.
pub(crate) fn clean(layout: &Layout, marker: &Marker) -> Result<Cleaned> {
    let mut cleaned = Cleaned { processes: end_all(&layout.process_mark(marker)), ..Cleaned::default() };
    if namespace::unavailable().is_none() {
        for number in 1..=marker.nodes {
            let place = Place { run: layout.devices(&node_name(number)), dev: DEVICES.into() };
            // Their holders have ended with the other processes; what they held only fails now.
            match tether_engine::device::leftovers::clean(&place, &BTreeSet::new()) {
                Ok(report) => cleaned.loops.extend(report.removed.iter().map(ToString::to_string)),
                Err(error) => tracing::warn!(%error, "devices of node {number} could not be looked at"),
            }
        }
        for mount in mounts_below(&layout.run())? {
            namespace::release(&mount)?;
            cleaned.mounts.push(mount);
        }
        for device in loops::backed_below(&layout.dir)? {
            loops::detach(&device)?;
            cleaned.loops.push(device.name);
        }
    }
    match fs::remove_dir_all(layout.run()) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        other => other.with_context(|| format!("cannot empty {}", layout.run().display()))?,
    }
    Ok(cleaned)
}

/// Mount points at or below `dir`, the deepest first.
fn mounts_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
    let mut found: Vec<_> = mount_points(&table).filter(|point| point.starts_with(dir)).collect();
    found.sort();
    found.dedup();
    found.reverse();
    Ok(found)
}

/// The fifth column of mountinfo, in which the kernel writes blanks in octal.
fn mount_points(table: &str) -> impl Iterator<Item = PathBuf> + '_ {
    let column = |line: &str| Some(PathBuf::from(unescape(line.split(' ').nth(4)?)));
    table.lines().filter_map(column)
}

fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (escaped, character)| text.replace(escaped, character))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_with_their_blanks() {
        let table = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n31 22 0:4 mnt:[4026532] /my\\040data/run/node-1/mnt rw - nsfs nsfs rw\n";
        let points: Vec<_> = mount_points(table).collect();
        assert_eq!(points, [Path::new("/"), Path::new("/my data/run/node-1/mnt")]);
    }

    #[test]
    fn cleaning_a_tidy_directory_finds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { dir: dir.path().to_owned() };
        fs::create_dir(layout.run()).unwrap();
        assert!(clean(&layout, &Marker::new(1, 1)).unwrap().is_empty());
        assert!(!layout.run().exists());
    }

    #[test]
    fn held_namespaces_are_let_go() {
        if let Some(why) = namespace::unavailable() {
            eprintln!("SKIPPED: {why}");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { dir: dir.path().to_owned() };
        fs::create_dir_all(layout.namespace("node-1").parent().unwrap()).unwrap();
        namespace::make_private(&layout.run()).unwrap();
        namespace::create(&layout.namespace("node-1")).unwrap();
        let cleaned = clean(&layout, &Marker::new(1, 1)).unwrap();
        assert_eq!(cleaned.mounts, [layout.namespace("node-1"), layout.run()]);
        assert_eq!(mounts_below(dir.path()).unwrap(), Vec::<PathBuf>::new());
    }
}
