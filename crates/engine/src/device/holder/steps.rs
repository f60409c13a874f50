//! What may wait for the device itself, each in a process of its own that ends when it is done.
//!
//! A system call on the device waits in the kernel until an engine answers, and cannot be ended before that. So such a
//! process never gets `/dev/fuse`: if nobody answers and the holder gives up the device, the kernel must see that the
//! last descriptor is gone, fail everything that waits, and let the process go.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode};

use crate::device::loops::{self, BindError, Binding, Loop};

/// A step that failed; the text reaches the engine's log.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error("cannot open the file of the FUSE file system: {0}")]
    File(#[source] io::Error),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("cannot make the device node {path}: {source}")]
    Node { path: String, source: io::Error },
    #[error("{0} is in use (mounted, or claimed by another device)")]
    InUse(String),
    #[error("loop{number}: {source}")]
    Loop { number: u32, source: io::Error },
    #[error("{0:?} is no step of a device holder")]
    Unknown(String),
}

/// Writes a line to standard output, where the parent reads it. If nobody does, nobody wants to know.
pub fn say(line: &str) {
    if !line.is_empty() {
        let _ = writeln!(io::stdout(), "{line}");
    }
}

/// Runs one step; what it says goes to whoever asked for it.
pub fn run(step: &str, args: &[&str]) -> Result<String, String> {
    let number = |text: &str| text.parse::<u32>().map_err(|_| StepError::Unknown(text.to_owned()));
    let result = match (step, args) {
        ("attach", [block, mode, tag, node]) => {
            number(block).and_then(|block| attach(block, *mode == "ro", tag, Path::new(node)))
        }
        ("capacity", [device]) => number(device).and_then(|n| on_loop(n, Loop::set_capacity)),
        ("drop-cache", [device]) => number(device).and_then(|n| on_loop(n, Loop::drop_cache)),
        ("detach", [device, node]) => number(device).and_then(|n| detach(Loop(n), Path::new(node))),
        ("abandon", [device, node]) => number(device).and_then(|n| abandon(Loop(n), Path::new(node))),
        _ => Err(StepError::Unknown(step.to_owned())),
    };
    result.map_err(|error| error.to_string())
}

fn on_loop(number: u32, act: impl FnOnce(Loop) -> io::Result<()>) -> Result<String, StepError> {
    act(Loop(number)).map_err(|source| StepError::Loop { number, source })?;
    Ok(String::new())
}

/// Binds a loop device to the file that standard input (the mount) is, and makes the node. Says the number of the loop
/// device.
fn attach(block: u32, read_only: bool, tag: &str, node: &Path) -> Result<String, StepError> {
    let file = OpenOptions::new()
        .read(true)
        .write(!read_only)
        .custom_flags(libc::O_DIRECT)
        .open("/proc/self/fd/0")
        .map_err(StepError::File)?;
    let device = Loop::bind(&Binding { file: file.as_fd(), tag, block, read_only })?;
    if let Err(error) = make_node(device, node) {
        let _ = device.clear();
        return Err(error);
    }
    Ok(device.0.to_string())
}

/// The node under the volume's name. It takes the place of one that was left over.
fn make_node(device: Loop, node: &Path) -> Result<(), StepError> {
    let failed = |source: io::Error| StepError::Node { path: node.display().to_string(), source };
    if let Some(parent) = node.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(failed)?;
    }
    match std::fs::symlink_metadata(node) {
        Ok(found) if !found.file_type().is_block_device() && !found.file_type().is_symlink() => {
            return Err(failed(io::Error::new(io::ErrorKind::AlreadyExists, "something else has this name")));
        }
        _ => {}
    }
    let fresh = node.with_file_name(format!(".loop{}", device.0));
    remove(&fresh).map_err(failed)?;
    let number = rustix::fs::makedev(loops::MAJOR, device.0);
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP;
    rustix::fs::mknodat(CWD, &fresh, FileType::BlockDevice, mode, number).map_err(|error| failed(error.into()))?;
    std::fs::rename(&fresh, node).map_err(failed)
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Detaches in order: refused while somebody uses the device.
fn detach(device: Loop, node: &Path) -> Result<String, StepError> {
    if device.is_claimed() {
        return Err(StepError::InUse(node.display().to_string()));
    }
    abandon(device, node)
}

/// Detaches by force: who has it open keeps a device that only fails. The node may be that of a newer one by now.
fn abandon(device: Loop, node: &Path) -> Result<String, StepError> {
    if std::fs::symlink_metadata(node).is_ok_and(|found| found.rdev() == rustix::fs::makedev(loops::MAJOR, device.0)) {
        remove(node).map_err(|source| StepError::Node { path: node.display().to_string(), source })?;
    }
    on_loop(device.0, Loop::clear)
}
