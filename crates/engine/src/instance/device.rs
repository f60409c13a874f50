//! The kernel device of an engine: announced before the engine takes the volume, taken after it, attached beside it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tether_replication::ids::Holder;
use tether_replication::record::Record;

use crate::device::fuse::abi;
use crate::device::link::{Handle, Link, Shape, TakeError, Taken};
use crate::device::place::{DEVICES, Name, Place, RUN};
use crate::engine_server::{Command, DEVICE_BLOCK_BYTES, DeviceFd, EngineServer};
use crate::ring::Remote;

/// Where devices are unless told otherwise.
pub fn default_place() -> Place {
    Place { run: RUN.into(), dev: DEVICES.into() }
}

/// Pause between attempts to have a device that another engine still has.
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// Pause before a device that could not be attached is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

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
    wire: Arc<Wire>,
}

/// The connection that the thread of the device speaks through at the moment.
///
/// A call may wait for the device, and that for the engine that is to serve it. If the engine ends meanwhile, the call must
/// not go on waiting: for the holder the engine would live, and none that comes after it could have the device.
#[derive(Default)]
struct Wire(Mutex<State>);

#[derive(Default)]
enum State {
    #[default]
    Idle,
    Open(Handle),
    /// The engine has ended.
    Over,
}

impl Wire {
    /// The thread speaks through `link` from now on; false if the engine has ended.
    fn open(&self, link: &Link) -> Result<bool, String> {
        let handle = link.handle().map_err(|error| error.to_string())?;
        let mut state = self.0.lock();
        if matches!(*state, State::Over) {
            return Ok(false);
        }
        *state = State::Open(handle);
        Ok(true)
    }

    /// The connection is of no use any more.
    fn close(&self) {
        let mut state = self.0.lock();
        if let State::Open(handle) = &*state {
            handle.hang_up();
            *state = State::Idle;
        }
    }

    /// The engine has ended.
    fn end(&self) {
        if let State::Open(handle) = std::mem::replace(&mut *self.0.lock(), State::Over) {
            handle.hang_up();
        }
    }
}

impl Drop for DeviceWitness {
    fn drop(&mut self) {
        self.wire.end();
    }
}

impl DeviceWitness {
    pub fn new(place: Place, volume: Name, holder: Holder, remote: Remote<EngineServer>) -> Self {
        Self { place, volume, holder, remote, link: None, orders: None, wire: Arc::default() }
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
            wire: self.wire.clone(),
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
    wire: Arc<Wire>,
}

impl Attendant {
    /// Takes the device, has it served and attached, then does what it is told to it.
    fn run(self, link: Link, orders: &Receiver<Order>) {
        let Some(mut link) = self.attached(link, orders) else { return };
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
                Order::Detach(answer) => match link.detach() {
                    Ok(()) => {
                        self.wire.close();
                        return answer(Ok(()));
                    }
                    // Somebody uses it: it goes on, and may be let go later.
                    Err(error) => answer(Err(error.to_string())),
                },
            }
        }
    }

    /// The device, served and attached. What went wrong is told and tried again for as long as the engine is there: the
    /// holder may have ended, loop devices may have run out, and a volume without its device is of no use to anybody.
    fn attached(&self, link: Link, orders: &Receiver<Order>) -> Option<Link> {
        let mut link = Ok(link);
        loop {
            let why = match link.and_then(|link| self.serve(link)) {
                Ok(served) => return served,
                Err(why) => why,
            };
            self.wire.close();
            tracing::error!(why, "there is no kernel device; trying again");
            if !tell(&self.remote, Err(why)) {
                return None;
            }
            match orders.recv_timeout(RETRY_PAUSE) {
                // Nothing is bound that could be let go.
                Ok(Order::Detach(answer)) => {
                    answer(Ok(()));
                    return None;
                }
                Ok(Order::Grown | Order::DropCache) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
            link = Link::open(&self.place, &self.volume).map_err(|error| error.to_string());
        }
    }

    /// None if the engine ended meanwhile.
    fn serve(&self, link: Link) -> Result<Option<Link>, String> {
        let Some((mut link, taken)) = self.take(link)? else { return Ok(None) };
        if !self.wire.open(&link)? {
            return Ok(None);
        }
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
