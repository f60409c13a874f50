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
        None
    }
}

fn find_on_path(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// Cases that are known to differ from a real server, by name; they run with `--ignored`.
#[allow(clippy::print_stderr, reason = "skips are told to whoever runs the tests")]
fn pending() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/kubectl/pending.txt");
    let text = fs::read_to_string(path).expect("the list of pending cases must be readable");
    let names: Vec<String> = text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    eprintln!("{} cases still differ from a real server and are left out; -- --ignored runs them", names.len());
    names
}

#[allow(clippy::print_stderr, reason = "skips are told to whoever runs the tests")]
fn trials(environment: Option<Environment>) -> Vec<Trial> {
    let environment = environment.map(Arc::new);
    if environment.is_none() {
        eprintln!("kubectl is not installed: its cases are skipped");
    }
    let pending = pending();
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
        let usable = environment.is_some() && obstacle.is_none() && !pending.contains(&name);
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

/// The lines that differ: `-` recorded, `+` now.
fn difference(command: &[String], expected: &Output, actual: &Output) -> String {
    let mut text = format!("\n$ {}\n", command.join("\n> "));
    let streams = [(&expected.stdout, &actual.stdout, ""), (&expected.stderr, &actual.stderr, "! ")];
    for (expected, actual, mark) in streams {
        text.extend(changed_lines(expected, actual).iter().map(|(sign, line)| format!("{sign} {mark}{line}\n")));
    }
    if expected.code != actual.code {
        text.extend([format!("- [{}]\n", expected.code), format!("+ [{}]\n", actual.code)]);
    }
    text
}

/// What is left of two texts without a longest common subsequence of their lines.
fn changed_lines<'a>(old: &'a [String], new: &'a [String]) -> Vec<(char, &'a str)> {
    let same = |i: usize, j: usize| mask::comparable_line(&old[i]) == mask::comparable_line(&new[j]);
    // common[i][j]: how many lines old[i..] and new[j..] have in common.
    let mut common = vec![vec![0_usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = if same(i, j) { common[i + 1][j + 1] + 1 } else { common[i + 1][j].max(common[i][j + 1]) };
        }
    }
    let (mut i, mut j, mut changes) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && same(i, j) {
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && common[i + 1][j] >= common[i][j + 1]) {
            changes.push(('-', old[i].as_str()));
            i += 1;
        } else {
            changes.push(('+', new[j].as_str()));
            j += 1;
        }
    }
    changes
}
