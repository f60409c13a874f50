//! ConfigMaps.

use super::Strategy;

pub(super) const STRATEGY: Strategy = Strategy { ..Strategy::PLAIN };
