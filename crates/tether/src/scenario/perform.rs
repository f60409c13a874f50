//! One scenario, from its volume to the verdict.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use jiff::Timestamp;
use tether_crd::engine::InstanceState;
use tether_crd::volume::{Robustness, State};

use super::catalog::{Host, Scenario, Step};
use super::check::{self, Baseline, Told};
use super::guest::Guest;
use super::lab::{LIMIT, Lab, until};
use super::outcome::Outcome;
use super::report::{Explained, Verdict};
use super::watch::{Seen, Watch};
use crate::picture::Picture;

/// What the guest must have done before anything happens to it.
const SOME_REQUESTS: u64 = 50;
/// For so long an end must last to be one.
const STAYS: Duration = Duration::from_millis(700);
/// Until all replicas must be back. What was killed or cut off is tried again as soon as it can run.
const HEALS: Duration = Duration::from_secs(60);
/// Between two looks at what was seen.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// For so long nothing must come of a migration whose target is not ready.
const PENDING: Duration = Duration::from_secs(1);
/// For so long an event may be on its way: it is written after what it tells of.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// What a scenario works with.
pub(super) struct Stage<'a> {
    pub(super) lab: &'a Lab,
    pub(super) claim: String,
    pub(super) volume: String,
    pub(super) watch: Watch,
    pub(super) marked: bool,
    pub(super) snapshot_taken: bool,
    explained: Vec<Explained>,
}

/// Performs a scenario; with `plant`, one byte of the guest's is made wrong in the end. Fails only if it cannot be performed; that it ended wrongly is a verdict.
pub(super) async fn perform(lab: &Lab, scenario: &Scenario, plant: bool, say: &dyn Fn(&str)) -> Result<Verdict> {
    let began = Instant::now();
    let mut stage = Stage::new(lab, scenario.id).await?;
    let mut verdict = Verdict::new(scenario);
    let mut guest = None;
    let done = stage.play(scenario, &mut verdict, &mut guest, say).await;
    if let Err(error) = done {
        verdict.problems.push(format!("{error:#}"));
        verdict.explain_end(stage.explain("the end").await);
    }
    if let Some(guest) = guest {
        let told = tokio::task::spawn_blocking(move || guest.finish(plant)).await?;
        verdict.guest(&told);
    }
    stage.watch.look(|seen| {
        verdict.problems.extend(check::strays(seen, lab));
        verdict.versions = seen.versions;
        verdict.places.clone_from(&seen.places);
    });
    verdict.explained = std::mem::take(&mut stage.explained);
    verdict.seconds = began.elapsed().as_secs_f64();
    stage.clean(verdict.problems.is_empty()).await;
    Ok(verdict)
}

impl<'a> Stage<'a> {
    /// A volume that can move, not attached yet.
    pub(super) async fn new(lab: &'a Lab, id: &str) -> Result<Self> {
        let stamp = Timestamp::now().as_millisecond();
        let claim = format!("scenario-{}-{stamp}", id.replace('.', "-"));
        let volume = lab.claim(&claim).await?;
        let watch = Watch::start(&lab.client, &volume);
        Ok(Self { lab, claim, volume, watch, marked: false, snapshot_taken: false, explained: Vec::new() })
    }

    /// Deletes what it made; what went wrong stays to be looked at.
    pub(super) async fn clean(&self, went_well: bool) {
        for number in 1..=3 {
            let _ = self.lab.unpublish(&self.attachment(number)).await;
        }
        if went_well {
            self.lab.release(&self.claim).await;
        }
    }

    fn attachment(&self, number: u8) -> String {
        format!("{}-va-{number}", self.claim)
    }

