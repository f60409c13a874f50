//! How commands talk to people and scripts: formats, errors, exit codes.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

/// Exit codes, as `tether --help` documents them. Clap uses 2 for a wrong command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Success = 0,
    Failure = 1,
    /// The cluster does not run.
    NotRunning = 3,
    /// The cluster runs, but not all of it is ready.
    NotReady = 4,
}

/// How data is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    #[default]
    Table,
    /// A table with more columns, where there are more.
    Wide,
    Json,
    Yaml,
}

/// Prints `value` in `format`; as a table it is what `table` makes of it.
pub fn print<T: Serialize>(format: Format, value: &T, table: impl FnOnce(&T) -> String) -> Result<()> {
    let text = match format {
        Format::Table | Format::Wide => table(value),
        Format::Json => serde_json::to_string_pretty(value)? + "\n",
        Format::Yaml => serde_yaml_ng::to_string(value)?,
    };
    say(&text);
    Ok(())
}

/// Writes to standard output. A reader that went away (`tether status | head`) is no error.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Writes a line to standard error, wherever that leads.
pub fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// The end of every command: its exit code, its error on standard error.
pub fn exit(result: Result<Exit>) -> ExitCode {
    match result {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(error) => {
            complain(&format!("error: {}", words(&error)));
            ExitCode::from(Exit::Failure as u8)
        }
    }
}

/// An error and what caused it. What an API server answered is said in its own words; the client's error around it would
/// repeat them, with everything else that was in the answer.
fn words(error: &anyhow::Error) -> String {
    let mut parts = Vec::new();
    for cause in error.chain() {
        if let Some(kube::Error::Api(status)) = cause.downcast_ref::<kube::Error>() {
            parts.push(status.message.clone());
            break;
        }
        parts.push(cause.to_string());
    }
    parts.join(": ")
}

/// Columns as wide as their widest cell, two spaces apart, in the manner of kubectl.
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<_> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn an_answer_of_the_server_is_said_once() {
        let status = kube::core::Status::failure("spec.size: too small", "Invalid").with_code(422);
        let answer: Result<()> = Err(kube::Error::Api(Box::new(status)).into());
        let error = answer.context("volume \"v1\" cannot be made").unwrap_err();
        assert_eq!(words(&error), "volume \"v1\" cannot be made: spec.size: too small");
        let plain = Err::<(), _>(std::io::Error::other("no room")).context("cannot write").unwrap_err();
        assert_eq!(words(&plain), "cannot write: no room");
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["NAME".to_owned(), "PID".to_owned()], vec!["apiserver".to_owned(), "7".to_owned()]];
        assert_eq!(columns(&rows), "NAME       PID\napiserver  7\n");
    }
}
