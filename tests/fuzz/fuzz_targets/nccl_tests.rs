//! Logs of nccl-tests and what its `-J` writes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    windtunnel_calibrate::readers::nccl_tests(bytes);
});
