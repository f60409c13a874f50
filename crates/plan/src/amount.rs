//! Quantities as whole numbers, which is what sums and comparisons need.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use tether_machinery::quantity::Quantity as Parsed;

/// The quantity in units, rounded up; one that is missing or malformed is 0 (the API server lets none of the latter in).
pub fn units(quantity: Option<&Quantity>) -> i64 {
    parse(quantity).map_or(0, |q| q.value())
}

/// The quantity in thousandths.
pub fn milli(quantity: Option<&Quantity>) -> i64 {
    parse(quantity).map_or(0, |q| q.milli_value())
}

fn parse(quantity: Option<&Quantity>) -> Option<Parsed> {
    Parsed::parse(&quantity?.0).ok()
}
