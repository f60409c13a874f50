//! Where an end-to-end test finds its cluster: one that already runs, or an API server and controllers of its own on loopback.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::mpsc,
    thread::JoinHandle,
};

use jiff::{SignedDuration, Timestamp};
use tether_apiserver::{
    Options,
    auth::User,
    pki::{Kubeconfig, Pki},
};
use tokio_util::sync::CancellationToken;

pub(crate) struct Server {
    kubeconfig: PathBuf,
    _own: Option<Own>,
}

/// A server that lives as long as its test.
struct Own {
    shutdown: CancellationToken,
    thread: Option<JoinHandle<()>>,
    dir: tempfile::TempDir,
}

impl Server {
    pub(crate) fn existing(kubeconfig: &Path) -> Self {
        Self { kubeconfig: kubeconfig.to_owned(), _own: None }
    }

    pub(crate) fn start() -> Result<Self, String> {
        let dir = tempfile::Builder::new().prefix("tether-server-").tempdir().map_err(|e| e.to_string())?;
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let options = Options {
            data_dir: dir.path().to_owned(),
            listen,
            hosts: Vec::new(),
            plugins: Vec::new(),
            objects: Vec::new(),
        };
        let shutdown = CancellationToken::new();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn({
            let shutdown = shutdown.clone();
            move || {
                if let Err(error) = serve(options, shutdown, tell.clone()) {
                    let _ = tell.send(Err(error));
                }
            }
        });
        let own = Own { shutdown, thread: Some(thread), dir };
        let address = told.recv().map_err(|e| e.to_string())??;
        let kubeconfig = own.dir.path().join("kubeconfig");
        write_kubeconfig(own.dir.path(), address, &kubeconfig).map_err(|e| e.to_string())?;
        Ok(Self { kubeconfig, _own: Some(own) })
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }
}

/// Runs the API server, and the controllers in the same process, until `shutdown`.
fn serve(
    options: Options,
    shutdown: CancellationToken,
    tell: mpsc::Sender<Result<SocketAddr, String>>,
) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    let root_ca = options.data_dir.join("pki/ca.crt");
    let controllers_stop = shutdown.clone();
    let ready = move |address, server: &tether_apiserver::Server| {
        let client = server.client(User::new("system:kube-controller-manager", Vec::<String>::new()));
        tokio::spawn(tether_controllers::run(client, controller_options(&root_ca), controllers_stop));
        let _ = tell.send(Ok(address));
    };
    runtime.block_on(tether_apiserver::run(options, shutdown, ready)).map_err(|e| e.to_string())
}

/// Nodes in the tests are objects that nobody heartbeats for: they must not be found silent.
fn controller_options(root_ca: &Path) -> tether_controllers::Options {
    let mut options = tether_controllers::Options::default();
    options.node.monitor_grace = SignedDuration::from_hours(24);
    options.node.startup_grace = SignedDuration::from_hours(24);
    // The cases are about Kubernetes' own kinds.
    options.volumes = false;
    options.root_ca = std::fs::read_to_string(root_ca).ok();
    options
}

fn write_kubeconfig(dir: &Path, address: SocketAddr, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let now = Timestamp::now();
    let pki = Pki::open(&dir.join("pki"), now)?;
    let admin = pki.admin(now)?;
    let server = format!("https://{address}");
    let text =
        Kubeconfig { cluster: "tether", server: &server, ca_pem: pki.ca_pem(), user: "admin", credentials: &admin }
            .render();
    Ok(std::fs::write(path, text)?)
}

impl Drop for Own {
    fn drop(&mut self) {
        self.shutdown.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
