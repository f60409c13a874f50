//! A process that writes is killed with -9 at random moments: what it acknowledged must be there.
//!
//! The process is this very test binary, running [`child`]. Each of its writers counts its own object up and prints
//! what was acknowledged, so that the parent knows, for each, the only two states that a file may hold: the last one
//! acknowledged, and the one after it.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use tether_testkit::kill::{Kills, Victim, kill_repeatedly};

use super::oracle::drain;
use super::*;

const WRITERS: usize = 8;
/// Tells [`child`] where its store is.
const STORE_VARIABLE: &str = "TETHER_KILL_STORE";
/// How many kills `cargo xtask campaign run store-kill` wants.
const KILLS_VARIABLE: &str = "TETHER_SEEDS";
const SEED_VARIABLE: &str = "TETHER_FIRST_SEED";
/// Every so many changes of a writer, one is a deletion.
const DELETE_EVERY: u64 = 7;

fn counter_key(writer: usize) -> Key {
    Key::new("counters", "kill", format!("w{writer}"))
}

/// The value of a writer's `count`-th change; its length varies over more than a page.
fn counter_value(writer: usize, count: u64) -> String {
    format!("{writer} {count} {}", "x".repeat((count as usize * 611 + writer) % 6_000))
}

fn deletes(count: u64) -> bool {
    count.is_multiple_of(DELETE_EVERY)
}

/// Which change of the writer the store holds, if it is one of the two it may be.
fn find_count(writer: usize, entry: Option<&Entry>, acknowledged: u64) -> Option<u64> {
    let is = |count: &u64| match entry {
        None => *count == 0 || deletes(*count),
        Some(entry) => {
            !deletes(*count) && entry.value == format!("{}@{}", counter_value(writer, *count), entry.revision)
        }
    };
    [acknowledged, acknowledged + 1].into_iter().find(is)
}

async fn count_up(store: &Store, writer: usize, mut count: u64) {
    loop {
        count += 1;
        let (expect, change) = if deletes(count) {
            (Expect::Any, delete(&counter_value(writer, count)))
        } else if store.get(&counter_key(writer)).is_none() {
            (Expect::Absent, put(&counter_value(writer, count)))
        } else {
            (Expect::Any, put(&counter_value(writer, count)))
        };
        store.write(counter_key(writer), expect, change).await.unwrap();
        writeln!(std::io::stdout(), "ack {writer} {count}").unwrap();
    }
}

#[test]
#[ignore = "the process that the kill tests kill"]
fn child() {
    let Ok(argument) = std::env::var(STORE_VARIABLE) else { return };
    let (counts, path) = argument.split_once(':').unwrap();
    let store = Store::open(path, Options { history_events: 2_000, ..Options::default() }).unwrap();
    writeln!(std::io::stdout(), "\nserving").unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let writers = counts.split(',').enumerate().map(|(writer, count)| {
        let (store, count) = (store.clone(), count.parse().unwrap());
        runtime.spawn(async move { count_up(&store, writer, count).await })
    });
    for writer in writers.collect::<Vec<_>>() {
        runtime.block_on(writer).unwrap();
    }
}

struct Counters {
    path: PathBuf,
    /// For each writer, its last acknowledged change.
    acknowledged: [u64; WRITERS],
    /// The revision at the last verification.
    revision: u64,
}

impl Victim for Counters {
    type Link = BufReader<ChildStdout>;
    type Error = String;

    fn start(&mut self) -> Result<(Child, Self::Link), String> {
        let counts: Vec<_> = self.acknowledged.iter().map(u64::to_string).collect();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::tests::kill::child", "--ignored", "--nocapture"])
            .env(STORE_VARIABLE, format!("{}:{}", counts.join(","), self.path.display()))
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        while line != "serving\n" {
            line.clear();
            if output.read_line(&mut line).map_err(|error| error.to_string())? == 0 {
                return Err("it ended before it served".into());
            }
        }
        Ok((process, output))
    }

    fn work(&mut self, link: Self::Link) {
        for line in link.lines().map_while(Result::ok) {
            // The last line may be cut short; then nobody was told, or as good as.
            let mut words = line.split(' ').skip(1).map(str::parse::<u64>);
            if let (Some(Ok(writer)), Some(Ok(count))) = (words.next(), words.next())
                && count == self.acknowledged[writer as usize] + 1
            {
                self.acknowledged[writer as usize] = count;
            }
        }
    }

    fn verify(&mut self) -> Result<(), String> {
        let store = Store::open(&self.path, Options::default()).map_err(|error| error.to_string())?;
        for (writer, acknowledged) in self.acknowledged.iter_mut().enumerate() {
            let entry = store.get(&counter_key(writer));
            *acknowledged = find_count(writer, entry.as_ref(), *acknowledged)
                .ok_or_else(|| format!("writer {writer} was acknowledged {acknowledged}, the store has {entry:?}"))?;
        }
        let total: u64 = self.acknowledged.iter().sum();
        if store.revision() != total {
            return Err(format!("revision {} after {total} changes", store.revision()));
        }
        let from = self.revision.max(store.shared.state.read().oldest());
        let resumed = drain(&store.shared, "counters", Some("kill"), from);
        if !resumed.iter().map(Event::revision).eq(from + 1..=total) {
            return Err(format!("a watch resumed after {from} missed changes"));
        }
        self.revision = total;
        Ok(())
    }
}

fn kill(count: usize, seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut counters = Counters { path: dir.path().join("objects.redb"), acknowledged: [0; WRITERS], revision: 0 };
    let after = Duration::from_millis(1)..Duration::from_millis(120);
    kill_repeatedly(&mut counters, &Kills { count, seed, after }).unwrap();
    let total: u64 = counters.acknowledged.iter().sum();
    assert!(total > count as u64, "only {total} changes in {count} lives: the processes hardly wrote");
}

#[test]
fn kills_take_no_acknowledged_write() {
    kill(10, 0);
}

#[test]
#[ignore = "long: cargo xtask campaign run store-kill"]
fn kills_in_a_long_campaign() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    kill(number(KILLS_VARIABLE, 200) as usize, number(SEED_VARIABLE, 0));
}
