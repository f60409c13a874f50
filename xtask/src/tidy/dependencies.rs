//! Rules about dependencies: pure crates stay pure, every entry is used and says why, licenses fit.
//!
//! The source of truth is `cargo metadata`: what a crate declares, and what it is really built with.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::files::File;
use super::{Finding, PURE};

/// What a pure crate may name in `[dependencies]`, beside other pure crates: data, text, errors.
const PURE_MAY_USE: &[&str] = &[
    "base64",
    "bytes",
    "cel",
    "indexmap",
    "jiff",
    "k8s-openapi",
    "prost",
    "prost-reflect",
    "regex",
    "schemars",
    "serde",
    "serde_json",
    "sha2",
    "thiserror",
];

/// What must not be reachable from a pure crate, however deep: runtimes, sockets, files. (`getrandom`
/// is absent on purpose: features are one for the workspace, so `uuid` brings it in wherever it is used;
/// that no pure code calls it is a rule about sources.)
const PURE_MUST_NOT_REACH: &[&str] = &[
    "async-std",
    "axum",
    "hyper",
    "io-uring",
    "kube",
    "kube-client",
    "kube-runtime",
    "mio",
    "redb",
    "reqwest",
    "rustix",
    "rustls",
    "smol",
    "socket2",
    "tokio",
    "tonic",
];

/// The same list as in `deny.toml`, so that a clone without `cargo-deny` checks it too.
const LICENSES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// The part of `cargo metadata` that the rules read.
#[derive(Debug, Deserialize)]
pub(super) struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
    resolve: Resolve,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    license: Option<String>,
    dependencies: Vec<Declared>,
    manifest_path: String,
}

#[derive(Debug, Deserialize)]
struct Declared {
    name: String,
    kind: Option<String>,
    path: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Debug, Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<EdgeKind>,
}

#[derive(Debug, Deserialize)]
struct EdgeKind {
    kind: Option<String>,
}

impl Metadata {
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(root).args(["metadata", "--format-version", "1", "--locked"]);
        cargo.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
        let output = cargo.output().context("cargo metadata")?;
        ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).context("cargo metadata")
    }

    fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| self.workspace_members.contains(&package.id))
    }

    /// Names of everything that `package` links, directly or not.
    fn reachable(&self, package: &Package) -> BTreeSet<&str> {
        let nodes: BTreeMap<_, _> = self.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let names: BTreeMap<_, _> =
            self.packages.iter().map(|found| (found.id.as_str(), found.name.as_str())).collect();
        let mut seen = BTreeSet::new();
        let mut open = vec![package.id.as_str()];
        while let Some(id) = open.pop() {
            if seen.insert(id) {
                let linked = nodes[id].deps.iter().filter(|edge| edge.dep_kinds.iter().any(|kind| kind.kind.is_none()));
                open.extend(linked.map(|edge| edge.pkg.as_str()));
            }
        }
        seen.into_iter().map(|id| names[id]).collect()
    }
}

impl Package {
    fn folder(&self) -> Option<&str> {
        Path::new(&self.manifest_path).parent()?.file_name()?.to_str()
    }

    fn is_pure(&self) -> bool {
        self.folder().is_some_and(|folder| PURE.contains(&folder))
    }
}

pub(super) fn check(metadata: &Metadata, files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in metadata.members() {
        if package.is_pure() {
            findings.extend(pure(metadata, package));
        }
    }
    findings.extend(licenses(metadata));
    if let Some(manifest) = files.iter().find(|file| file.path == "Cargo.toml") {
        findings.extend(table(metadata, &manifest.text));
    }
    findings
}

fn pure(metadata: &Metadata, package: &Package) -> Vec<Finding> {
    let mut findings = Vec::new();
    for declared in package.dependencies.iter().filter(|declared| declared.kind.is_none()) {
        let ours = declared.path.as_deref().and_then(|path| Path::new(path).file_name()?.to_str());
        let allowed = ours.map_or(PURE_MAY_USE.contains(&declared.name.as_str()), |folder| PURE.contains(&folder));
        if !allowed {
            let text = format!("a pure crate does not depend on `{}`", declared.name);
            findings.push(Finding::error(&package.name, text));
        }
    }
    let reachable = metadata.reachable(package);
    for banned in PURE_MUST_NOT_REACH.iter().filter(|banned| reachable.contains(**banned)) {
        let text = format!("a pure crate reaches `{banned}` through its dependencies (cargo tree -i {banned})");
        findings.push(Finding::error(&package.name, text));
    }
    findings
}

