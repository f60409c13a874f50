//! Real handshakes on loopback: who gets in as whom, and what the listener does with peers that misbehave.

use std::convert::Infallible;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use super::*;
use crate::auth::tests::Memory;
use crate::auth::token::{Bindings, DEFAULT_ISSUER, Reference, TokenAuthority};
use crate::auth::x509::CertificateAuthenticator;
use crate::auth::{Authenticator, GROUP_MASTERS};
use crate::pki::{Credentials, Pki};

/// A server that answers every request with who it thinks is asking.
struct Cluster {
    pki: Pki,
    tokens: Arc<TokenAuthority>,
    address: SocketAddr,
    shutdown: CancellationToken,
    running: tokio::task::JoinHandle<()>,
    _home: tempfile::TempDir,
}

impl Cluster {
    async fn start(limits: Limits) -> Self {
        let home = tempfile::tempdir().unwrap();
        let pki = Pki::open_or_create(&home.path().join("pki"), Timestamp::now()).unwrap();
        let account = serde_json::json!({"metadata": {"namespace": "a", "name": "sa", "uid": "1"}});
        let objects = Memory::with([("serviceaccounts", account)]);
        let tokens = Arc::new(TokenAuthority::new(pki.token_key(), DEFAULT_ISSUER, objects).unwrap());
        let certificates = CertificateAuthenticator::new(pki.ca_der().clone()).unwrap();
        let authenticator = Arc::new(Authenticator::new(certificates, tokens.clone()));
        let service = tower::service_fn(move |request: Request<Incoming>| {
            let authenticator = authenticator.clone();
            async move {
                let (mut parts, body) = request.into_parts();
                if parts.uri.path() == "/forever" {
                    // Never answers: the body it waits for does not end.
                    let _ = body.collect().await;
                }
                assert!(parts.extensions.get::<PeerAddress>().is_some());
                assert!(parts.extensions.get::<User>().is_none());
                // Even if some layer let one through, a request from the wire is judged by its credentials.
                parts.extensions.insert(User::new("forged", [GROUP_MASTERS]));
                Ok::<_, Infallible>(match authenticator.authenticate(&parts, Timestamp::now()) {
                    Ok(user) => Response::new(Full::new(Bytes::from(format!("{} {:?}", user.name, user.groups)))),
                    Err(error) => {
                        let mut response = Response::new(Full::new(Bytes::from(error.to_json().to_string())));
                        *response.status_mut() = StatusCode::from_u16(error.code).unwrap();
                        response
                    }
                })
            }
        });
        let server = pki.server(&[], Timestamp::now()).unwrap();
        let tls = Arc::new(pki.server_config(&server).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(serve(listener, tls, service, limits, shutdown.clone()));
        Self { pki, tokens, address, shutdown, running, _home: home }
    }

    /// A client that trusts the cluster and shows `credentials`, speaking `protocol`.
    fn client(&self, credentials: Option<&Credentials>, protocol: &str) -> TlsConnector {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.pki.ca_der().clone()).unwrap();
        let builder = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match credentials {
            None => builder.with_no_client_auth(),
            Some(Credentials { certificate_pem, key_pem }) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate_pem.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        TlsConnector::from(Arc::new(config))
    }

    async fn connect(&self, client: &TlsConnector) -> tokio_rustls::client::TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        client.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap()
    }

