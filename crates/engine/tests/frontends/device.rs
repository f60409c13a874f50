//! The kernel device, as file systems use it, and engines that are killed under it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tether_engine::device::leftovers::{self, Leftover};
use tether_engine::device::link::{Link, Shape};
use tether_engine::device::loops::Loop;
use tether_engine::device::place::{Name, Place};

use crate::ram_engine::place;
use crate::say;
use crate::tools::{Skip, Test, Verdict, attempt, command, need, run, text};

const MIB: u64 = 1 << 20;
/// Long enough for any of these tests on a busy machine; only a device that hangs gets there.
const PATIENCE: Duration = Duration::from_secs(60);
/// Kills in the short version of the campaign.
const KILLS: usize = 8;
/// What the load gets done between two of them.
const WRITES_BETWEEN_KILLS: u64 = 100;

pub const TESTS: &[Test] = &[
    ("device_has_the_volumes_size_and_does_direct_io", shape),
    ("device_carries_ext4", ext4),
    ("device_carries_xfs", xfs),
    ("device_in_use_is_not_detached", detach),
    ("device_whose_engine_ends_while_it_is_bound_is_given_up", unbound),
    ("device_fails_for_good_when_fenced", fenced),
    ("device_survives_kill_9_of_its_engine_under_verified_load", hand_over),
    ("device_survives_engines_that_die_while_they_start", dying_starts),
    ("device_is_over_if_another_engine_held_the_volume", broken_line),
    ("device_of_dead_processes_is_cleaned_up", dead_holder),
    ("device_without_root_is_refused_with_the_reason", without_root),
];

fn need_devices() -> Verdict {
    tether_engine::device::available().map_err(|why| Skip(why.to_string()))
}

/// A volume with a device, whose engines are processes.
struct Fixture {
    dir: TempDir,
    volume: &'static str,
    engine: Option<Engine>,
    mounted: Option<PathBuf>,
}

struct Engine {
    child: Child,
    orders: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Engine {
    fn order(&mut self, line: &str) {
        writeln!(self.orders, "{line}").expect("the engine must listen");
    }

    /// The rest of the next line, which must begin with `word`.
    fn says(&mut self, word: &str) -> String {
        let line = self.lines.next().and_then(Result::ok).unwrap_or_default();
        let rest = line.strip_prefix(word).unwrap_or_else(|| panic!("the engine said {line:?}, not {word:?}"));
        rest.trim().to_owned()
    }

    fn kill(mut self) {
        self.child.kill().expect("the engine must be killed");
        let status = self.child.wait().expect("the engine must end");
        assert_eq!(status.signal(), Some(9), "the engine ended by itself");
    }
}

impl Fixture {
    fn new(volume: &'static str) -> Self {
        Self { dir: tempfile::tempdir().expect("a directory"), volume, engine: None, mounted: None }
    }

    fn place(&self) -> Place {
        place(self.dir.path())
    }

    fn name(&self) -> Name {
        Name::new(self.volume).expect("a name")
    }

