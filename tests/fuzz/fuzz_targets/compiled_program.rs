//! Compiled programs as XLA's plugins hand them out, and all that is derived from one.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    windtunnel_calibrate::readers::program(bytes);
});
