//! Mounts, as the kernel has them, and the programs that change them.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;
use tonic::Status;

/// How long a program may take; a check of a large file system is the longest.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(600);
/// How often a busy mount is tried before it is detached lazily.
const UNMOUNT_ATTEMPTS: u32 = 5;
const UNMOUNT_PAUSE: Duration = Duration::from_millis(200);

/// One line of the kernel's list of mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// The device below it.
    pub device: (u64, u64),
    /// Where in the mounted file system it begins.
    pub root: PathBuf,
    pub point: PathBuf,
    pub fs_type: String,
    pub read_only: bool,
}

/// The mount that is on top at a path.
pub(super) fn at(path: &Path) -> io::Result<Option<Mount>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    Ok(parse(&text).into_iter().rfind(|mount| mount.point == path))
}

fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|byte| *byte == b' ');
    let device = std::str::from_utf8(words.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let (root, point, options) = (unescape(words.next()?), unescape(words.next()?), words.next()?);
    let fs_type = words.skip_while(|word| *word != b"-").nth(1)?;
    Some(Mount {
        device: (major.parse().ok()?, minor.parse().ok()?),
        root,
        point,
        fs_type: String::from_utf8_lossy(fs_type).into_owned(),
        read_only: options.split(|byte| *byte == b',').any(|option| option == b"ro"),
    })
}

/// Blanks and the like are written in octal.
fn unescape(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|digits| first == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        if let Some(digits) = digits {
            bytes.push(digits.iter().fold(0, |value: u8, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')));
            rest = &after[3..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    PathBuf::from(OsStr::from_bytes(&bytes))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo_are_understood() {
        let text = b"36 35 98:0 /mnt1 /mnt2\\040x rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n\
                     40 35 7:3 / /data ro,relatime shared:2 master:1 - ext4 /dev/loop3 rw\nbroken\n";
        let mounts = parse(text);
        assert_eq!(mounts.len(), 2);
        assert_eq!((mounts[0].point.as_path(), mounts[0].fs_type.as_str()), (Path::new("/mnt2 x"), "ext3"));
        assert_eq!(
            (mounts[0].device, mounts[0].root.as_path(), mounts[0].read_only),
            ((98, 0), Path::new("/mnt1"), false)
        );
        assert!(mounts[1].read_only);
    }
}
