//! A stand-in for libFuzzer: fuzz targets are checked by the compiler and the lints of the workspace, and do nothing.
//!
//! The real targets are built by `cargo xtask fuzz` in a workspace of their own, with coverage counters.

/// A target whose body must compile. It has no `main` of Rust's, since libFuzzer brings one; this one is there so that
/// `cargo build --workspace` can link it.
#[macro_export]
macro_rules! fuzz_target {
    (|$data:ident: $type:ty| $body:expr) => {
        const _: fn($type) = |$data| $body;

        /// Called by the C runtime alone, with arguments that it does not look at.
        #[allow(unsafe_code, reason = "the name is what the C runtime calls; nothing else of this program has it")]
        #[unsafe(no_mangle)]
        pub extern "C" fn main() -> i32 {
            0
        }
    };
}