    async fn play(
        &mut self,
        scenario: &Scenario,
        verdict: &mut Verdict,
        guest: &mut Option<Guest>,
        say: &dyn Fn(&str),
    ) -> Result<()> {
        for step in scenario.before {
            self.step(*step, say).await?;
            if guest.is_none() {
                // It works from the moment on that the volume is attached.
                let started = guest.insert(Guest::start(self.watch.clone()));
                let works = || started.acknowledged() >= SOME_REQUESTS;
                self.until("the guest works", |_| works().then_some(())).await?;
            }
        }
        self.watch.begin();
        let before = self.watch.look(Baseline::of);
        let log_from = self.lab.log_len();
        for step in scenario.steps {
            self.step(*step, say).await?;
        }
        let outcome = self.settle(scenario, &before).await?;
        outcome.name.clone_into(&mut verdict.outcome);
        say(&format!("ended: {}", outcome.name));
        self.explained.extend(self.explain(&format!("it ended: {}", outcome.name)).await);
        verdict.problems.extend(self.untold(log_from, |told| told.differs(self.lab, outcome)).await?);
        for step in scenario.mend {
            self.step(*step, say).await?;
        }
        self.complete(scenario.end).await?;
        let kept = |seen: &Seen| check::kept(seen, &before, outcome, false).is_ok().then_some(());
        let what = format!("engine and replicas are those of {:?} in the end", outcome.name);
        self.until(&what, kept).await?;
        self.serves_again(guest.as_ref()).await?;
        let unhealed = "nobody was told that the volume is healthy again".to_owned();
        let recovery = |told: &Told| if told.is_recovery_told(outcome) { Vec::new() } else { vec![unhealed.clone()] };
        verdict.problems.extend(self.untold(log_from, recovery).await?);
        self.check_mark().await?;
        self.check_snapshot().await
    }

