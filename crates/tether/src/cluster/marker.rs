//! The file that makes a directory a cluster's: what it is, in which format, and how it was set up.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Layout;

/// The format that this binary writes. It reads this one and older ones.
pub(crate) const FORMAT: u32 = 1;
const KIND: &str = "tether-cluster";
/// What may lie in a directory that counts as empty: a new file system's, and ours from a start that got no further.
const HARMLESS: [&str; 3] = ["lost+found", "lock", "tether.json.new"];

/// What a cluster is. A second start finds it here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Marker {
    kind: String,
    pub(crate) format: u32,
    /// The version that wrote this last.
    pub(crate) written_by: String,
    /// A UUID, made once.
    pub(crate) id: String,
    pub(crate) created_at: Timestamp,
    pub(crate) nodes: u16,
    pub(crate) api_port: u16,
}

/// Only what every format, past and future, has.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    kind: String,
    format: u32,
    #[serde(default)]
    written_by: String,
}

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("--data-dir {dir}: cannot {action}: {source}; choose a directory that you may write to", dir = dir.display())]
    Unusable { dir: PathBuf, action: &'static str, source: io::Error },
    #[error("--data-dir {dir}: is not a directory", dir = .0.display())]
    NotADirectory(PathBuf),
    #[error(
        "--data-dir {dir}: holds files that are not Tether's (such as {example:?}) and no tether.json; choose an empty or a new directory",
        dir = dir.display()
    )]
    Foreign { dir: PathBuf, example: String },
    #[error("--data-dir {dir}: there is no cluster here; start one with `tether up`", dir = .0.display())]
    NoCluster(PathBuf),
    #[error(
        "--data-dir {dir}: was written by a newer tether {written_by} (format {found}; this tether {} reads up to {FORMAT}); use that version, or another directory",
        env!("CARGO_PKG_VERSION"),
        dir = dir.display()
    )]
    Newer { dir: PathBuf, written_by: String, found: u32 },
    #[error("{path}: is damaged ({what}); restore it from a backup, or choose another --data-dir", path = path.display())]
    Damaged { path: PathBuf, what: String },
    #[error("--data-dir {dir}: belongs to user {owner}, and this is user {me}; run as that user, or choose another directory", dir = dir.display())]
    OtherOwner { dir: PathBuf, owner: u32, me: u32 },
}

impl Marker {
    pub(crate) fn new(nodes: u16, api_port: u16) -> Self {
        Self {
            kind: KIND.to_owned(),
            format: FORMAT,
            written_by: env!("CARGO_PKG_VERSION").to_owned(),
            id: Uuid::new_v4().to_string(),
            created_at: Timestamp::now(),
            nodes,
            api_port,
        }
    }

    /// Reads the marker of an existing cluster.
    pub(crate) fn open(dir: &Path) -> Result<(Layout, Self), OpenError> {
        let layout = existing(dir)?.ok_or_else(|| OpenError::NoCluster(dir.to_owned()))?;
        match Self::read(&layout)? {
            Some(marker) => Ok((layout, marker)),
            None => match foreign_entry(&layout.dir)? {
                Some(example) => Err(OpenError::Foreign { dir: layout.dir, example }),
                None => Err(OpenError::NoCluster(layout.dir)),
            },
        }
    }

    /// Makes sure that `dir` is a cluster's or may become one; its marker, if it has one already.
    pub(crate) fn prepare(dir: &Path) -> Result<(Layout, Option<Self>), OpenError> {
        let layout = if let Some(layout) = existing(dir)? {
            layout
        } else {
            let failed = |source| OpenError::Unusable { dir: dir.to_owned(), action: "create it", source };
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
            existing(dir)?.ok_or_else(|| OpenError::NotADirectory(dir.to_owned()))?
        };
        let marker = Self::read(&layout)?;
        if marker.is_none()
            && let Some(example) = foreign_entry(&layout.dir)?
        {
            return Err(OpenError::Foreign { dir: layout.dir, example });
        }
        Ok((layout, marker))
    }

