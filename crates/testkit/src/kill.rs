//! Kills a process again and again, at random moments, and asks whether what it promised is still true.
//!
//! The harness knows nothing about the process. A [`Victim`] says how to start it, how to make it work and note what
//! it acknowledged, and how to check that afterwards.

use std::fmt;
use std::ops::Range;
use std::process::Child;
use std::thread;
use std::time::Duration;

/// A kind of process to kill.
pub trait Victim {
    /// What working needs to know about one run of the process: an address, a pipe.
    type Link;
    type Error: fmt::Display;

    /// Starts the process and returns once it serves.
    fn start(&mut self) -> Result<(Child, Self::Link), Self::Error>;

    /// Works with the process and remembers what it acknowledged. The process is killed meanwhile, without notice;
    /// this returns when it is gone.
    fn work(&mut self, link: Self::Link);

    /// Checks that everything acknowledged so far is there. No process is running when this is called; it may start
    /// one, and must end it.
    fn verify(&mut self) -> Result<(), Self::Error>;
}

/// How often, and when.
#[derive(Clone, Debug)]
pub struct Kills {
    pub count: usize,
    /// Decides the moments. What the process does until then is its own affair, so a seed does not repeat a run.
    pub seed: u64,
    /// The process lives for a random time in this range after it started to serve.
    pub after: Range<Duration>,
}

/// Which kill the victim did not survive.
#[derive(Debug)]
pub struct Casualty {
    pub kill: usize,
    pub reason: String,
}

impl fmt::Display for Casualty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after kill {}: {}", self.kill, self.reason)
    }
}

impl std::error::Error for Casualty {}

/// Starts, works, kills and verifies, `kills.count` times.
pub fn kill_repeatedly<V: Victim>(victim: &mut V, kills: &Kills) -> Result<(), Casualty> {
    let mut moments = Moments(kills.seed);
    for kill in 1..=kills.count {
        let failed = |what: &str, error: V::Error| Casualty { kill, reason: format!("{what}: {error}") };
        let (mut process, link) = victim.start().map_err(|error| failed("it does not start", error))?;
        let lifetime = moments.next(&kills.after);
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(lifetime);
                // It may have died by itself, which verification will show.
                let _ = process.kill();
                let _ = process.wait();
            });
            victim.work(link);
        });
        victim.verify().map_err(|error| failed("a promise is broken", error))?;
    }
    Ok(())
}

/// Random moments by `SplitMix64`.
struct Moments(u64);

impl Moments {
    fn next(&mut self, range: &Range<Duration>) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let span = range.end.saturating_sub(range.start).as_nanos().max(1) as u64;
        range.start + Duration::from_nanos(z % span)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, BufRead, BufReader};
    use std::process::{ChildStdout, Command, Stdio};

    use super::*;

    /// A process that counts, and forgets everything when it is killed.
    struct Forgetful {
        acknowledged: u64,
        kills_until_noticed: usize,
    }

    impl Victim for Forgetful {
        type Link = ChildStdout;
        type Error = io::Error;

        fn start(&mut self) -> io::Result<(Child, ChildStdout)> {
            let count = "i=0; while :; do i=$((i+1)); echo $i; done";
            let mut process = Command::new("sh").args(["-c", count]).stdout(Stdio::piped()).spawn()?;
            let output = process.stdout.take().expect("the output must be piped");
            Ok((process, output))
        }

        fn work(&mut self, link: ChildStdout) {
            self.acknowledged += BufReader::new(link).lines().map_while(Result::ok).count() as u64;
        }

        fn verify(&mut self) -> io::Result<()> {
            self.kills_until_noticed -= 1;
            if self.kills_until_noticed == 0 { Err(io::Error::other("forgotten")) } else { Ok(()) }
        }
    }

    #[test]
    fn the_kill_that_broke_a_promise_is_named() {
        let mut victim = Forgetful { acknowledged: 0, kills_until_noticed: 3 };
        let after = Duration::from_millis(5)..Duration::from_millis(20);
        let casualty = kill_repeatedly(&mut victim, &Kills { count: 5, seed: 1, after }).unwrap_err();
        assert_eq!(casualty.to_string(), "after kill 3: a promise is broken: forgotten");
        assert!(victim.acknowledged > 0, "it worked while it lived");
    }
}
