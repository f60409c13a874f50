//! The clock that runs through suspend.
//!
//! `unsafe` for the one call of libc that reads it.
#![allow(unsafe_code)]

use crate::host::Time;

/// Now, on `CLOCK_BOOTTIME`.
pub fn now() -> Time {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of this frame.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    assert_eq!(result, 0, "CLOCK_BOOTTIME must exist since Linux 2.6.39");
    Time(time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000)
}
