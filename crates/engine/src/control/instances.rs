//! Starting, listing, watching and stopping instances by request.

use std::sync::Arc;

use futures::Stream;
use tether_replication::engine::Limits;
use tether_replication::ids::{Holder, MemberId, VolumeId};
use tether_replication::rules::Rules;
use tether_store::meta::VOLUME_META;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};
use uuid::Uuid;

use super::manager::Manager;
use super::proto::{self, instances_server::Instances};
use super::registry::{Entry, Running};
use super::service::{Reply, Service, asked, done, now, replica_address, volume_id};
use super::watch::{self, Told};
use super::{API_VERSION, shown};
use crate::auth::Key;
use crate::engine_server::{self, Command, Settings};
use crate::instance::{EngineInstance, EngineOptions, ReplicaInstance, ReplicaOptions};
use crate::replica_server;

/// What a manager says that was told to end.
const ENDING: &str = "this instance manager is about to end; ask the next one";
/// What a process says that is no instance manager.
const ALONE: &str = "this process runs one instance; others need an instance manager";
/// Events on their way to one watcher; it is followed only as fast as it reads.
const WATCH_QUEUE: usize = 8;

impl Service {
    fn manager(&self) -> Result<&Manager, Status> {
        self.registry.manager.as_ref().ok_or_else(|| Status::failed_precondition(ALONE))
    }

    /// The manager, if it still starts instances.
    fn starter(&self) -> Result<&Manager, Status> {
        let manager = self.manager()?;
        if self.registry.is_ending() { Err(Status::unavailable(ENDING)) } else { Ok(manager) }
    }

    async fn instance(&self, name: &str) -> Reply<proto::Instance> {
        let entry = self.registry.get(name).ok_or_else(|| Status::not_found(name.to_owned()))?;
        Ok(Response::new(shown::instance(name, &entry).await))
    }

