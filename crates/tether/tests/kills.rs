//! Controller, API server, instance managers and agents are killed in the middle of attachments and detachments: every volume
//! ends where its tickets say, and its data is what was last written.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by panicking and tells what it skips")]

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tether_crd::VolumeAttachment;
use tether_testkit::Lab;
use tether_testkit::cluster::{eventually, signal};
use tether_testkit::lab::{NODES, has_devices, ticket};

/// What is killed, in turn.
const VICTIMS: [Victim; 4] = [Victim::Controller, Victim::ApiServer, Victim::InstanceManager, Victim::Agent];
/// An attachment takes less than this; the kill falls somewhere in it, or just after.
const LONGEST_WAIT_MS: u64 = 800;
/// How much of each volume is written and compared.
const KIB: usize = 256;

#[derive(Clone, Copy, Debug)]
enum Victim {
    Controller,
    ApiServer,
    InstanceManager,
    Agent,
}

/// `TETHER_VICTIM` names the one that is killed every time, for those who look for a fault that it leads to.
fn only_victim() -> Option<Victim> {
    let name = std::env::var("TETHER_VICTIM").ok()?;
    let known = VICTIMS.into_iter().find(|victim| format!("{victim:?}").eq_ignore_ascii_case(&name));
    Some(known.unwrap_or_else(|| panic!("TETHER_VICTIM={name}: known are {VICTIMS:?}")))
}

/// Random numbers from a seed: `SplitMix64`.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// A volume, where it is wanted, and what was last written to it.
struct Wanted {
    name: String,
    node: Option<&'static str>,
    sum: Option<String>,
}

struct Round {
    lab: Lab,
    volumes: Vec<Wanted>,
}

impl Round {
    fn new() -> Self {
        let lab = Lab::new(env!("CARGO_BIN_EXE_tether"));
        let names = ["a", "b", "c"];
        let volumes = names.map(|name| Wanted { name: name.to_owned(), node: None, sum: None });
        for volume in &volumes {
            lab.create(&volume.name, 3);
        }
        Self { lab, volumes: volumes.into() }
    }

    /// Changes wishes, kills, and looks at what became of the volumes.
    fn run(&mut self, seed: u64) {
        let mut dice = Dice(seed);
        let victim = only_victim().unwrap_or(VICTIMS[(seed % VICTIMS.len() as u64) as usize]);
        self.write_all();
        for volume in &mut self.volumes {
            let choice = dice.roll(4) as usize;
            let node = NODES.get(choice).copied();
            // From one node to another it goes through the middle: a ticket that moves detaches first.
            volume.node = node;
            let wish = node.map(|node| ticket("t", "longhorn-api", node, "false"));
            self.lab.tickets(&volume.name, &json!({"t": wish}));
        }
        sleep(Duration::from_millis(dice.roll(LONGEST_WAIT_MS)));
        let pid = self.kill(victim, &mut dice);
        eprintln!("seed {seed}: {victim:?} {pid} killed");
        self.settle();
    }

    fn kill(&self, victim: Victim, dice: &mut Dice) -> u32 {
        let component = match victim {
            Victim::Controller => "controller",
            Victim::ApiServer => "apiserver",
            Victim::Agent => NODES[dice.roll(3) as usize],
            Victim::InstanceManager => {
                let all = eventually("instance managers run", || Some(self.managers()).filter(|all| !all.is_empty()));
                let pid = all[dice.roll(all.len() as u64) as usize];
                signal(pid, Signal::KILL);
                return pid;
            }
        };
        let pid = eventually("the victim runs", || self.lab.cluster.pid(component));
        signal(pid, Signal::KILL);
        eventually("the victim is back", || self.lab.cluster.pid(component).filter(|now| *now != pid));
        pid
    }

    /// The processes of instance managers of this cluster.
    fn managers(&self) -> Vec<u32> {
        let mark = self.lab.cluster.dir().display().to_string();
        let is_ours = |pid: &u32| {
            let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let holds = |text: &[u8], word: &str| String::from_utf8_lossy(text).contains(word);
            // The process itself, not the small one that watches over it.
            let args = read("cmdline");
            let mut args = args.split(|byte| *byte == 0).map(String::from_utf8_lossy);
            let is_manager = args.nth(1).is_some_and(|arg| arg == "instance-manager");
            is_manager && holds(&read("environ"), &mark)
        };
        let all = fs::read_dir("/proc").unwrap().flatten();
        let mut pids: Vec<u32> = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        pids.retain(is_ours);
        pids.sort_unstable();
        pids
    }

    /// Waits until every volume is where it is wanted, and compares what is there with what was written.
    fn settle(&mut self) {
        eventually("the API server answers", || self.lab.runtime.block_on(self.lab.client.apiserver_version()).ok());
        for volume in &self.volumes {
            let Some(node) = volume.node else {
                self.lab.until_detached(&volume.name);
                continue;
            };
            self.lab.until_healthy(&volume.name, node);
            self.lab.wait::<VolumeAttachment>(&volume.name, |found: Option<&VolumeAttachment>| {
                found.is_some_and(|found| {
                    found.status.attachment_ticket_statuses.values().all(|status| status.satisfied)
                })
            });
            let elsewhere = NODES.iter().filter(|other| **other != node);
            for other in elsewhere {
                let there = self.lab.on(other, &format!("test -e /dev/longhorn/{}", volume.name));
                assert!(!there.status.success(), "{} is on {other} as well as on {node}", volume.name);
            }
            if let Some(sum) = &volume.sum {
                assert_eq!(self.sum(&volume.name, node), *sum, "data of {}", volume.name);
            }
        }
    }

    /// Writes something new to every volume that is attached.
    fn write_all(&mut self) {
        for index in 0..self.volumes.len() {
            let Wanted { name, node: Some(node), .. } = &self.volumes[index] else { continue };
            let write = format!(
                "dd if=/dev/urandom of=/dev/longhorn/{name} bs={KIB}k count=1 iflag=fullblock oflag=direct conv=fsync 2>&1"
            );
            self.lab.must(node, &write);
            let sum = self.sum(name, node);
            self.volumes[index].sum = Some(sum);
        }
    }

    /// What is there. A volume whose engine was just killed says for a moment that it is attached, and is not.
    fn sum(&self, volume: &str, node: &str) -> String {
        let copy = self.lab.cluster.dir().join(format!("copy-of-{volume}"));
        let copy = copy.display();
        let read = format!(
            "dd if=/dev/longhorn/{volume} of={copy} bs={KIB}k count=1 iflag=direct 2>/dev/null && sha256sum < {copy}"
        );
        eventually("the device can be read", || {
            let output = self.lab.on(node, &read);
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        })
    }
}

fn kills(first: u64, count: u64) {
    if !has_devices() {
        eprintln!("kills: SKIPPED, kernel devices need root and /dev/fuse");
        return;
    }
    let mut round = Round::new();
    for seed in first..first + count {
        let replay = format!("TETHER_FIRST_SEED={seed} TETHER_SEEDS=1 cargo test -p tether --test kills -- --ignored");
        let _failed = Replay(replay);
        round.run(seed);
    }
}

/// Says how to repeat what failed.
struct Replay(String);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed; to try it again: {}", self.0);
        }
    }
}

#[test]
fn volumes_end_where_their_tickets_say_whoever_is_killed() {
    kills(0, VICTIMS.len() as u64);
}

#[test]
#[ignore = "a campaign: cargo xtask campaign run attach-kill"]
fn kills_during_attachments_in_a_long_campaign() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number of seeds must be a number"))
    };
    kills(number("TETHER_FIRST_SEED", 0), number("TETHER_SEEDS", 100));
}
