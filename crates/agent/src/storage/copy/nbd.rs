//! A client of an engine's NBD socket on this machine: writes and flushes, one at a time.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use tether_nbd::wire;

/// A connection to one export.
pub(super) struct Client {
    stream: UnixStream,
    cookie: u64,
    size: u64,
}

impl Client {
    pub fn connect(socket: &Path, export: &str) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        let mut hello = [0; 18];
        stream.read_exact(&mut hello)?;
        let magic = |at: usize| u64::from_be_bytes(hello[at..at + 8].try_into().expect("eight bytes must be eight"));
        if magic(0) != wire::NBD_MAGIC || magic(8) != wire::OPTION_MAGIC {
            return Err(io::Error::other("this is no NBD server"));
        }
        let mut hello = u32::from(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES).to_be_bytes().to_vec();
        let name = export.as_bytes();
        let length = |bytes: usize| u32::try_from(bytes).map_err(io::Error::other);
        hello.extend(wire::OPTION_MAGIC.to_be_bytes());
        hello.extend(wire::option::GO.to_be_bytes());
        hello.extend(length(4 + name.len() + 2)?.to_be_bytes());
        hello.extend(length(name.len())?.to_be_bytes());
        hello.extend(name);
        hello.extend(0_u16.to_be_bytes());
        stream.write_all(&hello)?;
        let size = agreed(&mut stream)?;
        Ok(Self { stream, cookie: 0, size })
    }

    /// Of the volume, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.ask(wire::command::WRITE, offset, data)
    }

    /// What was written survives a power failure.
    pub fn flush(&mut self) -> io::Result<()> {
        self.ask(wire::command::FLUSH, 0, &[])
    }

    fn ask(&mut self, command: u16, offset: u64, data: &[u8]) -> io::Result<()> {
        self.cookie += 1;
        let mut request = Vec::with_capacity(wire::REQUEST_BYTES);
        request.extend(wire::REQUEST_MAGIC.to_be_bytes());
        request.extend(0_u16.to_be_bytes());
        request.extend(command.to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(u32::try_from(data.len()).map_err(io::Error::other)?.to_be_bytes());
        self.stream.write_all(&request)?;
        self.stream.write_all(data)?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        let number = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().expect("four bytes must be four"));
        if number(0) != wire::SIMPLE_REPLY_MAGIC || reply[8..] != self.cookie.to_be_bytes() {
            return Err(io::Error::other("an answer to something else"));
        }
        match number(4) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(i32::try_from(error).unwrap_or_default())),
        }
    }
}

/// The size of the export, once the server has agreed to serve it.
fn agreed(stream: &mut UnixStream) -> io::Result<u64> {
    let mut size = None;
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head)?;
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes must be four"));
        let mut body = vec![0; number(16) as usize];
        stream.read_exact(&mut body)?;
        match number(12) {
            wire::reply::ACK => return size.ok_or_else(|| io::Error::other("the server did not say how large it is")),
            wire::reply::INFO if body.len() >= 10 && body[..2] == wire::info::EXPORT.to_be_bytes() => {
                size = Some(u64::from_be_bytes(body[2..10].try_into().expect("eight bytes must be eight")));
            }
            wire::reply::INFO => {}
            other => {
                let words = String::from_utf8_lossy(&body);
                return Err(io::Error::other(format!("the server refused ({other:#x}): {words}")));
            }
        }
    }
}
