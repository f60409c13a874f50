//! Small files that are there completely or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::PkiError;

/// Mode of keys: the owner only.
pub(super) const PRIVATE: u32 = 0o600;
/// Mode of what everybody may read.
pub(super) const PUBLIC: u32 = 0o644;

fn failed<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> PkiError + 'a {
    move |source| PkiError::Io { action, path: path.to_owned(), source }
}

/// The text of a file. Keys and certificates are small; anything bigger is not one.
pub(super) fn read(path: &Path) -> Result<String, PkiError> {
    const MAX_BYTES: u64 = 64 * 1024;
    let metadata = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(PkiError::Missing(path.to_owned())),
        other => other.map_err(failed("read", path))?,
    };
    let damaged = |what: &str| PkiError::Damaged { path: path.to_owned(), what: what.to_owned() };
    if metadata.len() > MAX_BYTES {
        return Err(damaged("it is too large to be a key or certificate"));
    }
    let bytes = fs::read(path).map_err(failed("read", path))?;
    String::from_utf8(bytes).map_err(|_| damaged("it is not text"))
}

/// Writes a file so that after a crash it holds either all of the old or all of the new text.
pub(super) fn write(path: &Path, text: &str, mode: u32) -> Result<(), PkiError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed("remove", &temporary)(error)),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temporary)
        .map_err(failed("create", &temporary))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed("write", &temporary))?;
    fs::rename(&temporary, path).map_err(failed("rename", &temporary))?;
    sync_parent(path)
}

fn sync_parent(path: &Path) -> Result<(), PkiError> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent).and_then(|dir| dir.sync_all()).map_err(failed("sync", parent))
}

/// Nothing is there, or a directory with nothing in it.
pub(super) fn is_absent_or_empty(dir: &Path) -> Result<bool, PkiError> {
    match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(failed("read", dir)(error)),
        Ok(mut entries) => Ok(entries.next().is_none()),
    }
}

/// A directory that is being filled and is removed unless it is published.
pub(super) struct Staging {
    path: PathBuf,
}

impl Staging {
    pub(super) fn beside(dir: &Path) -> Result<Self, PkiError> {
        let mut name = dir.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.new", std::process::id()));
        let path = dir.with_file_name(name);
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(parent).map_err(failed("create", parent))?;
        }
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed("remove", &path)(error)),
            _ => {}
        }
        DirBuilder::new().mode(0o700).create(&path).map_err(failed("create", &path))?;
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn publish(self, dir: &Path) -> Result<(), PkiError> {
        fs::rename(&self.path, dir).map_err(failed("rename", &self.path))?;
        sync_parent(dir)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // After a rename there is nothing left under this name; otherwise the half-made directory goes.
        let _ = fs::remove_dir_all(&self.path);
    }
}
