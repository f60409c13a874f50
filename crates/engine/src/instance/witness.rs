//! What is done around the start of an engine: its line at this place goes on, its kernel device is handed over.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use tether_replication::ids::Holder;
use tether_replication::record::Record;

use super::device::DeviceWitness;
use super::replica::boot_id;
use crate::engine_server::{Command, EngineServer};
use crate::line::Line;
use crate::record::Witness;
use crate::ring::Remote;

/// How long a predecessor that was killed may take to be gone, and how often that is looked at. One that lives longer is
/// stopped by nobody here: there is no line then, and its lease is waited for.
const ATTEMPTS: u32 = 15;
const PAUSE: Duration = Duration::from_millis(20);

/// The line of engines at this place.
pub(super) struct LineWitness {
    path: PathBuf,
    holder: Holder,
    remote: Remote<EngineServer>,
    line: Option<Line>,
}

impl LineWitness {
    pub fn new(path: PathBuf, holder: Holder, remote: Remote<EngineServer>) -> Self {
        Self { path, holder, remote, line: None }
    }

    fn take(&mut self) {
        for attempt in 0..ATTEMPTS {
            let taken = boot_id().map_err(|error| error.to_string());
            match taken.and_then(|boot| Line::take(&self.path, &boot).map_err(|error| error.to_string())) {
                Ok(Some(line)) => return self.line = Some(line),
                Ok(None) if attempt + 1 < ATTEMPTS => thread::sleep(PAUSE),
                Ok(None) => tracing::info!(path = %self.path.display(), "an older engine of this place lives"),
                Err(error) => {
                    tracing::warn!(error, path = %self.path.display(), "no line of engines is kept");
                    return;
                }
            }
        }
    }

    /// Whatever goes wrong here costs the line, not the start.
    fn kept(&mut self, result: std::io::Result<()>) {
        if let Err(error) = result {
            tracing::warn!(%error, path = %self.path.display(), "the line of engines is given up");
            self.line = None;
        }
    }

    fn tell(&self, name: Option<String>, older_stopped: bool) {
        let _ = self.remote.ask(Command::Line { name, older_stopped }, Box::new(|_| {}));
    }

    fn before_start(&mut self, current: &Record) {
        if let Some(line) = &mut self.line {
            let result = line.intend(&self.holder.to_string(), &current.holder.to_string());
            self.kept(result);
        }
    }

    fn after_start(&mut self, record: &Record) {
        let uid = self.holder.to_string();
        let followed = self.line.as_mut().map(|line| line.follow(&uid, &record.previous.to_string()));
        match followed {
            Some(Ok(followed)) => self.tell(Some(followed.name), followed.older_stopped),
            Some(Err(error)) => {
                self.kept(Err(error));
                self.tell(None, false);
            }
            None => self.tell(None, false),
        }
    }

    fn stood_by(&mut self) {
        let uid = self.holder.to_string();
        let name = self.line.as_mut().and_then(|line| line.stood_by(&uid).ok());
        self.tell(name, false);
    }

    fn served(&mut self) {
        if let Some(line) = &mut self.line {
            let result = line.served();
            self.kept(result);
        }
    }
}

/// Whoever is there.
pub(super) struct Witnesses {
    pub line: Option<LineWitness>,
    pub device: Option<DeviceWitness>,
}

impl Witness for Witnesses {
    fn begin(&mut self) {
        if let Some(line) = &mut self.line {
            line.take();
        }
    }

    fn before_start(&mut self, current: &Record) -> Result<(), String> {
        if let Some(line) = &mut self.line {
            line.before_start(current);
        }
        self.device.as_mut().map_or(Ok(()), |device| device.before_start(current))
    }

    fn after_start(&mut self, record: &Record) {
        if let Some(line) = &mut self.line {
            line.after_start(record);
        }
        if let Some(device) = &mut self.device {
            device.after_start(record);
        }
    }

    fn stood_by(&mut self, record: &Record) {
        if let Some(line) = &mut self.line {
            line.stood_by();
        }
        if let Some(device) = &mut self.device {
            device.stood_by(record);
        }
    }

    fn served(&mut self) {
        if let Some(line) = &mut self.line {
            line.served();
        }
    }

    fn device_grown(&mut self) {
        if let Some(device) = &mut self.device {
            device.device_grown();
        }
    }

    fn detach_device(&mut self, answer: Box<dyn FnOnce(Result<(), String>) + Send>) {
        match &mut self.device {
            Some(device) => device.detach_device(answer),
            None => answer(Ok(())),
        }
    }
}
