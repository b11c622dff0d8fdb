//! Schedules in PyTorch's CSV: computations alone, and with communication.
#![no_main]

use libfuzzer_sys::fuzz_target;
use windtunnel::schedule::{csv, in_flight};

fuzz_target!(|text: &str| {
    let _ = csv::lists("plan.csv", text);
    if let Ok(schedule) = csv::read("plan.csv", text) {
        let _ = in_flight(&schedule, false);
    }
});
