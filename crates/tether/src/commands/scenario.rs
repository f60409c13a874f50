//! `tether scenario`: live migration under every failure, on a real cluster.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use jiff::SignedDuration;
use serde_json::json;

use super::role::{self, Threads};
use crate::cluster::Marker;
use crate::output::{self, Exit, Format};
use crate::scenario::catalog::{ALL, Scenario};
use crate::scenario::{self, Where, report};

/// Performs migrations with failures on a real cluster, and checks what becomes of the volume
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  tether scenario list\n  tether scenario run all --report report.json\n  \
                  tether scenario run 1.1 6.1 --keep\n  tether scenario random --seeds 50")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Lists the scenarios and the ends that are accepted for each
    #[command(after_help = "Example:\n  tether scenario list -o json")]
    List {
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Performs scenarios
    #[command(
        after_help = "A guest writes and reads through the volume's NBD endpoint all the time, where the volume is, and checks every \
                      byte.\nA line is printed for each step, a table at the end. Exit code 1 if a scenario failed, or if none was performed.\n\n\
                      Example:\n  tether scenario run all\n  tether scenario run 1.1 2.3 --keep --report report.json\n  \
                      tether scenario run 4 --kubeconfig ./kubeconfig"
    )]
    Run {
        /// Which ones; `all` for every one
        #[arg(required = true, value_name = "SCENARIO")]
        scenarios: Vec<String>,
        /// Make one byte of the guest's data wrong at the end of each, which then has to fail: a test of the test
        #[arg(long)]
        plant_wrong_byte: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Performs random schedules: faults, confirmations and rollbacks at random moments
    #[command(
        after_help = "Each schedule follows from its seed alone; a seed that fails is printed with the command that performs it again.\n\n\
                      Example:\n  tether scenario random --seeds 50\n  tether scenario random --first-seed 17 --seeds 1 --keep"
    )]
    Random {
        /// How many schedules
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
        seeds: u64,
        /// The seed of the first one
        #[arg(long, default_value_t = 0)]
        first_seed: u64,
        #[command(flatten)]
        place: Place,
    },
}

/// On which cluster, and what is kept of it.
#[derive(Debug, clap::Args)]
struct Place {
    /// Leave a cluster that was started for it running
    #[arg(long)]
    keep: bool,
    /// Write everything that was seen to this file, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Use this cluster instead of one that is started for it; its NBD endpoints must be reachable from here
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// How long a node may be silent before it counts as down, in a cluster that is started for it
    #[arg(long, default_value = "4s", value_name = "TIME")]
    node_grace: SignedDuration,
    /// Use the cluster of `tether up` in this directory; its nodes can be switched off, its log is read
    #[arg(long, value_name = "DIR", env = "TETHER_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// How to print what came of it; unless it is a table, the steps go to standard error
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

impl Place {
    async fn open(&self) -> Result<Where> {
        let absolute =
            |dir: &PathBuf| std::path::absolute(dir).with_context(|| format!("--data-dir {}", dir.display()));
        let embedded = self.data_dir.as_ref().map(absolute).transpose()?;
        let embedded = embedded.map(|dir| Marker::open(&dir)).transpose()?;
        let file = self.kubeconfig.clone().or_else(|| embedded.as_ref().map(|(layout, _)| layout.kubeconfig()));
        match file {
            Some(file) => Ok(Where::Running(crate::client::from_file(&file, "tether-scenario").await?, embedded)),
            None => Ok(Where::Own { node_grace: self.node_grace, keep: self.keep }),
        }
    }

    /// A report that cannot be written is no reason to find out in ten minutes.
    fn check_report(&self) -> Result<()> {
        let Some(file) = &self.report else { return Ok(()) };
        std::fs::write(file, "[]\n").with_context(|| format!("--report {}", file.display()))
    }

    /// Says what is done.
    fn say(&self, words: &str) {
        match self.output {
            Format::Table | Format::Wide => output::say(&format!("{words}\n")),
            Format::Json | Format::Yaml => output::complain(words),
        }
    }

    /// Prints the table and keeps the report.
    fn conclude(&self, verdicts: &[report::Verdict], again: impl Fn(&str) -> String) -> Result<Exit> {
        output::print(self.output, &verdicts, |verdicts| report::table(verdicts))?;
        if let Some(file) = &self.report {
            let text = serde_json::to_string_pretty(verdicts)?;
            std::fs::write(file, text).with_context(|| format!("--report {}", file.display()))?;
        }
        for verdict in verdicts.iter().filter(|verdict| verdict.word() == "FAILED") {
            output::complain(&format!("again: {}", again(&verdict.id)));
        }
        match report::shown(verdicts) {
            Ok(()) => Ok(Exit::Success),
            Err(why) => {
                output::complain(&why);
                Ok(Exit::Failure)
            }
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<Exit> {
    match &args.action {
        Action::List { output } => list(*output),
        Action::Run { scenarios, plant_wrong_byte, place } => {
            let chosen = choose(scenarios)?;
            place.check_report()?;
            let say = |words: &str| place.say(words);
            let run = async { scenario::run(place.open().await?, &chosen, *plant_wrong_byte, &say).await };
            let verdicts = role::runtime(Threads::Many)?.block_on(run)?;
            place.conclude(&verdicts, |id| format!("tether scenario run {id} --keep"))
        }
        Action::Random { seeds, first_seed, place } => {
            place.check_report()?;
            let seeds = *first_seed..first_seed.saturating_add(*seeds);
            let say = |words: &str| place.say(words);
            let run = async { scenario::random(place.open().await?, seeds, &say).await };
            let verdicts = role::runtime(Threads::Many)?.block_on(run)?;
            place.conclude(&verdicts, |id| format!("tether scenario random --first-seed {id} --seeds 1 --keep"))
        }
    }
}

fn choose(ids: &[String]) -> Result<Vec<&'static Scenario>> {
    if ids.iter().any(|id| id == "all") {
        return Ok(ALL.iter().collect());
    }
    let find = |id: &String| ALL.iter().find(|scenario| scenario.id == id);
    let mut chosen = Vec::new();
    for id in ids {
        let Some(scenario) = find(id) else {
            let known: Vec<_> = ALL.iter().map(|scenario| scenario.id).collect();
            bail!("there is no scenario {id:?}; there are: {}", known.join(", "));
        };
        chosen.push(scenario);
    }
    Ok(chosen)
}

fn list(format: Format) -> Result<Exit> {
    let ends = |scenario: &Scenario| scenario.outcomes.iter().map(|outcome| outcome.name).collect::<Vec<_>>();
    let all: Vec<_> = ALL
        .iter()
        .map(|scenario| json!({"id": scenario.id, "title": scenario.title, "ends": ends(scenario)}))
        .collect();
    output::print(format, &all, |_| {
        let mut rows = vec![["SCENARIO", "ACCEPTED ENDS", "WHAT"].map(str::to_owned).to_vec()];
        for scenario in ALL {
            rows.push(vec![scenario.id.to_owned(), ends(scenario).join(" | "), scenario.title.to_owned()]);
        }
        output::columns(&rows)
    })?;
    Ok(Exit::Success)
}
