//! Logs: what is written, how, and where to. `TETHER_LOG` filters (`info`, `debug`, `tether_agent=trace,warn`).

use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context as _, Result};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, fmt};

use crate::supervisor::LogFile;

const FILTER_ENV: &str = "TETHER_LOG";
const FORMAT_ENV: &str = "TETHER_LOG_FORMAT";

/// How a line of log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Options that every long-running command has.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct LogArgs {
    /// How logs are written
    #[arg(long, value_enum, default_value_t, env = FORMAT_ENV)]
    pub(crate) log_format: LogFormat,
}

impl LogArgs {
    /// The arguments that make a child log the same way.
    pub(crate) fn to_args(self) -> [&'static str; 2] {
        match self.log_format {
            LogFormat::Text => ["--log-format", "text"],
            LogFormat::Json => ["--log-format", "json"],
        }
    }
}

fn filter() -> Result<EnvFilter> {
    let builder = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).with_env_var(FILTER_ENV);
    builder.from_env().with_context(|| format!("{FILTER_ENV}: not a filter"))
}

/// Logs to standard error.
pub(crate) fn to_stderr(args: LogArgs) -> Result<()> {
    let layer = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    // A reader of the log that went away must not take this process along.
    let layer = layer.log_internal_errors(false);
    let layer = match args.log_format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => layer.json().boxed(),
    };
    tracing_subscriber::registry().with(layer.with_filter(filter()?)).init();
    Ok(())
}

/// Logs to a file, and warnings to the terminal too if there is one to watch.
pub(crate) fn to_file(args: LogArgs, path: &Path, terminal: bool) -> Result<()> {
    let file = LogFile::open(path).with_context(|| format!("cannot write {}", path.display()))?;
    let layer = fmt::layer().with_writer(Mutex::new(file)).with_ansi(false).log_internal_errors(false);
    let layer = match args.log_format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => layer.json().boxed(),
    };
    let plain = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    let plain = plain.without_time().with_target(false).log_internal_errors(false);
    let plain = terminal.then(|| plain.with_filter(LevelFilter::WARN));
    tracing_subscriber::registry().with(layer.with_filter(filter()?)).with(plain).init();
    Ok(())
}
