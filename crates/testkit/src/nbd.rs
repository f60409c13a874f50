//! A small NBD client for tests: one request at a time, plain errors.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const OPT_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const REPLY_ERROR: u32 = 1 << 31;
/// A server that lets a client wait longer than this is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to one export.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    cookie: u64,
    pub size: u64,
}

/// How a request failed.
#[derive(Debug)]
pub enum Failure {
    /// The server refused, with this number.
    Refused(u32),
    /// The connection is of no use any more: whether the request was done is not known.
    Broken(io::Error),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(number) => write!(f, "the server answered with error {number}"),
            Self::Broken(error) => write!(f, "the connection broke: {error}"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

fn read_u32(stream: &mut UnixStream) -> io::Result<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).map(|()| u32::from_be_bytes(bytes))
}

fn read_u64(stream: &mut UnixStream) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes).map(|()| u64::from_be_bytes(bytes))
}

impl Client {
    /// Connects to the default export.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        Self::connect_to(socket, "")
    }

    /// Connects to the export of this name.
    pub fn connect_to(socket: &Path, export: &str) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let (magic, option_magic) = (read_u64(&mut stream)?, read_u64(&mut stream)?);
        if (magic, option_magic) != (NBD_MAGIC, OPTION_MAGIC) {
            return Err(io::Error::other("not an NBD server"));
        }
        let mut flags = [0; 2];
        stream.read_exact(&mut flags)?;
        let mut hello = u32::from(u16::from_be_bytes(flags) & 3).to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(OPT_GO.to_be_bytes());
        hello.extend((6 + export.len() as u32).to_be_bytes());
        hello.extend((export.len() as u32).to_be_bytes());
        hello.extend(export.as_bytes());
        hello.extend([0; 2]);
        stream.write_all(&hello)?;
        let mut size = 0;
        loop {
            read_u64(&mut stream)?;
            read_u32(&mut stream)?;
            let (kind, len) = (read_u32(&mut stream)?, read_u32(&mut stream)?);
            let mut data = vec![0; len as usize];
            stream.read_exact(&mut data)?;
            match kind {
                REPLY_ACK => return Ok(Self { stream, cookie: 0, size }),
                REPLY_INFO if data[..2] == [0, 0] => {
                    size = u64::from_be_bytes(data[2..10].try_into().expect("eight bytes of size"));
                }
                kind if kind & REPLY_ERROR != 0 => return Err(io::Error::other(format!("option error {kind:#x}"))),
                _ => {}
            }
        }
    }

    fn request(&mut self, command: u16, offset: u64, len: u32, payload: &[u8]) -> Result<(), Failure> {
        self.cookie += 1;
        let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
        bytes.extend(0u16.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes.extend_from_slice(payload);
        self.stream.write_all(&bytes)?;
        let (magic, error, cookie) =
            (read_u32(&mut self.stream)?, read_u32(&mut self.stream)?, read_u64(&mut self.stream)?);
        if (magic, cookie) != (SIMPLE_REPLY_MAGIC, self.cookie) {
            return Err(io::Error::other("not the reply to this request").into());
        }
        if error == 0 { Ok(()) } else { Err(Failure::Refused(error)) }
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        self.request(1, offset, data.len() as u32, data)
    }

    pub fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, Failure> {
        self.request(0, offset, len, &[])?;
        let mut data = vec![0; len as usize];
        self.stream.read_exact(&mut data)?;
        Ok(data)
    }

    pub fn flush(&mut self) -> Result<(), Failure> {
        self.request(3, 0, 0, &[])
    }
}
