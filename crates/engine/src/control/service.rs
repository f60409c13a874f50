//! The services: find the instance, ask it, answer.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use uuid::Uuid;

use super::proto::{self, engine_server::Engine, instances_server::Instances, replica_server::Replica};
use super::registry::{Registry, Running};
use super::{API_VERSION, convert};
use crate::auth::Key;
use crate::engine_server::{Answer, Command, Nbd, ReplicaAddress, Settings};
use crate::frontend::nbd::listen::Security;
use crate::host::Address;
use crate::instance::{AskFailed, EngineInstance, EngineOptions, ReplicaInstance, ReplicaOptions};
use crate::replica_server;
use tether_replication::engine::Limits;
use tether_replication::ids::{Holder, MemberId, VolumeId};
use tether_replication::rules::Rules;

/// Names volumes' uids are made from where none is given.
const VOLUME_NAMESPACE: Uuid = Uuid::from_u128(0x9d1c_3a54_7a1f_4c52_8f7e_53c1_6a0b_9e21);

/// What a process says that is no instance manager.
const ALONE: &str = "this process runs one instance; others need an instance manager";

/// Implements the control API over the instances of this process.
#[derive(Clone)]
pub struct Service {
    registry: Arc<Registry>,
}

type Reply<T> = Result<Response<T>, Status>;

#[allow(clippy::unnecessary_wraps, reason = "it is the last line of methods that can fail")]
fn done() -> Reply<proto::Empty> {
    Ok(Response::new(proto::Empty {}))
}

fn asked(error: AskFailed) -> Status {
    match error {
        AskFailed::Ask(crate::ring::AskError::Busy) => Status::resource_exhausted(error.to_string()),
        _ => Status::unavailable(error.to_string()),
    }
}

/// The uid of a volume that has no other: made from its name, so that it is the same on every start.
pub fn volume_id(name: &str) -> VolumeId {
    VolumeId(Uuid::new_v5(&VOLUME_NAMESPACE, name.as_bytes()).as_u128())
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Service {
    pub fn new(registry: Arc<Registry>) -> Self {
        Self { registry }
    }

    fn engine(&self, name: &str) -> Result<Arc<EngineInstance>, Status> {
        let fits = |running: &Running| match running {
            Running::Engine(engine) => Some(engine.clone()),
            Running::Replica(_) => None,
        };
        self.registry.find(name, fits).map_err(Status::not_found)
    }

    fn replica(&self, name: &str) -> Result<Arc<ReplicaInstance>, Status> {
        let fits = |running: &Running| match running {
            Running::Replica(replica) => Some(replica.clone()),
            Running::Engine(_) => None,
        };
        self.registry.find(name, fits).map_err(Status::not_found)
    }

    async fn ask(&self, name: &str, command: Command) -> Result<Answer, Status> {
        match self.engine(name)?.get_async(command).await.map_err(asked)? {
            Answer::Failed(why) => Err(Status::failed_precondition(why)),
            answer => Ok(answer),
        }
    }

    async fn order(&self, name: &str, command: Command) -> Reply<proto::Empty> {
        self.ask(name, command).await?;
        done()
    }

    fn data_dir(&self) -> Result<&std::path::Path, Status> {
        let dir = self.registry.data_dir.as_deref();
        dir.ok_or_else(|| Status::failed_precondition(ALONE))
    }

    fn instance(&self, name: &str) -> Result<Response<proto::Instance>, Status> {
        let (running, addresses) = self.registry.get(name).ok_or_else(|| Status::not_found(name.to_owned()))?;
        Ok(Response::new(shown(name, &running, &addresses)))
    }

    /// Whether an instance of this name runs; one that ended is cleared away.
    fn runs(&self, name: &str) -> bool {
        match self.registry.get(name) {
            Some((running, _)) if !running.has_ended() => true,
            Some(_) => {
                self.registry.remove(name);
                false
            }
            None => false,
        }
    }
}

fn shown(name: &str, running: &Running, addresses: &[Address]) -> proto::Instance {
    proto::Instance {
        name: name.to_owned(),
        kind: running.kind().to_owned(),
        state: running.state(),
        addresses: addresses.iter().map(ToString::to_string).collect(),
    }
}

fn valid_name(name: &str) -> Result<(), Status> {
    let fits = !name.is_empty()
        && name.len() <= 253
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && !name.starts_with('.');
    if fits {
        return Ok(());
    }
    Err(Status::invalid_argument(format!("{name:?} is no name: letters, digits and -_. are, not starting with a dot")))
}

fn parse<T: std::str::FromStr>(what: &str, text: &str) -> Result<T, Status>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error| Status::invalid_argument(format!("{what}: {error}")))
}

fn key(bytes: &[u8]) -> Result<Key, Status> {
    Key::parse(bytes).ok_or_else(|| Status::invalid_argument("key: 32 random bytes or more are needed"))
}

/// Blocking work (opening directories) runs beside the tasks.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, Status> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.map_err(|error| Status::internal(error.to_string()))?.map_err(Status::failed_precondition)
}

