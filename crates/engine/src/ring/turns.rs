//! Turns on the processor: short ones, and soon.
//!
//! A loop serves a message in some microseconds and then waits for the next. What it wants of the scheduler is to run soon,
//! not to run long: with a short slice it runs before those who compute when it is woken, and whoever it yields to does not
//! have the processor for long. That alone holds only while the loop uses less than its share, which is small where many
//! compute: a volume in use would wait for their slices, milliseconds each, several times for each request. Everybody on the node
//! waits for volumes, so loops are also preferred to those who compute, where they may ask for that.
//!
//! `unsafe` for the two system calls, which libc has no functions for.
#![allow(unsafe_code)]

use std::io;

/// The shortest slice that Linux grants, in nanoseconds.
const SLICE_NS: u64 = 100_000;
/// How much loops are preferred: they get up to ten times the share of an ordinary thread, which is not all of a processor.
const NICE: i32 = -10;

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

/// Asks for short and early turns of this thread. Kernels before 6.12 take the wish for short ones and do nothing; early ones
/// take CAP_SYS_NICE. What is refused costs latency where others compute, nothing else.
pub(super) fn ask() {
    let asked = preferred().or_else(|error| {
        tracing::debug!(%error, "no early turns");
        short()
    });
    if let Err(error) = asked {
        tracing::debug!(%error, "no short turns");
    }
}

/// Short turns, before ordinary threads.
fn preferred() -> io::Result<()> {
    change(|attributes| {
        // One that is not ordinary was made so on purpose.
        if attributes.nice == 0 {
            attributes.nice = NICE;
        }
    })
}

/// Short turns alone.
fn short() -> io::Result<()> {
    change(|_| {})
}

fn change(also: impl FnOnce(&mut Attributes)) -> io::Result<()> {
    let mut attributes = read()?;
    // Only among ordinary threads is it a slice; what an operator chose on purpose stays.
    if attributes.policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    attributes.runtime = SLICE_NS;
    also(&mut attributes);
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

    /// What a thread has that was this nice before it asked.
    fn after(nice: libc::c_int, ask: fn() -> io::Result<()>) -> Attributes {
        let check = move || {
            // SAFETY: the call takes numbers only.
            checked(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) }.into())?;
            ask()?;
            read()
        };
        let after = std::thread::spawn(check).join().expect("a thread that does not panic").expect("attributes");
        assert_eq!((after.policy, after.flags), (libc::SCHED_OTHER as u32, 0));
        // Zero: the kernel is older than 6.12.
        assert!([0, SLICE_NS].contains(&after.runtime), "{after:?}");
        after
    }

    #[test]
    fn turns_are_short_and_nothing_else_changes() {
        assert_eq!(after(3, short).nice, 3);
    }

    #[test]
    fn ordinary_threads_are_preferred_and_others_stay_as_they_were_made() {
        assert_eq!(after(3, preferred).nice, 3, "less important on purpose");
        if rustix::process::geteuid().is_root() {
            assert_eq!(after(0, preferred).nice, NICE);
        }
    }
}
