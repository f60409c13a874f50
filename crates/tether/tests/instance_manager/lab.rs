//! Three nodes of one machine: an instance manager each, driven over gRPC as a node's agent does it.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tether_engine::control::proto::engine_client::EngineClient;
use tether_engine::control::proto::instances_client::InstancesClient;
use tether_engine::control::proto::{self, EngineInfo, InstanceRequest};
use tether_engine::control::{Protection, connect};
use tether_engine::host::Address;
use tokio::runtime::Runtime;
use tonic::transport::Channel;

/// Size of the volume.
pub const SIZE: u64 = 128 << 20;
const KEY: [u8; 32] = [7; 32];
const ENGINE: &str = "engine";
/// What is waited for comes sooner than this, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// An instance manager and the clients of its API.
pub struct Manager {
    child: Child,
    instances: InstancesClient<Channel>,
    engines: EngineClient<Channel>,
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Three managers with a replica each; the first one has the engine.
pub struct Lab {
    dir: tempfile::TempDir,
    pub volume: String,
    runtime: Runtime,
    managers: Vec<Option<Manager>>,
    replicas: Vec<proto::ReplicaAddress>,
    mounted: Option<PathBuf>,
}

impl Lab {
    pub fn new(volume: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // Volumes of tests that run beside each other have different devices.
        let volume = format!("{volume}-{}", std::process::id());
        let dir = tempfile::tempdir().unwrap();
        let mut lab = Self { dir, volume, runtime, managers: Vec::new(), replicas: Vec::new(), mounted: None };
        for node in 0..3 {
            std::fs::create_dir_all(lab.path(&format!("disk{node}"))).unwrap();
            lab.managers.push(None);
            lab.replicas.push(proto::ReplicaAddress::default());
            lab.start(node);
        }
        lab
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts the manager of a node, and its replica.
    pub fn start(&mut self, node: usize) {
        let data_dir = self.path(&format!("node{node}"));
        let socket = data_dir.join("control.sock");
        let log =
            std::fs::File::options().create(true).append(true).open(self.path(&format!("node{node}.log"))).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tether"));
        command.args(["instance-manager", "--listen", &format!("unix:{}", socket.display()), "--data-dir"]);
        command
            .arg(&data_dir)
            .arg("--device-run")
            .arg(data_dir.join("run"))
            .arg("--device-dir")
            .arg(data_dir.join("dev"));
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("ready "), "{line:?}: {}", self.log(node));
        let channel = self.runtime.block_on(connect(&Address::Unix(socket), &Protection::None)).unwrap();
        let (instances, engines) = (InstancesClient::new(channel.clone()), EngineClient::new(channel));
        self.managers[node] = Some(Manager { child, instances, engines });
        self.start_replica(node);
    }

    fn start_replica(&mut self, node: usize) {
        let name = format!("{}-r-{node}", self.volume);
        let request = proto::StartReplicaRequest {
            name: name.clone(),
            size: SIZE,
            key: KEY.to_vec(),
            directory: self.replica_dir(node).display().to_string(),
            member: name.clone(),
            ..Default::default()
        };
        let manager = self.managers[node].as_mut().unwrap();
        let started = self.runtime.block_on(manager.instances.start_replica(request)).unwrap().into_inner();
        self.replicas[node] = proto::ReplicaAddress { name, address: started.addresses[0].clone() };
    }

    pub fn replica_dir(&self, node: usize) -> PathBuf {
        self.path(&format!("disk{node}")).join("replicas").join(format!("{}-data", self.volume))
    }

    fn log(&self, node: usize) -> String {
        std::fs::read_to_string(self.path(&format!("node{node}.log"))).unwrap_or_default()
    }

    pub fn kill(&mut self, node: usize) {
        self.managers[node] = None;
    }

    /// Starts the engine with a device on the first node. `older_stopped`: nobody else ever held the volume, so that no
    /// lease is waited for.
    pub fn start_engine(&mut self, older_stopped: bool) {
        let request = proto::StartEngineRequest {
            name: ENGINE.to_owned(),
            volume: self.volume.clone(),
            size: SIZE,
            replicas: self.replicas.clone(),
            key: KEY.to_vec(),
            record: self.path("record").display().to_string(),
            device: true,
            older_stopped,
            ..Default::default()
        };
        let manager = self.managers[0].as_mut().unwrap();
        self.runtime.block_on(manager.instances.start_engine(request)).unwrap();
    }

    pub fn info(&mut self) -> EngineInfo {
        let request = InstanceRequest { instance: ENGINE.to_owned() };
        let manager = self.managers[0].as_mut().unwrap();
        self.runtime.block_on(manager.engines.info(request)).unwrap().into_inner()
    }

    /// Waits until what the engine says of itself is as wanted.
    pub fn wait(&mut self, what: &str, wanted: impl Fn(&EngineInfo) -> bool) -> EngineInfo {
        let start = Instant::now();
        loop {
            let info = self.info();
            if wanted(&info) {
                return info;
            }
            assert!(start.elapsed() < PATIENCE, "{what} does not happen: {info:#?}\n{}", self.log(0));
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The device, once it is there.
    pub fn device(&mut self) -> PathBuf {
        self.wait("a device", |info| !info.device.is_empty()).device.into()
    }

    /// Mounts the device; unmounted with the lab.
    pub fn mount(&mut self, device: &Path) -> PathBuf {
        let at = self.path("mnt");
        std::fs::create_dir_all(&at).unwrap();
        run("mount", &[device, &at]);
        self.mounted = Some(at.clone());
        at
    }

    pub fn unmount(&mut self) {
        if let Some(at) = self.mounted.take() {
            run("umount", &[&at]);
        }
    }

    /// Ends the engine in order, its device first.
    pub fn close_engine(&mut self) {
        let request = proto::StopRequest { name: ENGINE.to_owned(), detach_device: true, abandon: false };
        let manager = self.managers[0].as_mut().unwrap();
        self.runtime.block_on(manager.instances.stop(request)).unwrap();
    }

    /// Stops the replicas in order and compares their directories byte by byte.
    pub fn assert_equal(&mut self) {
        for node in 0..3 {
            let request = proto::StopRequest { name: format!("{}-r-{node}", self.volume), ..Default::default() };
            let manager = self.managers[node].as_mut().unwrap();
            self.runtime.block_on(manager.instances.stop(request)).unwrap();
        }
        let dirs: Vec<_> = (0..3).map(|node| self.replica_dir(node)).collect();
        let output = Command::new(env!("CARGO_BIN_EXE_tether")).args(["replica", "diff"]).args(dirs).output().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{text}");
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(at) = &self.mounted {
            // The device may only fail by now; the mount must go all the same.
            let _ = command("umount").arg("-l").arg(at).status();
        }
        if let Some(manager) = self.managers[0].as_mut() {
            let stop = proto::StopRequest { name: ENGINE.to_owned(), abandon: true, detach_device: false };
            let _ = self.runtime.block_on(manager.instances.stop(stop));
            let request = proto::RemoveDeviceRequest { volume: self.volume.clone() };
            let _ = self.runtime.block_on(manager.instances.remove_device(request));
        }
    }
}

/// A command with the directories of administrators in its path.
fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

/// Runs a program that must succeed.
pub fn run<A: AsRef<std::ffi::OsStr>>(program: &str, args: &[A]) {
    let output = command(program).args(args).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program}: {text}");
}
