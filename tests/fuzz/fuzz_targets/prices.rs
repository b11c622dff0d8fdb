//! Files of prices: whatever is believed is money.
#![no_main]

use libfuzzer_sys::fuzz_target;
use windtunnel::explore::prices;

fuzz_target!(|text: &str| {
    for price in prices::read(text).unwrap_or_default() {
        assert!(price.per_chip_hour.is_finite() && price.per_chip_hour > 0.0, "{price:?}");
    }
});
