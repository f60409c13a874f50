//! Kernel devices on the ring: woken by poll, read and answered without waiting.
//!
//! `unsafe` for the length of a buffer that a read filled.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use io_uring::{opcode, types};
use rustix::io::Errno;

use super::queue::{Queue, Tag};
use crate::host::{DeviceId, DeviceRead, DeviceSource};

/// Devices that are served, by id.
#[derive(Default)]
pub(super) struct Devices {
    open: BTreeMap<u64, Arc<OwnedFd>>,
}

/// Reads one request at a time from a descriptor that does not block.
#[derive(Debug)]
pub(super) struct Source {
    fd: Arc<OwnedFd>,
    /// The descriptor is not bound to a file system yet; polling it would not wait.
    pub early: bool,
}

impl DeviceSource for Source {
    fn read(&mut self, buffer: &mut BytesMut) -> DeviceRead {
        loop {
            let read = rustix::io::read(&*self.fd, buffer.spare_capacity_mut()).map(|(filled, _)| filled.len());
            match read {
                Ok(0) => return DeviceRead::Gone,
                Ok(len) => {
                    // SAFETY: the read initialised this much behind the end of the buffer.
                    unsafe { buffer.set_len(buffer.len() + len) };
                    return DeviceRead::Request;
                }
                // The request was taken back between being announced and being read.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => return DeviceRead::Nothing,
                Err(Errno::PERM) => {
                    self.early = true;
                    return DeviceRead::Nothing;
                }
                Err(error) => {
                    tracing::warn!(%error, "the kernel device cannot be read any more");
                    return DeviceRead::Gone;
                }
            }
        }
    }
}

impl Devices {
    pub fn open(&mut self, device: DeviceId, fd: Arc<OwnedFd>, queue: &mut Queue) {
        self.open.insert(device.0, fd);
        self.wait(device, queue);
    }

    /// Asks to be woken when the kernel wants something.
    pub fn wait(&self, device: DeviceId, queue: &mut Queue) {
        let Some(fd) = self.open.get(&device.0) else { return };
        let entry = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), libc::POLLIN as u32);
        // SAFETY: a poll points to nothing.
        unsafe { queue.push(entry.build(), Tag::Device(device.0)) };
    }

    pub fn source(&self, device: DeviceId) -> Option<Source> {
        self.open.get(&device.0).cloned().map(|fd| Source { fd, early: false })
    }

    /// Answers the kernel. A request that it took back meanwhile is no error.
    pub fn reply(&self, device: DeviceId, header: &Bytes, payload: &Bytes) {
        let Some(fd) = self.open.get(&device.0) else { return };
        match rustix::io::writev(&**fd, &[IoSlice::new(header), IoSlice::new(payload)]) {
            Ok(_) | Err(Errno::NOENT) => {}
            Err(error) => tracing::warn!(%error, "the kernel did not take an answer"),
        }
    }

    pub fn close(&mut self, device: DeviceId, queue: &mut Queue) {
        if self.open.remove(&device.0).is_some() {
            let entry = opcode::AsyncCancel::new(Tag::Device(device.0).pack());
            // SAFETY: a cancel points to nothing.
            unsafe { queue.push(entry.build(), Tag::Cancel) };
        }
    }
}
