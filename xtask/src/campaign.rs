//! Long randomized tests by name: which test, how many seeds, how a failing seed is replayed.
//!
//! A campaign is an `#[ignore]`d test that reads its range of seeds from the environment
//! ([`SEEDS`], [`FIRST_SEED`]) and prints the seed that failed. Adding one is a row in [`CAMPAIGNS`].

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::Subcommand;

/// How many seeds the test tries.
const SEEDS: &str = "TETHER_SEEDS";
/// The first seed it tries; the others follow.
const FIRST_SEED: &str = "TETHER_FIRST_SEED";

/// One campaign: an ignored test of one package.
struct Campaign {
    name: &'static str,
    about: &'static str,
    package: &'static str,
    /// `--test <target>`, or none for a unit test.
    target: Option<&'static str>,
    filter: &'static str,
    seeds: u64,
}

/// Every campaign there is.
const CAMPAIGNS: &[Campaign] = &[
    Campaign {
        name: "store",
        about: "lives of the API server's object store on a disk that fails and loses power",
        package: "tether-apiserver",
        target: None,
        filter: "store::tests::campaign::",
        seeds: 1000,
    },
    Campaign {
        name: "store-kill",
        about: "kill -9 of a process that writes to an object store; a seed is a kill",
        package: "tether-apiserver",
        target: None,
        filter: "store::tests::kill::kills_in",
        seeds: 200,
    },
    Campaign {
        name: "replica-store",
        about: "lives of a replica directory on a disk that loses power at any step",
        package: "tether-store",
        target: Some("power"),
        filter: "random_lives_in_a_long_campaign",
        seeds: 2000,
    },
    Campaign {
        name: "sim",
        about: "whole volumes (engines, replicas, clients) on a network, disks and a record that fail",
        package: "tether-sim",
        target: Some("seeds"),
        filter: "seeds_in_a_long_campaign",
        seeds: 500,
    },
    Campaign {
        name: "sim-migration",
        about: "whole volumes that move: standbys, promotions, confirmations and rollbacks at random moments among other faults",
        package: "tether-sim",
        target: Some("migration"),
        filter: "migrations_in_a_long_campaign",
        seeds: 500,
    },
    Campaign {
        name: "server-kill",
        about: "kill -9 of a whole API server while clients write and watch; a seed is a kill",
        package: "tether-apiserver",
        target: Some("crash"),
        filter: "kills_in_a_long_campaign",
        seeds: 200,
    },
    Campaign {
        name: "replication-model",
        about: "exhaustive search of the replication protocol; a seed is a hundred thousand states per scope",
        package: "tether-replication",
        target: None,
        filter: "model::tests::no_world_breaks_a_promise_in_a_wide_search",
        seeds: 4,
    },
    Campaign {
        name: "replication-walks",
        about: "random walks through large worlds of the replication protocol; a seed is a walk",
        package: "tether-replication",
        target: None,
        filter: "model::tests::walks_in_a_long_campaign",
        seeds: 100_000,
    },
    Campaign {
        name: "data-plane",
        about: "kill -9 of an engine under verified load; a seed is a kill",
        package: "tether",
        target: Some("data_plane"),
        filter: "kills_of_an_engine_in_a_long_campaign",
        seeds: 100,
    },
    Campaign {
        name: "replica-losses",
        about: "one or two replicas of three killed, stopped or cut off under verified load; a seed is a loss",
        package: "tether",
        target: Some("data_plane"),
        filter: "losses_of_replicas_in_a_long_campaign",
        seeds: 60,
    },
    Campaign {
        name: "attach-kill",
        about: "kill -9 of controller, API server, an instance manager or an agent during attachments; a seed is a kill",
        package: "tether",
        target: Some("kills"),
        filter: "kills_during_attachments_in_a_long_campaign",
        seeds: 100,
    },
    Campaign {
        name: "device-kill",
        about: "kill -9 of an instance manager under a mounted file system; a seed is a kill",
        package: "tether",
        target: Some("instance_manager"),
        filter: "kills_of_an_instance_manager_in_a_long_campaign",
        seeds: 50,
    },
    Campaign {
        name: "pod-kills",
        about: "kill -9 of every process between a pod and its volume while 20 pods come and go; a seed is ten minutes",
        package: "tether",
        target: Some("e2e"),
        filter: "pods_come_and_go_in_a_long_campaign",
        seeds: 1,
    },
    Campaign {
        name: "scenarios",
        about: "every scenario of live migration on a real cluster; a seed is a pass over all of them",
        package: "tether",
        target: Some("scenarios"),
        filter: "all_scenarios_in_a_long_campaign",
        seeds: 3,
    },
    Campaign {
        name: "random-migrations",
        about: "migrations with random faults and decisions on a real cluster; a seed is a schedule",
        package: "tether",
        target: Some("scenarios"),
        filter: "random_schedules_in_a_long_campaign",
        seeds: 50,
    },
    Campaign {
        name: "vm-migration",
        about: "a virtual machine that moves between nodes with its disk; a seed is a move",
        package: "tether",
        target: Some("vm"),
        filter: "a_virtual_machine_moves_in_a_long_campaign",
        seeds: 20,
    },
];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Prints the campaigns
    List,
    /// Runs one
    Run {
        /// Name, as `list` prints it
        name: String,
        /// Number of seeds; the campaign's own number if not given
        #[arg(long)]
        seeds: Option<u64>,
        /// First seed
        #[arg(long, default_value_t = 0)]
        first_seed: u64,
    },
}

pub(crate) fn main(root: &Path, args: &Args) -> Result<ExitCode> {
    match &args.action {
        Action::List => {
            for campaign in CAMPAIGNS {
                println!("{:<14} {} ({} seeds)", campaign.name, campaign.about, campaign.seeds);
            }
            Ok(ExitCode::SUCCESS)
        }
        Action::Run { name, seeds, first_seed } => run(root, find(name)?, *seeds, *first_seed),
    }
}

fn find(name: &str) -> Result<&'static Campaign> {
    if let Some(campaign) = CAMPAIGNS.iter().find(|campaign| campaign.name == name) {
        return Ok(campaign);
    }
    let known: Vec<_> = CAMPAIGNS.iter().map(|campaign| campaign.name).collect();
    bail!("no campaign named {name:?}; there are: {}", known.join(", "))
}

fn run(root: &Path, campaign: &Campaign, seeds: Option<u64>, first_seed: u64) -> Result<ExitCode> {
    let seeds = seeds.unwrap_or(campaign.seeds);
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["test", "--release", "--package", campaign.package]);
    if let Some(target) = campaign.target {
        cargo.args(["--test", target]);
    }
    cargo.args([campaign.filter, "--", "--ignored", "--nocapture"]);
    cargo.env(SEEDS, seeds.to_string()).env(FIRST_SEED, first_seed.to_string());
    let status = cargo.status().context("cargo test")?;
    if !status.success() {
        let name = campaign.name;
        eprintln!("replay the seed that was printed: cargo xtask campaign run {name} --seeds 1 --first-seed <seed>");
        return Ok(ExitCode::FAILURE);
    }
    println!("{}: seeds {first_seed}..{} passed", campaign.name, first_seed + seeds);
    Ok(ExitCode::SUCCESS)
}
