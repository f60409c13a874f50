//! Opening stream sockets: listeners, and sockets to dial from.

use std::io;
use std::net::SocketAddr;

use rustix::net::sockopt;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::host::Address;
use crate::unix;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// Congestion control that every kernel has and that sends what the window allows at once. Others, BBR above all, spread it
/// over time with a timer per segment: that spares routers, of which there are none between two processes of a machine.
const UNPACED: &str = "reno";

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
    Ok((Socket::new(domain, Type::STREAM, None)?, to))
}

/// What a connection that was just made wants of TCP, if it is one: that small messages leave at once, and that none waits
/// on a way that does not leave the machine. Failing to set it costs latency, nothing else.
pub(super) fn tune(socket: &Socket) {
    let Some((local, peer)) = ends(socket) else { return };
    if let Err(error) = socket.set_tcp_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY");
    }
    if (peer.ip().is_loopback() || peer.ip() == local.ip())
        && let Err(error) = sockopt::set_tcp_congestion(socket, UNPACED)
    {
        tracing::debug!(%error, "TCP_CONGESTION");
    }
}

/// Both addresses of a TCP connection.
fn ends(socket: &Socket) -> Option<(SocketAddr, SocketAddr)> {
    Some((socket.local_addr().ok()?.as_socket()?, socket.peer_addr().ok()?.as_socket()?))
}

/// The other end, where the kernel knows it.
pub(super) fn peer(socket: &Socket) -> Option<Address> {
    socket.peer_addr().ok()?.as_socket().map(Address::Tcp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_within_the_machine_are_not_paced() {
        let (listener, address) = listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let (dialed, to) = dial(&address).unwrap();
        dialed.connect(&to).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        for socket in [dialed, accepted] {
            tune(&socket);
            assert_eq!(sockopt::tcp_congestion(&socket).unwrap(), UNPACED);
            assert!(socket.tcp_nodelay().unwrap());
        }
    }
}