fn replica_address(replica: &proto::ReplicaAddress) -> Result<ReplicaAddress, Status> {
    let name = match replica.name.as_str() {
        "" => None,
        name => Some(
            MemberId::new(name).ok_or_else(|| Status::invalid_argument(format!("{name:?} is no name of a replica")))?,
        ),
    };
    Ok(ReplicaAddress { name, address: parse("replica", &replica.address)? })
}

fn engine_settings(request: &proto::StartEngineRequest) -> Result<Settings, Status> {
    let volume_id = match request.volume_uid.as_str() {
        "" => volume_id(&request.volume),
        uid => VolumeId(parse::<Uuid>("volume_uid", uid)?.as_u128()),
    };
    let nbd = request.nbd.iter().map(|text| {
        let address: Address = parse("nbd", text)?;
        let security = Security::of(&address, None).map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(Nbd { address, security })
    });
    Ok(Settings {
        volume: request.volume.clone(),
        volume_id,
        holder: Holder(Uuid::new_v4().as_u128()),
        size: request.size,
        replicas: request.replicas.iter().map(replica_address).collect::<Result<_, _>>()?,
        key: key(&request.key)?,
        nbd: nbd.collect::<Result<_, Status>>()?,
        limits: Limits::default(),
        older_stopped: request.older_stopped,
        standby: request.standby,
        rules: Rules::default(),
    })
}

#[tonic::async_trait]
impl Instances for Service {
    async fn list(&self, _: Request<proto::ListRequest>) -> Reply<proto::ListResponse> {
        let all = self.registry.list();
        let instances = all.iter().map(|(name, running, addresses)| shown(name, running, addresses)).collect();
        Ok(Response::new(proto::ListResponse { version: API_VERSION, instances }))
    }

    async fn start_replica(&self, request: Request<proto::StartReplicaRequest>) -> Reply<proto::Instance> {
        let request = request.into_inner();
        valid_name(&request.name)?;
        let dir = self.data_dir()?.join("replicas").join(&request.name);
        let _one_at_a_time = self.registry.starting.lock().await;
        if self.runs(&request.name) {
            return self.instance(&request.name);
        }
        let listen = if request.listen.is_empty() { "127.0.0.1:0" } else { request.listen.as_str() };
        let options = ReplicaOptions {
            dir,
            size: Some(request.size).filter(|size| *size > 0),
            name: request.name.clone(),
            created: now(),
            listen: vec![parse("listen", listen)?],
            key: key(&request.key)?,
            buffered: request.buffered,
        };
        let open = || ReplicaInstance::open(options).map_err(|error| error.to_string());
        let replica = Arc::new(blocking(open).await?);
        let addresses = match replica.get_async(replica_server::Command::Listening).await.map_err(asked)? {
            replica_server::Answer::Listening(Ok(addresses)) => addresses,
            replica_server::Answer::Listening(Err(why)) => return Err(Status::failed_precondition(why)),
            _ => Vec::new(),
        };
        self.registry.insert(&request.name, Running::Replica(replica), addresses);
        self.instance(&request.name)
    }

    async fn start_engine(&self, request: Request<proto::StartEngineRequest>) -> Reply<proto::Instance> {
        let request = request.into_inner();
        valid_name(&request.name)?;
        self.data_dir()?;
        let _one_at_a_time = self.registry.starting.lock().await;
        if self.runs(&request.name) {
            return self.instance(&request.name);
        }
        let records = self.registry.records.as_deref().ok_or_else(|| Status::failed_precondition(ALONE))?;
        let record = records.open(&request.volume, &request.record).map_err(Status::failed_precondition)?;
        let options = EngineOptions { settings: engine_settings(&request)?, record, device: None };
        let open = || EngineInstance::open(options).map_err(|error| error.to_string());
        let engine = Arc::new(blocking(open).await?);
        let addresses = match engine.get_async(Command::Listening).await.map_err(asked)? {
            Answer::Listening(Ok(addresses)) => addresses,
            Answer::Listening(Err(why)) => return Err(Status::failed_precondition(why)),
            _ => Vec::new(),
        };
        self.registry.insert(&request.name, Running::Engine(engine), addresses);
        self.instance(&request.name)
    }

    async fn stop(&self, request: Request<proto::StopRequest>) -> Reply<proto::Empty> {
        let name = request.into_inner().name;
        match self.registry.get(&name) {
            None => return done(),
            Some((running, _)) if running.has_ended() => {}
            Some((Running::Engine(engine), _)) => drop(engine.get_async(Command::Stop).await),
            Some((Running::Replica(replica), _)) => {
                drop(replica.get_async(replica_server::Command::Stop).await);
            }
        }
        self.registry.remove(&name);
        done()
    }
}

