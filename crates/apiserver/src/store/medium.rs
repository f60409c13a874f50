//! Where the store's one file lives: how it is opened, and how a new one appears under its name only when complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use redb::StorageBackend;
use redb::backends::FileBackend;

/// Something that holds one store.
pub trait Medium: Send + Sync + 'static {
    /// How messages call it.
    fn name(&self) -> String;

    /// What is there; `None` if nothing was ever published. Called again after a failure, when the earlier backend
    /// has been dropped.
    fn open(&self) -> io::Result<Option<Box<dyn StorageBackend>>>;

    /// An empty place for a new store, which does not have its name yet.
    fn create(&self) -> io::Result<Box<dyn StorageBackend>>;

    /// Gives what was created its name, durably; `false` if another process was first.
    fn publish(&self) -> io::Result<bool>;

    /// Makes the next reads come from the disk. After a failed fsync the page cache may hold, as clean, what never
    /// reached the disk.
    fn forget_cached(&self);
}

/// A file in a directory.
pub(super) struct FileMedium {
    path: PathBuf,
    /// Where a new store is built. The name is unique, so that no two processes ever build in the same file.
    staging: PathBuf,
}

/// Size of one read when a whole file is brought back into the page cache; larger ones are not faster.
const READ_AHEAD_BYTES: usize = 1 << 20;

/// Ends the name of a store under construction.
const STAGING_SUFFIX: &str = ".new";

impl FileMedium {
    pub(super) fn new(path: &Path) -> Self {
        let mut staging = path.as_os_str().to_owned();
        staging.push(format!(".{}{STAGING_SUFFIX}", uuid::Uuid::new_v4().simple()));
        Self { path: path.to_owned(), staging: staging.into() }
    }

    fn directory(&self) -> &Path {
        match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }

    /// Removes what crashed creations left. Safe at any time: a creation that loses its file this way was going to
    /// find that the store exists.
    fn sweep(&self) {
        let Some(name) = self.path.file_name().and_then(|name| name.to_str()) else { return };
        let prefix = format!("{name}.");
        for entry in fs::read_dir(self.directory()).into_iter().flatten().flatten() {
            let left_over = entry.file_name().to_str().is_some_and(|other| {
                other.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(STAGING_SUFFIX)).is_some_and(is_unique)
            });
            if left_over {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn is_unique(part: &str) -> bool {
    part.len() == 32 && part.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn backend(file: File) -> io::Result<Box<dyn StorageBackend>> {
    Ok(Box::new(FileBackend::new(file).map_err(io::Error::other)?))
}

impl Medium for FileMedium {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn open(&self) -> io::Result<Option<Box<dyn StorageBackend>>> {
        match OpenOptions::new().read(true).write(true).open(&self.path) {
            Ok(file) => {
                self.sweep();
                backend(file).map(Some)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn create(&self) -> io::Result<Box<dyn StorageBackend>> {
        // The store holds Secrets: it is its owner's only.
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&self.staging)?;
        backend(file)
    }

    fn publish(&self) -> io::Result<bool> {
        // A link, unlike a rename, never replaces what is there already.
        let linked = fs::hard_link(&self.staging, &self.path);
        let _ = fs::remove_file(&self.staging);
        match linked {
            Ok(()) => File::open(self.directory())?.sync_all().map(|()| true),
            // Swept away by the process that was first.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.path.exists() => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn forget_cached(&self) {
        let Ok(mut file) = File::open(&self.path) else { return };
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        // All of it will be needed, page by page and in no order: in order it is read many times faster.
        let mut chunk = vec![0; READ_AHEAD_BYTES];
        while file.read(&mut chunk).is_ok_and(|count| count > 0) {}
    }
}
