//! Label selectors, field selectors, quantities and continue tokens.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tether_machinery::quantity::Quantity;
use tether_machinery::selector::{FieldSelector, LabelSelector};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(selector) = LabelSelector::parse(text) {
        let again = LabelSelector::parse(&selector.to_string()).expect("what is printed can be parsed");
        assert_eq!(again.to_string(), selector.to_string());
    }
    let _ = FieldSelector::parse(text);
    let _ = text.parse::<Quantity>();
    let _ = tether_apiserver::handlers::list::token_is_valid(text);
});
