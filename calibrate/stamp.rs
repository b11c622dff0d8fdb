//! When and with what something was measured.

use std::time::{SystemTime, UNIX_EPOCH};

/// Now, UTC, ISO 8601.
pub fn now() -> String {
    iso(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// This program's version, and its commit where the build knew it.
pub fn program() -> String {
    let name = concat!("windtunnel-calibrate ", env!("CARGO_PKG_VERSION"));
    option_env!("WINDTUNNEL_COMMIT").map_or_else(|| name.to_owned(), |commit| format!("{name} ({commit})"))
}

/// Seconds since 1970 as UTC, ISO 8601 (Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`).
fn iso(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + 400 * era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second % 3600 / 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::iso;

    #[test]
    fn dates_are_the_calendar_s() {
        assert_eq!(iso(0), "1970-01-01T00:00:00Z");
        assert_eq!(iso(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(iso(1_767_225_599), "2025-12-31T23:59:59Z");
        assert_eq!(iso(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
