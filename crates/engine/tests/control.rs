//! The control API as its clients use it: what is watched, what a defect costs, who may connect.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tether_engine::control::proto::engine_client::EngineClient;
use tether_engine::control::proto::instances_client::InstancesClient;
use tether_engine::control::proto::watch_event::Event;
use tether_engine::control::proto::{self, Instance};
use tether_engine::control::{Manager, Protection, Registry, Running, Service, TlsFiles, bind, connect, serve};
use tether_engine::device::place::Place;
use tether_engine::engine_server::Command;
use tether_engine::host::Address;
use tether_engine::record::RecordFiles;
use tonic::Streaming;
use tonic::transport::Channel;

const SIZE: u64 = 16 << 20;
const KEY: [u8; 32] = [7; 32];
/// Whatever is waited for comes sooner, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// An instance manager in this process.
struct Lab {
    dir: TempDir,
    registry: Arc<Registry>,
    instances: InstancesClient<Channel>,
    engines: EngineClient<Channel>,
}

fn manager(dir: &Path) -> Manager {
    for name in ["replicas", "nbd"] {
        std::fs::create_dir_all(dir.join(name)).unwrap();
    }
    let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
    Manager {
        data_dir: dir.to_owned(),
        records: Box::new(RecordFiles { dir: dir.join("records") }),
        address: localhost,
        nbd_address: localhost,
        nbd_tls: None,
        devices: Place { run: dir.join("run"), dev: dir.join("dev") },
    }
}

impl Lab {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let registry = Arc::new(Registry::of_manager(manager(dir.path())));
        let address = Address::Unix(dir.path().join("control.sock"));
        let bound = bind(&address, &Protection::None).unwrap();
        tokio::spawn(serve(bound, Service::new(registry.clone()), std::future::pending()));
        let channel = connect(&address, &Protection::None).await.unwrap();
        Self { dir, registry, instances: InstancesClient::new(channel.clone()), engines: EngineClient::new(channel) }
    }

    /// A replica in a directory of a disk, as a node's agent asks for it.
    async fn replica(&mut self, volume: &str, number: usize) -> proto::ReplicaAddress {
        let name = format!("{volume}-r{number}");
        std::fs::create_dir_all(self.dir.path().join("disk")).unwrap();
        let request = proto::StartReplicaRequest {
            name: name.clone(),
            size: SIZE,
            key: KEY.to_vec(),
            directory: self.directory(&name),
            member: format!("{name}-data"),
            ..Default::default()
        };
        let started = self.instances.start_replica(request).await.unwrap().into_inner();
        proto::ReplicaAddress { name: format!("{name}-data"), address: started.addresses[0].clone() }
    }

    fn directory(&self, replica: &str) -> String {
        self.dir.path().join("disk/replicas").join(replica).display().to_string()
    }

    /// Starts an engine with two replicas and waits until it serves.
    async fn volume(&mut self, volume: &str) -> Instance {
        let replicas = vec![self.replica(volume, 1).await, self.replica(volume, 2).await];
        let request = proto::StartEngineRequest {
            name: format!("{volume}-e"),
            volume: volume.to_owned(),
            size: SIZE,
            replicas,
            key: KEY.to_vec(),
            ..Default::default()
        };
        let started = self.instances.start_engine(request).await.unwrap().into_inner();
        self.engines.wait_serving(proto::InstanceRequest { instance: started.name.clone() }).await.unwrap();
        started
    }

    async fn watch(&mut self) -> Watch {
        Watch(self.instances.watch(proto::WatchRequest {}).await.unwrap().into_inner())
    }

    async fn stop(&mut self, name: &str) {
        let request = proto::StopRequest { name: name.to_owned(), ..Default::default() };
        self.instances.stop(request).await.unwrap();
    }
}

struct Watch(Streaming<proto::WatchEvent>);

impl Watch {
    /// The first event from now on that is as wanted.
    async fn until<T>(&mut self, what: &str, mut wanted: impl FnMut(Event) -> Option<T>) -> T {
        let found = async {
            loop {
                let event = self.0.message().await.unwrap().expect("the stream must not end");
                if let Some(found) = event.event.and_then(&mut wanted) {
                    return found;
                }
            }
        };
        tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("{what} was not told"))
    }

    async fn instance(&mut self, name: &str, what: &str, wanted: impl Fn(&Instance) -> bool) -> Instance {
        let of_it = |event| match event {
            Event::Instance(instance) if instance.name == name && wanted(&instance) => Some(instance),
            _ => None,
        };
        self.until(what, of_it).await
    }
}

