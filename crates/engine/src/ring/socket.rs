//! Opening stream sockets: listeners, and sockets to dial from.

use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};

use crate::host::Address;

/// How often and how long apart a socket is tried that is in use: two seconds, for a killed process to be gone.
const BIND_ATTEMPTS: u32 = 20;
const BIND_PAUSE: Duration = Duration::from_millis(100);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Opens a listener and says where it listens. A socket file that nobody listens on is replaced.
pub(super) fn listen(address: &Address) -> io::Result<(Socket, Address)> {
    match address {
        Address::Tcp(tcp) => {
            let socket = Socket::new(Domain::for_address(*tcp), Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            socket.bind(&SockAddr::from(*tcp))?;
            socket.listen(BACKLOG)?;
            let local = socket.local_addr()?.as_socket().map_or(address.clone(), Address::Tcp);
            Ok((socket, local))
        }
        Address::Unix(path) => {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            bind_unix(&socket, path)?;
            socket.listen(BACKLOG)?;
            Ok((socket, address.clone()))
        }
    }
}

/// Binds; a predecessor that was killed may take a moment to be gone. Only done at the start, so waiting is fine.
fn bind_unix(socket: &Socket, path: &Path) -> io::Result<()> {
    let address = SockAddr::unix(path)?;
    for _ in 0..BIND_ATTEMPTS {
        remove_stale(path)?;
        match socket.bind(&address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => std::thread::sleep(BIND_PAUSE),
            other => return other,
        }
    }
    remove_stale(path)?;
    socket.bind(&address)
}

/// A socket file stays behind when its process is killed; one that refuses connections belongs to nobody.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// A socket to dial `address` from, and the address in the kernel's form.
pub(super) fn dial(address: &Address) -> io::Result<(Socket, SockAddr)> {
    let (domain, to) = match address {
        Address::Tcp(tcp) => (Domain::for_address(*tcp), SockAddr::from(*tcp)),
        Address::Unix(path) => (Domain::UNIX, SockAddr::unix(path)?),
    };
    let socket = Socket::new(domain, Type::STREAM, None)?;
    if matches!(address, Address::Tcp(_)) {
        tune(&socket);
    }
    Ok((socket, to))
}

/// Small messages leave at once. Failing to set it costs latency, nothing else.
pub(super) fn tune(socket: &Socket) {
    if let Err(error) = socket.set_tcp_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY");
    }
}

/// The other end, where the kernel knows it.
pub(super) fn peer(socket: &Socket) -> Option<Address> {
    socket.peer_addr().ok()?.as_socket().map(Address::Tcp)
}
