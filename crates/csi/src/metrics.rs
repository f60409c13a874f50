//! What the loops count, under the names that Kubernetes' sidecars use.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tonic::Code;

/// Seconds; those of Kubernetes' storage operations.
const BUCKETS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CallLabels {
    driver_name: String,
    method_name: &'static str,
    grpc_status_code: String,
}

/// Calls to one driver.
#[derive(Clone)]
pub struct Calls {
    driver: Arc<str>,
    seconds: Family<CallLabels, Histogram, fn() -> Histogram>,
}

impl Calls {
    pub fn new(registry: &Metrics, driver: &str) -> Self {
        let seconds = Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram);
        let help = "Seconds that calls to the CSI driver took, by method and code";
        registry.registry.lock().register("csi_sidecar_operations_seconds", help, seconds.clone());
        Self { driver: driver.into(), seconds }
    }

    pub(crate) fn observe(&self, method: &'static str, code: Code, took: Duration) {
        let labels = CallLabels {
            driver_name: self.driver.to_string(),
            method_name: method,
            grpc_status_code: format!("{code:?}"),
        };
        self.seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }
}

/// Everything that is counted in this process.
#[derive(Clone, Default)]
pub struct Metrics {
    pub(crate) registry: Arc<Mutex<Registry>>,
}

impl Metrics {
    /// In the text format that Prometheus reads.
    pub fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry.lock()).expect("writing into a String must succeed");
        text
    }
}
