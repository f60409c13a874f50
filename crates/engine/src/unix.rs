//! Listening on a unix socket whose file a killed process may have left behind.

use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

/// How often and how long apart a socket in use is tried: a process that was killed answers until the kernel has taken
/// back its descriptors, and nothing tells when that is. Three seconds; a living owner is an error after that.
const ATTEMPTS: u32 = 30;
const PAUSE: Duration = Duration::from_millis(100);

/// Binds and listens. A file that nobody listens on is replaced. Blocks for as long as a predecessor takes to go, so
/// it is called before anything is served.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    for _ in 0..ATTEMPTS {
        remove_stale(path)?;
        match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
    UnixListener::bind(path)
}

/// A socket that refuses connections belongs to nobody. Any other file is somebody's.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    let refuses = || UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if is_socket && refuses() { std::fs::remove_file(path) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_process_left_is_replaced_and_what_lives_or_is_no_socket_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(listen(&path).unwrap());
        assert!(path.exists(), "the file stays behind, as after a kill");
        let living = listen(&path).unwrap();
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        UnixStream::connect(&path).unwrap();
        drop(living);

        let file = dir.path().join("f");
        std::fs::write(&file, "precious").unwrap();
        assert_eq!(listen(&file).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    }
}
