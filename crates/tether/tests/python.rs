//! The official Python client against Tether's API server: runs `tests/python/test_client.py`.
//!
//! `TETHER_E2E_KUBECONFIG` points it at another server.

#[path = "support/python.rs"]
mod python;
#[path = "support/server.rs"]
mod server;

use std::path::Path;

#[test]
#[allow(clippy::print_stderr, reason = "skips are told to whoever runs the tests")]
fn python_client() {
    let interpreter = match python::interpreter() {
        Ok(interpreter) => interpreter,
        Err(why) => return eprintln!("skipped: the Python client cannot be installed here: {why}"),
    };
    let server = match std::env::var_os("TETHER_E2E_KUBECONFIG") {
        Some(kubeconfig) => server::Server::existing(Path::new(&kubeconfig)),
        None => server::Server::start().expect("a server must start"),
    };
    if let Err(failures) = python::unittest(&interpreter, "test_client", server.kubeconfig()) {
        panic!("{failures}");
    }
}
