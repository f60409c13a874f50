//! A way between two processes that can be cut without either of them being told.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How often a cut way is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// Passes connections on to another address. Its threads end with the process.
#[derive(Debug)]
pub struct Proxy {
    /// Where it listens.
    pub address: String,
    cut: Arc<AtomicBool>,
}

impl Proxy {
    /// A way to `target`.
    pub fn to(target: &str) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let cut = Arc::new(AtomicBool::new(false));
        let (way, target) = (cut.clone(), target.to_owned());
        thread::spawn(move || {
            for incoming in listener.incoming() {
                wait(&way);
                let (Ok(incoming), Ok(outgoing)) = (incoming, TcpStream::connect(&target)) else { continue };
                pass(&incoming, &outgoing, &way);
                pass(&outgoing, &incoming, &way);
            }
        });
        Ok(Self { address, cut })
    }

    /// Nothing gets through any more; connections stay open.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }

    /// What was held back arrives, and everything after it.
    pub fn heal(&self) {
        self.cut.store(false, Ordering::SeqCst);
    }
}

fn wait(cut: &AtomicBool) {
    while cut.load(Ordering::SeqCst) {
        thread::sleep(LOOK);
    }
}

fn pass(from: &TcpStream, to: &TcpStream, cut: &Arc<AtomicBool>) {
    let _ = from.set_nodelay(true);
    let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else { return };
    let cut = cut.clone();
    thread::spawn(move || {
        let mut buffer = vec![0; 256 << 10];
        loop {
            let read = from.read(&mut buffer);
            wait(&cut);
            match read {
                Ok(len) if len > 0 && to.write_all(&buffer[..len]).is_ok() => {}
                _ => break,
            }
        }
        let _ = to.shutdown(Shutdown::Write);
        let _ = from.shutdown(Shutdown::Read);
    });
}
