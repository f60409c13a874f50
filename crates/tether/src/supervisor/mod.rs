//! Keeps the processes of a cluster running: starts them, restarts what crashes, stops them in order.
//!
//! ```text
//!   children (one task each) ──events──► State::apply ──effects──► status file, node conditions, messages
//!          ▲                                                │
//!          └────────────── stop: nodes and controllers, then the API server ◄── signal
//! ```

mod backoff;
mod child;
mod conditions;
mod log_file;
mod state;

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use child::Program;
pub(crate) use log_file::LogFile;

use crate::cluster::{Layout, Marker, Phase, Status};
use child::{Child, Stop};
use state::{Effect, State};

/// From the first process to the last one being ready. It takes a second or two; a slow disk or a debug build, more.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Events that wait to be looked at; a child sends a handful in its life.
const EVENTS: usize = 256;
/// Lines of a log that are shown when its process cannot be started.
const TAIL_LINES: usize = 12;

/// The name of the component that all others talk to.
pub(crate) const APISERVER: &str = "apiserver";

/// A cluster whose processes run.
pub(crate) struct Supervisor {
    layout: Layout,
    state: State,
    events: mpsc::Receiver<(usize, child::Event)>,
    sender: mpsc::Sender<(usize, child::Event)>,
    children: JoinSet<()>,
    programs: Vec<Program>,
    server_stop: Stop,
    workers_stop: Stop,
    mark: String,
}

impl Supervisor {
    /// A supervisor of `programs`, none of which runs yet. The API server is the first.
    pub(crate) fn new(layout: Layout, marker: &Marker, programs: Vec<Program>) -> Self {
        let (sender, events) = mpsc::channel(EVENTS);
        let names = programs.iter().map(|program| program.name.clone());
        Self {
            state: State::new(Status::new(names, Timestamp::now())),
            mark: layout.process_mark(marker),
            layout,
            events,
            sender,
            children: JoinSet::new(),
            programs,
            server_stop: Stop::default(),
            workers_stop: Stop::default(),
        }
    }

    /// Starts the API server, then everything else, and returns when all of it is ready.
    pub(crate) async fn start(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        self.launch(0);
        self.until(deadline, |state| state.is_ready(0)).await?;
        for index in 1..self.programs.len() {
            self.launch(index);
        }
        self.until(deadline, State::all_ready).await?;
        self.state.set_phase(Phase::Ready);
        self.write_status();
        Ok(())
    }

    /// Handles events until `stop`.
    pub(crate) async fn run(&mut self, stop: &CancellationToken) {
        loop {
            tokio::select! {
                Some((index, event)) = self.events.recv() => self.handle(index, event),
                () = stop.cancelled() => return,
            }
        }
    }

    /// Stops everything, in order; `force` stops it at once. What workers started and left running is ended by `rest`,
    /// while there still is an API server that it can tell.
    pub(crate) async fn stop(mut self, force: &CancellationToken, rest: impl FnOnce() + Send + 'static) {
        let mut rest = Some(rest);
        self.state.set_phase(Phase::Stopping);
        self.write_status();
        let stops = [(1, self.workers_stop.clone()), (0, self.server_stop.clone())];
        for (first, stop) in stops {
            if first == 0
                && !force.is_cancelled()
                && let Some(rest) = rest.take()
            {
                let _ = tokio::task::spawn_blocking(rest).await;
            }
            stop.gently.cancel();
            loop {
                if self.state.all_stopped_from(first) {
                    break;
                }
                tokio::select! {
                    Some((index, event)) = self.events.recv() => self.handle(index, event),
                    () = force.cancelled(), if !stop.at_once.is_cancelled() => {
                        self.workers_stop.at_once.cancel();
                        self.server_stop.at_once.cancel();
                        self.server_stop.gently.cancel();
                    }
                }
            }
        }
        while self.children.join_next().await.is_some() {}
    }

    fn launch(&mut self, index: usize) {
        let stop = if index == 0 { &self.server_stop } else { &self.workers_stop };
        let child = Child {
            index,
            program: self.programs[index].clone(),
            mark: self.mark.clone(),
            events: self.sender.clone(),
            stop: stop.clone(),
        };
        self.children.spawn(child.run());
    }

    /// Handles events until `done`; fails when the API server ends or time runs out.
    async fn until(&mut self, deadline: Instant, done: impl Fn(&State) -> bool) -> Result<()> {
        while !done(&self.state) {
            let Ok(event) = tokio::time::timeout_at(deadline, self.events.recv()).await else {
                let late = self.state.not_ready();
                let logs = self.layout.logs();
                bail!("not ready after {START_LIMIT:?}: {}; see the logs in {}", late.join(", "), logs.display());
            };
            let (index, event) = event.context("every process has ended")?;
            if index == 0
                && let child::Event::Exited { how, .. } = &event
            {
                let tail = LogFile::tail(&self.programs[0].log, TAIL_LINES);
                bail!("the API server could not be started: {how}\n{tail}");
            }
            self.handle(index, event);
        }
        Ok(())
    }

    fn handle(&mut self, index: usize, event: child::Event) {
        for effect in self.state.apply(index, event, Timestamp::now()) {
            match effect {
                Effect::WriteStatus => self.write_status(),
                Effect::Say(text) => tracing::warn!("{text}"),
                Effect::NodeAgentDown { node, message } => {
                    let kubeconfig = self.layout.kubeconfig();
                    self.children.spawn(conditions::agent_down(kubeconfig, node, message));
                }
            }
        }
    }

    fn write_status(&self) {
        if let Err(error) = self.state.status().write(&self.layout) {
            tracing::warn!(%error, "cannot write the status file");
        }
    }
}
