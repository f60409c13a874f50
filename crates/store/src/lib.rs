//! One replica directory: Longhorn's V1 layout, and Tether's state file beside it.
//!
//! ```text
//!   volume.meta                     size, head, flags
//!   volume-head-003.img  (.meta)    where writes go
//!   volume-snap-b.img    (.meta)    below the head
//!   volume-snap-a.img    (.meta)    below that
//!   tether.state                    promise, generation, doubt, activity log, missed maps
//! ```
//!
//! Two ways in. The data path is a machine: [`Volume::submit`](volume::Volume::submit) takes a
//! [`Request`](request::Request) and gives [`FileOp`](op::FileOp)s, [`Volume::completed`](volume::Volume::completed)
//! takes their results; who runs them is not known here. Rare work on metadata is blocking, through
//! [`Files`](files::Files), and either happened or did not, wherever the power fails.

pub mod buffer;
pub mod checksum;
pub mod crc64;
pub mod diff;
pub mod files;
pub mod host;
pub mod index;
pub mod meta;
pub mod op;
pub mod remove;
pub mod request;
pub mod state;
pub mod tree;
pub mod volume;

pub use buffer::{AlignedBuf, BLOCK};
pub use files::Files;
pub use op::{Fault, FileId, FileOp, OpId, OpKind, OpResult};
pub use request::{Change, Extent, ImagePiece, Output, Reply, Request, RequestError, RequestId, View};
pub use volume::Volume;
