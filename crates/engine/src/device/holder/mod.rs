//! The process that keeps `/dev/fuse` open while engines come and go.
//!
//! One small process for each device, of the same program (`tether device-holder serve`): no runtime, no threads, no
//! I/O of its own. It waits on a unix socket, hands the descriptor to one engine at a time, and remembers which one
//! that was ([`state`]). What may wait for the device itself (binding, resizing, detaching) it leaves to short-lived
//! children ([`steps`]): while an engine is away they wait, and the holder does not.
//!
//! It is started by way of a process that ends at once (`device-holder start …`), so that it is nobody's child: an
//! engine's supervisor does not see it, and it does not become a zombie of a living engine. What kills a whole control
//! group (a systemd unit, a container) kills holders in it; run them where engines are not.

pub mod protocol;
mod serve;
pub mod state;
mod steps;

use std::process::ExitCode;

/// The subcommand under which a program that has engines offers [`main`].
pub const SUBCOMMAND: &str = "device-holder";

/// Runs what `device-holder ARGS…` asks for. To be called before anything starts threads.
pub fn main(args: &[String]) -> ExitCode {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["start", run, volume] => serve::start(run, volume),
        ["serve"] => serve::serve(),
        [step, rest @ ..] => steps::run(step, rest),
        [] => Err("device-holder is started by engines, not by hand".to_owned()),
    };
    let (said, code) = match result {
        Ok(said) => (said, ExitCode::SUCCESS),
        Err(why) => (why, ExitCode::FAILURE),
    };
    steps::say(&said);
    code
}
