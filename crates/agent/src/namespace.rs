//! A node's mount namespace: made once, held by a file, entered by whoever acts for the node.
//!
//! ```text
//!   DIR/run              bound onto itself, private: what is mounted below it stays out of other namespaces
//!   DIR/run/node-1/mnt   the namespace itself, bound from /proc: it exists as long as this mount does
//! ```
//!
//! No process has to live for the namespace to live, so killing an agent unmounts nothing. Unmounting the file,
//! with nobody inside, unmounts everything of the node at once.
#![allow(unsafe_code, reason = "leaving a mount namespace is `unshare`, which rustix marks unsafe for CLONE_FILES")]

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, UnshareFlags, capabilities, gettid, move_into_link_name_space, unshare_unsafe,
};

/// The type of the file system that namespaces live in, as `statfs` tells it.
const NSFS_MAGIC: u64 = 0x6e73_6673;

/// The type of a file system in memory.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Why a namespace could not be made, entered or let go.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}: {source}", path = path.display())]
pub struct NamespaceError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> NamespaceError {
    move |source| NamespaceError { action, path: path.to_owned(), source }
}

/// Why this process cannot use kernel devices and mounts; `None` if it can.
pub fn unavailable() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not running as root".to_owned());
    }
    let may = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    (!may).then(|| "root lacks CAP_SYS_ADMIN here".to_owned())
}

/// Makes `dir` a mount of its own that shares nothing, so that namespaces can be held below it.
pub fn make_private(dir: &Path) -> Result<(), NamespaceError> {
    mount_bind(dir, dir).map_err(io::Error::from).map_err(failed("bind onto itself", dir))?;
    let private = MountPropagationFlags::PRIVATE;
    mount_change(dir, private).map_err(io::Error::from).map_err(failed("make private", dir))
}

/// Makes a new mount namespace, a copy of this process', and has `holder` hold it.
pub fn create(holder: &Path) -> Result<(), NamespaceError> {
    File::create(holder).map_err(failed("create", holder))?;
    let (made, is_made) = mpsc::channel();
    let (held, is_held) = mpsc::channel::<()>();
    // The namespace is a thread's until it is held; the thread waits for that and takes nothing else along.
    let thread = std::thread::spawn(move || {
        let _ = made.send(leave_namespace());
        let _ = is_held.recv();
    });
    let thread_id =
        is_made.recv().expect("the thread must send before it ends").map_err(failed("leave for", holder))?;
    let namespace = format!("/proc/self/task/{}/ns/mnt", thread_id.as_raw_nonzero());
    let bound =
        mount_bind(namespace.as_str(), holder).map_err(io::Error::from).map_err(failed("hold namespace in", holder));
    drop(held);
    let _ = thread.join();
    bound
}

/// Moves the calling thread into a namespace of its own, which still receives what the host mounts later.
fn leave_namespace() -> io::Result<rustix::thread::Pid> {
    // SAFETY: only CLONE_FILES has consequences for file descriptors that other threads hold; it is not set.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(gettid())
}

/// Calls `act` on a thread with a mount namespace, a root and a working directory of its own, which nothing that is mounted
/// elsewhere reaches any more. A process that it starts keeps them; nobody else does.
pub fn apart<T: Send>(act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let act = move || {
        // SAFETY: only CLONE_FILES has consequences for file descriptors that other threads hold; it is not set.
        unsafe { unshare_unsafe(UnshareFlags::FS | UnshareFlags::NEWNS) }?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        act()
    };
    on_thread(act)
}

/// Calls `act` on a thread inside this mount namespace. A process that it starts stays there; nobody else does.
pub fn within<T: Send>(inside: &File, act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let act = move || {
        // SAFETY: only CLONE_FILES has consequences for file descriptors that other threads hold; it is not set.
        unsafe { unshare_unsafe(UnshareFlags::FS) }?;
        move_into_link_name_space(inside.as_fd(), Some(LinkNameSpaceType::Mount))?;
        act()
    };
    on_thread(act)
}

