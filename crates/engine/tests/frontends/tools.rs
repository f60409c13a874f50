//! Programs that the tests run, and what is said if they are not there.

use std::path::Path;
use std::process::{Command, Output};

/// Why a test cannot run here; printed instead of run.
pub struct Skip(pub String);

/// What a test comes to.
pub type Verdict = Result<(), Skip>;

/// A test and its name.
pub type Test = (&'static str, fn() -> Verdict);

fn find(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let extra = ["/usr/sbin", "/sbin"].map(std::path::PathBuf::from);
    std::env::split_paths(&paths).chain(extra).any(|dir| dir.join(program).is_file())
}

/// All of these programs, or the reason to skip.
pub fn need(programs: &[&str]) -> Verdict {
    match programs.iter().find(|program| !find(program)) {
        Some(missing) => Err(Skip(format!("{missing} is not installed"))),
        None => Ok(()),
    }
}

/// A command with the directories of administrators in its path.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

/// Runs a program that must succeed; returns what it printed.
pub fn run(program: &str, args: &[&str]) -> String {
    succeed(command(program).args(args))
}

/// Runs a command that must succeed; returns what it printed.
pub fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    text
}

/// Runs a program that may fail.
pub fn attempt(program: &str, args: &[&str]) -> Output {
    command(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests must be text")
}
