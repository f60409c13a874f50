//! What a container sees: the host's files, devices as containers have them, and its pod's volumes at their paths.
//!
//! There are no images, so a container's root is made of the host's: an empty file system in memory into which every entry of
//! `/` is bound. A path that does not exist is made in memory as well, never on the host: where it would lie in a directory
//! of the host, that directory is replaced in the same way.
//!
//! Volumes of *other* pods are taken out of sight. This is more than manners: a file system that is still mounted in
//! somebody's namespace keeps its device busy after its own pod is gone.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_remount, move_mount, open_tree, unmount,
};
use rustix::process::{chdir, pivot_root};
use serde::{Deserialize, Serialize};
use tether_csi::mountinfo::{self, Mount};

/// Device files that every container has.
const DEVICES: [&str; 7] = ["null", "zero", "full", "random", "urandom", "tty", "ptmx"];
/// Directories in `/dev` that every container has.
const DEVICE_DIRS: [&str; 3] = ["pts", "shm", "mqueue"];
/// Links in `/dev` that every container has.
const DEVICE_LINKS: [(&str, &str); 4] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];
/// By this name directories in memory are told from those of the host.
const SOURCE: &str = "tether-root";
/// A directory that a subPath makes, as a kubelet does.
const SUB_PATH_MODE: Mode = Mode::from_raw_mode(0o750);

/// How a container sees files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    pub shown: Vec<Shown>,
    /// The node's directory: what is mounted below it is out of sight.
    pub hidden: PathBuf,
    /// It sees every device of the host.
    pub all_devices: bool,
}

/// Something at a path of the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// On the node.
    pub source: PathBuf,
    /// The part of it.
    pub sub_path: Option<String>,
    /// In the container.
    pub path: PathBuf,
    pub read_only: bool,
}

/// Makes `base`, an empty directory, the root of this thread's mount namespace.
pub(super) fn build(base: &Path, view: &View) -> io::Result<()> {
    let shown = view.shown.iter().map(|shown| Ok((shown, tree(shown)?)));
    let shown: Vec<(&Shown, OwnedFd)> = shown.collect::<io::Result<_>>()?;
    let host = open_tree(CWD, "/", OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::AT_RECURSIVE)?;
    in_memory(base, 0o755)?;
    fill(host.as_fd(), base, if view.all_devices { &[] } else { &["dev"] })?;
    if !view.all_devices {
        devices(host.as_fd(), &base.join("dev"))?;
    }
    drop(host);
    chdir(base)?;
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")?;
    hide(&view.hidden)?;
    for (shown, tree) in shown {
        let failed = |error: io::Error| named("show", &shown.path, &error);
        let path = mount_point(&shown.path, is_dir(tree.as_fd())?).map_err(failed)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(tree.as_fd(), "", CWD, &path, flags).map_err(|error| failed(error.into()))?;
        if shown.read_only {
            mount_remount(&path, MountFlags::BIND | MountFlags::RDONLY, "").map_err(|error| failed(error.into()))?;
        }
    }
    Ok(())
}

fn named(what: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {what} {}: {error}", path.display()))
}

/// A copy of what is to be shown, mounted nowhere yet. A part of a volume is found without following a link, for what is
/// in a volume is not to be trusted.
fn tree(shown: &Shown) -> io::Result<OwnedFd> {
    let failed = |error: rustix::io::Errno| named("open", &shown.source, &error.into());
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let Some(sub_path) = &shown.sub_path else {
        return open_tree(CWD, &shown.source, flags).map_err(failed);
    };
    let root = openat(CWD, &shown.source, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    let inner = sub_dir(&root, Path::new(sub_path))?;
    open_tree(&inner, "", flags | OpenTreeFlags::AT_EMPTY_PATH).map_err(failed)
}

/// A path below a directory, made if it is not there.
fn sub_dir(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let open = |path: &Path| openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve);
    let failed = |error: rustix::io::Errno| named("use subPath", path, &error.into());
    let mut so_far = PathBuf::new();
    for component in path.components().filter(|component| *component != Component::CurDir) {
        let parent =
            if so_far.as_os_str().is_empty() { rustix::io::dup(root)? } else { open(&so_far).map_err(failed)? };
        match mkdirat(&parent, component.as_os_str(), SUB_PATH_MODE) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(failed(error)),
        }
        so_far.push(component);
    }
    open(&so_far).map_err(failed)
}

fn in_memory(path: &Path, mode: u32) -> io::Result<()> {
    let options = std::ffi::CString::new(format!("mode=0{mode:o},size=1m"))?;
    Ok(mount(SOURCE, path, "tmpfs", MountFlags::NOSUID, Some(options.as_c_str()))?)
}

