//! Opening stream sockets: listeners, and sockets to dial from.

use std::io;

use socket2::{Domain, SockAddr, Socket, Type};

use crate::host::Address;
use crate::unix;

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
            let listener = unix::listen(path)?;
            Ok((listener.into(), address.clone()))
        }
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
