//! A host that runs every operation at once and waits: for tools, tests and simulations without concurrency.

use crate::files::Files;
use crate::files::real::StdFiles;
use crate::op::{FileOp, OpId, OpResult};
use crate::request::{Output, Reply, Request, RequestError};
use crate::volume::Volume;

/// Runs an operation to its end.
pub trait RunOp {
    fn run_op(&self, op: FileOp) -> (OpId, OpResult);
}

impl RunOp for StdFiles {
    fn run_op(&self, op: FileOp) -> (OpId, OpResult) {
        self.run(op)
    }
}

/// Runs one request to its end. Operations of requests submitted before are run as well; their answers are lost.
pub fn run<F: Files + RunOp>(volume: &mut Volume<F>, request: Request) -> Result<Reply, RequestError> {
    const ID: u64 = u64::MAX;
    let mut out = Output::default();
    volume.submit(ID, request, &mut out);
    while let Some(op) = out.ops.pop() {
        let (id, result) = volume.files().run_op(op);
        volume.completed(id, result, &mut out);
    }
    let answer = out.done.into_iter().find(|(id, _)| *id == ID);
    answer.expect("a request must be answered when no operation is left").1
}

/// Reads a range.
pub fn read<F: Files + RunOp>(
    volume: &mut Volume<F>,
    view: crate::request::View,
    offset: u64,
    len: u64,
) -> Result<bytes::Bytes, RequestError> {
    match run(volume, Request::Read { view, offset, len })? {
        Reply::Read(bytes) => Ok(bytes),
        other => unreachable!("a read must be answered by data, not {other:?}"),
    }
}
