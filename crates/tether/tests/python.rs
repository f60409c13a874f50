//! The official Python client against Tether's API server: runs `tests/python` in a virtual environment of its own.
//!
//! `TETHER_E2E_KUBECONFIG` points it at another server.

#[path = "support/server.rs"]
mod server;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The environment is made once per build directory; a change of the requirements makes another.
fn virtual_environment(requirements: &Path) -> Result<PathBuf, String> {
    let wanted = std::fs::read_to_string(requirements).map_err(|e| format!("{}: {e}", requirements.display()))?;
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let (python, stamp) = (dir.join("bin/python"), dir.join("installed"));
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&dir))?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(requirements))?;
    std::fs::write(&stamp, wanted).map_err(|e| format!("{}: {e}", stamp.display()))?;
    Ok(python)
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let said = || String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {}\n{}", output.status, said())) }
}

#[test]
#[allow(clippy::print_stderr, reason = "skips are told to whoever runs the tests")]
fn python_client() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/python");
    let python = match virtual_environment(&tests.join("requirements.txt")) {
        Ok(python) => python,
        Err(why) => return eprintln!("skipped: the Python client cannot be installed here: {why}"),
    };
    let server = match std::env::var_os("TETHER_E2E_KUBECONFIG") {
        Some(kubeconfig) => server::Server::existing(Path::new(&kubeconfig)),
        None => server::Server::start().expect("a server must start"),
    };
    let mut command = Command::new(python);
    command.args(["-m", "unittest", "--verbose", "test_client"]).current_dir(tests);
    command.env("KUBECONFIG", server.kubeconfig()).env("PYTHONDONTWRITEBYTECODE", "1");
    if let Err(failures) = run(&mut command) {
        panic!("{failures}");
    }
}
