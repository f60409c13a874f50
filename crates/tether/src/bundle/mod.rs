//! A support bundle: what someone needs who helps from afar, and no secret.
//!
//! ```text
//!   tether-support-…/
//!     bundle.json                 what this is, when, by which version; what could not be collected and why
//!     host.txt processes.txt      the machine and the cluster's processes
//!     cluster/                    tether.json, status.json
//!     logs/                       every log, tokens and keys blanked
//!     objects/GROUP/KIND.yaml     every object, the contents of Secrets left out
//! ```
//!
//! Certificates, keys and kubeconfigs are never opened. A bundle of a cluster that does not run has everything but
//! the objects.

mod host;
mod objects;
mod scrub;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context as _, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use serde::Serialize;

use crate::cluster::{Layout, Marker};

/// The layout of the archive.
const FORMAT: u32 = 1;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct About {
    kind: &'static str,
    format: u32,
    tether: &'static str,
    created_at: Timestamp,
    cluster_id: String,
    /// What is missing, each with the reason.
    missing: Vec<String>,
}

/// The archive while it is written.
struct Archive<W: Write> {
    tar: tar::Builder<W>,
    prefix: String,
    now: Timestamp,
}

impl<W: Write> Archive<W> {
    fn add(&mut self, path: &str, text: &str) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.now.as_second() as u64);
        self.tar.append_data(&mut header, format!("{}/{path}", self.prefix), text.as_bytes())
    }
}

/// Writes the bundle; returns what is missing in it.
pub(crate) async fn write(layout: &Layout, marker: &Marker, file: File, now: Timestamp) -> Result<Vec<String>> {
    let prefix = format!("tether-support-{}", now.strftime("%Y%m%d-%H%M%S"));
    let mut archive = Archive { tar: tar::Builder::new(GzEncoder::new(file, Compression::default())), prefix, now };
    let mut missing = Vec::new();
    archive.add("host.txt", &host::describe(layout))?;
    archive.add("processes.txt", &host::processes(&layout.process_mark(marker)))?;
    for (name, path) in [("cluster/tether.json", layout.marker()), ("cluster/status.json", layout.status())] {
        add_text(&mut archive, name, &path, &mut missing)?;
    }
    add_logs(&mut archive, layout, &mut missing)?;
    match objects::collect(&layout.kubeconfig()).await {
        Ok(collected) => {
            for (path, yaml) in collected.files {
                archive.add(&format!("objects/{path}"), &yaml)?;
            }
            missing.extend(collected.missing);
        }
        Err(error) => missing.push(format!("objects: {error:#}")),
    }
    let about = About {
        kind: "tether-support-bundle",
        format: FORMAT,
        tether: env!("CARGO_PKG_VERSION"),
        created_at: now,
        cluster_id: marker.id.clone(),
        missing: missing.clone(),
    };
    archive.add("bundle.json", &(serde_json::to_string_pretty(&about)? + "\n"))?;
    archive.tar.into_inner()?.finish()?.sync_all()?;
    Ok(missing)
}

fn add_logs<W: Write>(archive: &mut Archive<W>, layout: &Layout, missing: &mut Vec<String>) -> Result<()> {
    let logs = layout.logs();
    let mut names = Vec::new();
    for entry in fs::read_dir(&logs).with_context(|| format!("cannot list {}", logs.display()))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    for name in names {
        add_text(archive, &format!("logs/{name}"), &logs.join(&name), missing)?;
    }
    Ok(())
}

fn add_text<W: Write>(archive: &mut Archive<W>, name: &str, path: &Path, missing: &mut Vec<String>) -> Result<()> {
    match fs::read(path) {
        Ok(bytes) => archive.add(name, &scrub::text(&String::from_utf8_lossy(&bytes)))?,
        Err(error) => missing.push(format!("{name}: {error}")),
    }
    Ok(())
}
