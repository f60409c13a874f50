//! Runs the steps of one case in a directory of its own, with kubectl pointed at one server.

use std::{
    fs::{self, File},
    io,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{LazyLock, mpsc},
    time::Duration,
};

use regex::Regex;
use serde_json::Value;

use crate::{case::Output, mask::Masks};

/// A kubectl command that takes longer hangs: the slowest in the cases waits a few seconds for a controller.
const STEP_LIMIT: Duration = Duration::from_secs(60);

/// `await 'CONDITION'`: what a case uses instead of sleeping. 30 s, then it fails with the condition as its message.
const AWAIT: &str = r#"#!/bin/sh
tries=0
until sh -c "$1" >/dev/null 2>&1; do
    tries=$((tries + 1))
    if [ "$tries" -gt 300 ]; then echo "never came true: $1" >&2; exit 1; fi
    sleep 0.1
done
"#;

/// Log lines of kubectl's own libraries, whose number and wording differ between its versions.
static CLIENT_LOG: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^[EWI]\d{4} \d\d:\d\d:\d\d\.\d+ ").expect("the log pattern must compile"));

pub(crate) struct Session {
    dir: tempfile::TempDir,
    background: Vec<Child>,
}

impl Session {
    /// A fresh home, so that kubectl's discovery cache knows nothing of other servers.
    pub(crate) fn new(kubectl: &Path, kubeconfig: &Path) -> io::Result<Self> {
        let dir = tempfile::Builder::new().prefix("tether-kubectl-").tempdir()?;
        fs::create_dir(dir.path().join("bin"))?;
        fs::create_dir(dir.path().join("work"))?;
        fs::create_dir(dir.path().join("tmp"))?;
        std::os::unix::fs::symlink(kubectl, dir.path().join("bin/kubectl"))?;
        let helper = dir.path().join("bin/await");
        fs::write(&helper, AWAIT)?;
        fs::set_permissions(&helper, fs::Permissions::from_mode(0o755))?;
        fs::copy(kubeconfig, dir.path().join("kubeconfig"))?;
        Ok(Self { dir, background: Vec::new() })
    }

    /// Makes `name` the current namespace. Not with `kubectl config`: Debian's 1.20 crashes when it writes such a file.
    fn use_namespace(&self, name: &str) -> Result<(), String> {
        let path = self.dir.path().join("kubeconfig");
        let text = fs::read_to_string(&path).map_err(|e| e.to_string())?;
        let mut config: Value = serde_yaml_ng::from_str(&text).map_err(|e| e.to_string())?;
        config["contexts"][0]["context"]["namespace"] = name.into();
        fs::write(&path, config.to_string()).map_err(|e| e.to_string())
    }

    /// Creates the namespace, makes it the current one, and waits for the service account that pods need.
    /// On a server that outlives its cases an earlier run may still be leaving.
    pub(crate) fn enter_namespace(&self, name: &str) -> Result<(), String> {
        self.use_namespace(name)?;
        self.must(&format!("kubectl delete namespace {name} --ignore-not-found"))?;
        self.must(&format!("kubectl create namespace {name} && await 'kubectl get serviceaccount default'"))
    }

    pub(crate) fn leave_namespace(&self, name: &str) -> Result<(), String> {
        self.must(&format!("kubectl delete namespace {name} --wait=false"))
    }

    fn must(&self, script: &str) -> Result<(), String> {
        let output = self.run(script).map_err(|e| format!("{script}: {e}"))?;
        if output.code == 0 { Ok(()) } else { Err(format!("{script}: {}", output.stderr.join("\n"))) }
    }

    pub(crate) fn write(&self, name: &str, lines: &[String]) -> io::Result<()> {
        fs::write(self.dir.path().join("work").join(name), lines.join("\n") + "\n")
    }

    /// The strings of this run that a transcript must not contain.
    pub(crate) fn literals(&self) -> Vec<(String, &'static str)> {
        let inside = |name| self.dir.path().join(name).display().to_string();
        let mut literals = vec![(inside("work"), "<dir>"), (inside("tmp"), "<tmp>")];
        let kubeconfig = fs::read_to_string(self.dir.path().join("kubeconfig")).unwrap_or_default();
        let config: Value = serde_yaml_ng::from_str(&kubeconfig).unwrap_or_default();
        if let Some(url) = config.pointer("/clusters/0/cluster/server").and_then(Value::as_str) {
            literals.push((url.to_owned(), "<server>"));
            literals.push((url.trim_start_matches("https://").to_owned(), "<address>"));
        }
        literals
    }

    /// Runs one command to its end. Output goes through files, not pipes: what it leaves running must not hold us up.
    pub(crate) fn run(&self, script: &str) -> io::Result<Output> {
        let (out, err) = (self.dir.path().join("stdout"), self.dir.path().join("stderr"));
        let mut child = self.command(script).stdout(File::create(&out)?).stderr(File::create(&err)?).spawn()?;
        let group = rustix::process::Pid::from_child(&child);
        let (done, ended) = mpsc::channel();
        let waiter = std::thread::spawn(move || {
            let status = child.wait();
            let _ = done.send(());
            status
        });
        let late = ended.recv_timeout(STEP_LIMIT).is_err();
        if late {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let status = waiter.join().expect("the waiting thread must not panic")?;
        let mut output =
            Output { stdout: lines_of(&out)?, stderr: lines_of(&err)?, code: status.code().unwrap_or(128) };
        if late {
            output.stderr.push(format!("killed after {STEP_LIMIT:?}"));
        }
        Ok(output)
    }

    pub(crate) fn start(&mut self, script: &str) -> io::Result<()> {
        let child = self.command(script).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        self.background.push(child);
        Ok(())
    }

    fn command(&self, script: &str) -> Command {
        let home = self.dir.path();
        let path = format!("{}:{}", home.join("bin").display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(home.join("work")).stdin(Stdio::null()).process_group(0);
        command
            .env("PATH", path)
            .env("HOME", home)
            .env("KUBECONFIG", home.join("kubeconfig"))
            .env("TMPDIR", home.join("tmp"));
        command.env("LC_ALL", "C").env("TZ", "UTC").env_remove("KUBE_EDITOR").env_remove("EDITOR");
        command
    }
}

impl Drop for Session {
    /// Background commands are not reaped before this, so their process groups are certainly still theirs.
    fn drop(&mut self) {
        for child in &mut self.background {
            let group = rustix::process::Pid::from_child(child);
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            let _ = child.wait();
        }
    }
}

pub(crate) fn masked(output: &Output, masks: &Masks<'_>) -> Output {
    let lines = |lines: &[String]| {
        let mut lines: Vec<String> = lines.iter().map(|line| masks.apply(line)).collect();
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        lines
    };
    let stderr: Vec<String> = output.stderr.iter().filter(|line| !CLIENT_LOG.is_match(line)).cloned().collect();
    Output { stdout: lines(&output.stdout), stderr: lines(&stderr), code: output.code }
}

fn lines_of(path: &Path) -> io::Result<Vec<String>> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).lines().map(str::to_owned).collect())
}

pub(crate) fn kubectl_version(kubectl: &Path) -> Option<(u32, u32)> {
    let output = Command::new(kubectl).args(["version", "--client", "-o", "json"]).output().ok()?;
    let version: Value = serde_json::from_slice(&output.stdout).ok()?;
    crate::case::minor_version(version.pointer("/clientVersion/gitVersion")?.as_str()?)
}
