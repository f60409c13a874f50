//! Where to listen and whom to dial: `unix:/path`, `tcp:host:port` or just `host:port`.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::str::FromStr;

/// An address of a stream socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// What is wrong with the text of an address.
#[derive(Debug, thiserror::Error)]
pub enum ParseAddressError {
    #[error("{text:?} is no address: give unix:/path, or IP:PORT, or HOST:PORT")]
    Malformed { text: String },
    #[error("{text:?}: cannot find this host: {source}")]
    Unknown { text: String, source: std::io::Error },
}

impl Address {
    /// Whether what is sent there stays on this machine.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl FromStr for Address {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, ParseAddressError> {
        let malformed = || ParseAddressError::Malformed { text: text.to_owned() };
        if let Some(path) = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")) {
            return if path.is_empty() { Err(malformed()) } else { Ok(Self::Unix(PathBuf::from(path))) };
        }
        let host = text.strip_prefix("tcp://").or_else(|| text.strip_prefix("tcp:")).unwrap_or(text);
        if let Ok(address) = host.parse() {
            return Ok(Self::Tcp(address));
        }
        if !host.rsplit_once(':').is_some_and(|(name, port)| !name.is_empty() && port.parse::<u16>().is_ok()) {
            return Err(malformed());
        }
        let mut found =
            host.to_socket_addrs().map_err(|source| ParseAddressError::Unknown { text: text.to_owned(), source })?;
        found.next().map(Self::Tcp).ok_or_else(malformed)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp:{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        let table = [
            ("unix:/run/v1.sock", "unix:/run/v1.sock"),
            ("unix:///run/v1.sock", "unix:/run/v1.sock"),
            ("tcp:127.0.0.1:10809", "tcp:127.0.0.1:10809"),
            ("127.0.0.1:10809", "tcp:127.0.0.1:10809"),
            ("[::1]:10809", "tcp:[::1]:10809"),
        ];
        for (text, shown) in table {
            assert_eq!(text.parse::<Address>().expect(text).to_string(), shown);
        }
        for text in ["", "unix:", "127.0.0.1", "host:port", ":1", "127.0.0.1:99999"] {
            assert!(text.parse::<Address>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn loopback_and_unix_sockets_stay_on_the_machine() {
        for (text, local) in [("unix:/a", true), ("127.0.0.1:1", true), ("[::1]:1", true), ("192.0.2.1:1", false)] {
            assert_eq!(text.parse::<Address>().expect(text).is_local(), local, "{text}");
        }
    }
}
