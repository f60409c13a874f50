//! Whole requests against a server in memory. Input: method, path and query, content type, body, one per line.

#![no_main]

use std::cell::RefCell;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use libfuzzer_sys::fuzz_target;
use tether_apiserver::Server;
use tether_apiserver::auth::User;

/// A server forgets after so many requests, so that a finding can be replayed.
const REQUESTS_PER_SERVER: usize = 5_000;

/// Kubernetes answers 500 to an apply that its schema has no place for, and so does Tether.
const KUBERNETES_500: &str = "failed to create typed patch object";

struct World {
    runtime: tokio::runtime::Runtime,
    server: Server,
    left: usize,
}

impl World {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
        let server = runtime.block_on(Server::ephemeral());
        Self { runtime, server, left: REQUESTS_PER_SERVER }
    }
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

fn request(data: &[u8]) -> Option<Request<Full<Bytes>>> {
    let mut lines = data.splitn(4, |b| *b == b'\n');
    let methods = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    let method = methods[usize::from(*lines.next()?.first()?) % methods.len()].clone();
    let path = std::str::from_utf8(lines.next()?).ok()?;
    let types = [
        "application/json",
        "application/yaml",
        "application/vnd.kubernetes.protobuf",
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
    ];
    let content_type = types[usize::from(*lines.next()?.first()?) % types.len()];
    // Watches and waits for future revisions would only sleep.
    if path.contains("watch") || path.contains("resourceVersion") {
        return None;
    }
    let body = Bytes::copy_from_slice(lines.next().unwrap_or_default());
    let mut request =
        Request::builder().method(method).uri(path).header("content-type", content_type).body(Full::new(body)).ok()?;
    request.extensions_mut().insert(User::new("fuzz", ["system:masters"]));
    Some(request)
}

fuzz_target!(|data: &[u8]| {
    let Some(request) = request(data) else { return };
    WORLD.with_borrow_mut(|world| {
        let world = world.get_or_insert_with(World::new);
        world.left -= 1;
        let (server, left) = (world.server.clone(), world.left);
        world.runtime.block_on(async move {
            let response = server.handle(request).await;
            let status = response.status();
            let body =
                response.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            let text = String::from_utf8_lossy(&body);
            assert!(status != 500 || text.contains(KUBERNETES_500), "an internal error is a bug: {text}");
        });
        if left == 0 {
            *world = World::new();
        }
    });
});