    /// The instance of this name, if one runs. One that is on its way out is waited for: the next one has its name.
    async fn running(&self, name: &str) -> Option<proto::Instance> {
        let entry = self.registry.get(name)?;
        let shown = shown::instance(name, &entry).await;
        if shown.state != shown::STOPPED {
            return entry.running.ended().is_none().then_some(shown);
        }
        match &entry.running {
            Running::Engine(engine) => engine.wait_ended().await,
            Running::Replica(replica) => replica.wait_ended().await,
        };
        None
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

fn engine_settings(request: &proto::StartEngineRequest, manager: &Manager) -> Result<Settings, Status> {
    let volume_id = match request.volume_uid.as_str() {
        "" => volume_id(&request.volume),
        uid => VolumeId(parse::<Uuid>("volume_uid", uid)?.as_u128()),
    };
    Ok(Settings {
        volume: request.volume.clone(),
        volume_id,
        holder: Holder(Uuid::new_v4().as_u128()),
        size: request.size,
        replicas: request.replicas.iter().map(replica_address).collect::<Result<_, _>>()?,
        key: key(&request.key)?,
        nbd: manager.nbd(request)?,
        limits: Limits { resync_bytes_per_second: request.resync_bytes_per_second, ..Limits::default() },
        older_stopped: request.older_stopped,
        peer_listen: Some(manager.data_port()),
        standby: request.standby,
        source: match request.source.as_str() {
            "" => None,
            text => Some(parse("source", text)?),
        },
        line: false,
        rules: Rules::default(),
    })
}

fn replica_options(request: &proto::StartReplicaRequest, manager: &Manager) -> Result<ReplicaOptions, Status> {
    let name = if request.member.is_empty() { &request.name } else { &request.member };
    MemberId::new(name).ok_or_else(|| Status::invalid_argument(format!("{name:?} is no name of a replica")))?;
    let listen = match request.listen.as_str() {
        "" => manager.data_port(),
        text => parse("listen", text)?,
    };
    let dir = manager.replica_dir(request)?;
    // The size is that of a directory that is yet to be made. One that is there may have to grow, which its engine does.
    let is_new = !dir.join(VOLUME_META).exists();
    Ok(ReplicaOptions {
        dir,
        size: Some(request.size).filter(|size| *size > 0 && is_new),
        name: name.clone(),
        insist: true,
        created: now(),
        listen: vec![listen],
        key: key(&request.key)?,
        buffered: request.buffered,
    })
}

#[tonic::async_trait]
impl Instances for Service {
    type WatchStream = std::pin::Pin<Box<dyn Stream<Item = Told> + Send>>;

    async fn list(&self, _: Request<proto::ListRequest>) -> Reply<proto::ListResponse> {
        let mut instances = Vec::new();
        for (name, entry) in self.registry.list() {
            instances.push(shown::instance(&name, &entry).await);
        }
        Ok(Response::new(proto::ListResponse { version: API_VERSION, instances }))
    }

    async fn watch(&self, _: Request<proto::WatchRequest>) -> Reply<Self::WatchStream> {
        let (sender, receiver) = mpsc::channel(WATCH_QUEUE);
        tokio::spawn(watch::watch(self.registry.clone(), sender));
        let stream = futures::stream::unfold(receiver, |mut receiver| async {
            let told = receiver.recv().await?;
            Some((told, receiver))
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn start_replica(&self, request: Request<proto::StartReplicaRequest>) -> Reply<proto::Instance> {
        let request = request.into_inner();
        valid_name(&request.name)?;
        let manager = self.starter()?;
        let _turn = self.registry.turn(&request.name).await;
        if let Some(running) = self.running(&request.name).await {
            return Ok(Response::new(running));
        }
        let options = replica_options(&request, manager)?;
        let open = || ReplicaInstance::open(options).map_err(|error| error.to_string());
        let replica = Arc::new(blocking(open).await?);
        let addresses = match replica.get_async(replica_server::Command::Listening).await.map_err(asked)? {
            replica_server::Answer::Listening(Ok(addresses)) => addresses,
            replica_server::Answer::Listening(Err(why)) => return Err(Status::failed_precondition(why)),
            _ => Vec::new(),
        };
        let entry = Entry { running: Running::Replica(replica), addresses, uid: Uuid::new_v4() };
        self.registry.insert(&request.name, entry);
        self.instance(&request.name).await
    }

    async fn start_engine(&self, request: Request<proto::StartEngineRequest>) -> Reply<proto::Instance> {
        let request = request.into_inner();
        valid_name(&request.name)?;
        let manager = self.starter()?;
        let _turn = self.registry.turn(&request.name).await;
        if let Some(running) = self.running(&request.name).await {
            return Ok(Response::new(running));
        }
        let settings = engine_settings(&request, manager)?;
        let device = manager.device(&request)?;
        let record = manager.records.open(&request.volume, &request.record).map_err(Status::failed_precondition)?;
        let uid = Uuid::from_u128(settings.holder.0);
        let options = EngineOptions { settings, record, device, line: manager.line(&request.volume) };
        let open = || EngineInstance::open(options).map_err(|error| error.to_string());
        let engine = Arc::new(blocking(open).await?);
        let addresses = match engine.get_async(Command::Listening).await.map_err(asked)? {
            engine_server::Answer::Listening(Ok(addresses)) => addresses,
            engine_server::Answer::Listening(Err(why)) => return Err(Status::failed_precondition(why)),
            _ => Vec::new(),
        };
        self.registry.insert(&request.name, Entry { running: Running::Engine(engine), addresses, uid });
        self.instance(&request.name).await
    }

    async fn stop(&self, request: Request<proto::StopRequest>) -> Reply<proto::Empty> {
        let proto::StopRequest { name, detach_device, abandon } = request.into_inner();
        // An engine that cannot stop is abandoned while somebody waits for its stop: not in its turn.
        let turn = if abandon { None } else { Some(self.registry.turn(&name).await) };
        let Some(entry) = self.registry.get(&name) else { return done() };
        match entry.running {
            Running::Engine(engine) => {
                let command = match (abandon, detach_device) {
                    (true, _) => Command::Abandon,
                    (false, true) => Command::Close,
                    (false, false) => Command::Stop,
                };
                if let Ok(engine_server::Answer::Failed(why)) = engine.get_async(command).await {
                    return Err(Status::failed_precondition(why));
                }
                engine.wait_ended().await;
            }
            Running::Replica(replica) => {
                let _ = replica.get_async(replica_server::Command::Stop).await;
                replica.wait_ended().await;
            }
        }
        self.registry.remove(&name, entry.uid);
        drop(turn);
        done()
    }

    async fn remove_replica_data(&self, request: Request<proto::RemoveReplicaDataRequest>) -> Reply<proto::Empty> {
        self.manager()?;
        let directory = request.into_inner().directory;
        blocking(move || tether_store::remove::remove(directory.as_ref()).map_err(|error| error.to_string())).await?;
        done()
    }

    async fn remove_device(&self, request: Request<proto::RemoveDeviceRequest>) -> Reply<proto::Empty> {
        let volume = request.into_inner().volume;
        self.manager()?;
        let registry = self.registry.clone();
        blocking(move || registry.manager.as_ref().map_or(Ok(()), |manager| manager.remove_device(&volume))).await?;
        done()
    }
}
