//! Both frontends against real clients, with an engine in memory behind them.
//!
//! The same program is the tests, the engine that they kill and the holder of its device: `ram-engine` and
//! `device-holder` as the first argument say which.

mod device;
mod host;
mod nbd;
mod ram;
mod ram_engine;
mod tools;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::tools::{Skip, Verdict};

fn trial(name: &str, test: fn() -> Verdict) -> Trial {
    Trial::test(name, move || match test() {
        Ok(()) => Ok(()),
        Err(Skip(why)) => {
            say(&format!("SKIPPED: {why}"));
            Ok::<(), Failed>(())
        }
    })
}

fn say(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some(tether_engine::device::holder::SUBCOMMAND) => return tether_engine::device::holder::main(&args[1..]),
        Some("ram-engine") => return ram_engine::main(&args[1..]),
        _ => {}
    }
    let all = nbd::TESTS.iter().chain(device::TESTS);
    let trials = all.map(|(name, test)| trial(name, *test)).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
