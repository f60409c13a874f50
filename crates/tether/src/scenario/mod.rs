//! Scenarios: live migration under every failure, performed on a real cluster while a guest checks every byte.
//!
//! ```text
//!   catalog (what is done, which ends are accepted)
//!      │                       ┌─ guest: writes and reads through NBD, where the volume is
//!      ▼                       │
//!   perform ──► lab (cluster: attachments, crashes, power) ──► watch (every version of every object)
//!      │                                                          │
//!      └───────────────► check: node ids, names and uids, events, history, data ◄──┘
//! ```

pub(crate) mod catalog;
mod check;
mod guest;
mod lab;
mod marks;
mod nbd;
mod outcome;
mod perform;
mod random;
pub(crate) mod report;
mod watch;

use anyhow::{Result, bail};
use jiff::SignedDuration;

use self::catalog::Scenario;
use self::lab::Lab;
use self::report::Verdict;
use crate::cluster::{Layout, Marker};

/// On which cluster.
pub(crate) enum Where {
    /// One that is started for it; nodes that are silent for so long count as down.
    Own { node_grace: SignedDuration, keep: bool },
    /// One that runs; `Some` if it is one of `tether up`.
    Running(kube::Client, Option<(Layout, Marker)>),
}

async fn open(place: Where) -> Result<(Lab, bool)> {
    Ok(match place {
        Where::Own { node_grace, keep } => (Lab::start(node_grace).await?, keep),
        Where::Running(client, embedded) => (Lab::attach(client, embedded).await?, true),
    })
}

async fn close(lab: Lab, keep: bool, say: &dyn Fn(&str)) -> Result<()> {
    match lab.data_dir() {
        Some(dir) if keep => {
            let dir = dir.display();
            say(&format!(
                "the cluster is left running: `tether status --data-dir {dir}`, `tether down --data-dir {dir}`"
            ));
            Ok(())
        }
        _ => lab.stop().await,
    }
}

/// Does all of it, unless somebody interrupts; in either case the cluster is left as it should be.
async fn on(place: Where, say: &dyn Fn(&str), work: impl AsyncFnOnce(&Lab) -> Vec<Verdict>) -> Result<Vec<Verdict>> {
    let (lab, keep) = open(place).await?;
    let done = tokio::select! {
        verdicts = work(&lab) => Some(verdicts),
        _ = tokio::signal::ctrl_c() => None,
    };
    close(lab, keep, say).await?;
    let Some(verdicts) = done else { bail!("interrupted") };
    Ok(verdicts)
}

/// What came of something that could not even be performed.
fn unperformed(verdict: Verdict, result: Result<Verdict>) -> Verdict {
    result.unwrap_or_else(|error| Verdict { problems: vec![format!("{error:#}")], ..verdict })
}

/// Performs scenarios one after the other on one cluster.
pub(crate) async fn run(
    place: Where,
    scenarios: &[&Scenario],
    plant: bool,
    say: &dyn Fn(&str),
) -> Result<Vec<Verdict>> {
    on(place, say, async |lab| {
        let mut verdicts = Vec::new();
        for scenario in scenarios {
            if scenario.needs_power() && !lab.has_power() {
                let why = "its faults need a cluster of `tether up`; give its --data-dir";
                verdicts.push(Verdict { skipped: Some(why.to_owned()), ..Verdict::new(scenario) });
                continue;
            }
            say(&format!("{} {}", scenario.id, scenario.title));
            let step = |words: &str| say(&format!("  {}: {words}", scenario.id));
            let performed = perform::perform(lab, scenario, plant, &step).await;
            let verdict = unperformed(Verdict::new(scenario), performed);
            say(&format!("{} {} in {:.1} s", scenario.id, verdict.word(), verdict.seconds));
            verdicts.push(verdict);
        }
        verdicts
    })
    .await
}

/// Performs random schedules, a seed each.
pub(crate) async fn random(place: Where, seeds: std::ops::Range<u64>, say: &dyn Fn(&str)) -> Result<Vec<Verdict>> {
    on(place, say, async |lab| {
        let mut verdicts = Vec::new();
        for seed in seeds {
            say(&format!("seed {seed}"));
            let step = |words: &str| say(&format!("  {seed}: {words}"));
            let performed = random::perform(lab, seed, &step).await;
            let verdict = unperformed(Verdict { id: seed.to_string(), ..Verdict::default() }, performed);
            say(&format!("seed {seed} {} in {:.1} s", verdict.word(), verdict.seconds));
            verdicts.push(verdict);
        }
        verdicts
    })
    .await
}
