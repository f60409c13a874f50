//! Logs: what is written and how. `TETHER_LOG` filters (`info`, `debug`, `tether_agent=trace,warn`).

use std::io::IsTerminal as _;

use anyhow::{Context as _, Result};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt};

const FILTER_ENV: &str = "TETHER_LOG";
const FORMAT_ENV: &str = "TETHER_LOG_FORMAT";

/// How a line of log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Options that every long-running command has.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct LogArgs {
    /// How logs are written
    #[arg(long, value_enum, default_value_t, env = FORMAT_ENV)]
    log_format: LogFormat,
}

impl LogArgs {
    /// The arguments that make a child log the same way.
    pub fn to_args(self) -> [&'static str; 2] {
        match self.log_format {
            LogFormat::Text => ["--log-format", "text"],
            LogFormat::Json => ["--log-format", "json"],
        }
    }
}

/// What is written, as the environment says.
pub fn filter() -> Result<EnvFilter> {
    let builder = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).with_env_var(FILTER_ENV);
    builder.from_env().with_context(|| format!("{FILTER_ENV}: not a filter"))
}

/// Lines in the format that was asked for.
pub fn lines<W>(args: LogArgs, writer: W, ansi: bool) -> Box<dyn Layer<Registry> + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // A reader of the log that went away must not take this process along.
    let layer = fmt::layer().with_writer(writer).with_ansi(ansi).log_internal_errors(false);
    match args.log_format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => layer.json().boxed(),
    }
}

/// Logs to standard error.
pub fn to_stderr(args: LogArgs) -> Result<()> {
    let layer = lines(args, std::io::stderr, std::io::stderr().is_terminal());
    tracing_subscriber::registry().with(layer.with_filter(filter()?)).init();
    Ok(())
}
