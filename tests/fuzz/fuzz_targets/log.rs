//! Logs of training runs, and the `[measured]` table that each becomes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(run) = windtunnel::log::read("run.log", text)
        && let Ok(table) = run.measured("run.log", Some(64))
    {
        assert!(toml::from_str::<toml::Table>(&table).is_ok(), "{table}");
    }
});
