//! Receipts in JSON lines, and the scenario behind each that can be mapped. What the scenario predicts is not asked.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use windtunnel::receipt::check::case;
use windtunnel::receipt::read::Receipts;
use windtunnel::receipt::table::Tables;

static TABLES: LazyLock<Tables> = LazyLock::new(Tables::shipped);

fuzz_target!(|bytes: &[u8]| {
    let mut receipts = Receipts::default();
    receipts.read("runs.jsonl", bytes);
    for entry in &receipts.entries {
        let _ = case(entry, &TABLES);
    }
});
