//! Metrics of the server, under the names that Kubernetes' dashboards know.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Seconds; from an in-process read to a request that hit its time limit.
const BUCKETS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    verb: &'static str,
    group: String,
    resource: String,
    subresource: String,
    code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DurationLabels {
    verb: &'static str,
    resource: String,
}

/// What the server counts.
pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    durations: Family<DurationLabels, Histogram, fn() -> Histogram>,
    watches: Gauge,
}

fn buckets() -> Histogram {
    Histogram::new(BUCKETS)
}

/// Counts a watch while it lives.
pub struct OpenWatch(Gauge);

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    /// The server's own counters, and those of its store.
    pub(crate) fn new(store: &crate::store::Metrics) -> Self {
        let mut registry = Registry::default();
        let requests = Family::default();
        let durations = Family::new_with_constructor(buckets as fn() -> Histogram);
        let watches = Gauge::default();
        registry.register("apiserver_request", "Requests, by verb, resource and code", requests.clone());
        let help = "Seconds until the response was ready; watches are not counted";
        registry.register("apiserver_request_duration_seconds", help, durations.clone());
        registry.register("apiserver_longrunning_requests", "Watches that are open", watches.clone());
        store.register(&mut registry);
        Self { registry, requests, durations, watches }
    }

    /// One finished request. `known` is false for what is not served: its names are not ours to keep.
    pub(crate) fn request(&self, info: &crate::request::RequestInfo, known: bool, code: u16, seconds: f64) {
        let own = |text: &String| if known { text.clone() } else { String::new() };
        let labels = RequestLabels {
            verb: info.verb,
            group: own(&info.group),
            resource: own(&info.resource),
            subresource: own(&info.subresource),
            code,
        };
        self.requests.get_or_create(&labels).inc();
        if info.verb != "watch" {
            let labels = DurationLabels { verb: info.verb, resource: own(&info.resource) };
            self.durations.get_or_create(&labels).observe(seconds);
        }
    }

    pub(crate) fn watch_opened(&self) -> OpenWatch {
        self.watches.inc();
        OpenWatch(self.watches.clone())
    }

    /// The text exposition of everything.
    pub fn render(&self) -> String {
        let mut text = String::new();
        if encode(&mut text, &self.registry).is_err() {
            tracing::warn!("the metrics could not be rendered");
        }
        classic(&text)
    }
}

/// The classic text format, in which a counter's own name ends in `_total`: what Kubernetes serves and dashboards expect.
fn classic(open_metrics: &str) -> String {
    let counters: Vec<&str> =
        open_metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(word), Some(name), Some(rest)) if counters.contains(&name) => {
                text.extend(["# ", word, " ", name, "_total ", rest]);
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_the_names_that_dashboards_know() {
        let metrics = Metrics::new(&crate::store::Metrics::default());
        let info = crate::request::RequestInfo { verb: "get", ..Default::default() };
        metrics.request(&info, true, 200, 0.1);
        let text = metrics.render();
        assert!(text.contains("# TYPE apiserver_request_total counter\n"), "{text}");
        assert!(text.contains("apiserver_request_total{verb=\"get\""), "{text}");
        assert!(!text.contains("# EOF"));
    }
}
