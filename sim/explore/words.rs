//! Numbers as the reports of this layer write them.

use crate::units::Bytes;
pub(super) use crate::units::thousands;

/// `79.18 GiB`.
pub(super) fn gib(bytes: Bytes) -> String {
    format!("{:.2} GiB", bytes.gib())
}

/// A share as `45.8 %`.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// A relative change as `+8.1 %`.
pub(super) fn relative_change(from: f64, to: f64) -> String {
    if from == 0.0 { "–".to_owned() } else { format!("{:+.1} %", 100.0 * (to / from - 1.0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!([0, 999, 1000, 131_072, 1_048_576].map(thousands), ["0", "999", "1,000", "131,072", "1,048,576"]);
    }
}
