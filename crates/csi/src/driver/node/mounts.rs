//! The programs that change mounts.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;
use tonic::Status;

pub(super) use crate::mountinfo::at;
use crate::mountinfo::{self, Mount};

/// How long a program may take; a check of a large file system is the longest.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(600);
/// How often a busy mount is tried before it is detached lazily.
const UNMOUNT_ATTEMPTS: u32 = 5;
const UNMOUNT_PAUSE: Duration = Duration::from_millis(200);

/// Where else what is mounted at `source` appears, but for `target`.
pub(super) fn elsewhere(source: &Mount, target: &Path) -> io::Result<Option<PathBuf>> {
    let other = |mount: &Mount| {
        let same = mount.device == source.device && mount.root == source.root;
        same && mount.point != source.point && mount.point != target
    };
    Ok(mountinfo::below(Path::new("/"))?.into_iter().find(other).map(|mount| mount.point))
}

/// Runs a program to its end.
pub(super) async fn run(program: &str, args: &[&OsStr]) -> Result<Output, Status> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PROGRAM_TIMEOUT, command.output()).await;
    let output = output.map_err(|_| Status::deadline_exceeded(format!("{program} takes too long")))?;
    output.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Status::failed_precondition(format!("{program} is not installed on this node")),
        _ => Status::internal(format!("{program}: {error}")),
    })
}

/// The same, and anything but success is an error with what the program said.
pub(super) async fn succeed(program: &str, args: &[&OsStr]) -> Result<(), Status> {
    let output = run(program, args).await?;
    if output.status.success() {
        return Ok(());
    }
    Err(Status::internal(format!("{program}: {}", said(&output))))
}

/// The last words of a program.
pub(super) fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(if output.stderr.is_empty() { &output.stdout } else { &output.stderr });
    let text = text.trim();
    if text.is_empty() { format!("ended with {}", output.status) } else { text.replace('\n', "; ") }
}

/// Binds one path to another, which exists.
pub(super) async fn bind(from: &Path, to: &Path) -> Result<(), Status> {
    succeed("mount", &["--bind".as_ref(), from.as_os_str(), to.as_os_str()]).await
}

/// Unmounts everything at a path; that nothing is there is as good.
pub(super) async fn unmount(path: &Path) -> Result<(), Status> {
    let failed = |error: io::Error| Status::internal(format!("cannot read mounts: {error}"));
    let mut attempt = 0;
    while at(path).map_err(failed)?.is_some() {
        let output = run("umount", &[path.as_os_str()]).await?;
        if output.status.success() {
            continue;
        }
        attempt += 1;
        if attempt >= UNMOUNT_ATTEMPTS {
            return Err(Status::internal(format!("umount {}: {}", path.display(), said(&output))));
        }
        tokio::time::sleep(UNMOUNT_PAUSE).await;
    }
    Ok(())
}
