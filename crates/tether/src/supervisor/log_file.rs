//! A log file that is bounded: when it is full it is renamed, and the oldest is dropped.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Per file. With [`KEPT`] old ones, a component's logs take at most 32 MiB.
const MAX_BYTES: u64 = 8 << 20;
/// Old files beside the current one: `node-1.log.1` is the youngest.
const KEPT: u32 = 3;
/// No more than this is read to find the last lines.
const TAIL_BYTES: usize = 16 << 10;

/// Appends to a file, rotating between lines.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    file: File,
    written: u64,
    limit: u64,
}

impl LogFile {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::with_limit(path, MAX_BYTES)
    }

    fn with_limit(path: &Path, limit: u64) -> io::Result<Self> {
        let file = File::options().append(true).create(true).open(path)?;
        let written = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, written, limit })
    }

    fn numbered(&self, number: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }

    fn rotate(&mut self) -> io::Result<()> {
        for number in (1..KEPT).rev() {
            // A gap in the row is no error: there are fewer files then.
            let _ = fs::rename(self.numbered(number), self.numbered(number + 1));
        }
        fs::rename(&self.path, self.numbered(1))?;
        *self = Self::with_limit(&self.path, self.limit)?;
        Ok(())
    }

    /// The last lines of a log, for an error message.
    pub(crate) fn tail(path: &Path, lines: usize) -> String {
        let bytes = fs::read(path).unwrap_or_default();
        let end = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(TAIL_BYTES)..]);
        let all: Vec<_> = end.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_all(bytes)?;
        self.written += bytes.len() as u64;
        if self.written >= self.limit && bytes.ends_with(b"\n") {
            self.rotate()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        let mut log = LogFile::with_limit(&path, 10).unwrap();
        for number in 0..6 {
            writeln!(log, "line number {number}").unwrap();
        }
        let names = |path: &Path| {
            let mut names: Vec<_> =
                fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        assert_eq!(names(dir.path()), ["x.log", "x.log.1", "x.log.2", "x.log.3"]);
        assert_eq!(fs::read_to_string(dir.path().join("x.log.1")).unwrap(), "line number 5\n");
        assert_eq!(fs::read_to_string(dir.path().join("x.log.3")).unwrap(), "line number 3\n");
        drop(log);
        let mut log = LogFile::with_limit(&path, 10).unwrap();
        log.write_all(b"abc\ndef\n").unwrap();
        assert_eq!(LogFile::tail(&path, 1), "def");
        assert_eq!(LogFile::tail(&path, 9), "abc\ndef");
        assert_eq!(LogFile::tail(&dir.path().join("none"), 9), "");
    }
}
