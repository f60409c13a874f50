//! Commands in containers, as kubectl runs them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Output, Stdio};

use kube::api::DeleteParams;
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::json;
use tether_testkit::cluster::{eventually, signal};

use crate::{Lab, lives, namespace, phase, python};

/// Whether kubectl speaks WebSockets; tells if not.
fn has_kubectl(test: &str) -> bool {
    let output = Command::new("kubectl").args(["version", "--client", "-o", "json"]).output();
    let version: Option<serde_json::Value> = output.ok().and_then(|found| serde_json::from_slice(&found.stdout).ok());
    // Distributions add to the number: `32+`.
    let minor = version.and_then(|version| {
        let text = version["clientVersion"]["minor"].as_str()?.to_owned();
        text.trim_end_matches(|rest: char| !rest.is_ascii_digit()).parse::<u32>().ok()
    });
    let found = minor.is_some_and(|minor| minor >= 31);
    if !found {
        eprintln!("{test}: SKIPPED, kubectl 1.31 or newer is needed");
    }
    found
}

impl Lab {
    fn kubectl(&self, args: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(self.cluster.kubeconfig()).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn says(&self, args: &[&str]) -> Output {
        self.kubectl(args).output().unwrap()
    }

    /// Standard output of a command that has to succeed.
    fn prints(&self, args: &[&str]) -> String {
        let output = self.says(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Exit code and standard error of a command that has to fail.
    fn fails(&self, args: &[&str]) -> (i32, String) {
        let output = self.says(args);
        assert!(!output.status.success(), "{args:?}: {output:?}");
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }

    /// A command that goes on, and the first line that it writes.
    fn begins(&self, args: &[&str]) -> (Child, String) {
        let mut child = self.kubectl(args).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        (child, line.trim().to_owned())
    }
}

fn exec<'a>(pod: &'a str, script: &'a str) -> Vec<&'a str> {
    vec!["exec", pod, "--", "sh", "-c", script]
}

#[test]
fn commands_run_in_containers() {
    if !has_kubectl("commands_run_in_containers") {
        return;
    }
    let lab = Lab::new();
    let more = json!({"env": [{"name": "GREETING", "value": "hello"}], "workingDir": "/usr"});
    let pod = lab.pod("app", "Always", "while :; do echo tick; echo tock >&2; sleep 0.1; done", more);
    lab.wait("app", phase("Running"));

    streams_and_exit_codes(&lab);
    assert_eq!(lab.prints(&exec("app", "echo $GREETING in $PWD")), "hello in /usr\n");
    if rustix::process::geteuid().is_root() {
        let seen = lab.prints(&["exec", "app", "--", "readlink", "/proc/self/ns/mnt"]);
        assert_eq!(seen.trim(), namespace(lab.pid(&pod, 0)).to_str().unwrap(), "it sees what the container sees");
    }
    terminals(&lab);
    refusals(&lab);
    permissions(&lab);
    attached(&lab);
    match python::interpreter() {
        Ok(python) => python::unittest(&python, "test_exec", &lab.cluster.kubeconfig()).unwrap(),
        Err(why) => eprintln!("skipped: the Python client cannot be installed here: {why}"),
    }
}

fn streams_and_exit_codes(lab: &Lab) {
    let output = lab.says(&exec("app", "echo out; echo err >&2; exit 7"));
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(7), &b"out\n"[..]));
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(err.starts_with("err\n") && err.contains("command terminated with exit code 7"), "{err}");
    assert_eq!(lab.fails(&exec("app", "kill -9 $$")).0, 137, "numbered as shells do");

    // More than any buffer on the way, there and back; the end of the input is told.
    let data: Vec<u8> = (0..3_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut child = lab.kubectl(&["exec", "-i", "app", "--", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let copy = data.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&copy));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success() && output.stdout == data, "{} of {} bytes", output.stdout.len(), data.len());

    // A command that does not read its input ends all the same.
    let mut child = lab.kubectl(&["exec", "-i", "app", "--", "true"]).stdin(Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(&data);
    assert!(child.wait().unwrap().success());

    // What it leaves in the background keeps its output open, and nobody waits for that.
    let left: u32 = lab.prints(&exec("app", "sleep 600 & echo $!")).trim().parse().unwrap();
    assert!(lives(left));
    signal(left, Signal::KILL);
}

/// Somebody at a terminal.
struct Person {
    terminal: OwnedFd,
    kubectl: Child,
}

impl Person {
    fn sits_down(lab: &Lab, size: (u16, u16), args: &[&str]) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        unlockpt(&terminal).unwrap();
        let theirs = ioctl_tiocgptpeer(&terminal, OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        let copy = || Stdio::from(theirs.try_clone().unwrap());
        let mut person = Self { terminal, kubectl: Command::new("true").spawn().unwrap() };
        person.kubectl.wait().unwrap();
        person.resizes(size, false);
        person.kubectl = lab.kubectl(args).stdin(copy()).stdout(copy()).stderr(copy()).spawn().unwrap();
        person
    }

    fn resizes(&self, (rows, columns): (u16, u16), tells: bool) {
        tcsetwinsize(&self.terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        if tells {
            signal(self.kubectl.id(), Signal::WINCH);
        }
    }

    fn types(&self, text: &str) {
        std::fs::File::from(self.terminal.try_clone().unwrap()).write_all(text.as_bytes()).unwrap();
    }

    /// Reads until it says this.
    fn sees(&self, wanted: &str) {
        let mut screen = std::fs::File::from(self.terminal.try_clone().unwrap());
        let (mut seen, mut chunk) = (Vec::new(), [0; 1024]);
        while !String::from_utf8_lossy(&seen).contains(wanted) {
            let bytes = screen.read(&mut chunk).unwrap_or(0);
            assert!(bytes > 0, "saw {:?} instead of {wanted:?}", String::from_utf8_lossy(&seen));
            seen.extend(&chunk[..bytes]);
        }
    }
}

fn terminals(lab: &Lab) {
    let args = ["exec", "-it", "app", "--", "sh", "-c", "test -t 0 && test -t 2; echo terminal=$?; PS1='go> ' exec sh"];
    let mut person = Person::sits_down(lab, (33, 101), &args);
    person.sees("terminal=0");
    // Sizes are told in messages of their own, which come when they come.
    let awaits =
        |size: &str| format!("until stty size | grep -q '{size}'; do sleep 0.1; done; echo $TERM of $GREETING\n");
    person.types(&awaits("33 101"));
    person.sees("xterm of hello");
    person.resizes((44, 99), true);
    person.types(&awaits("44 99"));
    person.sees("xterm of hello");
    // What is typed ahead of an interrupt is lost, as at every terminal.
    person.types("echo a''sleep; sleep 600\n");
    person.sees("asleep");
    person.types("\u{3}");
    person.sees("go> ");
    person.types("exit 5\n");
    assert_eq!(person.kubectl.wait().unwrap().code(), Some(5));
}

fn refusals(lab: &Lab) {
    let (code, words) = lab.fails(&["exec", "app", "--", "/no/such/program", "x"]);
    assert_eq!(code, 1);
    assert!(words.contains("error executing command in container: \"/no/such/program\": No such file"), "{words}");
    assert!(lab.fails(&["exec", "app", "-c", "nope", "--", "ls"]).1.contains("container nope"));
    assert!(lab.fails(&["exec", "nobody", "--", "ls"]).1.contains("pods \"nobody\" not found"));

    lab.pod("crashes", "Always", "exit 1", json!({}));
    let waits = |pod: Option<&k8s_openapi::api::core::v1::Pod>| {
        pod.is_some_and(|pod| {
            let status = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref()?.first());
            status.is_some_and(|status| status.restart_count >= 2)
        })
    };
    lab.wait("crashes", waits);
    let words = lab.fails(&["exec", "crashes", "--", "ls"]).1;
    assert!(words.contains("unable to upgrade connection: container not found (\"app\")"), "{words}");

    // A client that has only SPDY is told what it needs.
    let mut old = lab.kubectl(&["exec", "app", "--", "ls"]);
    let output = old.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false").output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && words.contains("use kubectl 1.31 or newer"), "{words}");
}

/// A WebSocket opens with a GET: whoever may only get, may not run commands.
fn permissions(lab: &Lab) {
    let resources = "--resource=pods,pods/exec";
    lab.prints(&["create", "role", "looks", "--verb=get", resources]);
    lab.prints(&["create", "rolebinding", "looks", "--role=looks", "--user=jane"]);
    let words = lab.fails(&["--as=jane", "exec", "app", "--", "ls"]).1;
    assert!(words.contains("cannot create resource \"pods/exec\""), "{words}");
    lab.prints(&["create", "role", "acts", "--verb=create", "--resource=pods/exec"]);
    lab.prints(&["create", "rolebinding", "acts", "--role=acts", "--user=jane"]);
    assert_eq!(lab.prints(&["--as=jane", "exec", "app", "--", "echo", "may"]), "may\n");
}

fn attached(lab: &Lab) {
    let (mut child, line) = lab.begins(&["attach", "app", "-q"]);
    assert_eq!(line, "tick");
    child.kill().unwrap();
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    child.wait().unwrap();
    assert!(!errors.contains("rror"), "{errors}");
}

#[test]
fn commands_end_with_their_client_and_with_their_container() {
    if !has_kubectl("commands_end_with_their_client_and_with_their_container") {
        return;
    }
    let lab = Lab::new();
    let lasts = "echo $$; exec sleep 600";
    lab.pod("app", "Always", "exec sleep 600", json!({}));
    lab.wait("app", phase("Running"));

    // The client is killed: also one that hangs on a command that reads nothing, and one whose command does not listen.
    let deaf = "trap '' HUP TERM; echo $$; while :; do sleep 0.1; done";
    for (script, options) in [(lasts, "--"), (lasts, "-i"), (deaf, "--")] {
        let args: Vec<&str> = match options {
            "-i" => vec!["exec", "-i", "app", "--", "sh", "-c", script],
            _ => exec("app", script),
        };
        let (mut kubectl, pid) = lab.begins(&args);
        let pid: u32 = pid.parse().unwrap();
        assert!(lives(pid));
        kubectl.kill().unwrap();
        kubectl.wait().unwrap();
        eventually("the command ends with its client", || (!lives(pid)).then_some(()));
    }

    // The agent is killed: the container goes on, the command has lost its client.
    let (mut kubectl, pid) = lab.begins(&exec("app", lasts));
    signal(lab.cluster.pid("node-1").unwrap(), Signal::KILL);
    assert!(!kubectl.wait().unwrap().success());
    eventually("the command ends", || (!lives(pid.parse().unwrap())).then_some(()));
    eventually("commands run again", || {
        let output = lab.says(&["exec", "app", "--", "echo", "back"]);
        output.status.success().then_some(())
    });

    // The container ends: its commands and what they left do too.
    let left: u32 = lab.prints(&exec("app", "setsid sleep 600 & echo $!")).trim().parse().unwrap();
    let (mut kubectl, pid) = lab.begins(&exec("app", lasts));
    let params = DeleteParams::default().grace_period(1);
    lab.runtime.block_on(lab.pods.delete("app", &params)).unwrap();
    assert_eq!(kubectl.wait().unwrap().code(), Some(137));
    eventually("nothing is left", || (!lives(pid.parse().unwrap()) && !lives(left)).then_some(()));
}
