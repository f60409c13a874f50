//! Metrics and health over HTTP, for those who scrape and for kubelet's probes.

use std::convert::Infallible;
use std::net::SocketAddr;

use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::metrics::Metrics;

/// What is served where.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub address: SocketAddr,
    pub metrics_path: String,
}

/// Serves until dropped.
pub async fn serve(endpoint: Endpoint, metrics: Metrics) -> std::io::Result<()> {
    let listener = TcpListener::bind(endpoint.address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let (path, metrics) = (endpoint.metrics_path.clone(), metrics.clone());
        tokio::spawn(async move {
            let answer = service_fn(move |request: Request<Incoming>| {
                let response = respond(request.uri().path(), &path, &metrics);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the metrics ended");
            }
        });
    }
}

fn respond(path: &str, metrics_path: &str, metrics: &Metrics) -> Response<Full<Bytes>> {
    // A process that lost its Lease ends: one that answers holds it or waits for it.
    let (code, text) = match path {
        path if path == metrics_path => (StatusCode::OK, metrics.text()),
        "/healthz" | "/healthz/leader-election" => (StatusCode::OK, "ok".to_owned()),
        _ => (StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = code;
    response
}
