//! Calls to a driver: with a deadline, measured, and with errors in the words that Kubernetes' users know.

use std::future::Future;
use std::time::{Duration, Instant};

use tonic::{Code, Request, Response, Status};

use crate::metrics::Calls;

/// Makes a call. The driver is told the deadline, and it is kept even if the driver does not.
pub(crate) async fn call<Q, A, F>(
    metrics: &Calls,
    method: &'static str,
    timeout: Duration,
    message: Q,
    make: impl FnOnce(Request<Q>) -> F,
) -> Result<A, Status>
where
    F: Future<Output = Result<Response<A>, Status>>,
{
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    let started = Instant::now();
    let answer = match tokio::time::timeout(timeout, make(request)).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        // The client's own timer, and its twin that cancels the stream, are the same as ours.
        Ok(Err(status)) if started.elapsed() >= timeout && is_timeout(status.code()) => Err(too_late()),
        Ok(Err(status)) => Err(status),
        Err(_) => Err(too_late()),
    };
    let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
    metrics.observe(method, code, started.elapsed());
    answer
}

fn is_timeout(code: Code) -> bool {
    matches!(code, Code::Cancelled | Code::DeadlineExceeded)
}

fn too_late() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

/// An error as Kubernetes' components print it, and as alerts match it.
pub(crate) fn words(status: &Status) -> String {
    format!("rpc error: code = {:?} desc = {}", status.code(), status.message())
}
