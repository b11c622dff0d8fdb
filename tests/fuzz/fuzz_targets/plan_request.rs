//! Requests of `windtunnel plan`, up to the search: nothing is simulated.
#![no_main]

use libfuzzer_sys::fuzz_target;
use windtunnel::explore::plan::Request;

fuzz_target!(|text: &str| {
    // A path may be anything; what lies there is not this target's.
    if text.contains('/') || text.contains(".toml") || text.contains(".json") {
        return;
    }
    let _ = Request::parse("request.toml", text);
});
