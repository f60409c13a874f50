//! `tether manifests`: what a cluster is given for volumes, as files for kubectl.

use anyhow::Result;

use crate::output::{self, Exit};

/// Prints the resources that a Kubernetes cluster needs for volumes, as YAML
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Namespace, resource definitions and roles. `tether controller` adds settings with their defaults. The cluster \
                  of `tether up` has all of it already.\n\n\
                  Example:\n  tether manifests | kubectl apply -f -\n  tether manifests --definitions-only > crds.yaml"
)]
pub(crate) struct Args {
    /// Only the resource definitions
    #[arg(long)]
    definitions_only: bool,
}

pub(crate) fn run(args: &Args) -> Result<Exit> {
    let objects =
        if args.definitions_only { tether_crd::install::definitions() } else { tether_crd::install::manifests() };
    for object in objects {
        output::say(&format!("---\n{}", serde_yaml_ng::to_string(&object)?));
    }
    Ok(Exit::Success)
}
