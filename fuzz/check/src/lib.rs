//! A stand-in for libFuzzer: fuzz targets are checked by the compiler and the lints of the workspace, and do nothing.
//!
//! The real targets are built by `cargo xtask fuzz` in a workspace of their own, with coverage counters.

/// A target whose body must compile.
#[macro_export]
macro_rules! fuzz_target {
    (|$data:ident: $type:ty| $body:expr) => {
        const _: fn($type) = |$data| $body;
    };
}
