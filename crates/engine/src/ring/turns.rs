//! Short turns on the processor.
//!
//! A loop serves a message in some microseconds and then waits for the next. What it wants of the scheduler is to run soon,
//! not to run long: with a short slice it runs before those who compute when it is woken, and whoever it yields to does not
//! have the processor for long. Its share of the processor stays what it was.
//!
//! `unsafe` for the two system calls, which libc has no functions for.
#![allow(unsafe_code)]

use std::io;

/// The shortest slice that Linux grants, in nanoseconds.
const SLICE_NS: u64 = 100_000;

/// The kernel's `struct sched_attr`, in its first version: every kernel knows it.
#[derive(Debug, Default)]
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const BYTES: u32 = size_of::<Attributes>() as u32;

/// Asks for short turns of this thread. Kernels before 6.12 take the wish and do nothing; one that refuses it costs latency
/// where others compute, nothing else.
pub(super) fn ask_for_short_ones() {
    if let Err(error) = ask() {
        tracing::debug!(%error, "short turns");
    }
}

fn ask() -> io::Result<()> {
    let mut attributes = read()?;
    // Only among ordinary threads is it a slice; what an operator chose on purpose stays.
    if attributes.policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    attributes.runtime = SLICE_NS;
    // SAFETY: the attributes are of this frame, and as long as they say.
    checked(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })
}

/// What this thread has.
fn read() -> io::Result<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: the attributes are of this frame, and the kernel is told how long they are.
    checked(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, BYTES, 0) })?;
    attributes.size = BYTES;
    Ok(attributes)
}

fn checked(result: libc::c_long) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_short_and_nothing_else_changes() {
        let check = || {
            // A thread of its own, less important than others: that must stay.
            // SAFETY: the call takes numbers only.
            checked(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 3) }.into())?;
            ask()?;
            read()
        };
        let after = std::thread::spawn(check).join().expect("a thread that does not panic").expect("attributes");
        assert_eq!((after.policy, after.nice, after.flags), (libc::SCHED_OTHER as u32, 3, 0));
        // Zero: the kernel is older than 6.12.
        assert!([0, SLICE_NS].contains(&after.runtime), "{after:?}");
    }
}