    fn read(layout: &Layout) -> Result<Option<Self>, OpenError> {
        let path = layout.marker();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(OpenError::Unusable { dir: layout.dir.clone(), action: "read tether.json", source });
            }
        };
        let damaged = |what: String| OpenError::Damaged { path: path.clone(), what };
        let header: Header = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        if header.kind != KIND {
            return Err(damaged(format!("kind is {:?}, not {KIND:?}", header.kind)));
        }
        if header.format > FORMAT {
            let (written_by, found) = (header.written_by, header.format);
            return Err(OpenError::Newer { dir: layout.dir.clone(), written_by, found });
        }
        let owner = fs::metadata(&path).map(|found| found.uid()).unwrap_or_default();
        let me = rustix::process::geteuid().as_raw();
        if owner != me {
            return Err(OpenError::OtherOwner { dir: layout.dir.clone(), owner, me });
        }
        serde_json::from_str(&text).map(Some).map_err(|error| damaged(error.to_string()))
    }

    /// The same cluster, as this version writes it.
    pub(crate) fn renewed(self) -> Self {
        Self { format: FORMAT, written_by: env!("CARGO_PKG_VERSION").to_owned(), ..self }
    }

    /// Writes the marker; whoever reads it finds the old one or the new one.
    pub(crate) fn write(&self, layout: &Layout) -> Result<(), OpenError> {
        let text = serde_json::to_string_pretty(self).expect("a marker must serialize") + "\n";
        let failed = |source| OpenError::Unusable { dir: layout.dir.clone(), action: "write tether.json", source };
        write_atomically(&layout.marker(), text.as_bytes(), 0o600).map_err(failed)
    }
}

/// The directory, if there is one.
fn existing(dir: &Path) -> Result<Option<Layout>, OpenError> {
    match fs::canonicalize(dir) {
        Ok(dir) if dir.is_dir() => Ok(Some(Layout { dir })),
        Ok(dir) => Err(OpenError::NotADirectory(dir)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(OpenError::NotADirectory(dir.to_owned())),
        Err(source) => Err(OpenError::Unusable { dir: dir.to_owned(), action: "open it", source }),
    }
}

/// Something in `dir` that makes it somebody else's.
fn foreign_entry(dir: &Path) -> Result<Option<String>, OpenError> {
    let failed = |source| OpenError::Unusable { dir: dir.to_owned(), action: "list it", source };
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names.into_iter().find(|name| !HARMLESS.contains(&name.as_str())))
}

/// Writes beside `path` and renames, with the data on disk before the name.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut staging = path.as_os_str().to_owned();
    staging.push(".new");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&staging)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&staging, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(dir: &Path) -> String {
        Marker::prepare(dir).unwrap_err().to_string()
    }

    #[test]
    fn a_directory_becomes_a_cluster_and_stays_one() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("new/tether");
        let (layout, marker) = Marker::prepare(&dir).unwrap();
        assert_eq!(marker, None);
        let marker = Marker::new(3, 6443);
        marker.write(&layout).unwrap();
        assert_eq!(Marker::prepare(&dir).unwrap(), (layout.clone(), Some(marker.clone())));
        assert_eq!(Marker::open(&dir).unwrap(), (layout, marker));
    }

    #[test]
    fn a_new_file_system_is_an_empty_directory() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        assert_eq!(Marker::prepare(dir.path()).unwrap().1, None);
    }

    #[test]
    fn what_is_not_ours_is_refused_with_words() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        assert!(Marker::open(path).unwrap_err().to_string().contains("there is no cluster here"));
        fs::write(path.join("thesis.tex"), "").unwrap();
        assert!(error(path).contains("such as \"thesis.tex\""), "{}", error(path));
        assert!(error(&path.join("thesis.tex")).contains("is not a directory"));
        assert!(error(&path.join("thesis.tex/below")).contains("is not a directory"));

        let marker = path.join("tether.json");
        for (text, expected) in [
            ("{", "is damaged"),
            (r#"{"kind": "other", "format": 1}"#, "kind is \"other\""),
            (r#"{"kind": "tether-cluster", "format": 1}"#, "is damaged"),
            (
                r#"{"kind": "tether-cluster", "format": 7, "writtenBy": "9.1.0", "soul": true}"#,
                "newer tether 9.1.0 (format 7",
            ),
        ] {
            fs::write(&marker, text).unwrap();
            assert!(error(path).contains(expected), "{text}: {}", error(path));
        }
    }
}