    /// What is wrong with what was told. People are told after something is the case: it is asked again until nothing is
    /// wrong, for a while.
    async fn untold(&self, log_from: Option<u64>, wrong: impl Fn(&Told) -> Vec<String>) -> Result<Vec<String>> {
        let deadline = Instant::now() + TOLD_WITHIN;
        loop {
            let found = wrong(&self.told(log_from).await?);
            if found.is_empty() || Instant::now() > deadline {
                return Ok(found);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// What was told of the volume; logged, from there on.
    async fn told(&self, log_from: Option<u64>) -> Result<Told> {
        let log = log_from.map(|from| self.lab.logged(&self.volume, from)).transpose()?;
        Ok(Told { events: self.lab.events(&self.volume).await?, log })
    }

    /// The volume is where it belongs, with all replicas.
    pub(super) async fn complete(&self, end: Host) -> Result<()> {
        let node = self.lab.node(end);
        let what = format!("the volume is healthy on {node}");
        self.within(HEALS, &what, |seen| {
            let volume = seen.volume.as_ref()?;
            let is_there = volume.status.current_node_id == node && volume.status.state == State::Attached;
            (is_there && volume.status.robustness == Robustness::Healthy).then_some(())
        })
        .await
    }

    pub(super) async fn serves_again(&self, guest: Option<&Guest>) -> Result<()> {
        let Some(guest) = guest else { return Ok(()) };
        let wanted = guest.acknowledged() + SOME_REQUESTS;
        self.until("the guest works in the end", |_| (guest.acknowledged() >= wanted).then_some(())).await
    }

    /// Waits until what is seen is an end, and stays one.
    async fn settle(&self, scenario: &Scenario, before: &Baseline) -> Result<&'static Outcome> {
        let deadline = Instant::now() + LIMIT;
        let mut since: Option<(&str, Instant)> = None;
        loop {
            let reached = self.watch.look(|seen| {
                scenario.outcomes.iter().find(|o| check::differences(seen, self.lab, before, o).is_empty())
            });
            match (reached, since) {
                (Some(outcome), Some((name, at))) if name == outcome.name => {
                    if at.elapsed() > STAYS {
                        return Ok(outcome);
                    }
                }
                (Some(outcome), _) => since = Some((outcome.name, Instant::now())),
                (None, _) => since = None,
            }
            if Instant::now() > deadline {
                let why = self.watch.look(|seen| {
                    let why = |o: &Outcome| {
                        format!("{}: {}", o.name, check::differences(seen, self.lab, before, o).join(", "))
                    };
                    scenario.outcomes.iter().map(why).collect::<Vec<_>>().join("; or ")
                });
                bail!("no accepted end within {LIMIT:?}: {why}");
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    pub(super) async fn until<T>(&self, what: &str, look: impl Fn(&Seen) -> Option<T>) -> Result<T> {
        self.within(LIMIT, what, look).await
    }

    async fn within<T>(&self, limit: Duration, what: &str, look: impl Fn(&Seen) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(found) = self.watch.look(&look) {
                return Ok(found);
            }
            if Instant::now() > deadline {
                bail!("not within {limit:?}: {what}");
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// What `tether explain` says now.
    async fn explain(&self, after: &str) -> Option<Explained> {
        let picture = Picture::load(&self.lab.client, &self.volume).await.ok()??;
        Some(Explained { after: after.to_owned(), text: picture.explain(Timestamp::now()).to_string() })
    }

    pub(super) async fn step(&mut self, step: Step, say: &dyn Fn(&str)) -> Result<()> {
        let words = self.words(step);
        if !words.is_empty() {
            say(&words);
        }
        self.act(step).await.with_context(|| words.clone())?;
        if !words.is_empty() {
            self.explained.extend(self.explain(&words).await);
        }
        Ok(())
    }

    fn words(&self, step: Step) -> String {
        let node = |host: Host| self.lab.node(host);
        match step {
            Step::Attach => format!("attach to {}", node(Host::O)),
            Step::Start => format!("start the migration to {}, wait until it is ready", node(Host::N)),
            Step::Ask => format!("ask for {} too", node(Host::N)),
            Step::AwaitPending => "nothing comes of it".to_owned(),
            Step::AwaitReady => "the migration gets ready".to_owned(),
            Step::AskThird => format!("ask for {} too", node(Host::T)),
            Step::DropThird => "take that back".to_owned(),
            Step::Crash(host) => format!("crash the instance manager of {}", node(host)),
            Step::AwaitFaulted => "the engine is seen to be dead".to_owned(),
            Step::Confirm => "confirm".to_owned(),
            Step::RollBack => "roll back".to_owned(),
            Step::Cordon(host) => format!("cordon {}", node(host)),
            Step::Uncordon(host) => format!("uncordon {}", node(host)),
            Step::AwaitDegraded => "the volume is degraded".to_owned(),
            Step::Down(host) => format!("switch {} off", node(host)),
            Step::AwaitDown(host) => format!("{} is seen to be down", node(host)),
            Step::Up(host) => format!("switch {} on", node(host)),
            Step::WriteOnTarget => format!("write on {}", node(Host::N)),
            Step::Snapshot => "take a snapshot".to_owned(),
            Step::CrashControllers => "kill the controllers".to_owned(),
            Step::AwaitConfirming => "the confirmation has begun".to_owned(),
            Step::Pause(_) | Step::AwaitConfirmed | Step::AwaitRolledBack => String::new(),
        }
    }

    async fn act(&mut self, step: Step) -> Result<()> {
        let lab = self.lab;
        match step {
            Step::Attach => self.attach().await,
            Step::Start => {
                lab.publish(&self.attachment(2), &self.volume, Host::N).await?;
                self.ready().await
            }
            Step::Ask => lab.publish(&self.attachment(2), &self.volume, Host::N).await,
            Step::AwaitPending => self.stays_pending().await,
            Step::AwaitReady => self.ready().await,
            Step::AskThird => self.ask_third().await,
            Step::DropThird => lab.unpublish(&self.attachment(3)).await,
            Step::Crash(host) => lab.crash(host).await,
            Step::AwaitFaulted => self.robustness(Robustness::Faulted).await,
            Step::Pause(millis) => {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                Ok(())
            }
            Step::Confirm => lab.unpublish(&self.attachment(1)).await,
            Step::AwaitConfirmed => {
                let node = lab.node(Host::N);
                self.until("the confirmation is decided", |seen| {
                    let volume = seen.volume.as_ref()?;
                    (volume.spec.node_id == node && volume.status.current_node_id == node).then_some(())
                })
                .await
            }
            Step::RollBack => lab.unpublish(&self.attachment(2)).await,
            Step::AwaitRolledBack => {
                let what = "the rollback is decided";
                self.until(what, |seen| seen.volume.as_ref()?.spec.migration_node_id.is_empty().then_some(())).await
            }
            Step::Cordon(host) => lab.cordon(host, true).await,
            Step::Uncordon(host) => lab.cordon(host, false).await,
            Step::AwaitDegraded => self.robustness(Robustness::Degraded).await,
            Step::Down(host) => lab.down(host).await,
            Step::AwaitDown(host) => self.seen_down(host).await,
            Step::Up(host) => lab.up(host),
            Step::WriteOnTarget => self.write_on_target().await,
            Step::Snapshot => self.take_snapshot().await,
            Step::CrashControllers => lab.kill_controller(),
            Step::AwaitConfirming => {
                let node = lab.node(Host::N);
                let begun = |seen: &Seen| (seen.volume.as_ref()?.spec.node_id == node).then_some(());
                self.until("the confirmation begins", begun).await
            }
        }
    }

    pub(super) async fn attach(&self) -> Result<()> {
        self.lab.publish(&self.attachment(1), &self.volume, Host::O).await?;
        self.published(1).await?;
        self.complete(Host::O).await
    }

    pub(super) async fn published(&self, number: u8) -> Result<()> {
        let name = self.attachment(number);
        let what = format!("VolumeAttachment {name} says that it is attached");
        until(&what, async || Ok(self.lab.published(&name).await?.0.then_some(()))).await
    }

    /// Both engines are there, both nodes are told, Kubernetes is told.
    pub(super) async fn ready(&self) -> Result<()> {
        let (old, new) = (self.lab.node(Host::O), self.lab.node(Host::N));
        self.until("the migration is ready", |seen| {
            let volume = seen.volume.as_ref()?;
            let place = super::watch::Place::of(volume);
            let ids = (place.node.as_str(), place.current.as_str()) == (old, old)
                && (place.migration.as_str(), place.current_migration.as_str()) == (new, new);
            let serves = |node: &str| {
                let mut engines = seen.engines.values();
                engines.any(|engine| engine.is_available_on(node) && !engine.status.endpoint.is_empty())
            };
            let twins = seen.replicas.values().filter(|r| !r.spec.active && r.spec.failed_at.is_empty());
            let mut told = seen.attachment.as_ref().map(check::wishes)?;
            told.sort();
            let mut wanted = vec![
                (old.to_owned(), true, String::new()),
                (new.to_owned(), true, "The migrating attachment ticket is satisfied".to_owned()),
            ];
            wanted.sort();
            let run = twins.clone().all(|twin| twin.status.current_state == InstanceState::Running);
            (ids && serves(old) && serves(new) && run && twins.count() > 0 && told == wanted).then_some(())
        })
        .await?;
        self.published(2).await
    }

    async fn stays_pending(&self) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < PENDING {
            let target = self.watch.look(|seen| seen.volume.as_ref().map(|v| v.spec.migration_node_id.clone()));
            if target.as_deref() != Some("") {
                bail!("the migration began although its target is down");
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }

    async fn ask_third(&self) -> Result<()> {
        let name = self.attachment(3);
        self.lab.publish(&name, &self.volume, Host::T).await?;
        let refused = async || {
            let (attached, error) = self.lab.published(&name).await?;
            if attached {
                bail!("the volume is attached to a third node");
            }
            Ok(Some(error).filter(|error| !error.is_empty()))
        };
        let error = until("the third attachment is refused", refused).await?;
        let words = format!("cannot have more than 2 CSI tickets for migratable volume {}", self.volume);
        if !error.contains(&words) {
            bail!("it was refused with other words than {words:?}: {error}");
        }
        for number in [1, 2] {
            self.published(number).await?;
        }
        Ok(())
    }

    async fn robustness(&self, wanted: Robustness) -> Result<()> {
        let what = format!("the volume is {wanted}");
        // It may last for a moment only.
        self.until(&what, |seen| seen.places.iter().any(|place| place.robustness == wanted).then_some(())).await
    }

    async fn seen_down(&self, host: Host) -> Result<()> {
        let what = format!("{} is down", self.lab.node(host));
        until(&what, async || {
            let node = self.lab.storage_node(host).await?;
            Ok(node.is_none_or(|node| node.is_down()).then_some(()))
        })
        .await
    }
}
