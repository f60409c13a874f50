//! The client side of NBD, as much of it as a verifying guest needs: one request at a time, over TCP.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
/// Replies from here on are refusals.
const REPLY_ERRORS: u32 = 1 << 31;
/// Fixed new style, and no padding after the handshake.
const CLIENT_FLAGS: u32 = 3;
const INFO_EXPORT: u16 = 0;
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
/// How often a request that is waited for is given a chance to be abandoned.
const TURN: Duration = Duration::from_millis(100);
/// A handshake takes one round trip; an engine answers it even while its volume waits.
const HANDSHAKE: Duration = Duration::from_secs(2);

/// How a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The server answered with this error number.
    #[error("the server answered with error {0}")]
    Refused(u32),
    /// Whether the request was done is not known.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// Nobody waits for it any more; whether it was done is not known.
    #[error("the request was given up")]
    Abandoned,
}

/// A connection to one volume.
#[derive(Debug)]
pub(super) struct Client {
    stream: TcpStream,
    cookie: u64,
    pub(super) size: u64,
}

/// Where a volume is served: `nbd://127.0.0.1:10809/name`.
pub(super) fn parse(endpoint: &str) -> Option<(SocketAddr, String)> {
    let (address, name) = endpoint.strip_prefix("nbd://")?.split_once('/')?;
    Some((address.parse().ok()?, name.to_owned()))
}

impl Client {
    pub(super) fn connect(address: SocketAddr, name: &str) -> io::Result<Self> {
        let mut stream = TcpStream::connect_timeout(&address, HANDSHAKE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(HANDSHAKE))?;
        if (u64_of(&mut stream)?, u64_of(&mut stream)?) != (MAGIC, OPTION_MAGIC) {
            return Err(io::Error::other("not an NBD server"));
        }
        stream.read_exact(&mut [0; 2])?;
        let mut hello = CLIENT_FLAGS.to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(OPTION_GO.to_be_bytes());
        let name_len = u32::try_from(name.len()).map_err(io::Error::other)?;
        // The name with its length, and how many kinds of information are asked for.
        hello.extend((name_len + 6).to_be_bytes());
        hello.extend(name_len.to_be_bytes());
        hello.extend(name.as_bytes());
        hello.extend(0_u16.to_be_bytes());
        stream.write_all(&hello)?;
        let size = negotiate(&mut stream)?;
        stream.set_read_timeout(Some(TURN))?;
        Ok(Self { stream, cookie: 0, size })
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8], abandon: &dyn Fn() -> bool) -> Result<(), Failure> {
        self.ask(WRITE, offset, data.len(), data, abandon)
    }

    pub(super) fn read(&mut self, offset: u64, len: usize, abandon: &dyn Fn() -> bool) -> Result<Vec<u8>, Failure> {
        self.ask(READ, offset, len, &[], abandon)?;
        let mut data = vec![0; len];
        self.fill(&mut data, abandon)?;
        Ok(data)
    }

    pub(super) fn flush(&mut self, abandon: &dyn Fn() -> bool) -> Result<(), Failure> {
        self.ask(FLUSH, 0, 0, &[], abandon)
    }

    fn ask(
        &mut self,
        command: u16,
        offset: u64,
        len: usize,
        payload: &[u8],
        abandon: &dyn Fn() -> bool,
    ) -> Result<(), Failure> {
        self.cookie += 1;
        let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
        request.extend(0_u16.to_be_bytes());
        request.extend(command.to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(u32::try_from(len).map_err(io::Error::other)?.to_be_bytes());
        request.extend(payload);
        self.stream.write_all(&request)?;
        let mut reply = [0; 16];
        self.fill(&mut reply, abandon)?;
        let magic = u32::from_be_bytes(reply[..4].try_into().expect("four bytes must be four bytes"));
        let error = u32::from_be_bytes(reply[4..8].try_into().expect("four bytes must be four bytes"));
        if magic != REPLY_MAGIC || reply[8..] != self.cookie.to_be_bytes() {
            return Err(Failure::Broken(io::Error::other("this is not the reply to the request")));
        }
        if error == 0 { Ok(()) } else { Err(Failure::Refused(error)) }
    }

    /// Reads all of `buffer`, however long it takes, unless nobody wants it any more.
    fn fill(&mut self, buffer: &mut [u8], abandon: &dyn Fn() -> bool) -> Result<(), Failure> {
        let mut done = 0;
        while done < buffer.len() {
            match self.stream.read(&mut buffer[done..]) {
                Ok(0) => return Err(Failure::Broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => done += count,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if abandon() {
                        return Err(Failure::Abandoned);
                    }
                }
                Err(error) => return Err(Failure::Broken(error)),
            }
        }
        Ok(())
    }
}

/// Reads replies to the option until the export is ours; its size.
fn negotiate(stream: &mut TcpStream) -> io::Result<u64> {
    let mut size = 0;
    loop {
        if u64_of(stream)? != OPTION_REPLY_MAGIC {
            return Err(io::Error::other("this is not the reply to an option"));
        }
        let (_option, kind, len) = (u32_of(stream)?, u32_of(stream)?, u32_of(stream)?);
        let mut data = vec![0; len as usize];
        stream.read_exact(&mut data)?;
        match kind {
            REPLY_ACK => return Ok(size),
            REPLY_INFO if data.get(..2) == Some(&INFO_EXPORT.to_be_bytes()) && data.len() >= 10 => {
                size = u64::from_be_bytes(data[2..10].try_into().expect("eight bytes must be eight bytes"));
            }
            refused if refused >= REPLY_ERRORS => {
                return Err(io::Error::other(format!("the export is refused ({refused:#x})")));
            }
            _ => {}
        }
    }
}

fn u32_of(stream: &mut TcpStream) -> io::Result<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).map(|()| u32::from_be_bytes(bytes))
}

fn u64_of(stream: &mut TcpStream) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes).map(|()| u64::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read() {
        let parsed = parse("nbd://127.1.2.3:10809/pvc-1").unwrap();
        assert_eq!(parsed, ("127.1.2.3:10809".parse().unwrap(), "pvc-1".to_owned()));
        assert_eq!(parse("/dev/longhorn/v1"), None);
        assert_eq!(parse("nbd://nowhere/v1"), None);
    }
}
