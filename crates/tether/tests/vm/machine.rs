//! A virtual machine: a kernel, a disk that is a volume, a console that is listened to, and QEMU's own protocol.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The modules of a disk, in the order in which they are loaded.
const MODULES: [&str; 6] =
    ["virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk"];
/// Software emulation on a loaded machine is slow.
pub const LIMIT: Duration = Duration::from_secs(240);
/// Signs of life after a move that are looked at for a gap.
const FIRST_LINES: u64 = 10;
/// Where `./test.sh` puts a kernel.
const KERNEL_DIR: &str = "/var/cache/tether-test/kernel";
const KERNEL_ENV: &str = "TETHER_TEST_KERNEL";

/// What a machine boots from.
#[derive(Debug)]
pub struct Image {
    kernel: PathBuf,
    initramfs: PathBuf,
}

impl Image {
    /// Builds it in `dir`; why not, if something is missing.
    pub fn build(dir: &Path) -> Result<Self, String> {
        for program in ["qemu-system-x86_64", "busybox", "cpio", "rustc"] {
            let found = std::env::var_os("PATH")
                .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).exists()));
            if !found {
                return Err(format!("{program} is not installed"));
            }
        }
        let files = std::env::var_os(KERNEL_ENV).map_or_else(|| KERNEL_DIR.into(), PathBuf::from);
        let kernel = find(&files, &|name| name.starts_with("vmlinuz-"))
            .ok_or_else(|| format!("there is no kernel in {} ({KERNEL_ENV})", files.display()))?;
        let root = dir.join("root");
        for folder in ["bin", "dev", "modules"] {
            std::fs::create_dir_all(root.join(folder)).map_err(|error| error.to_string())?;
        }
        for module in MODULES {
            let file = format!("{module}.ko");
            let found = find(&files, &|name| name == file).ok_or_else(|| format!("the kernel has no {file}"))?;
            std::fs::copy(found, root.join("modules").join(file)).map_err(|error| error.to_string())?;
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vm");
        run(Command::new("rustc")
            .args(["-O", "--edition", "2024", "-C", "target-feature=+crt-static", "-C", "panic=abort"])
            .arg("-o")
            .arg(root.join("guest"))
            .arg(source.join("guest.rs")))?;
        let script = format!(
            "cp \"$(command -v busybox)\" bin/busybox && cp {} init && chmod +x init && \
             find . | cpio --quiet -o -H newc > ../initramfs",
            source.join("init.sh").display()
        );
        run(Command::new("sh").args(["-c", &script]).current_dir(&root))?;
        Ok(Self { kernel, initramfs: dir.join("initramfs") })
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

fn find(dir: &Path, wanted: &dyn Fn(&str) -> bool) -> Option<PathBuf> {
    let entries = std::fs::read_dir(dir).ok()?;
    for entry in entries.flatten() {
        let path = entry.path();
        let found = if path.is_dir() {
            find(&path, wanted)
        } else {
            path.file_name().and_then(|name| name.to_str()).filter(|name| wanted(name)).map(|_| path.clone())
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

/// What the console has shown.
#[derive(Debug, Default)]
struct Console {
    lines: u64,
    first: Option<Instant>,
    last: Option<Instant>,
    /// The longest time between two of the first lines.
    gap: Duration,
    sweeps: u64,
    bad: Vec<String>,
}

/// A machine that runs.
#[derive(Debug)]
pub struct Machine {
    process: Child,
    qmp: PathBuf,
    console: Arc<Mutex<Console>>,
}

impl Machine {
    /// Starts a machine on the volume at `disk`. With `incoming`, it waits to be told where to receive another one's state.
    pub fn start(image: &Image, dir: &Path, name: &str, disk: (SocketAddr, &str), incoming: bool) -> Self {
        let qmp = dir.join(format!("{name}.qmp"));
        let drive = json!({
            "driver": "raw", "node-name": "disk", "cache": {"direct": true},
            "file": {
                "driver": "nbd", "export": disk.1,
                "server": {"type": "inet", "host": disk.0.ip().to_string(), "port": disk.0.port().to_string()},
            },
        });
        let mut command = Command::new("qemu-system-x86_64");
        command.args(["-machine", "q35,accel=tcg", "-cpu", "max", "-m", "96", "-nodefaults", "-display", "none"]);
        command.args(["-serial", "stdio", "-append", "console=ttyS0 quiet panic=-1"]);
        command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initramfs);
        command.args(["-blockdev", &drive.to_string(), "-device", "virtio-blk-pci,drive=disk"]);
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", qmp.display()));
        if incoming {
            command.args(["-incoming", "defer"]);
        }
        let errors = std::fs::File::create(dir.join(format!("{name}.err"))).expect("a file can be made");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
        let mut process = command.spawn().expect("QEMU must start");
        let console = Arc::<Mutex<Console>>::default();
        let (lines, shared) = (BufReader::new(process.stdout.take().expect("a console")), console.clone());
        thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                let now = Instant::now();
                let mut console = shared.lock().unwrap();
                let text = line.trim();
                if text.contains("BAD") {
                    console.bad.push(text.to_owned());
                } else if text.contains("SWEPT") {
                    console.sweeps += 1;
                } else if text.parse::<u64>().is_ok() {
                    console.lines += 1;
                    if let Some(last) = console.last.filter(|_| console.lines < FIRST_LINES) {
                        console.gap = console.gap.max(now - last);
                    }
                    console.first.get_or_insert(now);
                    console.last = Some(now);
                }
            }
        });
        Self { process, qmp, console }
    }

    /// Lets the machine wait for another one's state; where it waits.
    pub fn receive(&mut self) -> String {
        let deadline = Instant::now() + LIMIT;
        while UnixStream::connect(&self.qmp).is_err() {
            let ended = self.process.try_wait().expect("a child can be asked");
            assert!(ended.is_none(), "QEMU ended: {ended:?}\n{}", self.errors());
            assert!(Instant::now() < deadline, "QEMU does not answer");
            thread::sleep(Duration::from_millis(20));
        }
        let place = format!("unix:{}", self.qmp.with_extension("incoming").display());
        // It listens when it has answered.
        Qmp::connect(&self.qmp).ask("migrate-incoming", json!({"uri": place}));
        place
    }

    /// Waits until the guest has done so many further writes.
    pub fn works(&mut self, more: u64) {
        let wanted = self.console.lock().unwrap().lines + more;
        let deadline = Instant::now() + LIMIT;
        loop {
            let (lines, bad) = {
                let console = self.console.lock().unwrap();
                (console.lines, console.bad.clone())
            };
            assert!(bad.is_empty(), "{bad:?}");
            if lines >= wanted {
                return;
            }
            let ended = self.process.try_wait().expect("a child can be asked");
            assert!(ended.is_none(), "QEMU ended: {ended:?}\n{}", self.errors());
            assert!(Instant::now() < deadline, "{lines} of {wanted} writes after {LIMIT:?}\n{}", self.errors());
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(self.qmp.with_extension("err")).unwrap_or_default()
    }

    pub fn sweeps(&self) -> u64 {
        self.console.lock().unwrap().sweeps
    }

    pub fn bad(&self) -> Vec<String> {
        self.console.lock().unwrap().bad.clone()
    }

    /// The first and the last sign of life.
    pub fn life(&self) -> (Option<Instant>, Option<Instant>) {
        let console = self.console.lock().unwrap();
        (console.first, console.last)
    }

    /// The longest time between two of its first signs of life: the very first may be of a write that was done before it moved.
    pub fn gap(&self) -> Duration {
        self.console.lock().unwrap().gap
    }

    /// Moves the machine's state to the one that waits at `place`; how long QEMU says that it stood still.
    pub fn migrate(&self, place: &str) -> Duration {
        let mut qmp = Qmp::connect(&self.qmp);
        // Nothing but memory moves; it should not take long to converge.
        let parameters = json!({"downtime-limit": 300, "max-bandwidth": 4_u64 << 30});
        qmp.ask("migrate-set-parameters", parameters);
        qmp.ask("migrate", json!({"uri": place}));
        let deadline = Instant::now() + LIMIT;
        loop {
            let state = qmp.ask("query-migrate", json!({}));
            match state["status"].as_str() {
                Some("completed") => return Duration::from_millis(state["downtime"].as_u64().unwrap_or_default()),
                Some("failed" | "cancelled") => panic!("the machine did not move: {state}\n{}", self.errors()),
                _ => assert!(Instant::now() < deadline, "the machine does not move: {state}"),
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A connection to QEMU.
struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("QEMU must answer");
        stream.set_read_timeout(Some(LIMIT)).expect("a limit can be set");
        let mut qmp = Self { stream: BufReader::new(stream) };
        qmp.line();
        qmp.ask("qmp_capabilities", json!({}));
        qmp
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("QEMU must answer");
        serde_json::from_str(&line).unwrap_or_default()
    }

    fn ask(&mut self, command: &str, arguments: Value) -> Value {
        let request = json!({"execute": command, "arguments": arguments});
        writeln!(self.stream.get_mut(), "{request}").expect("QEMU must listen");
        loop {
            let mut answer = self.line();
            assert!(answer.get("error").is_none(), "{command}: {answer}");
            if let Some(value) = answer.get_mut("return") {
                return value.take();
            }
        }
    }
}
