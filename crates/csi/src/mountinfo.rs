//! Mounts, as the kernel lists them.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Of this thread: it may have a mount namespace of its own.
const LIST: &str = "/proc/thread-self/mountinfo";

/// One line of the kernel's list of mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The device below it.
    pub device: (u64, u64),
    /// Where in the mounted file system it begins.
    pub root: PathBuf,
    pub point: PathBuf,
    pub fs_type: String,
    /// As whoever mounted it called it.
    pub source: String,
    pub read_only: bool,
}

/// The mount that is on top at a path.
pub fn at(path: &Path) -> io::Result<Option<Mount>> {
    let text = std::fs::read(LIST)?;
    Ok(parse(&text).into_iter().rfind(|mount| mount.point == path))
}

/// The mounts at a path and below it, outer ones first.
pub fn below(path: &Path) -> io::Result<Vec<Mount>> {
    let text = std::fs::read(LIST)?;
    Ok(parse(&text).into_iter().filter(|mount| mount.point.starts_with(path)).collect())
}

fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|byte| *byte == b' ');
    let device = std::str::from_utf8(words.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let (root, point, options) = (unescape(words.next()?), unescape(words.next()?), words.next()?);
    let mut rest = words.skip_while(|word| *word != b"-").skip(1);
    let (fs_type, source) = (rest.next()?, rest.next()?);
    Some(Mount {
        device: (major.parse().ok()?, minor.parse().ok()?),
        root,
        point,
        fs_type: String::from_utf8_lossy(fs_type).into_owned(),
        source: unescape(source).to_string_lossy().into_owned(),
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
        assert_eq!(mounts[1].source, "/dev/loop3");
    }
}