/// Binds every entry of a directory into another one.
fn fill(from: BorrowedFd<'_>, to: &Path, without: &[&str]) -> io::Result<()> {
    let listed = PathBuf::from(format!("/proc/thread-self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&from)));
    for entry in fs::read_dir(&listed)? {
        let entry = entry?;
        let (name, target) = (entry.file_name(), to.join(entry.file_name()));
        if without.iter().any(|left_out| name == *left_out) {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            symlink(fs::read_link(listed.join(&name))?, target)?;
        } else {
            make(&target, kind.is_dir())?;
            attach(from, Path::new(&name), &target)?;
        }
    }
    Ok(())
}

fn make(path: &Path, dir: bool) -> io::Result<()> {
    if dir { fs::create_dir(path) } else { File::create(path).map(drop) }
}

/// Binds what is at `name` below `from` to a path that exists.
fn attach(from: BorrowedFd<'_>, name: &Path, to: &Path) -> io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let copy = match open_tree(from, name, flags) {
        Ok(copy) => copy,
        // It went meanwhile: a temporary file, say.
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(error) => return Err(named("bind", name, &error.into())),
    };
    let moved = move_mount(copy.as_fd(), "", CWD, to, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH);
    moved.map_err(|error| named("bind", to, &error.into()))
}

/// Devices as every container has them.
fn devices(host: BorrowedFd<'_>, dev: &Path) -> io::Result<()> {
    fs::create_dir(dev)?;
    in_memory(dev, 0o755)?;
    for name in DEVICES.iter().chain(&DEVICE_DIRS) {
        let device = Path::new("dev").join(name);
        // What the host does not have, the container has not either.
        let Ok(found) = fs::metadata(Path::new("/").join(&device)) else { continue };
        make(&dev.join(name), found.is_dir())?;
        attach(host, &device, &dev.join(name))?;
    }
    for (name, target) in DEVICE_LINKS {
        symlink(target, dev.join(name))?;
    }
    Ok(())
}

/// Takes out of sight what is mounted below the node's directory.
fn hide(dir: &Path) -> io::Result<()> {
    if dir.as_os_str().is_empty() {
        return Ok(());
    }
    hide_these(dir, mountinfo::below(dir)?)
}

/// Takes these mounts away, after which there are to be none below the directory.
///
/// Another pod may end meanwhile. Its directories are removed then, and with a directory goes whatever is mounted on it, in
/// every namespace: that is out of sight already.
fn hide_these(dir: &Path, mounts: Vec<Mount>) -> io::Result<()> {
    for mount in mounts.into_iter().rev() {
        match unmount(&mount.point, UnmountFlags::DETACH) {
            Ok(()) | Err(Errno::NOENT | Errno::INVAL) => {}
            Err(error) => return Err(named("hide", &mount.point, &error.into())),
        }
    }
    match mountinfo::below(dir)?.first() {
        None => Ok(()),
        Some(left) => Err(named("hide", &left.point, &io::Error::other("it is still mounted"))),
    }
}

fn is_dir(tree: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(tree)?.st_mode).is_dir())
}

/// A path to mount at: the one that is there, or one that is made in memory. Without links.
fn mount_point(path: &Path, dir: bool) -> io::Result<PathBuf> {
    if let Ok(found) = fs::canonicalize(path) {
        if fs::metadata(&found)?.is_dir() == dir {
            return Ok(found);
        }
        let kind = if dir { "a directory" } else { "a file" };
        return Err(io::Error::other(format!("{} exists and is not {kind}", path.display())));
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = mount_point(parent, true)?;
    if !is_in_memory(&parent)? {
        let old = open_tree(CWD, &parent, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::AT_RECURSIVE)?;
        in_memory(&parent, fs::metadata(&parent)?.mode() & 0o7777)?;
        fill(old.as_fd(), &parent, &[])?;
    }
    let path = parent.join(name);
    make(&path, dir)?;
    Ok(path)
}

/// Whether a directory is one of those that are replaced: the root itself, or one that is mounted as they are.
fn is_in_memory(dir: &Path) -> io::Result<bool> {
    let mounts = mountinfo::below(Path::new("/"))?;
    let around = mounts.iter().filter(|mount| dir.starts_with(&mount.point));
    // Of several at one path the last is on top.
    let on = around.max_by_key(|mount| mount.point.components().count());
    Ok(on.is_some_and(|mount| mount.fs_type == "tmpfs" && mount.source == SOURCE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace;

    fn mounted_at(path: &Path) {
        fs::create_dir_all(path).unwrap();
        in_memory(path, 0o755).unwrap();
    }

    /// Between the look at the mounts and their end another pod's directory goes, which ends what is mounted on it here.
    #[test]
    fn what_another_pod_takes_away_meanwhile_is_hidden_as_well() {
        if let Some(why) = namespace::unavailable() {
            return eprintln!("SKIPPED: {why}");
        }
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let (base, path) = (&base, &|name: &str| base.join(name));
        let (ends, is_to_end) = std::sync::mpsc::channel::<()>();
        let (ended, has_ended) = std::sync::mpsc::channel();
        let left = std::thread::scope(|scope| {
            // The other pod, in a namespace in which nothing is mounted on these.
            scope.spawn(move || {
                is_to_end.into_iter().for_each(drop);
                fs::remove_dir(path("gone")).unwrap();
                fs::remove_dir(path("anew")).unwrap();
                fs::create_dir(path("anew")).unwrap();
                ended.send(()).unwrap();
            });
            namespace::apart(move || {
                for name in ["stays", "gone", "anew"] {
                    mounted_at(&path(name));
                }
                let mounts = mountinfo::below(base)?;
                assert_eq!(mounts.len(), 3);
                drop(ends);
                has_ended.recv().unwrap();
                hide_these(base, mounts)?;
                mountinfo::below(base)
            })
        });
        assert!(left.unwrap().is_empty());
    }
}
