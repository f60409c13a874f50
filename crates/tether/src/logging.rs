//! The log of `tether up`, which has a file and perhaps somebody at a terminal.

use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context as _, Result};
pub(crate) use tether_role::logging::LogArgs;
use tether_role::logging::{filter, lines};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::supervisor::LogFile;

/// Logs to a file, and warnings to the terminal too if there is one to watch.
pub(crate) fn to_file(args: LogArgs, path: &Path, terminal: bool) -> Result<()> {
    let file = LogFile::open(path).with_context(|| format!("cannot write {}", path.display()))?;
    let plain = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    let plain = plain.without_time().with_target(false).log_internal_errors(false);
    let plain = terminal.then(|| plain.with_filter(LevelFilter::WARN));
    let layer = lines(args, Mutex::new(file), false);
    tracing_subscriber::registry().with(layer.with_filter(filter()?)).with(plain).init();
    Ok(())
}
