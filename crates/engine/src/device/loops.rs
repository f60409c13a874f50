//! Loop devices: which are bound and to what, binding one with direct I/O, letting it go.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use super::sys;

/// Makes and removes loop devices.
pub const CONTROL: &str = "/dev/loop-control";
/// The major number of loop devices.
pub const MAJOR: u32 = 7;
/// Numbers of our own are from here on. Whoever asks the kernel for any free device gets the lowest, and waits for everybody
/// else who is just binding that one; if whatever that is to be bound to hangs, for as long.
const FIRST_NUMBER: u32 = 1 << 12;
const NUMBERS: u64 = 1 << 16;
/// A number may be taken; this often in a row would be no accident.
const MAX_RACES: u32 = 32;

/// How the path of a file reads that is mounted nowhere.
const UNMOUNTED: &str = "/";

/// Offsets into `struct loop_info64`.
const FLAGS_AT: usize = 52;
const NAME_AT: usize = 56;
const NAME_BYTES: usize = 64;

const READ_ONLY: u32 = 1;
const DIRECT_IO: u32 = 16;

/// A loop device could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("cannot open {CONTROL}: {0}")]
    Control(#[source] io::Error),
    #[error("cannot make a loop device: {0}")]
    Make(#[source] io::Error),
    #[error("cannot open /dev/loop{number}: {source}")]
    Open { number: u32, source: io::Error },
    #[error("cannot bind /dev/loop{number}: {source}")]
    Configure { number: u32, source: io::Error },
    #[error(
        "/dev/loop{0} does not do direct I/O: reads would come from the page cache and could be stale after a \
         fail-over, so the device is not used"
    )]
    Buffered(u32),
}

/// A loop device by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Loop(pub u32);

/// How a device is bound.
#[derive(Clone, Debug)]
pub struct Binding<'a> {
    pub file: BorrowedFd<'a>,
    /// The name it carries, to be found again by.
    pub tag: &'a str,
    pub block: u32,
    pub read_only: bool,
}

impl Loop {
    pub fn path(self) -> PathBuf {
        format!("/dev/loop{}", self.0).into()
    }

    fn open(self) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(self.path())
    }

    fn attribute(self, name: &str) -> io::Result<String> {
        let text = std::fs::read_to_string(format!("/sys/block/loop{}/{name}", self.0))?;
        Ok(text.trim().to_owned())
    }

    /// Binds a device of our own to a file, for direct I/O only.
    pub fn bind(binding: &Binding<'_>) -> Result<Self, BindError> {
        let control = control().map_err(BindError::Control)?;
        let mut races = 0;
        loop {
            let device = Self::make(&control).map_err(BindError::Make)?;
            match device.configure(binding) {
                Ok(()) => return device.checked(),
                // Somebody looked for any free device and found this one.
                Err(BindError::Configure { source, .. })
                    if source.kind() == io::ErrorKind::ResourceBusy && races < MAX_RACES =>
                {
                    races += 1;
                }
                Err(error) => {
                    device.unmake(&control);
                    return Err(error);
                }
            }
        }
    }

    fn make(control: &File) -> io::Result<Self> {
        let mut last = io::ErrorKind::AlreadyExists.into();
        for _ in 0..MAX_RACES {
            let number = FIRST_NUMBER + u32::try_from(random() % NUMBERS).unwrap_or_default();
            match sys::loop_add(control.as_fd(), number) {
                Ok(()) => return Ok(Self(number)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    fn configure(self, binding: &Binding<'_>) -> Result<(), BindError> {
        let number = self.0;
        let file = self.open().map_err(|source| BindError::Open { number, source })?;
        sys::loop_configure(file.as_fd(), &config(binding)).map_err(|source| BindError::Configure { number, source })
    }

    /// If somebody has it open, it stays: bound to nothing, and free for whoever wants one.
    fn unmake(self, control: &File) {
        if self.0 >= FIRST_NUMBER
            && let Err(error) = sys::loop_remove(control.as_fd(), self.0)
        {
            tracing::debug!(number = self.0, %error, "the loop device stays");
        }
    }

    fn checked(self) -> Result<Self, BindError> {
        if self.is_direct() {
            return Ok(self);
        }
        // Nobody has it yet; if letting it go fails as well, it is found as a leftover.
        let _ = self.clear();
        Err(BindError::Buffered(self.0))
    }

    pub fn is_direct(self) -> bool {
        self.attribute("loop/dio").is_ok_and(|dio| dio == "1")
    }

    /// The name it carries, if it is bound to a file that is mounted nowhere, as ours are. Others are not even opened:
    /// what they stand on may hang.
    pub fn tag(self) -> io::Result<Option<String>> {
        if self.attribute("loop/backing_file").ok().as_deref() != Some(UNMOUNTED) {
            return Ok(None);
        }
        match sys::loop_status(self.open()?.as_fd()) {
            Ok(info) => {
                let name = info[NAME_AT..NAME_AT + NAME_BYTES].split(|b| *b == 0).next().unwrap_or_default();
                Ok(Some(String::from_utf8_lossy(name).into_owned()))
            }
            // Bound a moment ago, free now.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether somebody mounted it or claimed it otherwise.
    pub fn is_claimed(self) -> bool {
        let exclusive = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(self.path());
        exclusive.is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
    }

    /// Lets it go: at once, or when the last who has it open closes it.
    pub fn clear(self) -> io::Result<()> {
        sys::loop_clear(self.open()?.as_fd())?;
        self.unmake(&control()?);
        Ok(())
    }

    /// Looks at the size of the file again.
    pub fn set_capacity(self) -> io::Result<()> {
        sys::loop_set_capacity(self.open()?.as_fd())
    }

    /// Throws away clean cached blocks, after another engine may have written.
    pub fn drop_cache(self) -> io::Result<()> {
        sys::flush_buffers(self.open()?.as_fd())
    }

    /// All that are bound.
    pub fn bound() -> io::Result<Vec<Self>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir("/sys/block")? {
            let entry = entry?;
            let number = entry.file_name().to_str().and_then(|name| name.strip_prefix("loop")?.parse().ok());
            if let Some(number) = number
                && entry.path().join("loop").exists()
            {
                all.push(Self(number));
            }
        }
        all.sort_unstable();
        Ok(all)
    }
}

fn control() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(CONTROL)
}

/// Differs from process to process and from call to call; nothing depends on how random it is.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn config(binding: &Binding<'_>) -> [u8; sys::LOOP_CONFIG_BYTES] {
    const INFO_AT: usize = 8;
    let mut config = [0; sys::LOOP_CONFIG_BYTES];
    let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &binding.file.as_raw_fd().to_ne_bytes());
    put(4, &binding.block.to_ne_bytes());
    let flags = DIRECT_IO | if binding.read_only { READ_ONLY } else { 0 };
    put(INFO_AT + FLAGS_AT, &flags.to_ne_bytes());
    let tag = binding.tag.as_bytes();
    put(INFO_AT + NAME_AT, &tag[..tag.len().min(NAME_BYTES - 1)]);
    config
}
