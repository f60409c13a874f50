//! What a container wrote, kept as container runtimes keep it: `TIME STREAM F LINE`, or `P` for a part of a line.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;

/// A kubelet's limit for one file; one older file is kept beside it.
const MAX_BYTES: u64 = 10 << 20;
/// A longer line is kept in parts, as container runtimes do.
const MAX_LINE_BYTES: u64 = 16 << 10;

/// A log file that two streams write to.
#[derive(Clone)]
pub(super) struct Log(Arc<Mutex<Inner>>);

struct Inner {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Log {
    pub fn open(path: PathBuf) -> io::Result<Self> {
        let file = append(&path)?;
        let bytes = file.metadata()?.len();
        Ok(Self(Arc::new(Mutex::new(Inner { path, file, bytes }))))
    }

    /// Copies to the end. A log that cannot be written does not stop the container: it is read all the same.
    pub fn copy(&self, stream: &str, from: impl Read) {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut from).take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {
                    let whole = line.last() == Some(&b'\n');
                    let text = line.strip_suffix(b"\n").unwrap_or(&line);
                    let head = format!("{} {stream} {} ", Timestamp::now(), if whole { "F" } else { "P" });
                    let _ = self.0.lock().write(&[head.as_bytes(), text, b"\n"].concat());
                }
            }
        }
    }
}

impl Inner {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.bytes + line.len() as u64 > MAX_BYTES {
            fs::rename(&self.path, self.path.with_extension("1"))?;
            self.file = append(&self.path)?;
            self.bytes = 0;
        }
        self.file.write_all(line)?;
        self.bytes += line.len() as u64;
        Ok(())
    }
}

fn append(path: &std::path::Path) -> io::Result<File> {
    File::options().append(true).create(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_carry_their_stream_and_long_ones_are_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = Log::open(path.clone()).unwrap();
        log.copy("stdout", &b"hello\nworld"[..]);
        log.copy("stderr", &[vec![b'x'; MAX_LINE_BYTES as usize], b"end\n".to_vec()].concat()[..]);
        let text = fs::read_to_string(&path).unwrap();
        let shape = |line: &str| line.splitn(3, ' ').nth(2).unwrap().chars().take(7).collect::<String>();
        let lines: Vec<_> = text.lines().map(shape).collect();
        assert_eq!(lines, ["F hello", "P world", "P xxxxx", "F end"]);
    }

    #[test]
    fn a_full_log_starts_anew_and_keeps_one_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        File::create(&path).unwrap().set_len(MAX_BYTES).unwrap();
        Log::open(path.clone()).unwrap().copy("stdout", &b"new\n"[..]);
        assert!(fs::read_to_string(&path).unwrap().ends_with("stdout F new\n"));
        assert_eq!(fs::metadata(path.with_extension("1")).unwrap().len(), MAX_BYTES);
    }
}
