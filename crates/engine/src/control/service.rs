//! The services of one engine and of one replica: find it, ask it, answer.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use uuid::Uuid;

use super::convert;
use super::proto::{self, engine_server::Engine, replica_server::Replica};
use super::registry::{Registry, Running};
use crate::engine_server::{Answer, Command, ReplicaAddress};
use crate::instance::{AskFailed, EngineInstance, ReplicaInstance};
use crate::replica_server;
use tether_replication::ids::{Holder, MemberId, VolumeId};

/// Names volumes' uids are made from where none is given.
const VOLUME_NAMESPACE: Uuid = Uuid::from_u128(0x9d1c_3a54_7a1f_4c52_8f7e_53c1_6a0b_9e21);

/// Implements the control API over the instances of this process.
#[derive(Clone)]
pub struct Service {
    pub(super) registry: Arc<Registry>,
}

pub(super) type Reply<T> = Result<Response<T>, Status>;

#[allow(clippy::unnecessary_wraps, reason = "it is the last line of methods that can fail")]
pub(super) fn done() -> Reply<proto::Empty> {
    Ok(Response::new(proto::Empty {}))
}

pub(super) fn asked(error: AskFailed) -> Status {
    match error {
        AskFailed::Ask(crate::ring::AskError::Busy) => Status::resource_exhausted(error.to_string()),
        _ => Status::unavailable(error.to_string()),
    }
}

/// The uid of a volume that has no other: made from its name, so that it is the same on every start.
pub fn volume_id(name: &str) -> VolumeId {
    VolumeId(Uuid::new_v5(&VOLUME_NAMESPACE, name.as_bytes()).as_u128())
}

pub(super) fn now() -> String {
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
}

pub(super) fn replica_address(replica: &proto::ReplicaAddress) -> Result<ReplicaAddress, Status> {
    let name = match replica.name.as_str() {
        "" => None,
        name => Some(
            MemberId::new(name).ok_or_else(|| Status::invalid_argument(format!("{name:?} is no name of a replica")))?,
        ),
    };
    let address = replica
        .address
        .parse()
        .map_err(|error| Status::invalid_argument(format!("replica {:?}: {error}", replica.address)))?;
    Ok(ReplicaAddress { name, address })
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

    async fn scrub(&self, request: Request<proto::ScrubRequest>) -> Reply<proto::Empty> {
        let proto::ScrubRequest { instance, bytes_per_second } = request.into_inner();
        self.order(&instance, Command::Scrub { bytes_per_second }).await
    }

    async fn flush(&self, request: Request<proto::InstanceRequest>) -> Reply<proto::Empty> {
        self.order(&request.into_inner().instance, Command::Flush).await
    }

    async fn promote(&self, request: Request<proto::InstanceRequest>) -> Reply<proto::Empty> {
        self.order(&request.into_inner().instance, Command::Promote).await
    }

    async fn rollback(&self, request: Request<proto::RollbackRequest>) -> Reply<proto::Empty> {
        let proto::RollbackRequest { instance, standby } = request.into_inner();
        let standby = match standby.as_str() {
            "" => None,
            uid => Some(Uuid::parse_str(uid).map_err(|_| {
                Status::invalid_argument(format!("standby: {uid:?} is no uid of an engine; `engine info` shows it"))
            })?),
        };
        let standby = standby.map(|uid| Holder(uid.as_u128()));
        self.order(&instance, Command::Rollback { standby }).await
    }

    async fn set_source(&self, request: Request<proto::SourceRequest>) -> Reply<proto::Empty> {
        let proto::SourceRequest { instance, address } = request.into_inner();
        let address = address.parse().map_err(|error| Status::invalid_argument(format!("address: {error}")))?;
        self.order(&instance, Command::Source { address }).await
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

    async fn hash_snapshot(&self, request: Request<proto::HashSnapshotRequest>) -> Reply<proto::SnapshotHash> {
        let proto::HashSnapshotRequest { instance, snapshot, rehash } = request.into_inner();
        let replica = self.replica(&instance)?;
        let asked_for = replica_server::HashSnapshot { snapshot, rehash, now: now() };
        match replica.get_async(replica_server::Command::Hash(asked_for)).await.map_err(asked)? {
            replica_server::Answer::Hashed(Ok(hash)) => Ok(Response::new(hash.into())),
            replica_server::Answer::Hashed(Err(why)) => Err(Status::failed_precondition(why)),
            other => Err(Status::internal(format!("{other:?}"))),
        }
    }

    async fn close(&self, request: Request<proto::InstanceRequest>) -> Reply<proto::Empty> {
        let replica = self.replica(&request.into_inner().instance)?;
        replica.get_async(replica_server::Command::Stop).await.map_err(asked)?;
        done()
    }
}