fn in_sync(instance: &Instance) -> usize {
    instance.engine.as_ref().map_or(0, |engine| engine.in_sync.len())
}

#[tokio::test]
async fn a_watcher_is_told_of_every_change() {
    let mut lab = Lab::new().await;
    lab.replica("other", 1).await;
    let mut watch = lab.watch().await;
    watch.instance("other-r1", "what was there before", |replica| replica.state == "running").await;
    watch.until("the end of the list", |event| matches!(event, Event::Listed(_)).then_some(())).await;
    let started = lab.volume("v1").await;
    let serving = watch.instance("v1-e", "serving", |engine| engine.state == "running").await;
    assert_eq!((in_sync(&serving), &serving.uid), (2, &started.uid));
    let engine = serving.engine.unwrap();
    assert_eq!(engine.holder, serving.uid, "an engine's uid is the one in the record");
    assert!(engine.nbd[0].contains("/nbd/v1-e.sock"), "a socket of the manager's choice: {:?}", engine.nbd);

    lab.stop("v1-r2").await;
    watch.until("removal", |event| (event == Event::Removed("v1-r2".to_owned())).then_some(())).await;
    // Nothing was written: the member leaves when something needs it.
    lab.engines.flush(proto::InstanceRequest { instance: "v1-e".to_owned() }).await.unwrap();
    watch.instance("v1-e", "a member out of sync", |engine| in_sync(engine) == 1).await;
    let address = lab.replica("v1", 2).await;
    let request = proto::AddReplicaRequest { instance: "v1-e".to_owned(), replica: Some(address) };
    lab.engines.add_replica(request).await.unwrap();
    watch.instance("v1-e", "a member in sync again", |engine| in_sync(engine) == 2).await;

    lab.stop("v1-e").await;
    watch.instance("v1-e", "the end", |engine| engine.state == "stopped").await;
    watch.until("removal", |event| (event == Event::Removed("v1-e".to_owned())).then_some(())).await;
}

/// Whoever watches keeps the last picture: without the news the volume would stay degraded for good.
#[tokio::test]
async fn a_replica_that_is_back_is_told_also_if_it_never_left_the_record() {
    let connected = |engine: &Instance| {
        let replicas = engine.engine.iter().flat_map(|engine| &engine.replicas);
        replicas.filter(|replica| replica.connected && replica.in_sync).count()
    };
    let mut lab = Lab::new().await;
    lab.volume("v1").await;
    let mut watch = lab.watch().await;
    let before = watch.instance("v1-e", "both replicas", |engine| connected(engine) == 2).await;
    lab.stop("v1-r2").await;
    let without = watch.instance("v1-e", "the loss", |engine| connected(engine) == 1).await;
    assert_eq!(in_sync(&without), 2, "nothing was written: it stays in the record");
    let address = lab.replica("v1", 2).await;
    let request = proto::AddReplicaRequest { instance: "v1-e".to_owned(), replica: Some(address) };
    lab.engines.add_replica(request).await.unwrap();
    let back = watch.instance("v1-e", "its return", |engine| connected(engine) == 2).await;
    let generation = |engine: &Instance| engine.engine.as_ref().unwrap().generation;
    assert_eq!(generation(&back), generation(&before), "it never left the record");
}

#[tokio::test]
async fn nothing_is_started_in_a_manager_that_is_about_to_end() {
    let mut lab = Lab::new().await;
    lab.volume("v1").await;
    lab.registry.end();
    let replica = proto::StartReplicaRequest {
        name: "late-r1".to_owned(),
        size: SIZE,
        key: KEY.to_vec(),
        directory: lab.directory("late-r1"),
        member: "late-r1-data".to_owned(),
        ..Default::default()
    };
    let refused = lab.instances.start_replica(replica).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused}");
    assert!(!Path::new(&lab.directory("late-r1")).exists(), "nothing was begun");
    let engine =
        proto::StartEngineRequest { name: "late-e".to_owned(), volume: "late".to_owned(), ..Default::default() };
    let refused = lab.instances.start_engine(engine).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused}");
    // What runs is served until it is stopped, which is not refused.
    lab.engines.flush(proto::InstanceRequest { instance: "v1-e".to_owned() }).await.unwrap();
    lab.stop("v1-e").await;
}