fn on_thread<T: Send>(act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let done = std::thread::scope(|scope| scope.spawn(act).join());
    done.unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

/// Moves this process into the namespace that `holder` holds. It must have one thread only, so this comes first
/// of all; relative paths lose their meaning.
pub fn enter(holder: &Path) -> Result<(), NamespaceError> {
    let file = File::open(holder).map_err(failed("open", holder))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Mount))
        .map_err(io::Error::from)
        .map_err(failed("enter the namespace in", holder))
}

/// Gives this namespace an empty directory of its own at `path`, once.
pub fn make_own(path: &Path) -> Result<(), NamespaceError> {
    std::fs::create_dir_all(path).map_err(failed("create", path))?;
    let is_own = rustix::fs::statfs(path)
        .is_ok_and(|found| u64::try_from(found.f_type).is_ok_and(|kind| kind == TMPFS_MAGIC))
        && is_mount_point(path);
    if is_own {
        return Ok(());
    }
    rustix::mount::mount("tmpfs", path, "tmpfs", rustix::mount::MountFlags::NOSUID, Some(c"mode=0755,size=1m"))
        .map_err(io::Error::from)
        .map_err(failed("mount a directory at", path))
}

/// Whether something is mounted exactly there.
fn is_mount_point(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
    path.parent().is_some_and(|parent| device(path) != device(parent))
}

/// Whether `path` holds a namespace.
pub fn is_held(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| u64::try_from(found.f_type).is_ok_and(|kind| kind == NSFS_MAGIC))
}

/// Unmounts `path`, however many times it is mounted on; done if it is not.
pub fn release(path: &Path) -> Result<(), NamespaceError> {
    loop {
        match unmount(path, UnmountFlags::DETACH) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(()),
            Err(error) => return Err(failed("unmount", path)(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn mounts() -> String {
        fs::read_to_string("/proc/self/mountinfo").unwrap()
    }

    #[test]
    fn a_namespace_lives_without_a_process_and_keeps_its_mounts_to_itself() {
        if let Some(why) = unavailable() {
            eprintln!("SKIPPED: {why}");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        make_private(dir).unwrap();
        let (one, two, inside) = (dir.join("one"), dir.join("two"), dir.join("inside"));
        fs::create_dir(&inside).unwrap();
        create(&one).unwrap();
        create(&two).unwrap();
        assert!(is_held(&one) && is_held(&two) && !is_held(&inside));

        let see = |holder: PathBuf, then: fn(&Path)| {
            let inside = inside.clone();
            std::thread::spawn(move || {
                // A thread may change its namespace only once it shares its working directory with nobody.
                // SAFETY: CLONE_FS does not touch file descriptors.
                unsafe { unshare_unsafe(UnshareFlags::FS) }.unwrap();
                enter(&holder).unwrap();
                then(&inside);
                fs::read_to_string("/proc/thread-self/mountinfo").unwrap()
            })
            .join()
            .unwrap()
        };
        let text = inside.to_str().unwrap();
        assert!(see(one.clone(), |inside| mount_bind("/proc", inside).unwrap()).contains(text));
        assert!(see(one.clone(), |_| ()).contains(text), "nobody was inside, and the mount is still there");
        assert!(!see(two.clone(), |_| ()).contains(text), "another node does not see it");
        assert!(!mounts().contains(text), "nor does the host");

        release(&one).unwrap();
        release(&two).unwrap();
        release(dir).unwrap();
        release(dir).unwrap();
        assert!(!is_held(&one));
        assert!(!mounts().contains(dir.to_str().unwrap()));
    }

    #[test]
    fn errors_name_the_path() {
        let error = enter(Path::new("/nonexistent/mnt")).unwrap_err();
        assert_eq!(error.to_string(), "cannot open /nonexistent/mnt: No such file or directory (os error 2)");
    }
}
