//! What one volume offers to NBD clients, and under which names.

use tether_nbd::handshake::{BlockSize, Export};

use crate::frontend::nbd::listen::MAX_REQUEST_BYTES;

/// An unbroken line of engines: each one's predecessor in the record was the one that served this same place.
///
/// A client that replays unanswered requests after a reconnect asks for the export `NAME@LINEAGE`. As long as engines
/// follow each other here, the name stays. If another engine held the volume in between, it does not exist any more,
/// and the client is refused instead of writing its old requests over newer data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage(pub String);

/// A volume as NBD clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub name: String,
    pub size: u64,
    pub read_only: bool,
    /// Smallest unit of I/O, in bytes.
    pub block: u32,
    pub lineage: Option<Lineage>,
}

/// What clients are told to prefer: below a page the engine reads, changes and writes.
const PREFERRED_BLOCK_BYTES: u32 = 4096;

impl Volume {
    /// The exports: under the volume's name (also the default), and under the name that ends with its lineage.
    pub fn exports(&self) -> Vec<Export> {
        let plain = Export {
            name: self.name.clone(),
            description: format!("Tether volume {}", self.name),
            size: self.size,
            read_only: self.read_only,
            multi_conn: true,
            block: BlockSize {
                minimum: self.block,
                preferred: self.block.max(PREFERRED_BLOCK_BYTES),
                maximum: MAX_REQUEST_BYTES,
            },
        };
        let lasting = self.lineage.as_ref().map(|Lineage(lineage)| {
            let name = format!("{}@{lineage}", self.name);
            let description = format!("{}, for clients that replay after a reconnect", plain.description);
            Export { name, description, ..plain.clone() }
        });
        std::iter::once(plain).chain(lasting).collect()
    }
}
