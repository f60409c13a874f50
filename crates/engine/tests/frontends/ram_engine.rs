//! An engine process that tests kill: one volume in a named file, a kernel device, perhaps an NBD socket.
//!
//! `ram-engine DIR VOLUME SIZE UID PREVIOUS DELAY-µs`: everything is in DIR. Says `serving` when it has the device and
//! `attached NODE LOOP` when the device is bound.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tether_engine::device::fuse::machine::{Fuse, Geometry};
use tether_engine::device::link::{Link, Shape};
use tether_engine::device::place::{Name, Place};
use tether_engine::frontend::nbd::export::Volume;

use crate::host::{DEVICE, Device, Host, Order, resend};
use crate::ram::Ram;
use crate::say;

pub const BLOCK_BYTES: u32 = 512;

/// Where the devices of the tests in `dir` are.
pub fn place(dir: &Path) -> Place {
    Place { run: dir.join("run"), dev: dir.join("dev") }
}

pub fn main(args: &[String]) -> ExitCode {
    let [dir, volume, size, uid, previous, delay] = args else { return ExitCode::FAILURE };
    let (dir, size) = (Path::new(dir), size.parse().expect("a size in bytes"));
    let name = Name::new(volume).expect("a name");
    let mut link = match Link::open(&place(dir), &name) {
        Ok(link) => link,
        Err(error) => return refuse(&error.to_string()),
    };
    link.intend(uid, previous).expect("the holder must listen");
    let taken = match link.take(uid, previous) {
        Ok(taken) => taken,
        Err(error) => return refuse(&error.to_string()),
    };
    let ram = Ram::named(&dir.join(volume), size).expect("a file");
    let volume = Volume { name: volume.clone(), size, read_only: false, block: BLOCK_BYTES, lineage: None };
    let (mut host, handle) = Host::new(ram, volume);
    host.delay = Duration::from_micros(delay.parse().expect("a delay"));
    if taken.resumed {
        resend(std::os::fd::AsFd::as_fd(&taken.fuse));
    }
    let geometry = Geometry { size, block: BLOCK_BYTES, read_only: false };
    let machine = Fuse::new(DEVICE, geometry, taken.max_write);
    host.device = Some(Device { fuse: taken.fuse, machine });
    say("serving");
    std::thread::spawn(move || {
        match link.attach(Shape { block: BLOCK_BYTES, read_only: false }) {
            Ok((node, number)) => say(&format!("attached {} {number}", node.display())),
            Err(error) => say(&format!("failed {error}")),
        }
        // Lines of standard input are orders; its end is nothing.
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["resize", size] => {
                    handle.order(Order::Resize(size.parse().expect("a size")));
                    link.capacity().expect("the device must look");
                    say("resized");
                }
                ["fence"] => {
                    handle.order(Order::Fence);
                    say("fenced");
                }
                ["detach"] => {
                    match link.detach() {
                        Ok(()) => say("detached"),
                        Err(error) => say(&format!("failed {error}")),
                    }
                    handle.order(Order::Stop);
                    return;
                }
                _ => say("failed what?"),
            }
        }
        loop {
            std::thread::park();
        }
    });
    host.run();
    ExitCode::SUCCESS
}

fn refuse(why: &str) -> ExitCode {
    say(&format!("failed {why}"));
    ExitCode::FAILURE
}
