//! Traces of profilers, and the comparison of each of their steps with itself.
#![no_main]

use std::ops::ControlFlow::Continue;

use libfuzzer_sys::fuzz_target;
use windtunnel::gap::{choose, measured::measured, parts::gap};
use windtunnel::trace;

fuzz_target!(|bytes: &[u8]| {
    // Readers open files: one of them is SQLite, which reads in place.
    let path = std::env::temp_dir().join(format!("windtunnel-fuzz-{}", std::process::id()));
    if std::fs::write(&path, bytes).is_err() {
        return;
    }
    let Ok(trace) = trace::read(&path, &|_, _| Continue(())) else { return };
    for (_, device) in choose::ranks(&trace) {
        let Ok(step) = choose::step(&trace, device, None) else { continue };
        if let Some(side) = measured(&trace, device, step) {
            assert_eq!(gap(&side, &side).parts.iter().map(|part| part.gap()).sum::<i128>(), 0);
        }
    }
});