#[tokio::test]
async fn a_defect_of_one_instance_is_not_the_others_end() {
    let mut lab = Lab::new().await;
    let (broken, well) = (lab.volume("v1").await, lab.volume("v2").await);
    let mut watch = lab.watch().await;
    let Some(Running::Engine(engine)) = lab.registry.get(&broken.name).map(|entry| entry.running) else {
        panic!("an engine was started")
    };
    engine.ask(Command::Panic, |_| {}).unwrap();
    let ended = watch.instance("v1-e", "the panic", |engine| engine.state == "error").await;
    assert!(ended.reason.contains("a defect on purpose"), "{}", ended.reason);
    let info = lab.engines.info(proto::InstanceRequest { instance: "v1-e".to_owned() }).await.unwrap_err();
    assert!(info.message().contains("panicked"), "{info}");
    // The other volume is served, and the broken one as well once it is started again.
    lab.engines.flush(proto::InstanceRequest { instance: well.name }).await.unwrap();
    let again = lab.volume("v1").await;
    assert_ne!(again.uid, broken.uid);
}

#[tokio::test]
async fn data_of_a_replica_is_deleted_only_if_it_is_one_and_nobody_uses_it() {
    let mut lab = Lab::new().await;
    lab.replica("v1", 1).await;
    let directory = lab.directory("v1-r1");
    let remove = |directory: &str| proto::RemoveReplicaDataRequest { directory: directory.to_owned() };
    let refused = lab.instances.remove_replica_data(remove(&directory)).await.unwrap_err();
    assert!(refused.message().contains("in use"), "{refused}");
    let data_dir = lab.dir.path().join("nbd").display().to_string();
    std::fs::write(lab.dir.path().join("nbd/notes"), "mine").unwrap();
    assert!(lab.instances.remove_replica_data(remove(&data_dir)).await.is_err());
    lab.stop("v1-r1").await;
    // Another member's name on the same directory is a mistake of whoever asks.
    let request = proto::StartReplicaRequest {
        name: "v1-r1".to_owned(),
        key: KEY.to_vec(),
        directory: directory.clone(),
        member: "somebody-else".to_owned(),
        ..Default::default()
    };
    let mistaken = lab.instances.start_replica(request).await.unwrap_err();
    assert!(mistaken.message().contains("v1-r1-data"), "{mistaken}");
    for _ in 0..2 {
        lab.instances.remove_replica_data(remove(&directory)).await.unwrap();
    }
    assert!(!Path::new(&directory).exists());
}

/// An authority, and a certificate that it signed, in files.
fn certificates(dir: &Path, name: &str) -> TlsFiles {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    let path = |kind: &str| dir.join(format!("{name}.{kind}"));
    std::fs::write(path("crt"), certificate.pem()).unwrap();
    std::fs::write(path("key"), key.serialize_pem()).unwrap();
    std::fs::write(path("ca"), authority.pem()).unwrap();
    TlsFiles { certificate: path("crt"), key: path("key"), authority: path("ca") }
}

#[tokio::test]
async fn control_over_tcp_needs_certificates_on_both_sides() {
    let dir = tempfile::tempdir().unwrap();
    let address: Address = "127.0.0.1:0".parse().unwrap();
    let refused = bind(&address, &Protection::None).err().unwrap().to_string();
    assert!(refused.contains("--tls-cert"), "{refused}");
    let far: Address = "0.0.0.0:0".parse().unwrap();
    assert!(bind(&far, &Protection::InsecureLoopback).is_err(), "clear is for loopback only");

    let ours = certificates(dir.path(), "ours");
    let foreign = certificates(dir.path(), "foreign");
    let bound = bind(&address, &Protection::Tls(ours.clone())).unwrap();
    let local = bound.local().clone();
    let service = Service::new(Arc::new(Registry::of_manager(manager(dir.path()))));
    tokio::spawn(serve(bound, service, std::future::pending()));
    let list = async |protection: Protection| {
        let channel = connect(&local, &protection).await.map_err(|error| error.to_string())?;
        let mut client = InstancesClient::new(channel);
        let listed = client.list(proto::ListRequest {}).await.map_err(|status| status.to_string())?;
        Ok::<_, String>(listed.into_inner().version)
    };
    assert_eq!(list(Protection::Tls(ours.clone())).await, Ok(1));
    assert!(list(Protection::None).await.unwrap_err().contains("--tls-cert"));
    list(Protection::InsecureLoopback).await.expect_err("clear to a server that speaks TLS");
    // A certificate that another authority signed, though the server is trusted.
    let stranger = TlsFiles { authority: ours.authority, ..foreign };
    list(Protection::Tls(stranger)).await.expect_err("a certificate of somebody else's authority");
}
