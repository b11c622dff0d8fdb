//! Bounds that a check fails above: on the parts of a gap, and on receipts.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = windtunnel::gap::bounds::parse(text);
    // What ends so is the path of a file.
    if !text.ends_with(".toml") {
        let _ = windtunnel::receipt::threshold::parse(text);
    }
});
