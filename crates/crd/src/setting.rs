//! Setting: one value of the system's configuration.

use crate::definitions::Column;

resource! {
    /// One value of the system's configuration.
    Setting: "settings", short "lhs" {
        /// The value; numbers and booleans are written as text.
        value: String,
        /// Whether it is in force.
        status: SettingStatus,
    } columns &[
        Column::text("Value", ".value"),
        Column { name: "Applied", kind: "boolean", path: ".status.applied", priority: 0 },
        Column::AGE,
    ]
}

object! {
    /// Whether the value is in force.
    SettingStatus {
        /// It is.
        applied: bool,
    }
}
