//! The kernel device, as file systems use it.

use crate::tools::Verdict;

pub const TESTS: &[(&str, fn() -> Verdict)] = &[];