    fn spawn(&self, uid: &str, previous: &str, size: u64, delay: Duration) -> Engine {
        let mut child = Command::new("/proc/self/exe")
            .args(["ram-engine", text(self.dir.path()), self.volume, &size.to_string(), uid, previous])
            .arg(delay.as_micros().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("an engine must start");
        let orders = child.stdin.take().expect("its input is a pipe");
        let lines = BufReader::new(child.stdout.take().expect("its output is a pipe")).lines();
        Engine { child, orders, lines }
    }

    /// Starts an engine and waits for its device; returns the number of the loop device.
    fn serve(&mut self, uid: &str, previous: &str, size: u64, delay: Duration) -> u32 {
        let mut engine = self.spawn(uid, previous, size, delay);
        engine.says("serving");
        let attached = engine.says("attached");
        self.engine = Some(engine);
        attached.rsplit(' ').next().and_then(|n| n.parse().ok()).expect("the number of a loop device")
    }

    fn engine(&mut self) -> &mut Engine {
        self.engine.as_mut().expect("an engine must have been started")
    }

    fn kill(&mut self) {
        self.engine.take().expect("an engine must have been started").kill();
    }

    fn node(&self) -> String {
        text(&self.place().node(&self.name())).to_owned()
    }

    fn mount(&mut self, kind: &str) -> PathBuf {
        let point = self.dir.path().join("mnt");
        fs::create_dir_all(&point).expect("a directory");
        run("mount", &["-t", kind, &self.node(), text(&point)]);
        self.mounted = Some(point.clone());
        point
    }

    fn unmount(&mut self) {
        let point = self.mounted.take().expect("it must be mounted");
        run("umount", &[text(&point)]);
    }

    /// Bytes that the volume takes.
    fn allocated(&self) -> u64 {
        fs::metadata(self.dir.path().join(self.volume)).expect("the volume's file").blocks() * 512
    }

    fn clean(&self) -> leftovers::Report {
        leftovers::clean(&self.place(), &BTreeSet::new()).expect("leftovers must be found")
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some(mut engine) = self.engine.take() {
            let _ = engine.child.kill();
            let _ = engine.child.wait();
        }
        let report = self.clean();
        if let Some(point) = self.mounted.take() {
            let _ = attempt("umount", &["-l", text(&point)]);
        }
        assert!(std::thread::panicking() || report.kept.is_empty(), "{:?}", report.kept);
    }
}

fn shape() -> Verdict {
    need_devices()?;
    let mut fixture = Fixture::new("shape");
    let number = fixture.serve("a", "nobody", 64 * MIB, Duration::ZERO);
    assert!(Loop(number).is_direct());
    let node = fixture.node();
    let ask = |flag: &str| run("blockdev", &[flag, &node]).trim().to_owned();
    assert_eq!((ask("--getsize64"), ask("--getss")), ((64 * MIB).to_string(), "512".to_owned()));
    let before = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    assert!(!before.contains("tether"), "nothing is mounted anywhere");
    fixture.engine().order(&format!("resize {}", 96 * MIB));
    fixture.engine().says("resized");
    assert_eq!(run("blockdev", &["--getsize64", &node]).trim(), (96 * MIB).to_string());
    run("blkdiscard", &[&node]);
    assert_eq!(fixture.allocated(), 0);
    run("blkdiscard", &["--zeroout", &node]);
    Ok(())
}

/// Files with content, some of them synced, some deleted.
fn fill(point: &Path) {
    for i in 0..64 {
        let content: Vec<u8> = (0..300_000_usize).map(|j| (i * 7 + j + j / 255) as u8).collect();
        fs::write(point.join(format!("file-{i}")), content).expect("a file");
    }
    run("sync", &["-f", text(point)]);
}

fn check(point: &Path) {
    for i in 0..64 {
        let content = fs::read(point.join(format!("file-{i}"))).expect("a file");
        let intact = content.iter().enumerate().all(|(j, byte)| *byte == (i * 7 + j + j / 255) as u8);
        assert!(content.len() == 300_000 && intact, "file-{i} differs");
    }
}

fn ext4() -> Verdict {
    need_devices()?;
    need(&["mkfs.ext4", "e2fsck", "resize2fs", "fstrim"])?;
    let mut fixture = Fixture::new("ext4");
    fixture.serve("a", "nobody", 128 * MIB, Duration::ZERO);
    run("mkfs.ext4", &["-q", &fixture.node()]);
    let point = fixture.mount("ext4");
    fill(&point);
    let full = fixture.allocated();
    fixture.engine().order(&format!("resize {}", 192 * MIB));
    fixture.engine().says("resized");
    // A mounted file system can be grown as well, by a process with CAP_SYS_RESOURCE.
    fixture.unmount();
    run("e2fsck", &["-f", "-p", &fixture.node()]);
    run("resize2fs", &[&fixture.node()]);
    let point = fixture.mount("ext4");
    check(&point);
    fs::read_dir(&point).expect("files").flatten().for_each(|entry| drop(fs::remove_file(entry.path())));
    run("sync", &["-f", text(&point)]);
    run("fstrim", &["-v", text(&point)]);
    fixture.unmount();
    assert!(fixture.allocated() + 10 * MIB < full, "{} bytes are left of {full}", fixture.allocated());
    run("e2fsck", &["-f", "-n", &fixture.node()]);
    Ok(())
}

fn xfs() -> Verdict {
    need_devices()?;
    need(&["mkfs.xfs", "xfs_repair", "fstrim"])?;
    let mut fixture = Fixture::new("xfs");
    fixture.serve("a", "nobody", 512 * MIB, Duration::ZERO);
    run("mkfs.xfs", &["-q", &fixture.node()]);
    let point = fixture.mount("xfs");
    fill(&point);
    fixture.unmount();
    let point = fixture.mount("xfs");
    check(&point);
    run("fstrim", &["-v", text(&point)]);
    fixture.unmount();
    run("xfs_repair", &["-n", &fixture.node()]);
    Ok(())
}

fn detach() -> Verdict {
    need_devices()?;
    need(&["mkfs.ext4"])?;
    let mut fixture = Fixture::new("detach");
    let number = fixture.serve("a", "nobody", 32 * MIB, Duration::ZERO);
    run("mkfs.ext4", &["-q", &fixture.node()]);
    fixture.mount("ext4");
    let mut link = Link::find(&fixture.place(), &fixture.name()).expect("a holder").expect("a holder");
    let busy = link.take("b", "a").expect_err("the engine lives");
    assert!(busy.to_string().contains("must be stopped first"), "{busy}");
    let refused = link.detach().expect_err("it is mounted");
    assert!(refused.to_string().contains("in use"), "{refused}");
    fixture.unmount();
    fixture.engine().order("detach");
    fixture.engine().says("detached");
    assert!(!Path::new(&fixture.node()).exists());
    assert_eq!(Loop(number).tag().ok().flatten().filter(|tag| *tag == fixture.place().tag(&fixture.name())), None);
    assert!(Link::find(&fixture.place(), &fixture.name()).expect("no holder").is_none());
    let mut engine = fixture.engine.take().expect("an engine");
    assert!(engine.child.wait().expect("it ends").success());
    Ok(())
}

/// The kernel holds a lock while it binds a loop device, and asks the engine for things: a step that waits for an engine
/// that is gone would keep every other volume of the host from being attached.
fn unbound() -> Verdict {
    need_devices()?;
    // The engine ends before it asks for the device, and while that is being bound.
    for begun in [false, true] {
        let fixture = Fixture::new("unbound");
        let (place, name) = (fixture.place(), fixture.name());
        let mut link = Link::open(&place, &name).expect("a holder");
        let taken = link.take("a", "nobody").expect("nobody has it");
        let (handle, holder) = (link.handle().expect("a handle"), link.pid);
        let deadline = Instant::now() + Duration::from_secs(60);
        if begun {
            // Nobody serves the device: whatever the step asks of it, it waits for.
            let binding = std::thread::spawn(move || link.attach(Shape { block: 512, read_only: false }));
            let steps = format!("/proc/{holder}/task/{holder}/children");
            while fs::read_to_string(&steps).is_ok_and(|children| children.is_empty()) {
                assert!(Instant::now() < deadline, "the step does not begin");
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(taken);
            handle.hang_up();
            binding.join().expect("a thread").expect_err("there is no engine");
        } else {
            drop((taken, link, handle));
        }
        while Link::find(&place, &name).is_ok_and(|found| found.is_some()) {
            assert!(Instant::now() < deadline, "the holder waits for an engine that is gone");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

fn fenced() -> Verdict {
    need_devices()?;
    let mut fixture = Fixture::new("fenced");
    fixture.serve("a", "nobody", 16 * MIB, Duration::ZERO);
    let node = fixture.node();
    let write = || attempt("dd", &["if=/dev/zero", &format!("of={node}"), "bs=4k", "count=1", "oflag=direct"]);
    assert!(write().status.success());
    fixture.engine().order("fence");
    fixture.engine().says("fenced");
    let failed = write();
    assert!(String::from_utf8_lossy(&failed.stderr).contains("Input/output error"), "{failed:?}");
    Ok(())
}

/// A load that checks what it reads, on a file system that is synced all the time.
fn load(point: &Path, seconds: u32) -> Child {
    command("fio")
        .args(["--name=load", "--ioengine=libaio", "--direct=1", "--rw=randrw", "--bsrange=4k-64k", "--iodepth=16"])
        .args([
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--verify_backlog=64",
            "--fsync=8",
            "--size=48M",
        ])
        .args(["--time_based", &format!("--runtime={seconds}"), "--output-format=terse"])
        .arg(format!("--directory={}", point.display()))
        .current_dir(point)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("fio must start")
}

/// Waits until the device has requests that nobody answered.
fn wait_for_requests(number: u32) {
    let path = format!("/sys/block/loop{number}/inflight");
    let start = Instant::now();
    loop {
        let text = fs::read_to_string(&path).expect("the device's counters");
        if text.split_whitespace().any(|n| n != "0") {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "no request came");
        std::thread::yield_now();
    }
}

/// Waits until the device has written so many more requests.
fn wait_for_writes(number: u32, more: u64) {
    let path = format!("/sys/block/loop{number}/stat");
    let written = || -> u64 {
        let text = fs::read_to_string(&path).expect("the device's counters");
        text.split_whitespace().nth(4).and_then(|n| n.parse().ok()).expect("a counter")
    };
    let (before, start) = (written(), Instant::now());
    while written() < before + more {
        assert!(start.elapsed() < PATIENCE, "nothing is written");
        std::thread::yield_now();
    }
}

fn hand_over() -> Verdict {
    need_devices()?;
    need(&["fio", "mkfs.ext4", "e2fsck"])?;
    let mut fixture = Fixture::new("handover");
    let delay = Duration::from_millis(1);
    let number = fixture.serve("0", "nobody", 128 * MIB, delay);
    run("mkfs.ext4", &["-q", &fixture.node()]);
    let point = fixture.mount("ext4");
    let load = load(&point, 12);
    let mut stalls = Vec::new();
    for i in 1..=KILLS {
        wait_for_writes(number, WRITES_BETWEEN_KILLS);
        wait_for_requests(number);
        let start = Instant::now();
        fixture.kill();
        let again = fixture.serve(&i.to_string(), &(i - 1).to_string(), 128 * MIB, delay);
        stalls.push(start.elapsed());
        assert_eq!(again, number, "it is the same device");
    }
    let output = load.wait_with_output().expect("fio must end");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    let longest = stalls.iter().max().copied().unwrap_or_default();
    say(&format!("{KILLS} kills under verified load, no error; longest stall {longest:?}"));
    fixture.unmount();
    run("e2fsck", &["-f", "-n", &fixture.node()]);
    Ok(())
}

fn dying_starts() -> Verdict {
    need_devices()?;
    let mut fixture = Fixture::new("starts");
    // Each is killed as soon as it has the device, while the loop device is being bound.
    let mut previous = "nobody".to_owned();
    for uid in 0..6 {
        let uid = format!("e{uid}");
        let mut engine = fixture.spawn(&uid, &previous, 16 * MIB, Duration::from_millis(uid.len() as u64));
        engine.says("serving");
        engine.kill();
        previous = uid;
    }
    fixture.serve("last", &previous, 16 * MIB, Duration::ZERO);
    run("dd", &["if=/dev/urandom", &format!("of={}", fixture.node()), "bs=1M", "count=8", "oflag=direct"]);
    Ok(())
}

fn broken_line() -> Verdict {
    need_devices()?;
    let mut fixture = Fixture::new("broken");
    let number = fixture.serve("a", "nobody", 16 * MIB, Duration::ZERO);
    fixture.kill();
    fixture.serve("b", "a", 16 * MIB, Duration::from_secs(600));
    let stuck = command("dd")
        .args(["if=/dev/urandom", &format!("of={}", fixture.node()), "bs=64k", "count=1", "oflag=direct"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("dd must start");
    wait_for_requests(number);
    fixture.kill();
    let mut newcomer = fixture.spawn("c", "x", 16 * MIB, Duration::ZERO);
    let why = newcomer.says("failed");
    assert!(why.contains("another engine held the volume since engine b"), "{why}");
    newcomer.child.wait().expect("it ends");
    let report = fixture.clean();
    // Whoever still has the loop device open keeps it bound for a moment longer.
    let expected = matches!(
        report.removed.as_slice(),
        [Leftover::Holder { .. }] | [Leftover::Holder { .. }, Leftover::Loop { .. }]
    );
    assert!(expected && report.kept.is_empty(), "{report:?}");
    let output = stuck.wait_with_output().expect("dd must end");
    assert!(!output.status.success(), "an old write must not succeed");
    let written = fs::read(fixture.dir.path().join("broken")).expect("the volume's file");
    assert!(written.iter().all(|byte| *byte == 0), "an old write must not reach the volume");
    fixture.serve("d", "c", 16 * MIB, Duration::ZERO);
    run("dd", &["if=/dev/zero", &format!("of={}", fixture.node()), "bs=4k", "count=1", "oflag=direct"]);
    Ok(())
}

fn dead_holder() -> Verdict {
    need_devices()?;
    let mut fixture = Fixture::new("dead");
    let number = fixture.serve("a", "nobody", 16 * MIB, Duration::ZERO);
    let holder = Link::find(&fixture.place(), &fixture.name()).expect("a holder").expect("a holder").pid;
    fixture.kill();
    let wanted = BTreeSet::from([fixture.name()]);
    let report = leftovers::clean(&fixture.place(), &wanted).expect("leftovers must be found");
    assert!(report.removed.is_empty() && report.kept.is_empty(), "it waits for the next engine: {report:?}");
    let pid = rustix::process::Pid::from_raw(holder as i32).expect("a process");
    let gone = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).expect("the holder lives");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("the holder must be killed");
    let mut fds = [rustix::event::PollFd::new(&gone, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut fds, None).expect("the holder must end");
    let report = leftovers::clean(&fixture.place(), &wanted).expect("leftovers must be found");
    let removed: BTreeSet<Leftover> = report.removed.into_iter().collect();
    let expected = BTreeSet::from([
        Leftover::Directory { path: fixture.place().directory(&fixture.name()) },
        Leftover::Loop { number, tag: fixture.place().tag(&fixture.name()) },
        Leftover::Node { path: fixture.place().node(&fixture.name()) },
    ]);
    assert_eq!(removed, expected);
    fixture.serve("b", "a", 16 * MIB, Duration::ZERO);
    Ok(())
}

fn without_root() -> Verdict {
    need(&["setpriv"])?;
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("only root can become somebody else".to_owned()));
    }
    // Somewhere that everybody may enter and run the program from.
    let program = fs::read_link("/proc/self/exe").expect("this program");
    let dir = tempfile::tempdir().expect("a directory");
    let copy = dir.path().join("engine");
    fs::copy(program, &copy).expect("a copy");
    run("chmod", &["-R", "a+rX", text(dir.path())]);
    let args = ["--reuid=65534", "--regid=65534", "--clear-groups", "--", text(&copy), "ram-engine"];
    let output = attempt("setpriv", &[args.as_slice(), &[text(dir.path()), "v1", "4096", "a", "nobody", "0"]].concat());
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("needs root") && said.contains("NBD"), "{output:?}");
    Ok(())
}
