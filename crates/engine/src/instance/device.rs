//! The kernel device of an engine: announced before the engine takes the volume, taken after it, attached beside it.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, mpsc};
use std::thread;

use tether_replication::ids::Holder;
use tether_replication::record::Record;

use crate::device::fuse::abi;
use crate::device::link::{Link, Shape};
use crate::device::place::{DEVICES, Name, Place};
use crate::engine_server::{Command, DEVICE_BLOCK_BYTES, DeviceFd, EngineServer};
use crate::record::Witness;
use crate::ring::Remote;

/// Where holders of devices are reached; gone after a reboot, as the devices are.
const RUN: &str = "/run/tether/devices";

/// Where devices are unless told otherwise.
pub fn default_place() -> Place {
    Place { run: RUN.into(), dev: DEVICES.into() }
}

type Detached = Box<dyn FnOnce(Result<(), String>) + Send>;

enum Order {
    Grown,
    Detach(Detached),
}

/// Sees to the device while the record is changed.
pub(super) struct DeviceWitness {
    place: Place,
    volume: Name,
    holder: Holder,
    remote: Remote<EngineServer>,
    link: Option<Link>,
    orders: Option<Sender<Order>>,
}

impl DeviceWitness {
    pub fn new(place: Place, volume: Name, holder: Holder, remote: Remote<EngineServer>) -> Self {
        Self { place, volume, holder, remote, link: None, orders: None }
    }
}

impl Witness for DeviceWitness {
    fn before_start(&mut self, current: &Record) -> Result<(), String> {
        let mut link = Link::open(&self.place, &self.volume).map_err(|error| error.to_string())?;
        link.intend(&self.holder.to_string(), &current.holder.to_string()).map_err(|error| error.to_string())?;
        self.link = Some(link);
        Ok(())
    }

    fn after_start(&mut self, record: &Record) {
        let Some(link) = self.link.take() else { return };
        let (sender, orders) = channel();
        self.orders = Some(sender);
        let (remote, uid, previous) = (self.remote.clone(), self.holder.to_string(), record.previous.to_string());
        let run = move || attend(link, &remote, &uid, &previous, &orders);
        if let Err(error) = thread::Builder::new().name("device".to_owned()).spawn(run) {
            tracing::error!(%error, "the kernel device is not served");
        }
    }

    fn device_grown(&mut self) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(Order::Grown);
        }
    }

    fn detach_device(&mut self, answer: Detached) {
        match &self.orders {
            Some(orders) => {
                if let Err(mpsc::SendError(Order::Detach(answer))) = orders.send(Order::Detach(answer)) {
                    answer(Err("the thread of the device has ended".to_owned()));
                }
            }
            None => answer(Ok(())),
        }
    }
}

/// Takes the device, has it served and attached, then does what it is told to it.
fn attend(mut link: Link, remote: &Remote<EngineServer>, uid: &str, previous: &str, orders: &Receiver<Order>) {
    let taken = match link.take(uid, previous) {
        Ok(taken) => taken,
        Err(error) => return tracing::error!(%error, "the kernel device cannot be had"),
    };
    let (fuse, resumed) = (Arc::new(taken.fuse), taken.resumed);
    if resumed && let Err(error) = rustix::io::write(&*fuse, &abi::resend()) {
        tracing::error!(%error, "the kernel does not repeat what the last engine left");
    }
    let device = DeviceFd { fuse, max_write: taken.max_write, resumed };
    let (served, is_served) = mpsc::sync_channel(1);
    let asked = remote.ask(
        Command::ServeDevice(device),
        Box::new(move |_| {
            let _ = served.send(());
        }),
    );
    if asked.is_err() || is_served.recv().is_err() {
        return;
    }
    match link.attach(Shape { block: DEVICE_BLOCK_BYTES, read_only: false }) {
        Ok((node, number)) => tracing::info!(node = %node.display(), loop_device = number, resumed, "device attached"),
        Err(error) => tracing::error!(%error, "the device cannot be attached"),
    }
    for order in orders {
        match order {
            Order::Grown => {
                if let Err(error) = link.capacity() {
                    tracing::warn!(%error, "the block device does not know its new size");
                }
            }
            Order::Detach(answer) => return answer(link.detach().map_err(|error| error.to_string())),
        }
    }
}
