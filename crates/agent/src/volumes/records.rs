//! What is written on the node's disk about volumes: before something is staged or published, until it is undone.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tether_plan::kubelet::volume::layout::{DEVICES, POD_DEVICES, POD_MOUNTS, Places, RECORD, STAGED};

use crate::container::files::names;

/// As a kubelet's directories of volumes.
const MODE: u32 = 0o750;

/// Which volume a directory is for, in a kubelet's words. Of a staged file system only the first two are known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Record {
    pub driver_name: String,
    pub volume_handle: String,
    #[serde(rename = "specVolID", skip_serializing_if = "String::is_empty")]
    pub volume: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    #[serde(rename = "attachmentID", skip_serializing_if = "String::is_empty")]
    pub attachment: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub volume_lifecycle_mode: String,
}

/// One volume that something was found of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    pub record: Record,
    pub block: bool,
    pub staged: bool,
    /// Uids of pods.
    pub published: Vec<String>,
}

/// Makes a directory of volumes.
pub(super) fn make(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(MODE).create(path)
}

/// Writes the record of a directory; whoever reads finds nothing or all of it.
pub(super) fn write(dir: &Path, record: &Record) -> io::Result<()> {
    make(dir)?;
    let staging = dir.join(format!("{RECORD}.new"));
    fs::write(&staging, serde_json::to_vec(record)?)?;
    fs::rename(staging, dir.join(RECORD))
}

fn read(dir: &Path) -> io::Result<Option<Record>> {
    match fs::read(dir.join(RECORD)) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a record with its directory, which is empty otherwise; that there is none is as good.
pub(super) fn remove(dir: &Path) -> io::Result<()> {
    gone(fs::remove_file(dir.join(format!("{RECORD}.new"))))?;
    gone(fs::remove_file(dir.join(RECORD)))?;
    remove_dir(dir)
}

/// Removes an empty directory; that there is none is as good.
pub(super) fn remove_dir(dir: &Path) -> io::Result<()> {
    gone(fs::remove_dir(dir))
}

pub(super) fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Points the pod's link at its device.
pub(super) fn link(places: &Places, pod: &str) -> io::Result<()> {
    let link = places.of_pod(pod);
    make(link.parent().unwrap_or(&link))?;
    gone(fs::remove_file(&link))?;
    std::os::unix::fs::symlink(places.target(pod), link)
}

/// Everything that was begun and not undone, by driver and handle. What cannot be read is told and left: it is not known
/// whose it is.
pub(super) fn scan(root: &Path) -> io::Result<BTreeMap<(String, String), Left>> {
    let mut found = BTreeMap::new();
    scan_staged(root, &mut found)?;
    let pods = root.join("pods");
    for pod in names(&pods)? {
        let dir = pods.join(&pod).join(POD_MOUNTS);
        for volume in names(&dir)? {
            note(&mut found, &dir.join(volume), false, |left| left.published.push(pod.clone()));
        }
        for volume in links(&pods.join(&pod).join(POD_DEVICES))? {
            let data = root.join(STAGED).join(DEVICES).join(&volume).join("data");
            note(&mut found, &data, true, |left| left.published.push(pod.clone()));
        }
    }
    Ok(found)
}

fn scan_staged(root: &Path, found: &mut BTreeMap<(String, String), Left>) -> io::Result<()> {
    let staged = root.join(STAGED);
    for driver in names(&staged)? {
        let dir = staged.join(&driver);
        for name in names(&dir)? {
            if driver != DEVICES {
                note(found, &dir.join(name), false, |left| left.staged = true);
            } else if name != "staging" && name != "publish" {
                note(found, &dir.join(name).join("data"), true, |left| left.staged = true);
            }
        }
    }
    Ok(())
}

fn note(found: &mut BTreeMap<(String, String), Left>, dir: &Path, block: bool, what: impl FnOnce(&mut Left)) {
    match read(dir) {
        Ok(Some(record)) => {
            let key = (record.driver_name.clone(), record.volume_handle.clone());
            let left = found.entry(key).or_insert_with(|| Left { block, ..Left::default() });
            // A staged file system does not say the volume's name, a published one does.
            if left.record.volume.is_empty() {
                left.record = record;
            }
            what(left);
        }
        Ok(None) => drop(remove_dir(dir)),
        Err(error) => tracing::warn!(dir = %dir.display(), %error, "cannot tell which volume this is"),
    }
}

fn links(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let name = |entry: io::Result<fs::DirEntry>| entry.map(|entry| entry.file_name().to_string_lossy().into_owned());
    entries.map(name).collect()
}

/// The places of what was found.
pub(super) fn places(root: &Path, left: &Left) -> Places {
    let record = &left.record;
    Places::new(root, &record.driver_name, &record.volume_handle, &record.volume, left.block)
}

/// The directory of a pod.
pub(super) fn pod_dir(root: &Path, pod: &str) -> PathBuf {
    root.join("pods").join(pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(volume: &str) -> Record {
        Record {
            driver_name: "d".into(),
            volume_handle: "h".into(),
            volume: volume.into(),
            node_name: "n".into(),
            attachment: "csi-1".into(),
            volume_lifecycle_mode: "Persistent".into(),
        }
    }

    #[test]
    fn what_was_begun_is_found_until_it_is_undone() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert!(scan(root).unwrap().is_empty());
        let places = Places::new(root, "d", "h", "pv", false);
        write(&places.record, &Record { volume: String::new(), ..record("") }).unwrap();
        for pod in ["u1", "u2"] {
            write(&places.of_pod(pod), &record("pv")).unwrap();
        }
        let found = scan(root).unwrap();
        let left = &found[&("d".to_owned(), "h".to_owned())];
        assert_eq!((left.record.volume.as_str(), left.block, left.staged), ("pv", false, true));
        assert_eq!(left.published, ["u1", "u2"]);
        assert_eq!(super::places(root, left), places);
        remove(&places.of_pod("u1")).unwrap();
        remove(&places.of_pod("u1")).unwrap();
        remove(&places.of_pod("u2")).unwrap();
        remove(&places.record).unwrap();
        assert!(scan(root).unwrap().is_empty());
    }

    #[test]
    fn devices_are_found_by_their_links() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let places = Places::new(root, "d", "h", "pv", true);
        write(&places.record, &record("pv")).unwrap();
        link(&places, "u1").unwrap();
        link(&places, "u1").unwrap();
        let found = scan(root).unwrap();
        let left = &found[&("d".to_owned(), "h".to_owned())];
        assert_eq!((left.block, left.staged, left.published.as_slice()), (true, true, &["u1".to_owned()][..]));
    }

    #[test]
    fn a_directory_with_something_in_it_is_never_removed() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &record("pv")).unwrap();
        fs::create_dir(dir.path().join("mount")).unwrap();
        assert!(remove(dir.path()).is_err());
        assert!(dir.path().join("mount").exists());
    }
}