#[tonic::async_trait]
impl Engine for Service {
    async fn info(&self, request: Request<proto::InstanceRequest>) -> Reply<proto::EngineInfo> {
        match self.ask(&request.into_inner().instance, Command::Info).await? {
            Answer::Info(info) => Ok(Response::new((*info).into())),
            other => Err(Status::internal(format!("{other:?}"))),
        }
    }

    async fn wait_serving(&self, request: Request<proto::InstanceRequest>) -> Reply<proto::Empty> {
        self.order(&request.into_inner().instance, Command::Serving).await
    }

    async fn snapshot_create(
        &self,
        request: Request<proto::SnapshotCreateRequest>,
    ) -> Reply<proto::SnapshotCreateResponse> {
        let request = request.into_inner();
        let name = if request.name.is_empty() { Uuid::new_v4().to_string() } else { request.name };
        let labels = request.labels.into_iter().collect();
        self.ask(&request.instance, Command::SnapshotCreate { name: name.clone(), created: now(), labels }).await?;
        Ok(Response::new(proto::SnapshotCreateResponse { name }))
    }

    async fn snapshot_list(&self, request: Request<proto::InstanceRequest>) -> Reply<proto::SnapshotListResponse> {
        match self.ask(&request.into_inner().instance, Command::SnapshotList).await? {
            Answer::Snapshots(text) => {
                let snapshots = convert::snapshots(&text).map_err(|error| Status::internal(error.to_string()))?;
                Ok(Response::new(proto::SnapshotListResponse { snapshots }))
            }
            other => Err(Status::internal(format!("{other:?}"))),
        }
    }

    async fn snapshot_revert(&self, request: Request<proto::SnapshotRequest>) -> Reply<proto::Empty> {
        let proto::SnapshotRequest { instance, name } = request.into_inner();
        self.order(&instance, Command::SnapshotRevert { name, created: now() }).await
    }

    async fn snapshot_delete(&self, request: Request<proto::SnapshotRequest>) -> Reply<proto::Empty> {
        let proto::SnapshotRequest { instance, name } = request.into_inner();
        self.order(&instance, Command::SnapshotDelete { name }).await
    }

    async fn snapshot_purge(&self, request: Request<proto::InstanceRequest>) -> Reply<proto::Empty> {
        self.order(&request.into_inner().instance, Command::SnapshotPurge).await
    }

    async fn expand(&self, request: Request<proto::ExpandRequest>) -> Reply<proto::Empty> {
        let proto::ExpandRequest { instance, size } = request.into_inner();
        self.order(&instance, Command::Expand { size }).await
    }

    async fn add_replica(&self, request: Request<proto::AddReplicaRequest>) -> Reply<proto::Empty> {
        let proto::AddReplicaRequest { instance, replica } = request.into_inner();
        let replica = replica.ok_or_else(|| Status::invalid_argument("replica: missing"))?;
        let ReplicaAddress { name, address } = replica_address(&replica)?;
        let name = name.map(|name| name.to_string());
        self.order(&instance, Command::AddReplica { name, address }).await
    }

    async fn remove_replica(&self, request: Request<proto::ReplicaRequest>) -> Reply<proto::Empty> {
        let proto::ReplicaRequest { instance, name } = request.into_inner();
        self.order(&instance, Command::RemoveReplica { name }).await
    }

    async fn set_resync_limit(&self, request: Request<proto::ResyncLimitRequest>) -> Reply<proto::Empty> {
        let proto::ResyncLimitRequest { instance, bytes_per_second } = request.into_inner();
        self.order(&instance, Command::ResyncLimit { bytes_per_second }).await
    }

    async fn flush(&self, request: Request<proto::InstanceRequest>) -> Reply<proto::Empty> {
        self.order(&request.into_inner().instance, Command::Flush).await
    }

    async fn promote(&self, request: Request<proto::InstanceRequest>) -> Reply<proto::Empty> {
        self.order(&request.into_inner().instance, Command::Promote).await
    }

    async fn accept_loss(&self, request: Request<proto::ReplicaRequest>) -> Reply<proto::Empty> {
        let proto::ReplicaRequest { instance, name } = request.into_inner();
        self.order(&instance, Command::AcceptLoss { name }).await
    }

    async fn close(&self, request: Request<proto::InstanceRequest>) -> Reply<proto::Empty> {
        self.order(&request.into_inner().instance, Command::Close).await
    }
}

#[tonic::async_trait]
impl Replica for Service {
    async fn info(&self, request: Request<proto::InstanceRequest>) -> Reply<proto::ReplicaInfo> {
        let replica = self.replica(&request.into_inner().instance)?;
        match replica.get_async(replica_server::Command::Info).await.map_err(asked)? {
            replica_server::Answer::Info(info) => Ok(Response::new(info.into())),
            other => Err(Status::internal(format!("{other:?}"))),
        }
    }

    async fn close(&self, request: Request<proto::InstanceRequest>) -> Reply<proto::Empty> {
        let replica = self.replica(&request.into_inner().instance)?;
        replica.get_async(replica_server::Command::Stop).await.map_err(asked)?;
        done()
    }
}
