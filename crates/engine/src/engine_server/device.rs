//! The kernel device: what the kernel asks goes to the engine like any client's request.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tether_replication::engine::{Event as EngineEvent, IoId, IoResult};
use tether_replication::ids::Time as EngineTime;

use super::EngineServer;
use super::settings::Answer;
use crate::device::fuse::machine::{Fuse, Geometry, Outcome, Reply};
use crate::frontend::block::{ClientId, Completion};
use crate::host::{CommandId, DeviceId, DeviceRead, DeviceSource, Effects, Io, Time};
use crate::record::RecordCall;

/// Requests of the device carry this client's id; connections count from below.
pub(super) const DEVICE: ClientId = ClientId(u32::MAX);
/// Requests read in one turn; connections get their turn in between.
const MAX_READS: usize = 64;
/// Logical block size of the device.
pub(crate) const BLOCK_BYTES: u32 = 512;

/// A device to be served: `/dev/fuse`, and what was agreed on with the kernel.
#[derive(Clone, Debug)]
pub struct DeviceFd {
    pub fuse: Arc<OwnedFd>,
    pub max_write: u32,
    /// A predecessor had it.
    pub resumed: bool,
}

impl PartialEq for DeviceFd {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.fuse, &other.fuse)
    }
}

impl Eq for DeviceFd {}

/// The device that is served.
pub(super) struct Device {
    pub id: DeviceId,
    pub fuse: Fuse,
}

fn reply(id: DeviceId, reply: Reply, io: &mut Io) {
    io.device_reply(id, reply.header, reply.payload);
}

impl EngineServer {
    pub(super) fn serve_device(&mut self, id: CommandId, device: DeviceFd, out: &mut Effects<Self>) {
        let size = self.engine.as_ref().map_or(self.settings.size, tether_replication::engine::Engine::size);
        let geometry = Geometry { size, block: BLOCK_BYTES, read_only: false };
        let begin = if device.resumed { Fuse::new } else { Fuse::fresh };
        let fuse = begin(DEVICE, geometry, device.max_write);
        let opened = out.io.open_device(device.fuse);
        if let Some(old) = self.device.replace(Device { id: opened, fuse }) {
            out.io.close_device(old.id);
        }
        out.answer(id, Answer::Done);
    }

    pub(super) fn device_readable(
        &mut self,
        id: DeviceId,
        source: &mut dyn DeviceSource,
        now: Time,
        out: &mut Effects<Self>,
    ) {
        let (Some(device), Some(engine)) = (&mut self.device, &mut self.engine) else { return };
        if device.id != id {
            return;
        }
        let mut outcome = Outcome::default();
        let mut gone = false;
        for _ in 0..MAX_READS {
            let mut buffer = device.fuse.receive();
            let read = source.read(&mut buffer);
            device.fuse.received(buffer, &mut outcome);
            if read != DeviceRead::Request {
                gone = read == DeviceRead::Gone;
                break;
            }
        }
        for answer in outcome.replies {
            reply(id, answer, &mut out.io);
        }
        for request in outcome.requests {
            let event = EngineEvent::Io { id: request.io, op: request.op };
            engine.apply(event, EngineTime(now.0), &mut self.effects);
        }
        if gone || outcome.destroyed {
            tracing::info!("the kernel device is gone");
            out.io.close_device(id);
            self.device = None;
            self.device_is = Err("the kernel gave the device up".to_owned());
            self.watchers.change();
        }
    }

    pub(super) fn device_complete(&mut self, io: IoId, result: IoResult, out: &mut Effects<Self>) {
        let Some(device) = &mut self.device else { return };
        if let Some(answer) = device.fuse.complete(Completion { io, result }) {
            reply(device.id, answer, &mut out.io);
        }
    }

    pub(super) fn device_resized(&mut self, size: u64, out: &mut Effects<Self>) {
        if let Some(device) = &mut self.device {
            let news = device.fuse.resize(size);
            reply(device.id, news, &mut out.io);
            out.call(RecordCall::DeviceGrown);
        }
    }

    /// A stop waits for the device to be detached; true if there is one.
    pub(super) fn detach_first(&mut self, id: CommandId, out: &mut Effects<Self>) -> bool {
        if self.device.is_none() {
            return false;
        }
        self.control.detaching.push(id);
        if self.control.detaching.len() == 1 {
            out.call(RecordCall::DetachDevice);
        }
        true
    }

    pub(super) fn detached(&mut self, result: Result<(), String>, now: Time, out: &mut Effects<Self>) {
        let waiting = std::mem::take(&mut self.control.detaching);
        match result {
            Ok(()) => {
                if let Some(device) = self.device.take() {
                    out.io.close_device(device.id);
                }
                self.device_is = Ok(None);
                for id in waiting {
                    self.stop(id, now, out);
                }
            }
            Err(why) => {
                for id in waiting {
                    out.answer(id, Answer::Failed(format!("the device cannot be detached: {why}")));
                }
            }
        }
    }
}
