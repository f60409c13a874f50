//! What an API server was made to write, by its own count.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use kube::Client;

/// Requests that change something.
const VERBS: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];
/// Heartbeats of nodes, which are not about volumes, and events, which are told apart.
const APART: [&str; 2] = ["leases", "events"];

/// Writes since the server started, by resource and verb.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Writes(BTreeMap<String, u64>);

impl Writes {
    pub(super) async fn read(client: &Client) -> Result<Self> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let text = client.request_text(request).await.context("GET /metrics")?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let mut writes = Self::default();
        for line in text.lines() {
            let Some((labels, count)) =
                line.strip_prefix("apiserver_request_total{").and_then(|rest| rest.split_once("} "))
            else {
                continue;
            };
            let label = |name: &str| {
                let start = labels.find(&format!("{name}=\""))? + name.len() + 2;
                labels[start..].split('"').next()
            };
            let (Some(verb), Some(resource), Some(code)) = (label("verb"), label("resource"), label("code")) else {
                continue;
            };
            if !VERBS.contains(&verb) || resource == "leases" {
                continue;
            }
            let part = match label("subresource").filter(|name| !name.is_empty()) {
                Some(subresource) => format!("{resource}/{subresource}"),
                None => resource.to_owned(),
            };
            let refused = if code.starts_with('2') { "" } else { " (refused)" };
            *writes.0.entry(format!("{verb} {part}{refused}")).or_default() += count.trim().parse::<u64>().unwrap_or(0);
        }
        writes
    }

    pub(super) fn since(&self, before: &Self) -> Self {
        let grown = self.0.iter().map(|(name, count)| (name.clone(), count - before.0.get(name).unwrap_or(&0)));
        Self(grown.filter(|(_, count)| *count > 0).collect())
    }

    /// All of them but those that are told apart.
    pub(super) fn total(&self) -> u64 {
        let counts = self.0.iter().filter(|(name, _)| !APART.iter().any(|apart| name.contains(apart)));
        counts.map(|(_, count)| count).sum()
    }

    /// For each of so many things; `total` leaves out what is told apart.
    pub(super) fn each(&self, things: usize) -> BTreeMap<String, f64> {
        let share = |count: u64| (count as f64 / things.max(1) as f64 * 100.0).round() / 100.0;
        let mut table: BTreeMap<String, f64> =
            self.0.iter().map(|(name, count)| (name.clone(), share(*count))).collect();
        table.insert("total".to_owned(), share(self.total()));
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_counted_by_what_is_written_and_reads_are_not() {
        let text = |patches: u32| {
            format!(
                "apiserver_request_total{{verb=\"get\",group=\"\",resource=\"pods\",subresource=\"\",code=\"200\"}} 7\n\
                 apiserver_request_total{{verb=\"patch\",group=\"longhorn.io\",resource=\"volumes\",subresource=\"status\",code=\"200\"}} {patches}\n\
                 apiserver_request_total{{verb=\"patch\",group=\"\",resource=\"events\",subresource=\"\",code=\"200\"}} {patches}\n\
                 apiserver_request_total{{verb=\"update\",group=\"c\",resource=\"leases\",subresource=\"\",code=\"200\"}} 9\n"
            )
        };
        let writes = Writes::parse(&text(30)).since(&Writes::parse(&text(10)));
        assert_eq!(writes.total(), 20);
        let each: Vec<String> = writes.each(10).iter().map(|(name, count)| format!("{name}: {count:.1}")).collect();
        assert_eq!(each, ["patch events: 2.0", "patch volumes/status: 2.0", "total: 2.0"]);
    }
}
