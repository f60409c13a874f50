//! The official Python client: `tests/python` in a virtual environment of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the tests in Python are.
pub fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/python")
}

/// The interpreter. The environment is made once per build directory; a change of the requirements makes another.
pub fn interpreter() -> Result<PathBuf, String> {
    let requirements = tests().join("requirements.txt");
    let wanted = std::fs::read_to_string(&requirements).map_err(|e| format!("{}: {e}", requirements.display()))?;
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    // Several tests may want it at the same time.
    std::fs::create_dir_all(env!("CARGO_TARGET_TMPDIR")).map_err(|e| e.to_string())?;
    let lock = std::fs::File::create(dir.with_extension("lock")).map_err(|e| e.to_string())?;
    lock.lock().map_err(|e| e.to_string())?;
    let (python, stamp) = (dir.join("bin/python"), dir.join("installed"));
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&dir))?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(&requirements))?;
    std::fs::write(&stamp, wanted).map_err(|e| format!("{}: {e}", stamp.display()))?;
    Ok(python)
}

/// Runs the tests of one module against a cluster; what they said if they fail.
pub fn unittest(python: &Path, module: &str, kubeconfig: &Path) -> Result<(), String> {
    let mut command = Command::new(python);
    command.args(["-m", "unittest", "--verbose", module]).current_dir(tests());
    run(command.env("KUBECONFIG", kubeconfig).env("PYTHONDONTWRITEBYTECODE", "1"))
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let said = || String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {}\n{}", output.status, said())) }
}
