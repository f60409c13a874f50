//! The connection to the instance manager: its stream of changes is followed, requests go beside it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tether_controllers::cache::Cache;
use tether_controllers::queue::Queue;
use tether_controllers::write::WriteError;
use tether_crd::{Engine, Replica};
use tether_engine::control::proto::{self, watch_event::Event};
use tether_engine::control::{Protection, connect};
use tether_engine::host::Address;
use tether_plan::object::name;
use tonic::transport::Channel;

use super::Shared;

/// A manager that is not there is looked for again this soon: its pod is on its way, and a socket tells nobody that it
/// came to be.
const FIRST_LOOK: Duration = Duration::from_millis(50);
/// On a cordoned node it may not come at all.
const LAST_LOOK: Duration = Duration::from_secs(2);

/// The way to the instance manager.
pub(super) struct Link {
    address: Address,
    channel: Mutex<Option<Channel>>,
}

impl Link {
    pub fn new(socket: PathBuf) -> Self {
        Self { address: Address::Unix(socket), channel: Mutex::default() }
    }

    fn channel(&self) -> Result<Channel, WriteError> {
        let channel = self.channel.lock().clone();
        channel.ok_or_else(|| WriteError::Unfinished { operation: "the instance manager does not answer".to_owned() })
    }

    pub fn instances(&self) -> Result<proto::instances_client::InstancesClient<Channel>, WriteError> {
        self.channel().map(proto::instances_client::InstancesClient::new)
    }

    pub fn engine(&self) -> Result<proto::engine_client::EngineClient<Channel>, WriteError> {
        self.channel().map(proto::engine_client::EngineClient::new)
    }
}

/// A request that the instance manager did not carry out: looked at again, with what it says now.
pub(super) fn refused(what: &str, status: &tonic::Status) -> WriteError {
    WriteError::Unfinished { operation: format!("{what}: {}", status.message()) }
}

/// Follows the instance manager for ever: connects, takes in what it tells, says which instances changed.
pub(super) async fn follow(
    shared: &Arc<Shared>,
    told: impl Fn(&str),
    queues: [&Arc<Queue<String>>; 2],
    caches: (&Arc<Cache<Engine>>, &Arc<Cache<Replica>>),
) {
    // What the manager lost or never had concerns every object.
    let all = || {
        caches.0.list().iter().for_each(|engine| queues[0].add(name(&**engine).to_owned()));
        caches.1.list().iter().for_each(|replica| queues[1].add(name(&**replica).to_owned()));
    };
    let mut pause = FIRST_LOOK;
    loop {
        match connect(&shared.link.address, &Protection::default()).await {
            Ok(channel) => {
                *shared.link.channel.lock() = Some(channel.clone());
                let listed = read(shared, channel, &told, &all).await;
                shared.link.channel.lock().take();
                shared.view.lock().lost();
                all();
                pause = if listed { FIRST_LOOK } else { (pause * 2).min(LAST_LOOK) };
            }
            // Nobody listens there: the process that would is gone, and everything in it. Anything else is not known.
            Err(error) => {
                tracing::debug!(%error, "no instance manager");
                if is_nobody(&shared.link.address) {
                    shared.view.lock().down();
                    all();
                }
                pause = (pause * 2).min(LAST_LOOK);
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// Whether it is certain that no process listens at the socket.
fn is_nobody(address: &Address) -> bool {
    let Address::Unix(path) = address else { return false };
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => false,
        Err(error) => {
            matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused)
        }
    }
}

/// Takes in the stream until it breaks; true if it told everything once.
async fn read(shared: &Shared, channel: Channel, told: &impl Fn(&str), all: &impl Fn()) -> bool {
    let mut client = proto::instances_client::InstancesClient::new(channel);
    let mut stream = match client.watch(proto::WatchRequest {}).await {
        Ok(stream) => stream.into_inner(),
        Err(error) => {
            tracing::warn!(%error, "the instance manager cannot be watched");
            return false;
        }
    };
    shared.view.lock().begin();
    let mut listed = false;
    loop {
        match stream.message().await {
            Ok(Some(proto::WatchEvent { event: Some(event) })) => match event {
                Event::Instance(instance) => {
                    let name = instance.name.clone();
                    shared.view.lock().told(instance);
                    told(&name);
                }
                Event::Removed(name) => {
                    shared.view.lock().told_removed(&name);
                    told(&name);
                }
                Event::Listed(_) => {
                    shared.view.lock().listed();
                    listed = true;
                    tracing::info!("following the instance manager");
                    all();
                }
            },
            Ok(Some(_)) => {}
            Ok(None) => return listed,
            Err(error) => {
                tracing::warn!(%error, "the instance manager is not heard any more");
                return listed;
            }
        }
    }
}
