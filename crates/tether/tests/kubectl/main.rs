//! kubectl against Tether's API server: every `tests/kubectl/*.case` is one test.
//!
//! The expected output was recorded from a real kube-apiserver, so a difference is Tether's. `tests/kubectl/README.md` tells how
//! to write and record a case. Each case gets a server of its own.
//!
//! - `TETHER_E2E_KUBECTL`: another kubectl than the one on the `PATH`.
//! - `TETHER_E2E_KUBECONFIG`: run against that server instead of starting one.
//! - `TETHER_E2E_RECORD=1` (with the former): write what that server answers into the cases.

mod case;
mod mask;
#[path = "../support/server.rs"]
mod server;
mod session;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use case::{Case, Item, Output};
use libtest_mimic::{Arguments, Failed, Trial};
use mask::Masks;
use session::Session;

struct Environment {
    kubectl: PathBuf,
    version: (u32, u32),
    kubeconfig: Option<PathBuf>,
    record: bool,
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let environment = Environment::from_env();
    if environment.as_ref().is_some_and(|e| e.kubeconfig.is_some()) {
        // One server for all: cases must not see each other's nodes.
        arguments.test_threads = Some(1);
    }
    let trials = trials(environment);
    libtest_mimic::run(&arguments, trials).exit_code()
}

impl Environment {
    fn from_env() -> Option<Self> {
        let kubectl =
            std::env::var_os("TETHER_E2E_KUBECTL").map_or_else(|| find_on_path("kubectl"), |p| Some(p.into()))?;
        let version = session::kubectl_version(&kubectl)?;
        let kubeconfig = std::env::var_os("TETHER_E2E_KUBECONFIG").map(PathBuf::from);
        let record = std::env::var_os("TETHER_E2E_RECORD").is_some();
        Some(Self { kubectl, version, kubeconfig, record })
    }

    /// Why this case cannot run here.
    fn obstacle(&self, case: &Case) -> Option<String> {
        let (needed, here) = (case.header.needs_kubectl, self.version);
        if here < needed {
            return Some(format!("it needs kubectl {}.{}, this is {}.{}", needed.0, needed.1, here.0, here.1));
        }
        if self.kubeconfig.is_none() && !server::CAN_START {
            return Some("there is no server: set TETHER_E2E_KUBECONFIG".to_owned());
        }
        None
    }
}

fn find_on_path(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(program)).find(|path| path.is_file())
}

#[allow(clippy::print_stderr, reason = "skips are told to whoever runs the tests")]
fn trials(environment: Option<Environment>) -> Vec<Trial> {
    let environment = environment.map(Arc::new);
    if environment.is_none() {
        eprintln!("kubectl is not installed: its cases are skipped");
    }
    let mut trials = Vec::new();
    for path in case_files() {
        let name = path.file_stem().expect("a case must have a name").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("a case must be readable");
        let case = match Case::parse(&text) {
            Ok(case) if case.render() == text => case,
            Ok(_) => {
                trials.push(Trial::test(name, || Err("the case is not in canonical form".into())));
                continue;
            }
            Err(error) => {
                trials.push(Trial::test(name, move || Err(error.into())));
                continue;
            }
        };
        let obstacle = environment.as_ref().and_then(|e| e.obstacle(&case));
        if let Some(obstacle) = &obstacle {
            eprintln!("{name}: skipped, {obstacle}");
        }
        let usable = environment.is_some() && obstacle.is_none();
        let environment = environment.clone();
        let trial = Trial::test(name, move || {
            let environment = environment.expect("an ignored case must not run");
            run(&environment, case, &path)
        });
        trials.push(trial.with_ignored_flag(!usable));
    }
    trials
}

fn case_files() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/kubectl");
    let entries = fs::read_dir(&dir).expect("tests/kubectl must exist");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("tests/kubectl must be readable").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "case"));
    files.sort();
    files
}

fn run(environment: &Environment, mut case: Case, path: &Path) -> Result<(), Failed> {
    let server = match &environment.kubeconfig {
        Some(kubeconfig) => server::Server::existing(kubeconfig),
        None => server::Server::start()?,
    };
    let mut session = Session::new(&environment.kubectl, server.kubeconfig())?;
    if let Some(namespace) = &case.header.namespace {
        session.enter_namespace(namespace)?;
    }
    let outcome = run_steps(&mut session, &mut case, environment.record);
    if let (Some(namespace), true) = (&case.header.namespace, environment.kubeconfig.is_some()) {
        session.leave_namespace(namespace)?;
    }
    if environment.record {
        fs::write(path, case.render())?;
    }
    outcome
}

/// Runs every step; the differences of all steps are reported together, for one often explains the next.
fn run_steps(session: &mut Session, case: &mut Case, record: bool) -> Result<(), Failed> {
    let masks = Masks { literals: session.literals(), case: &case.header.masks };
    let mut differences = String::new();
    for item in &mut case.items {
        match item {
            Item::Comment(_) => {}
            Item::File { name, lines } => session.write(name, lines)?,
            Item::Background { command } => session.start(&command.join("\n"))?,
            Item::Step { command, expected } => {
                let actual = session::masked(&session.run(&command.join("\n"))?, &masks);
                if mask::comparable(&actual) == mask::comparable(expected) {
                    continue;
                }
                if record {
                    *expected = actual;
                } else {
                    differences += &difference(command, expected, &actual);
                }
            }
        }
    }
    if differences.is_empty() { Ok(()) } else { Err(differences.into()) }
}

/// The lines that differ, `-` recorded and `+` now, with the equal ones at both ends left out.
fn difference(command: &[String], expected: &Output, actual: &Output) -> String {
    let mut text = format!("\n$ {}\n", command.join("\n> "));
    let streams = [(&expected.stdout, &actual.stdout, ""), (&expected.stderr, &actual.stderr, "! ")];
    for (expected, actual, mark) in streams {
        let same = |(a, b): &(&String, &String)| mask::comparable_line(a) == mask::comparable_line(b);
        let head = expected.iter().zip(actual).take_while(same).count();
        let most = expected.len().min(actual.len()) - head;
        let tail = expected.iter().rev().zip(actual.iter().rev()).take(most).take_while(same).count();
        let gone = expected[head..expected.len() - tail].iter().map(|line| format!("- {mark}{line}\n"));
        let come = actual[head..actual.len() - tail].iter().map(|line| format!("+ {mark}{line}\n"));
        text.extend(gone.chain(come));
    }
    if expected.code != actual.code {
        text.extend([format!("- [{}]\n", expected.code), format!("+ [{}]\n", actual.code)]);
    }
    text
}
