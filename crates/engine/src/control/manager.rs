//! What an instance manager chooses for the instances that it is asked to start: directories, addresses, devices.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use tonic::Status;

use super::proto;
use crate::device;
use crate::device::link::Link;
use crate::device::place::{Name, Place};
use crate::engine_server::Nbd;
use crate::frontend::nbd::listen::Security;
use crate::host::Address;
use crate::record::Records;

/// Longest path of a unix socket, in bytes.
const MAX_SOCKET_BYTES: usize = 107;

/// What a manager is told at its start.
pub struct Manager {
    /// Replicas without a directory of their own are kept below, and sockets.
    pub data_dir: PathBuf,
    /// Where records are found.
    pub records: Box<dyn Records>,
    /// Replicas listen here, and engines for their standbys.
    pub address: IpAddr,
    /// Engines that are asked to serve NBD over TCP do it here.
    pub nbd_address: IpAddr,
    /// Certificates for NBD over TCP.
    pub nbd_tls: Option<Arc<ServerConfig>>,
    /// Kernel devices of this node.
    pub devices: Place,
}

impl Manager {
    /// The directory of a replica: the one asked for, else one below the data directory.
    pub(super) fn replica_dir(&self, request: &proto::StartReplicaRequest) -> Result<PathBuf, Status> {
        let dir = match request.directory.as_str() {
            "" => self.data_dir.join("replicas").join(&request.name),
            dir if Path::new(dir).is_absolute() => PathBuf::from(dir),
            dir => return Err(Status::invalid_argument(format!("directory: {dir:?} is no absolute path"))),
        };
        // Only this one: below a disk that is not mounted, nothing is made.
        if let Some(parent) = dir.parent()
            && let Err(error) = std::fs::create_dir(parent)
            && error.kind() != std::io::ErrorKind::AlreadyExists
        {
            return Err(Status::failed_precondition(format!("{}: {error}", parent.display())));
        }
        Ok(dir)
    }

    /// A port of this node, for a replica's engines or for an engine's standbys.
    pub(super) fn data_port(&self) -> Address {
        Address::Tcp(SocketAddr::new(self.address, 0))
    }

    /// Where an engine serves NBD: as asked, else on a socket named after it.
    pub(super) fn nbd(&self, request: &proto::StartEngineRequest) -> Result<Vec<Nbd>, Status> {
        let mut addresses = Vec::new();
        for text in &request.nbd {
            addresses.push(text.parse().map_err(|error| Status::invalid_argument(format!("nbd: {error}")))?);
        }
        if addresses.is_empty() {
            addresses.push(Address::Unix(self.nbd_socket(&request.name)?));
        }
        if request.nbd_tcp {
            addresses.push(Address::Tcp(SocketAddr::new(self.nbd_address, 0)));
        }
        let protect = |address: Address| {
            // A socket's permissions protect it.
            let tls = if matches!(address, Address::Tcp(_)) { self.nbd_tls.clone() } else { None };
            let security = Security::of(&address, tls).map_err(|error| Status::invalid_argument(error.to_string()))?;
            Ok(Nbd { address, security })
        };
        addresses.into_iter().map(protect).collect()
    }

    fn nbd_socket(&self, engine: &str) -> Result<PathBuf, Status> {
        let path = self.data_dir.join("nbd").join(format!("{engine}.sock"));
        if path.as_os_str().len() > MAX_SOCKET_BYTES {
            return Err(Status::invalid_argument(format!(
                "nbd: {} is longer than the {MAX_SOCKET_BYTES} bytes that a socket's path may have; say where to listen",
                path.display()
            )));
        }
        Ok(path)
    }

    /// Where the line of a volume's engines on this node is kept.
    pub(super) fn line(&self, volume: &str) -> Option<PathBuf> {
        Name::new(volume).ok().map(|name| self.data_dir.join("nbd").join(format!("{}.line", name.as_str())))
    }

    /// The device of an engine, if it is asked for and possible.
    pub(super) fn device(&self, request: &proto::StartEngineRequest) -> Result<Option<(Place, Name)>, Status> {
        if !request.device {
            return Ok(None);
        }
        device::available().map_err(|error| Status::failed_precondition(format!("device: {error}")))?;
        let name = Name::new(&request.volume).map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(Some((self.devices.clone(), name)))
    }

    /// Gives up the device of a volume. Blocks.
    pub(super) fn remove_device(&self, volume: &str) -> Result<(), String> {
        let name = Name::new(volume).map_err(|error| error.to_string())?;
        match Link::find(&self.devices, &name).map_err(|error| error.to_string())? {
            Some(link) => link.retire().map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }
}
