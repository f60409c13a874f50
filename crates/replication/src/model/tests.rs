//! Long runs of the model, called by `cargo xtask campaign`.

use super::scopes::{run, scopes};
use super::walks::{walk, walks};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
#[ignore = "minutes; `cargo xtask campaign run replication-model`"]
fn no_world_breaks_a_promise_in_a_wide_search() {
    // A seed is a hundred thousand states per scope, which need about half a gigabyte.
    let states = number("TETHER_SEEDS", 4) as usize * 100_000;
    for (name, scope) in scopes() {
        let found = run(name, &scope, states);
        assert!(found.violation.is_none(), "{name}: {found}");
    }
}

#[test]
#[ignore = "minutes; `cargo xtask campaign run replication-walks`"]
fn walks_in_a_long_campaign() {
    let (first, seeds) = (number("TETHER_FIRST_SEED", 0), number("TETHER_SEEDS", 10_000));
    if seeds == 1 {
        walk(first, true);
    }
    walks(first, seeds);
}
