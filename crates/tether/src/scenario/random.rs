//! Random schedules: a migration, faults at random moments, a decision at a random moment, and what must hold whatever happens.
//!
//! No particular end is expected. What is: no acknowledged write is lost and no stale one is read, no two engines count, node ids are
//! those of the two nodes, and once everything is put right and one attachment is left, the volume is there, complete, and serves.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::catalog::{Host, Step};
use super::check;
use super::guest::Guest;
use super::lab::Lab;
use super::perform::Stage;
use super::report::Verdict;

/// Between two things that happen; long enough for some of what follows from the first, not for all.
const LONGEST_PAUSE_MS: u64 = 1500;
/// How long a node is cut off: shorter and longer than it takes to be noticed.
const LONGEST_CUT_MS: u64 = 6000;

/// Random numbers of a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn host(&mut self) -> Host {
        [Host::O, Host::N, Host::T][self.below(3) as usize]
    }
}

/// What may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Crash(Host),
    /// Cut off for so many milliseconds.
    Cut(Host, u64),
    /// Off for so many milliseconds.
    Off(Host, u64),
    KillController,
    WriteOnTarget,
    Confirm,
    RollBack,
}

/// The schedule of a seed: deeds, each after a pause. One of them is a decision.
fn schedule(seed: u64) -> Vec<(u64, Deed)> {
    let mut random = Random(seed);
    let faults = 1 + random.below(3);
    let mut deeds = Vec::new();
    for _ in 0..faults {
        let host = random.host();
        let deed = match random.below(8) {
            0..=2 => Deed::Crash(host),
            3 | 4 => Deed::Cut(host, 200 + random.below(LONGEST_CUT_MS)),
            5 => Deed::Off(host, 500 + random.below(LONGEST_CUT_MS)),
            6 => Deed::KillController,
            _ => Deed::WriteOnTarget,
        };
        deeds.push((random.below(LONGEST_PAUSE_MS), deed));
    }
    let decision = if random.below(2) == 0 { Deed::Confirm } else { Deed::RollBack };
    let at = random.below(faults + 1) as usize;
    let pause = random.below(LONGEST_PAUSE_MS);
    deeds.insert(at, (pause, decision));
    deeds
}

/// Performs the schedule of a seed.
pub(super) async fn perform(lab: &Lab, seed: u64, say: &dyn Fn(&str)) -> Result<Verdict> {
    let began = Instant::now();
    let mut stage = Stage::new(lab, &format!("seed-{seed}")).await?;
    let deeds = schedule(seed);
    let title = deeds.iter().map(|(pause, deed)| format!("{pause} ms, {deed:?}")).collect::<Vec<_>>().join("; ");
    let mut verdict = Verdict { id: seed.to_string(), title, ..Verdict::default() };
    let mut guest = None;
    if let Err(error) = play(&mut stage, &deeds, &mut guest, say).await {
        verdict.problems.push(format!("{error:#}"));
    }
    if let Some(guest) = guest {
        let told = tokio::task::spawn_blocking(|| guest.finish(false)).await?;
        verdict.guest(&told);
    }
    stage.watch.look(|seen| {
        verdict.problems.extend(check::strays(seen, lab));
        verdict.versions = seen.versions;
        verdict.places.clone_from(&seen.places);
    });
    verdict.seconds = began.elapsed().as_secs_f64();
    stage.clean(verdict.problems.is_empty()).await;
    Ok(verdict)
}

async fn play(
    stage: &mut Stage<'_>,
    deeds: &[(u64, Deed)],
    guest: &mut Option<Guest>,
    say: &dyn Fn(&str),
) -> Result<()> {
    let lab = stage.lab;
    stage.step(Step::Attach, say).await?;
    let guest = guest.insert(Guest::start(stage.watch.clone()));
    stage.serves_again(Some(guest)).await?;
    stage.step(Step::Start, say).await?;
    let mut end = Host::O;
    let mut crashed = Vec::new();
    for (pause, deed) in deeds {
        tokio::time::sleep(Duration::from_millis(*pause)).await;
        say(&format!("{deed:?}"));
        match *deed {
            Deed::Crash(host) => {
                crashed.extend(lab.manager(host).await?.map(|uid| (host, uid)));
                // Its pod may be on its way out already.
                drop(lab.crash(host).await);
            }
            Deed::Cut(host, millis) => {
                lab.partition(host, true).await?;
                tokio::time::sleep(Duration::from_millis(millis)).await;
                lab.partition(host, false).await?;
            }
            Deed::Off(host, millis) => {
                lab.down(host).await?;
                tokio::time::sleep(Duration::from_millis(millis)).await;
                lab.up(host)?;
            }
            Deed::KillController => lab.kill_controller()?,
            // Whether it is acknowledged depends on what else happens; only then it must stay.
            Deed::WriteOnTarget => drop(stage.step(Step::WriteOnTarget, &|_| ()).await),
            Deed::Confirm => {
                end = Host::N;
                stage.step(Step::Confirm, &|_| ()).await?;
            }
            Deed::RollBack => stage.step(Step::RollBack, &|_| ()).await?,
        }
    }
    // What was crashed a moment ago may still seem to serve, and to be healthy.
    for (host, uid) in crashed {
        lab.replaced(host, &uid).await?;
    }
    stage.serves_again(Some(guest)).await?;
    stage.complete(end).await?;
    stage.serves_again(Some(guest)).await?;
    stage.check_mark().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_schedule_with_one_decision() {
        for seed in 0..500 {
            let deeds = schedule(seed);
            assert_eq!(deeds, schedule(seed));
            let decisions = deeds.iter().filter(|(_, deed)| matches!(deed, Deed::Confirm | Deed::RollBack));
            assert_eq!(decisions.count(), 1, "seed {seed}");
        }
    }
}
