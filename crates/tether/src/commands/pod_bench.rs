//! `tether bench pod`: from a pod that names its node to a container that runs.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::bench::pod::{self, Figure, Plan};
use crate::client;
use crate::output::{self, Exit, Format};

/// Starts pods with a claim, with a new volume and with one that exists
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each round makes a claim and a pod that names its node, waits until it runs, deletes it, waits until the volume is \
                  detached, and starts another pod with the same claim on the next node. Prints how long that took from the request to \
                  Running, phase by phase: until the claim was bound, until the volume was attached (VolumeAttachment), until the \
                  pod ran (staged, published, container started).\n\n\
                  Example:\n  tether bench pod --kubeconfig ~/.local/share/tether/kubeconfig --rounds 20 -o json"
)]
pub(crate) struct Args {
    /// The cluster
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// How many volumes; each is used by two pods
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    rounds: u16,
    /// Class of the claims; without it one of Tether's driver is made, and removed
    #[arg(long, value_name = "NAME")]
    storage_class: Option<String>,
    /// Replicas of each volume, where no class is given
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=20), conflicts_with = "storage_class")]
    replicas: u16,
    /// Size of each volume
    #[arg(long, default_value = "1Gi")]
    size: String,
    /// Namespace of pods and claims
    #[arg(long, default_value = "default")]
    namespace: String,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

pub(super) async fn run(args: &Args) -> Result<Exit> {
    let client = client::from_file(&args.kubeconfig, "tether-bench").await?;
    let plan = Plan {
        rounds: args.rounds.into(),
        class: args.storage_class.clone(),
        replicas: args.replicas.into(),
        size: args.size.clone(),
        namespace: args.namespace.clone(),
    };
    let figures = pod::run(&client, &plan, &|step| output::complain(step)).await.context("bench of pods")?;
    output::print(args.output, &figures, |figures| table(figures))?;
    Ok(Exit::Success)
}

fn table(figures: &[Figure]) -> String {
    let mut rows = vec![["VOLUME", "PHASE", "MEDIAN MS", "P90 MS", "MAX MS", "COUNT"].map(str::to_owned).to_vec()];
    for figure in figures {
        let ms = |ms: f64| format!("{ms:.0}");
        rows.push(vec![
            figure.volume.to_owned(),
            figure.phase.to_owned(),
            ms(figure.median_ms),
            ms(figure.p90_ms),
            ms(figure.max_ms),
            figure.count.to_string(),
        ]);
    }
    output::columns(&rows)
}
