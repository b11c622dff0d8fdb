//! What a chip may cost for an hour: the one check of prices, wherever they are written.

/// The least and the most, in any currency. Chips are let for 0.2 to 15 US dollars, and a dollar is 0.3 (KWD) to 90,000 (LBP) of a
/// currency; the range is wider by a factor of 100 on both sides (assumed).
const RANGE: (f64, f64) = (1e-4, 1e8);

/// Refuses what no chip costs.
///
/// # Errors
/// What was expected.
pub fn sensible(per_chip_hour: f64) -> Result<(), String> {
    let (least, most) = RANGE;
    match (least..=most).contains(&per_chip_hour) {
        true => Ok(()),
        false => Err(format!("expected {least} to {most} for one chip and one hour, in any currency")),
    }
}
