//! System calls that no safe crate of ours wraps: loop devices, descriptors over sockets, one `prctl`.
#![allow(unsafe_code)] // ioctl, sendmsg, recvmsg and prctl have no safe form here

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// `struct loop_info64`, field by field below in [`super::loops`].
pub const LOOP_INFO_BYTES: usize = 232;
/// `struct loop_config`: descriptor, block size, info, eight reserved words.
pub const LOOP_CONFIG_BYTES: usize = 4 + 4 + LOOP_INFO_BYTES + 64;

const LOOP_CLR_FD: libc::c_ulong = 0x4c01;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4c05;
const LOOP_SET_CAPACITY: libc::c_ulong = 0x4c07;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
const LOOP_CTL_ADD: libc::c_ulong = 0x4c80;
const LOOP_CTL_REMOVE: libc::c_ulong = 0x4c81;
/// Throws away what the kernel has cached of a block device.
const BLKFLSBUF: libc::c_ulong = 0x1261;

fn checked(result: libc::c_int) -> io::Result<u32> {
    u32::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn plain(fd: BorrowedFd<'_>, request: libc::c_ulong) -> io::Result<u32> {
    // SAFETY: these requests take no argument; the kernel touches none of our memory.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), request, 0) })
}

/// Makes a loop device of this number.
pub fn loop_add(control: BorrowedFd<'_>, number: u32) -> io::Result<()> {
    // SAFETY: the argument is a number; the kernel touches none of our memory.
    checked(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_ADD, libc::c_ulong::from(number)) }).map(drop)
}

/// Removes a loop device that nobody has open and that is bound to nothing.
pub fn loop_remove(control: BorrowedFd<'_>, number: u32) -> io::Result<()> {
    // SAFETY: the argument is a number; the kernel touches none of our memory.
    checked(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_REMOVE, libc::c_ulong::from(number)) }).map(drop)
}

pub fn loop_configure(device: BorrowedFd<'_>, config: &[u8; LOOP_CONFIG_BYTES]) -> io::Result<()> {
    // SAFETY: the kernel reads exactly the bytes of `struct loop_config`, which the array has.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, config.as_ptr()) }).map(drop)
}

pub fn loop_status(device: BorrowedFd<'_>) -> io::Result<[u8; LOOP_INFO_BYTES]> {
    let mut info = [0; LOOP_INFO_BYTES];
    // SAFETY: the kernel writes exactly the bytes of `struct loop_info64`, which the array has.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, info.as_mut_ptr()) })?;
    Ok(info)
}

pub fn loop_clear(device: BorrowedFd<'_>) -> io::Result<()> {
    plain(device, LOOP_CLR_FD).map(drop)
}

pub fn loop_set_capacity(device: BorrowedFd<'_>) -> io::Result<()> {
    plain(device, LOOP_SET_CAPACITY).map(drop)
}

pub fn flush_buffers(device: BorrowedFd<'_>) -> io::Result<()> {
    plain(device, BLKFLSBUF).map(drop)
}

/// Tells the kernel that this thread serves a block device: its allocations must not wait for memory that only
/// written-back blocks of that device would free.
pub fn serve_memory_pressure() -> io::Result<()> {
    const PR_SET_IO_FLUSHER: libc::c_int = 57;
    const ON: libc::c_ulong = 1;
    // SAFETY: sets a flag of the calling thread; the unused arguments are zero as the interface wants.
    checked(unsafe { libc::prctl(PR_SET_IO_FLUSHER, ON, 0, 0, 0) }).map(drop)
}

/// Room for the ancillary data of one descriptor, aligned as `cmsghdr` must be.
#[repr(C, align(8))]
struct Ancillary([u8; 64]);

/// A message with one piece of data and room for one descriptor.
fn message(data: &mut libc::iovec, ancillary: &mut Ancillary, used: usize) -> libc::msghdr {
    // SAFETY: `msghdr` is plain data, for which all zeroes is a valid (empty) message.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = ptr::from_mut(data);
    message.msg_iovlen = 1;
    if used > 0 {
        message.msg_control = ancillary.0.as_mut_ptr().cast();
        message.msg_controllen = used;
    }
    message
}

/// Sends bytes, with a descriptor if there is one. Returns how many bytes were taken.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let mut data = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut ancillary = Ancillary([0; 64]);
    let size = size_of::<libc::c_int>() as u32;
    // SAFETY: only computes a length.
    let space = unsafe { libc::CMSG_SPACE(size) } as usize;
    let message = message(&mut data, &mut ancillary, if fd.is_some() { space } else { 0 });
    if let Some(fd) = fd {
        // SAFETY: the control buffer has `CMSG_SPACE` bytes for one descriptor and is aligned, so that the first
        // header and its data lie within it.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size) as usize;
            let raw = fd.as_raw_fd().to_ne_bytes();
            ptr::copy_nonoverlapping(raw.as_ptr(), libc::CMSG_DATA(header), raw.len());
        }
    }
    // SAFETY: the message points to `data` and `ancillary`, both alive until the call returns; sendmsg reads them.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives bytes, and a descriptor if one came with them.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut data = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut ancillary = Ancillary([0; 64]);
    let used = ancillary.0.len();
    let mut message = message(&mut data, &mut ancillary, used);
    // SAFETY: the message points to `data` (the caller's bytes) and `ancillary`, both alive and writable.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    let mut received = None;
    // SAFETY: the kernel filled the control buffer and its length; the macros stay within both. Each descriptor in
    // an SCM_RIGHTS header is new and owned by nobody else.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let start = libc::CMSG_DATA(header);
                let count = ((*header).cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<libc::c_int>();
                for i in 0..count {
                    let mut raw = [0; size_of::<libc::c_int>()];
                    ptr::copy_nonoverlapping(start.add(i * raw.len()), raw.as_mut_ptr(), raw.len());
                    received = Some(OwnedFd::from_raw_fd(libc::c_int::from_ne_bytes(raw)));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    Ok((got, received))
}
