//! The kernel device of an engine: announced before the engine takes the volume, taken after it, attached beside it.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tether_replication::ids::Holder;
use tether_replication::record::Record;

use crate::device::fuse::abi;
use crate::device::link::{Link, Shape, TakeError, Taken};
use crate::device::place::{DEVICES, Name, Place, RUN};
use crate::engine_server::{Command, DEVICE_BLOCK_BYTES, DeviceFd, EngineServer};
use crate::ring::Remote;

/// Where devices are unless told otherwise.
pub fn default_place() -> Place {
    Place { run: RUN.into(), dev: DEVICES.into() }
}

/// Pause between attempts to have a device that another engine still has.
const BUSY_PAUSE: Duration = Duration::from_millis(100);

type Detached = Box<dyn FnOnce(Result<(), String>) + Send>;

enum Order {
    Grown,
    DropCache,
    Detach(Detached),
}

/// Sees to the device while the record is changed.
pub(super) struct DeviceWitness {
    place: Place,
    volume: Name,
    holder: Holder,
    remote: Remote<EngineServer>,
    link: Option<Link>,
    /// To the thread that has the device; there from the moment that it may be taken.
    orders: Option<Sender<Order>>,
}

impl DeviceWitness {
    pub fn new(place: Place, volume: Name, holder: Holder, remote: Remote<EngineServer>) -> Self {
        Self { place, volume, holder, remote, link: None, orders: None }
    }

    fn intend(&self, from: Holder) -> Result<Link, String> {
        let mut link = Link::open(&self.place, &self.volume).map_err(|error| error.to_string())?;
        link.intend(&self.holder.to_string(), &from.to_string()).map_err(|error| error.to_string())?;
        Ok(link)
    }

    /// Takes the device, as the engine that follows `previous`.
    fn take(&mut self, link: Link, previous: Holder) {
        let (sender, orders) = channel();
        self.orders = Some(sender);
        let attendant = Attendant {
            place: self.place.clone(),
            volume: self.volume.clone(),
            uid: self.holder.to_string(),
            previous: previous.to_string(),
            remote: self.remote.clone(),
        };
        if let Err(error) = thread::Builder::new().name("device".to_owned()).spawn(move || attendant.run(link, &orders))
        {
            tracing::error!(%error, "the kernel device is not served");
        }
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
    }
}

impl DeviceWitness {
    pub fn before_start(&mut self, current: &Record) -> Result<(), String> {
        if self.orders.is_some() {
            return Ok(());
        }
        let link = self.intend(current.holder);
        if let Err(why) = &link {
            tell(&self.remote, Err(why.clone()));
        }
        self.link = Some(link?);
        Ok(())
    }

    pub fn after_start(&mut self, record: &Record) {
        match self.link.take() {
            Some(link) => self.take(link, record.previous),
            // A standby had it: what was read through the source may be old by now.
            None => self.order(Order::DropCache),
        }
    }

    pub fn stood_by(&mut self, record: &Record) {
        if self.orders.is_some() {
            return;
        }
        match self.intend(record.holder) {
            Ok(link) => self.take(link, record.holder),
            Err(why) => drop(tell(&self.remote, Err(why))),
        }
    }

    pub fn device_grown(&mut self) {
        self.order(Order::Grown);
    }

    pub fn detach_device(&mut self, answer: Detached) {
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

/// Tells the engine where its device is, or why there is none; false if the engine has ended.
fn tell(remote: &Remote<EngineServer>, is: Result<String, String>) -> bool {
    remote.ask(Command::DeviceIs(is), Box::new(|_| {})).is_ok()
}

/// The thread that has the device.
struct Attendant {
    place: Place,
    volume: Name,
    uid: String,
    previous: String,
    remote: Remote<EngineServer>,
}

impl Attendant {
    /// Takes the device, has it served and attached, then does what it is told to it.
    fn run(self, link: Link, orders: &Receiver<Order>) {
        let mut link = match self.serve(link) {
            Ok(Some(link)) => link,
            Ok(None) => return,
            Err(why) => {
                tracing::error!(why, "there is no kernel device");
                tell(&self.remote, Err(why));
                return;
            }
        };
        for order in orders {
            match order {
                Order::Grown => {
                    if let Err(error) = link.capacity() {
                        tracing::warn!(%error, "the block device does not know its new size");
                    }
                }
                Order::DropCache => {
                    if let Err(error) = link.drop_cache() {
                        tracing::warn!(%error, "the kernel keeps what it cached before the promotion");
                    }
                }
                Order::Detach(answer) => return answer(link.detach().map_err(|error| error.to_string())),
            }
        }
    }

    /// None if the engine ended meanwhile.
    fn serve(&self, link: Link) -> Result<Option<Link>, String> {
        let Some((mut link, taken)) = self.take(link)? else { return Ok(None) };
        let (fuse, resumed) = (Arc::new(taken.fuse), taken.resumed);
        if resumed && let Err(error) = rustix::io::write(&*fuse, &abi::resend()) {
            tracing::error!(%error, "the kernel does not repeat what the last engine left");
        }
        let device = DeviceFd { fuse, max_write: taken.max_write, resumed };
        let (served, is_served) = mpsc::sync_channel(1);
        let answer = Box::new(move |_| {
            let _ = served.send(());
        });
        if self.remote.ask(Command::ServeDevice(device), answer).is_err() || is_served.recv().is_err() {
            return Ok(None);
        }
        let shape = Shape { block: DEVICE_BLOCK_BYTES, read_only: false };
        let (node, number) = link.attach(shape).map_err(|error| format!("the device cannot be attached: {error}"))?;
        tracing::info!(node = %node.display(), loop_device = number, resumed, "device attached");
        tell(&self.remote, Ok(node.display().to_string()));
        Ok(Some(link))
    }

    /// Waits for an engine that is on its way out; gives up a device that may not go on, and makes another.
    fn take(&self, mut link: Link) -> Result<Option<(Link, Taken)>, String> {
        loop {
            match link.take(&self.uid, &self.previous) {
                Ok(taken) => return Ok(Some((link, taken))),
                Err(error @ TakeError::Busy { .. }) => {
                    if !tell(&self.remote, Err(error.to_string())) {
                        return Ok(None);
                    }
                    thread::sleep(BUSY_PAUSE);
                }
                Err(error @ TakeError::Broken { .. }) => {
                    tracing::warn!(%error, "the old device is over; a new one is made");
                    link.retire().map_err(|error| error.to_string())?;
                    link = Link::open(&self.place, &self.volume).map_err(|error| error.to_string())?;
                }
                Err(error @ TakeError::Call(_)) => return Err(error.to_string()),
            }
        }
    }
}