fn licenses(metadata: &Metadata) -> Vec<Finding> {
    let unfit = metadata.packages.iter().filter(|package| !package.license.as_deref().is_some_and(license_fits));
    let text = |package: &Package| format!("license {:?} is not on the list", package.license.as_deref().unwrap_or(""));
    unfit.map(|package| Finding::error(&package.name, text(package))).collect()
}

/// An SPDX expression fits if one of its alternatives consists of listed licenses. The expressions in
/// use nest at most one pair of parentheses, which bind an `OR` inside an `AND`.
fn license_fits(expression: &str) -> bool {
    let mut outside = expression.replace('/', " OR ");
    while let (Some(open), Some(close)) = (outside.find('('), outside.find(')')) {
        let fits = open < close && license_fits(&outside[open + 1..close]);
        outside.replace_range(open.min(close)..=close, if fits { "MIT" } else { "unfit" });
    }
    let listed = |license: &str| LICENSES.contains(&license.trim());
    outside.split(" OR ").any(|alternative| alternative.split(" AND ").all(listed))
}

/// The dependency table of the workspace: each entry stands below a comment that says what it is for,
/// and some crate uses it.
fn table(metadata: &Metadata, manifest: &str) -> Vec<Finding> {
    let used: BTreeSet<_> =
        metadata.members().flat_map(|package| &package.dependencies).map(|declared| declared.name.as_str()).collect();
    let mut findings = Vec::new();
    let mut explained = false;
    let lines = manifest.lines().skip_while(|line| *line != "[workspace.dependencies]").skip(1);
    for line in lines.take_while(|line| !line.starts_with('[')) {
        if line.starts_with('#') {
            explained = true;
        }
        let Some((name, _)) = line.split_once(" = ") else {
            explained &= !line.is_empty();
            continue;
        };
        if !explained && !name.starts_with("tether-") {
            findings
                .push(Finding::error("Cargo.toml", format!("`{name}` stands below no comment that says its purpose")));
        }
        if !used.contains(name) && !name.starts_with("tether-") {
            findings.push(Finding::error("Cargo.toml", format!("no crate uses `{name}`")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn license_expressions() {
        for (expression, fits) in [
            ("MIT", true),
            ("MIT OR Apache-2.0", true),
            ("MIT/Apache-2.0", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND GPL-2.0", false),
            ("MIT AND GPL-2.0", false),
            ("Apache-2.0 WITH LLVM-exception OR GPL-2.0", true),
        ] {
            assert_eq!(license_fits(expression), fits, "{expression}");
        }
    }

    /// A workspace of one pure crate with one dependency, `tokio` behind `helper`.
    fn metadata(direct: &str) -> Metadata {
        let package = |name: &str, path: &str, dependencies: serde_json::Value| serde_json::json!({"id": name, "name": name, "license": "MIT", "manifest_path": path, "dependencies": dependencies});
        let edge = |to: &str| serde_json::json!([{"pkg": to, "dep_kinds": [{"kind": null}]}]);
        serde_json::from_value(serde_json::json!({
            "packages": [
                package("tether-plan", "/x/crates/plan/Cargo.toml", serde_json::json!([{"name": direct, "kind": null, "path": null}])),
                package(direct, "/y/Cargo.toml", serde_json::json!([])),
                package("tokio", "/z/Cargo.toml", serde_json::json!([])),
            ],
            "workspace_members": ["tether-plan"],
            "resolve": {"nodes": [
                {"id": "tether-plan", "deps": edge(direct)},
                {"id": direct, "deps": edge("tokio")},
                {"id": "tokio", "deps": []},
            ]},
        }))
        .unwrap()
    }

    #[test]
    fn a_pure_crate_may_not_reach_a_runtime() {
        let findings = check(&metadata("serde"), &[]);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].text.contains("reaches `tokio`"));
        let findings = check(&metadata("helper"), &[]);
        assert!(findings.iter().any(|finding| finding.text.contains("does not depend on `helper`")), "{findings:?}");
    }

    #[test]
    fn the_table_explains_every_entry_and_has_no_unused_one() {
        let manifest = "[workspace.dependencies]\nserde = \"1\"\n\n# text\nregex = \"1\"\n[profile.dev]\n";
        let findings = table(&metadata("serde"), manifest);
        let texts: Vec<_> = findings.iter().map(|finding| finding.text.as_str()).collect();
        assert_eq!(texts, ["`serde` stands below no comment that says its purpose", "no crate uses `regex`"]);
    }
}