    async fn ask(&self, credentials: Option<&Credentials>, protocol: &str, token: Option<&str>) -> (u16, String) {
        let stream = TokioIo::new(self.connect(&self.client(credentials, protocol)).await);
        let mut request = Request::get("https://localhost/");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let response = if protocol == "h2" {
            let (mut send, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
            tokio::spawn(connection);
            send.send_request(request).await.unwrap()
        } else {
            let (mut send, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            send.send_request(request).await.unwrap()
        };
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }
}

#[tokio::test]
async fn certificates_and_tokens_say_who_asks() {
    let cluster = Cluster::start(Limits::default()).await;
    let now = Timestamp::now();
    let admin = cluster.pki.admin(now).unwrap();
    let node = cluster.pki.node("n1", now).unwrap();
    let bindings = Bindings {
        namespace: "a".into(),
        serviceaccount: Reference { name: "sa".into(), uid: "1".into() },
        ..Bindings::default()
    };
    let token = cluster.tokens.issue(bindings, cluster.tokens.audiences(), 600, "", now).unwrap();
    for protocol in ["http/1.1", "h2"] {
        let cases = [
            (Some(&admin), None, "kubernetes-admin [\"system:masters\", \"system:authenticated\"]"),
            (Some(&node), None, "system:node:n1 [\"system:nodes\", \"system:authenticated\"]"),
            (Some(&node), Some(token.as_str()), "system:node:n1 [\"system:nodes\", \"system:authenticated\"]"),
            (
                None,
                Some(token.as_str()),
                "system:serviceaccount:a:sa [\"system:serviceaccounts\", \"system:serviceaccounts:a\", \
                 \"system:authenticated\"]",
            ),
            (None, None, "system:anonymous [\"system:unauthenticated\"]"),
        ];
        for (credentials, token, expected) in cases {
            let answer = cluster.ask(credentials, protocol, token).await;
            assert_eq!(answer, (200, expected.to_owned()), "{protocol}");
        }
        let refused = (401, tether_machinery::status::ApiError::unauthorized().to_json().to_string());
        assert_eq!(cluster.ask(None, protocol, Some("x")).await, refused);
    }
}

#[tokio::test]
async fn certificates_of_others_and_of_the_past_are_refused() {
    let cluster = Cluster::start(Limits::default()).await;
    let home = tempfile::tempdir().unwrap();
    let foreign = Pki::open_or_create(home.path(), Timestamp::now()).unwrap().admin(Timestamp::now()).unwrap();
    assert_eq!(cluster.ask(Some(&foreign), "h2", None).await.0, 401);
    let last_year = Timestamp::now() - jiff::SignedDuration::from_hours(24 * 366);
    let expired = cluster.pki.client("old", "ann", &[], last_year).unwrap();
    assert_eq!(cluster.ask(Some(&expired), "http/1.1", None).await.0, 401);
    // The server's own certificate is not one for clients.
    let server = cluster.pki.server(&[], Timestamp::now()).unwrap();
    assert_eq!(cluster.ask(Some(&server), "h2", None).await.0, 401);
}

#[tokio::test]
async fn a_certificate_that_expires_on_an_open_connection_stops_counting() {
    let cluster = Cluster::start(Limits::default()).await;
    let now = Timestamp::now();
    let ann = cluster.pki.client("ann", "ann", &["devs"], now).unwrap();
    let certificates = CertificateAuthenticator::new(cluster.pki.ca_der().clone()).unwrap();
    let peer = PeerCertificates::new(vec![CertificateDer::from_pem_slice(ann.certificate_pem.as_bytes()).unwrap()]);
    assert_eq!(certificates.authenticate(&peer, now).unwrap().unwrap().name, "ann");
    let later = now + jiff::SignedDuration::from_hours(24 * 366);
    assert!(certificates.authenticate(&peer, later).is_err());
    assert!(certificates.authenticate(&peer, now).is_ok());
}

#[tokio::test]
async fn silence_is_not_waited_for() {
    let brief = Duration::from_millis(50);
    let limits = Limits { handshake_timeout: brief, first_request_timeout: brief, ..Limits::default() };
    let cluster = Cluster::start(limits).await;
    let mut buffer = [0; 16];
    let mut mute = TcpStream::connect(cluster.address).await.unwrap();
    assert_eq!(mute.read(&mut buffer).await.unwrap(), 0, "no handshake");
    for protocol in ["h2", "http/1.1"] {
        let mut idle = cluster.connect(&cluster.client(None, protocol)).await;
        let mut rest = Vec::new();
        // With or without a TLS goodbye, the connection ends.
        let _ = idle.read_to_end(&mut rest).await;
    }
    let mut rubbish = TcpStream::connect(cluster.address).await.unwrap();
    rubbish.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    let _ = rubbish.read_to_end(&mut rest).await;
    assert_eq!(cluster.ask(None, "h2", None).await.0, 200, "others are served");
}

#[tokio::test]
async fn connections_over_the_limit_wait_for_their_turn() {
    let cluster = Cluster::start(Limits { max_connections: 1, ..Limits::default() }).await;
    let client = cluster.client(None, "http/1.1");
    let first = cluster.connect(&client).await;
    let second = TcpStream::connect(cluster.address).await.unwrap();
    let mut second = pin!(client.connect(ServerName::try_from("localhost").unwrap(), second));
    let early = tokio::time::timeout(Duration::from_millis(50), second.as_mut()).await;
    assert!(early.is_err(), "one at a time");
    drop(first);
    second.await.unwrap();
}

#[tokio::test]
async fn shutdown_finishes_what_is_under_way_but_not_forever() {
    let limits = Limits { drain_timeout: Duration::from_millis(50), ..Limits::default() };
    let cluster = Cluster::start(limits).await;
    let mut stuck = cluster.connect(&cluster.client(None, "http/1.1")).await;
    stuck.write_all(b"POST /forever HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n").await.unwrap();
    assert_eq!(cluster.ask(None, "h2", None).await.0, 200);
    cluster.shutdown.cancel();
    cluster.running.await.unwrap();
    assert!(TcpStream::connect(cluster.address).await.is_err(), "the port is free");
}

type Frames = futures::channel::mpsc::Sender<Result<hyper::body::Frame<Bytes>, Infallible>>;

/// A body that ends when its sender is dropped.
fn open_body() -> (Frames, impl Body<Data = Bytes, Error = Infallible> + Unpin) {
    let (sender, receiver) = futures::channel::mpsc::channel(1);
    (sender, http_body_util::StreamBody::new(receiver))
}

#[tokio::test]
async fn hundreds_of_requests_share_a_connection() {
    let cluster = Cluster::start(Limits::default()).await;
    let stream = TokioIo::new(cluster.connect(&cluster.client(None, "h2")).await);
    let (send, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    let mut held = Vec::new();
    // Their bodies stay open, as those of watches do.
    for _ in 0..500 {
        let (sender, body) = open_body();
        let request = Request::post("https://localhost/forever").body(body).unwrap();
        held.push((sender, tokio::spawn(send.clone().send_request(request))));
    }
    let (sender, body) = open_body();
    drop(sender);
    let request = Request::get("https://localhost/").body(body).unwrap();
    assert_eq!(send.clone().send_request(request).await.unwrap().status(), 200);
    for (sender, request) in held {
        drop(sender);
        assert_eq!(request.await.unwrap().unwrap().status(), 200);
    }
}
