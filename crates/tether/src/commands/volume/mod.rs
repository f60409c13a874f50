//! `tether volume`: make, list, attach, detach, grow and delete volumes.

mod attach;
mod create;
mod delete;
mod detach;
mod expand;
mod list;
mod wait;

use anyhow::{Context as _, Result};
use tether_machinery::quantity::Quantity;

use super::role::{self, Threads};
use crate::output::Exit;

/// The ticket of a person who works with `tether volume`.
const TICKET: &str = "longhorn-api";

/// Makes, lists, attaches, detaches, expands and deletes volumes
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Attaching puts a ticket into the volume's VolumeAttachment, detaching removes it; other tickets are left alone.\n\
                  Commands that change something wait until it is so, and say on standard error what they wait for.\n\n\
                  Example:\n  tether volume create v1 --size 1Gi --replicas 3\n  tether volume attach v1 --node node-1\n  \
                  tether volume list -o wide\n  tether volume detach v1\n  tether volume delete v1"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Create(create::Args),
    List(list::Args),
    Get(list::GetArgs),
    Attach(attach::Args),
    Detach(detach::Args),
    Expand(expand::Args),
    Delete(delete::Args),
}

pub(crate) fn run(args: &Args) -> Result<Exit> {
    role::runtime(Threads::One)?.block_on(async {
        match &args.command {
            Command::Create(args) => create::run(args).await,
            Command::List(args) => list::run(args).await,
            Command::Get(args) => list::get(args).await,
            Command::Attach(args) => attach::run(args).await,
            Command::Detach(args) => detach::run(args).await,
            Command::Expand(args) => expand::run(args).await,
            Command::Delete(args) => delete::run(args).await,
        }
    })
}

/// A size as Kubernetes writes it: `1Gi`, `500M`, or bytes.
fn parse_size(text: &str) -> Result<i64> {
    let size = Quantity::parse(text).map_err(|why| anyhow::anyhow!("{why}")).context("give a size such as 1Gi")?;
    anyhow::ensure!(size.value() > 0, "a volume is larger than nothing: give a size such as 1Gi");
    Ok(size.value())
}

/// Bytes as people read them: `1Gi`, `1.5Gi`, `512Mi`.
fn show_size(bytes: i64) -> String {
    const UNITS: [(i64, &str); 4] = [(1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")];
    let Some((unit, word)) = UNITS.into_iter().find(|(unit, _)| bytes >= *unit) else { return bytes.to_string() };
    let tenths = bytes / (unit / 10).max(1);
    if bytes % unit == 0 { format!("{}{word}", bytes / unit) } else { format!("{}.{}{word}", tenths / 10, tenths % 10) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        assert_eq!(parse_size("1Gi").unwrap(), 1 << 30);
        assert_eq!(parse_size("1000").unwrap(), 1000);
        for wrong in ["", "0", "-1Gi", "big"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
        for (bytes, shown) in [(1 << 30, "1Gi"), (3 << 29, "1.5Gi"), (5 << 20, "5Mi"), (12, "12"), (10 << 40, "10Ti")] {
            assert_eq!(show_size(bytes), shown);
        }
    }
}
