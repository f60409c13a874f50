//! The client whose requests share a connection, against servers that count connections and end them.

// Test code fails by panicking; the helpers outside of #[test] functions do too.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use kube::{Client, Config};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// An answer is there after this, so that requests meet.
const ANSWER_AFTER: Duration = Duration::from_millis(50);
/// As many as kube-apiserver allows, in order of magnitude; fewer than the requests of a test.
const STREAMS: u32 = 20;
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    /// Of these, those that are there still.
    open: AtomicUsize,
    requests: AtomicUsize,
}

struct Open(Arc<Seen>);

impl Open {
    fn new(seen: &Arc<Seen>) -> Self {
        seen.connections.fetch_add(1, Ordering::Relaxed);
        seen.open.fetch_add(1, Ordering::Relaxed);
        Self(seen.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a server is known by, for as many lives as it has.
struct Identity {
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
    protocol: &'static [u8],
}

impl Identity {
    fn new(protocol: &'static [u8]) -> Self {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        Self { certificate: made.cert.der().clone(), key: made.signing_key.serialize_der(), protocol }
    }

    fn acceptor(&self) -> TlsAcceptor {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.clone()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_no_client_auth().with_single_cert(vec![self.certificate.clone()], key).unwrap();
        config.alpn_protocols = vec![self.protocol.to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }

    fn config(&self, address: SocketAddr) -> Config {
        let mut config = Config::new(format!("https://{address}").parse().unwrap());
        config.root_cert = Some(vec![self.certificate.to_vec()]);
        config
    }
}

/// A server that lives until it is dropped.
struct Life {
    address: SocketAddr,
    seen: Arc<Seen>,
    /// Ends the connections that are there in good order: GOAWAY, then what is under way.
    says_goodbye: Arc<Notify>,
    _tasks: JoinSet<()>,
}

async fn live(identity: &Identity, address: Option<SocketAddr>) -> Life {
    let listener = TcpListener::bind(address.unwrap_or_else(|| ([127, 0, 0, 1], 0).into())).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, says_goodbye, mut tasks) = (Arc::new(Seen::default()), Arc::new(Notify::new()), JoinSet::new());
    let (acceptor, counted, goodbye) = (identity.acceptor(), seen.clone(), says_goodbye.clone());
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            connections.spawn(serve(stream, counted.clone(), goodbye.clone()));
        }
    });
    Life { address, seen, says_goodbye, _tasks: tasks }
}

async fn serve(stream: TlsStream<tokio::net::TcpStream>, seen: Arc<Seen>, goodbye: Arc<Notify>) {
    let _open = Open::new(&seen);
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let service = service_fn(move |request: Request<Incoming>| {
        seen.requests.fetch_add(1, Ordering::Relaxed);
        async move {
            tokio::time::sleep(ANSWER_AFTER).await;
            let name = request.uri().path().rsplit('/').next().unwrap_or_default();
            let body = format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}}}}"#);
            Ok::<_, std::convert::Infallible>(Response::new(body))
        }
    });
    let io = TokioIo::new(stream);
    if !is_http2 {
        let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
        return;
    }
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder.max_concurrent_streams(STREAMS);
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    tokio::select! {
        _ = &mut connection => return,
        () = goodbye.notified() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Asks for so many objects at once; all have to be answered.
async fn ask(client: &Client, number: usize) {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let names: Vec<_> = (0..number).map(|n| format!("object-{n}")).collect();
    let all = tokio::time::timeout(PATIENCE, join_all(names.iter().map(|name| api.get(name)))).await;
    for (name, found) in names.iter().zip(all.expect("all must be answered in time")) {
        assert_eq!(found.unwrap().metadata.name.as_ref(), Some(name));
    }
}

fn count(counter: &AtomicUsize) -> usize {
    counter.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_at_once_share_one_connection() {
    let identity = Identity::new(b"h2");
    let server = live(&identity, None).await;
    let client = tether_csi::api::client(identity.config(server.address)).unwrap();
    // More than the server takes at a time: the others wait their turn, and none is refused.
    ask(&client, 1).await;
    ask(&client, 8 * STREAMS as usize).await;
    assert_eq!(count(&server.seen.requests), 1 + 8 * STREAMS as usize);
    assert_eq!(count(&server.seen.connections), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_started_anew_is_found_again() {
    let identity = Identity::new(b"h2");
    let server = live(&identity, None).await;
    let client = tether_csi::api::client(identity.config(server.address)).unwrap();
    ask(&client, STREAMS as usize).await;
    let address = server.address;
    drop(server);
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let refused = tokio::time::timeout(PATIENCE, api.get("nobody")).await.expect("an answer must come in time");
    assert!(refused.is_err(), "nobody listens");
    let server = live(&identity, Some(address)).await;
    ask(&client, STREAMS as usize).await;
    // Requests that come before the server has said what it speaks may begin connections of their own, which are not kept.
    let one_is_left = async {
        while count(&server.seen.open) != 1 {
            tokio::time::sleep(ANSWER_AFTER).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, one_is_left).await.is_ok(), "{} are left", count(&server.seen.open));
    let before = count(&server.seen.connections);
    ask(&client, STREAMS as usize).await;
    assert_eq!(count(&server.seen.connections), before);
}

/// A server that ends a connection in good order answers what it has; the rest goes to the next connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_says_goodbye_loses_no_read() {
    let identity = Identity::new(b"h2");
    let server = live(&identity, None).await;
    let client = tether_csi::api::client(identity.config(server.address)).unwrap();
    ask(&client, 1).await;
    let during = async {
        tokio::time::sleep(ANSWER_AFTER / 2).await;
        server.says_goodbye.notify_waiters();
    };
    // Half of them are under way then, half wait for their turn.
    tokio::join!(ask(&client, 2 * STREAMS as usize), during);
    assert!(count(&server.seen.connections) >= 2, "the one that said goodbye is not used again");
    ask(&client, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_http2_is_spoken_to_as_it_can() {
    let identity = Identity::new(b"http/1.1");
    let server = live(&identity, None).await;
    let client = tether_csi::api::client(identity.config(server.address)).unwrap();
    ask(&client, 3).await;
    assert_eq!(count(&server.seen.requests), 3);
}
