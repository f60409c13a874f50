//! Deleting a replica's directory: only if it is one, only if nobody uses it, and so that a deletion that was
//! interrupted can be repeated.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::files::real::{Caching, DirectoryError, StdFiles};
use crate::meta::{HEAD_PREFIX, SNAPSHOT_PREFIX, TEMPORARY_SUFFIX, VOLUME_META};
use crate::state::STATE_FILE;
use crate::volume::REVISION_COUNTER;

/// Why a directory was not deleted.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    #[error("{path} is no absolute path without dots", path = path.display())]
    Path { path: PathBuf },
    #[error("{path} is a link, not a directory", path = path.display())]
    Link { path: PathBuf },
    #[error("{path} is no replica: it has neither {VOLUME_META} nor {STATE_FILE}", path = path.display())]
    NotAReplica { path: PathBuf },
    #[error("{path} holds {name:?}, which is nothing of a replica's; move it away first", path = path.display())]
    Foreign { path: PathBuf, name: String },
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Whether a file of this name belongs to a replica.
fn is_part(name: &str) -> bool {
    let name = name.strip_suffix(TEMPORARY_SUFFIX).unwrap_or(name);
    [VOLUME_META, STATE_FILE, REVISION_COUNTER].contains(&name)
        || name.starts_with(HEAD_PREFIX)
        || name.starts_with(SNAPSHOT_PREFIX)
}

/// Deletes the replica in `path`. One that is not there is deleted already.
///
/// What makes it a replica goes last: after an interruption the rest is still one, and can be deleted, but not used.
pub fn remove(path: &Path) -> Result<(), RemoveError> {
    let failed = |source: io::Error| RemoveError::Io { path: path.to_owned(), source };
    let plain = |part: std::path::Component<'_>| {
        matches!(part, std::path::Component::RootDir | std::path::Component::Normal(_))
    };
    if !path.is_absolute() || path.file_name().is_none() || !path.components().all(plain) {
        return Err(RemoveError::Path { path: path.to_owned() });
    }
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.is_dir() => return Err(RemoveError::Link { path: path.to_owned() }),
        Ok(_) => {}
    }
    let _locked = StdFiles::open(path, Caching::Buffered, false)?;
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !is_part(&name) || entry.file_type().map_err(failed)?.is_dir() {
            return Err(RemoveError::Foreign { path: path.to_owned(), name });
        }
        names.push(name);
    }
    if !names.is_empty() && !names.iter().any(|name| name == VOLUME_META || name == STATE_FILE) {
        return Err(RemoveError::NotAReplica { path: path.to_owned() });
    }
    names.sort_by_key(|name| (name == VOLUME_META, name == STATE_FILE));
    for name in names {
        fs::remove_file(path.join(name)).map_err(failed)?;
    }
    fs::remove_dir(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(dir: &Path) -> PathBuf {
        let path = dir.join("r1");
        fs::create_dir(&path).expect("a directory");
        for name in [VOLUME_META, STATE_FILE, "volume-head-000.img", "volume-head-000.img.meta", "revision.counter"] {
            fs::write(path.join(name), "x").expect("a file");
        }
        path
    }

    #[test]
    fn a_replica_goes_and_is_gone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = replica(dir.path());
        remove(&path).expect("it is a replica");
        assert!(!path.exists());
        remove(&path).expect("gone is gone");
    }

    #[test]
    fn an_interrupted_deletion_is_finished() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = replica(dir.path());
        fs::remove_file(path.join("volume-head-000.img")).expect("there");
        fs::remove_file(path.join(STATE_FILE)).expect("there");
        remove(&path).expect("what is left is a replica's");
    }

    #[test]
    fn what_is_no_replica_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = replica(dir.path());
        fs::write(path.join("notes.txt"), "mine").expect("a file");
        let error = remove(&path).expect_err("somebody's notes").to_string();
        assert!(error.contains("notes.txt"), "{error}");
        assert!(path.join(VOLUME_META).exists(), "nothing was deleted");
        fs::remove_file(path.join("notes.txt")).expect("there");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        assert!(matches!(remove(&link), Err(RemoveError::Link { .. })));
        let held = StdFiles::open(&path, Caching::Buffered, false).expect("free");
        assert!(matches!(remove(&path), Err(RemoveError::Directory(DirectoryError::InUse { .. }))));
        drop(held);
        let plain = dir.path().join("plain");
        fs::create_dir(&plain).expect("a directory");
        fs::write(plain.join("volume-head-000.img"), "x").expect("a file");
        assert!(matches!(remove(&plain), Err(RemoveError::NotAReplica { .. })));
        for path in ["r1", "/", "/tmp/../r1"] {
            assert!(matches!(remove(Path::new(path)), Err(RemoveError::Path { .. })), "{path}");
        }
    }
}
