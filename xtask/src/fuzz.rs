//! Fuzzing without tools to install: builds the targets of `fuzz/` with coverage counters and runs libFuzzer, which is
//! linked into them.
//!
//! What was found before is kept in the repository, merged (every input reaches code that no other one reaches) and
//! packed: `fuzz/corpus/<target>.tar.gz`. Inputs written by hand lie beside it, in `fuzz/corpus/<target>/`. A run works on
//! a copy below `fuzz/target` and packs it again. A finding is left in `fuzz/artifacts/<target>`.

mod corpus;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::Subcommand;

/// What a target gets if nothing else is said: the time that a release asks for.
const DEFAULT_SECONDS: u64 = 600;
/// Longer inputs find little and slow everything down; requests are bounded far above this elsewhere.
const MAX_INPUT_BYTES: u32 = 4096;
/// One input that takes longer than this is a finding.
const INPUT_TIMEOUT_S: u32 = 10;
/// Memory of one run; an input that needs more is a finding.
const MEMORY_MIB: u32 = 2048;

/// What makes the compiler count which edges an input takes. Stable flags: no sanitizer, since `unsafe` is denied
/// in everything that is fuzzed.
const COVERAGE: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cdebug-assertions",
    "-Coverflow-checks",
    "--cfg=fuzzing",
];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Prints the targets
    List,
    /// Fuzzes one target, or all of them one after the other
    Run {
        /// Names, as `list` prints them; none means all
        targets: Vec<String>,
        /// Seconds for each
        #[arg(long, default_value_t = DEFAULT_SECONDS)]
        seconds: u64,
    },
    /// Merges inputs that were found elsewhere into the corpus of a target
    Merge {
        target: String,
        /// Folder of inputs, one per file
        #[arg(required = true)]
        folders: Vec<PathBuf>,
    },
    /// Runs inputs of a target once, to look at a finding
    Replay {
        target: String,
        #[arg(required = true)]
        inputs: Vec<PathBuf>,
    },
}

pub(crate) fn main(root: &Path, args: &Args) -> Result<ExitCode> {
    let folder = root.join("fuzz");
    let known = targets(&folder)?;
    match &args.action {
        Action::List => {
            for name in known {
                println!("{name}");
            }
        }
        Action::Run { targets, seconds } => {
            let chosen = if targets.is_empty() { known } else { check(targets, &known)? };
            let binaries = build(&folder)?;
            for name in &chosen {
                run(&folder, &binaries, name, *seconds)?;
            }
        }
        Action::Merge { target, folders } => {
            check(std::slice::from_ref(target), &known)?;
            let folders: Vec<PathBuf> = folders.iter().map(std::path::absolute).collect::<Result<_, _>>()?;
            let work = corpus::unpack(&folder, target)?;
            merge(&folder, &build(&folder)?.join(target), target, &[&[work], folders.as_slice()].concat())?;
        }
        Action::Replay { target, inputs } => {
            check(std::slice::from_ref(target), &known)?;
            let inputs: Vec<PathBuf> = inputs.iter().map(std::path::absolute).collect::<Result<_, _>>()?;
            call(Command::new(build(&folder)?.join(target)).args(inputs), "replay")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One target per file.
fn targets(folder: &Path) -> Result<Vec<String>> {
    let path = folder.join("fuzz_targets");
    let files = std::fs::read_dir(&path).with_context(|| path.display().to_string())?;
    let mut names = Vec::new();
    for file in files {
        let path = file?.path();
        if let (Some(stem), Some("rs")) = (path.file_stem(), path.extension().and_then(|e| e.to_str())) {
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn check(wanted: &[String], known: &[String]) -> Result<Vec<String>> {
    for name in wanted {
        if !known.contains(name) {
            bail!("no fuzz target is called {name:?}; there are: {}", known.join(", "));
        }
    }
    Ok(wanted.to_vec())
}

/// Builds every target and says where they are.
fn build(folder: &Path) -> Result<PathBuf> {
    let host = host()?;
    // With `--target`, the flags are kept away from build scripts and macros.
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(folder).args(["build", "--release", "--bins", "--target", &host, "--target-dir", "target"]);
    call(cargo.env("RUSTFLAGS", COVERAGE.join(" ")), "build of the fuzz targets")?;
    Ok(folder.join("target").join(host).join("release"))
}

fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output().context("rustc -vV")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc -vV must name the host")
}

/// Fuzzes from the corpus on, then merges what is there into it.
fn run(folder: &Path, binaries: &Path, name: &str, seconds: u64) -> Result<()> {
    let work = corpus::unpack(folder, name)?;
    let artifacts = artifacts(folder, name)?;
    println!("fuzzing {name} for {seconds} s");
    let binary = binaries.join(name);
    let mut fuzz = Command::new(&binary);
    fuzz.arg(&work).arg(format!("-max_total_time={seconds}")).args(limits(&artifacts)).arg("-print_final_stats=1");
    call(&mut fuzz, &format!("fuzzing {name}")).with_context(|| {
        let path = artifacts.display();
        format!("a finding; look at it with: cargo xtask fuzz replay {name} {path}/…")
    })?;
    merge(folder, &binary, name, &[work])
}

/// Packs what is needed of `inputs` for the same coverage.
fn merge(folder: &Path, binary: &Path, name: &str, inputs: &[PathBuf]) -> Result<()> {
    let merged = corpus::empty(folder, &format!("{name}.merged"))?;
    let mut merge = Command::new(binary);
    merge.arg("-merge=1").arg(&merged).args(inputs).args(limits(&artifacts(folder, name)?));
    call(&mut merge, &format!("merging the corpus of {name}"))?;
    let packed = corpus::pack(folder, name, &merged)?;
    println!("{name}: {packed} inputs are kept");
    Ok(())
}

fn artifacts(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join("artifacts").join(name);
    std::fs::create_dir_all(&path)?;
    Ok(path)
}

fn limits(artifacts: &Path) -> [String; 4] {
    [
        format!("-max_len={MAX_INPUT_BYTES}"),
        format!("-timeout={INPUT_TIMEOUT_S}"),
        format!("-rss_limit_mb={MEMORY_MIB}"),
        format!("-artifact_prefix={}/", artifacts.display()),
    ]
}

fn call(command: &mut Command, what: &str) -> Result<()> {
    let status = command.status().with_context(|| format!("{what}: cannot be started"))?;
    if !status.success() {
        bail!("{what}: {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_a_target_and_every_target_is_declared() {
        let folder = crate::root().join("fuzz");
        let names = targets(&folder).unwrap();
        assert!(!names.is_empty());
        // The second one has every target compiled by the ordinary build.
        for (manifest, up) in [("Cargo.toml", ""), ("check/Cargo.toml", "../")] {
            let text = std::fs::read_to_string(folder.join(manifest)).unwrap();
            for name in &names {
                let line = format!("path = \"{up}fuzz_targets/{name}.rs\"");
                assert!(text.contains(&line), "fuzz/{manifest} has no [[bin]] for {name}");
            }
        }
    }

    #[test]
    fn an_unknown_target_is_named_with_the_known_ones() {
        let known = ["a".to_owned(), "b".to_owned()];
        let error = check(&["c".to_owned()], &known).unwrap_err().to_string();
        assert!(error.contains("\"c\"") && error.contains("a, b"), "{error}");
    }
}
