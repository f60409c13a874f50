//! Load on an API server, any API server: what it can take, in numbers that two servers can be compared by.
//!
//! The same generator runs against each target in turn, in one run, so that the ratio between two servers means more
//! than either figure: the machine's noise is in both.

pub(crate) mod attach;
pub(crate) mod attacher;
mod fanout;
pub(crate) mod fleet;
mod load;
pub(crate) mod pod;
pub(crate) mod process;
mod target;

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

pub(crate) use fanout::Fanout;
pub(crate) use target::Target;

/// How much load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub clients: usize,
    /// Objects that are created, then updated.
    pub objects: usize,
    /// Bytes of data in each.
    pub size: usize,
    /// Lists of all of them.
    pub lists: usize,
    pub fanout: Option<Fanout>,
    /// Leave the objects of the load where they are, to look at the server's memory and its next start.
    pub keep: bool,
}

/// What one kind of load came to.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Figure {
    pub name: String,
    pub per_second: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub count: usize,
}

/// All figures of one target.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    pub target: String,
    pub figures: Vec<Figure>,
}

/// Durations, until they become a figure.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    pub(crate) fn add(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    fn percentile_ms(&self, percent: usize) -> f64 {
        let at = (self.0.len() * percent / 100).min(self.0.len().saturating_sub(1));
        self.0.get(at).map_or(0.0, |d| d.as_secs_f64() * 1e3)
    }

    pub(crate) fn figure(mut self, name: &str, took: Duration) -> Figure {
        self.0.sort_unstable();
        Figure {
            name: name.to_owned(),
            per_second: self.0.len() as f64 / took.as_secs_f64().max(1e-9),
            p50_ms: self.percentile_ms(50),
            p99_ms: self.percentile_ms(99),
            count: self.0.len(),
        }
    }
}

/// Runs the plan against one target. What it creates, it removes, unless told to keep it.
pub(crate) async fn run(target: &Target, plan: &Plan, progress: &dyn Fn(&str)) -> Result<Report> {
    let mut figures = Vec::new();
    target.create(load::NAMESPACES).await?;
    progress("creating");
    figures.push(load::creates(target, plan).await?);
    progress("updating");
    figures.push(load::updates(target, plan).await?);
    progress("listing");
    figures.push(load::lists(target, plan).await?);
    if plan.keep {
        return Ok(Report { target: target.name.clone(), figures });
    }
    target.remove(load::NAMESPACES).await?;
    if let Some(fanout) = &plan.fanout {
        progress("watching");
        target.create(fanout.spaces()).await?;
        figures.extend(fanout::run(target, fanout, plan).await?);
        target.remove(fanout.spaces()).await?;
    }
    Ok(Report { target: target.name.clone(), figures })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_samples() {
        let mut samples = Samples::default();
        for ms in (1..=100).rev() {
            samples.add(Duration::from_millis(ms));
        }
        let figure = samples.figure("x", Duration::from_secs(2));
        assert_eq!((figure.p50_ms, figure.p99_ms, figure.count), (51.0, 100.0, 100));
        assert!((figure.per_second - 50.0).abs() < 1e-9);
        assert_eq!(Samples::default().figure("none", Duration::ZERO).count, 0);
    }
}
