//! The key of a volume: 32 bytes from a file, never shown.

use std::fmt;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use ring::hmac;

/// Bytes of a key: the size of the hash, beyond which nothing is gained.
const KEY_BYTES: usize = 32;
/// Longest key file that is read; a key in hexadecimal and a newline take 65.
const MAX_FILE_BYTES: usize = 4096;
/// Permissions that others must not have.
const OTHERS: u32 = 0o077;

/// A secret shared by the engines and replicas of one volume.
#[derive(Clone)]
pub struct Key(hmac::Key);

impl Key {
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
    }

    /// A key of any length from [`KEY_BYTES`] on, as Secrets hold it: hexadecimal text, or raw bytes.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).unwrap_or("").trim();
        if text.len() == 2 * KEY_BYTES
            && let Some(key) = from_hex(text)
        {
            return Some(Self::from_bytes(key));
        }
        (bytes.len() >= KEY_BYTES).then(|| Self(hmac::Key::new(hmac::HMAC_SHA256, bytes)))
    }

    pub(super) fn hmac(&self) -> &hmac::Key {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

fn from_hex(text: &str) -> Option<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    for (byte, pair) in key.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(key)
}

/// Where a command takes the key from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file that somebody made: `head -c 32 /dev/urandom > FILE; chmod 600 FILE`.
    File(PathBuf),
    /// The user's own key, made when it is first needed: enough where nothing leaves the machine, since only this
    /// user (and root) can read it.
    User,
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("cannot read the key file {path}: {source}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error(
        "the key file {path} can be read by others (mode {mode:o}): run `chmod 600 {path}`, and make a new key if they \
         are not trusted",
        path = path.display()
    )]
    Exposed { path: PathBuf, mode: u32 },
    #[error("the key file {path} holds no key: {KEY_BYTES} random bytes or more are needed", path = path.display())]
    Short { path: PathBuf },
    #[error("cannot make a key at {path}: {source}", path = path.display())]
    Make { path: PathBuf, source: std::io::Error },
    #[error("no place for a key of this user: set HOME or XDG_STATE_HOME, or give --key-file")]
    NoHome,
}

impl KeySource {
    /// Reads the key; makes the user's own if there is none.
    pub fn read(&self) -> Result<Key, KeyError> {
        match self {
            Self::File(path) => read(path),
            Self::User => {
                let path = user_path().ok_or(KeyError::NoHome)?;
                make(&path).map_err(|source| KeyError::Make { path: path.clone(), source })?;
                read(&path)
            }
        }
    }
}

fn user_path() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("tether/data-port.key"))
}

fn read(path: &Path) -> Result<Key, KeyError> {
    let failed = |source| KeyError::Read { path: path.to_owned(), source };
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if metadata.is_file() && metadata.mode() & OTHERS != 0 {
        return Err(KeyError::Exposed { path: path.to_owned(), mode: metadata.mode() & 0o777 });
    }
    let mut bytes = std::fs::read(path).map_err(failed)?;
    bytes.truncate(MAX_FILE_BYTES);
    Key::parse(&bytes).ok_or_else(|| KeyError::Short { path: path.to_owned() })
}

/// Makes a key file unless there is one. Two processes may try at once: whoever links first has made it.
fn make(path: &Path) -> std::io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let dir = path.parent().expect("the key's path must have a directory");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mut bytes = [0; KEY_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| std::io::Error::other(error.to_string()))?;
    let temporary = path.with_extension(format!("key.{}", std::process::id()));
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    let linked = std::fs::hard_link(&temporary, path);
    std::fs::remove_file(&temporary)?;
    match linked {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn write(path: &Path, bytes: &[u8], mode: u32) {
        std::fs::write(path, bytes).expect("a file");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("permissions");
    }

    #[test]
    fn a_key_file_is_private_and_long_enough() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("key");
        let source = KeySource::File(path.clone());
        assert!(matches!(source.read(), Err(KeyError::Read { .. })));
        write(&path, &[7; 32], 0o644);
        assert!(matches!(source.read(), Err(KeyError::Exposed { mode: 0o644, .. })));
        write(&path, &[7; 31], 0o600);
        assert!(matches!(source.read(), Err(KeyError::Short { .. })));
        write(&path, &[7; 32], 0o600);
        assert_eq!(format!("{:?}", source.read().expect("a key")), "Key(…)");
    }

    #[test]
    fn a_key_that_exists_is_not_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a/b/data-port.key");
        make(&path).expect("made");
        let first = std::fs::read(&path).expect("a key");
        make(&path).expect("there already");
        assert_eq!((first.len(), std::fs::read(&path).expect("a key")), (KEY_BYTES, first));
    }
}
