//! Tables of measured times as CSV.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    windtunnel_calibrate::readers::points(bytes);
});
