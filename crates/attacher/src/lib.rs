//! `tether attacher`: the external-attacher, for any CSI driver. Its command line, for `tether` and for the small program of
//! its own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use jiff::SignedDuration;
use tether_controllers::leader;
use tether_csi::api;
use tether_csi::attacher::{self, Lead, Settings};
use tether_csi::connect::{Address, connect};
use tether_csi::http::{self, Endpoint};
use tether_csi::lanes::Backoff;
use tether_csi::metrics::Metrics;

use tether_role::client;
use tether_role::logging::LogArgs;
use tether_role::output::Exit;
use tether_role::process::{self as role, Threads};

/// What help ends with, for whoever starts this as `program`.
pub fn help(program: &str) -> String {
    format!(
        "Flags have the names and defaults of kubernetes-csi/external-attacher, so that its container can be replaced. Requests to the \
         API server are not limited.\n\nExample:\n  {program} --csi-address unix:///run/csi/socket --kubeconfig ./kubeconfig"
    )
}

/// Attaches volumes for a CSI driver, in place of Kubernetes' external-attacher
#[derive(Debug, clap::Args)]
#[command(after_help = help("tether attacher"))]
pub struct Args {
    /// Socket of the CSI driver: a path, or unix:///path
    #[arg(long, default_value = "/run/csi/socket")]
    csi_address: Address,
    /// Credentials; without it those that a pod is given
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// For each call to the driver
    #[arg(long, default_value = "15s")]
    timeout: SignedDuration,
    /// Calls at a time: so many attaches, and so many detaches beside them
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    worker_threads: u16,
    /// Delay after the first failure; it doubles with each further one
    #[arg(long, default_value = "1s")]
    retry_interval_start: SignedDuration,
    /// Longest delay after failures
    #[arg(long, default_value = "5m")]
    retry_interval_max: SignedDuration,
    /// How often what the driver lists is compared with the attachments
    #[arg(long, default_value = "1m")]
    reconcile_sync: SignedDuration,
    /// Volumes asked for at a time when listing; 0 for all
    #[arg(long, default_value_t = 0)]
    max_entries: i32,
    /// File system of volumes that name none
    #[arg(long, default_value = "")]
    default_fstype: String,
    #[command(flatten)]
    election: ElectionArgs,
    /// Address of metrics and health, such as :8080
    #[arg(long, default_value = "")]
    http_endpoint: String,
    #[arg(long, default_value = "", hide = true)]
    metrics_address: String,
    /// Path of the metrics
    #[arg(long, default_value = "/metrics")]
    metrics_path: String,
    #[command(flatten)]
    ignored: Ignored,
    #[command(flatten)]
    logs: LogArgs,
}

/// Of several attachers one works.
#[derive(Debug, clap::Args)]
struct ElectionArgs {
    /// Work only while leading
    #[arg(long = "leader-election", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true",
          action = clap::ArgAction::Set)]
    enabled: bool,
    /// Namespace of the Lease; that of the pod without it
    #[arg(long = "leader-election-namespace", default_value = "")]
    namespace: String,
    #[arg(long = "leader-election-lease-duration", default_value = "15s")]
    lease: SignedDuration,
    #[arg(long = "leader-election-renew-deadline", default_value = "10s")]
    renew_deadline: SignedDuration,
    #[arg(long = "leader-election-retry-period", default_value = "5s")]
    retry: SignedDuration,
}

/// Flags that manifests carry and that mean nothing here.
#[derive(Debug, clap::Args)]
struct Ignored {
    #[arg(long, hide = true)]
    resync: Option<String>,
    #[arg(long, hide = true)]
    kube_api_qps: Option<String>,
    #[arg(long, hide = true)]
    kube_api_burst: Option<String>,
    #[arg(long, hide = true)]
    max_grpc_log_length: Option<String>,
    #[arg(long, hide = true)]
    leader_election_labels: Option<String>,
    #[arg(long, hide = true)]
    feature_gates: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    automaxprocs: Option<String>,
    #[arg(short = 'v', long = "v", hide = true)]
    verbosity: Option<String>,
}

impl Ignored {
    fn say(&self) {
        let all = [
            ("--resync", &self.resync),
            ("--kube-api-qps", &self.kube_api_qps),
            ("--kube-api-burst", &self.kube_api_burst),
            ("--max-grpc-log-length", &self.max_grpc_log_length),
            ("--leader-election-labels", &self.leader_election_labels),
            ("--feature-gates", &self.feature_gates),
            ("--automaxprocs", &self.automaxprocs),
            ("--v", &self.verbosity),
        ];
        for (flag, _) in all.iter().filter(|(_, value)| value.is_some()) {
            tracing::info!("{flag} has no meaning here");
        }
    }
}

pub fn run(args: &Args) -> Result<Exit> {
    role::begin("attacher", args.logs)?;
    args.ignored.say();
    if !args.http_endpoint.is_empty() && !args.metrics_address.is_empty() {
        bail!("--metrics-address and --http-endpoint: give one of them");
    }
    role::runtime(Threads::One)?.block_on(async {
        let stop = role::until_signal()?;
        let client = api::client(client::flagged(args.kubeconfig.as_deref(), "tether-attacher").await?)?;
        let metrics = Metrics::default();
        if let Some(endpoint) = args.endpoint()? {
            let serving = http::serve(endpoint.clone(), metrics.clone());
            tokio::spawn(async move {
                if let Err(error) = serving.await {
                    tracing::error!(%error, address = %endpoint.address, "metrics are not served");
                }
            });
        }
        let connection = connect(&args.csi_address).await?;
        attacher::run(client, connection, args.settings(), &metrics, stop).await?;
        Ok(Exit::Success)
    })
}

impl Args {
    fn endpoint(&self) -> Result<Option<Endpoint>> {
        let given = [&self.http_endpoint, &self.metrics_address].into_iter().find(|address| !address.is_empty());
        let Some(given) = given else { return Ok(None) };
        // `:8080` is every address, as Go's servers have it.
        let address = if given.starts_with(':') { format!("0.0.0.0{given}") } else { given.clone() };
        let address: SocketAddr = address.parse().with_context(|| format!("--http-endpoint {given}"))?;
        Ok(Some(Endpoint { address, metrics_path: self.metrics_path.clone() }))
    }

    fn settings(&self) -> Settings {
        let election = &self.election;
        let lead = Lead {
            identity: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            settings: leader::Settings {
                namespace: namespace(&election.namespace),
                name: String::new(),
                lease: election.lease,
                renew_deadline: election.renew_deadline,
                retry: election.retry,
            },
        };
        Settings {
            timeout: Duration::try_from(self.timeout).unwrap_or_default(),
            workers: self.worker_threads.into(),
            backoff: Backoff { first: self.retry_interval_start, longest: self.retry_interval_max },
            reconcile_every: self.reconcile_sync,
            max_entries: self.max_entries,
            default_fs_type: self.default_fstype.clone(),
            leader_election: election.enabled.then_some(lead),
            on_leading: Arc::new(role::ready),
            ..Settings::default()
        }
    }
}

/// Where the Lease lives: as given, or the pod's namespace, or the default one.
fn namespace(given: &str) -> String {
    const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
    let pod = || std::env::var("POD_NAMESPACE").ok().filter(|namespace| !namespace.is_empty());
    let account = || std::fs::read_to_string(ACCOUNT).ok().map(|text| text.trim().to_owned());
    let given = Some(given.to_owned()).filter(|given| !given.is_empty());
    given.or_else(pod).or_else(account).filter(|namespace| !namespace.is_empty()).unwrap_or_else(|| "default".into())
}
