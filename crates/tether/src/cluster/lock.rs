//! One `tether up` per directory: a lock that the kernel releases with its holder, and the holder's pid in it.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};

use super::Layout;

/// Held until it is dropped, or until this process ends in any way.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// Who has the directory.
#[derive(Debug)]
pub(crate) enum Held {
    ByUs(Lock),
    /// Another process; its pid, unless it has not written it yet.
    ByOther(Option<u32>),
}

impl Lock {
    /// Takes the lock if nobody has it.
    pub(crate) fn take(layout: &Layout) -> io::Result<Held> {
        let path = layout.lock();
        let mut file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                file.read_to_string(&mut text)?;
                return Ok(Held::ByOther(text.trim().parse().ok()));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())?;
        Ok(Held::ByUs(Self { _file: file }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_learns_who_was_first() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { dir: dir.path().to_owned() };
        let Held::ByUs(lock) = Lock::take(&layout).unwrap() else { panic!("nobody had it") };
        let Held::ByOther(pid) = Lock::take(&layout).unwrap() else { panic!("it was taken") };
        assert_eq!(pid, Some(std::process::id()));
        drop(lock);
        assert!(matches!(Lock::take(&layout).unwrap(), Held::ByUs(_)));
    }
}
