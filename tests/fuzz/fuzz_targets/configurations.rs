//! Configurations of other frameworks, each given to every importer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use windtunnel::import::{IMPORTERS, Machine, Request, import, recognise};

fuzz_target!(|text: &str| {
    let _ = recognise("config", text);
    let on = |name: &str| Machine { on: Some(name.to_owned()), ..Machine::default() };
    let gpus = Machine { nodes: Some(1), ..on("h100-sxm-80gb") };
    let slice = Machine { slice: Some("4x4".to_owned()), ..on("tpu-v6e") };
    for importer in IMPORTERS {
        for machine in [&gpus, &slice] {
            let request = Request { file: "config", text, machine: machine.clone(), ..Request::default() };
            if let Ok(imported) = import(importer, &request) {
                let _ = imported.text();
            }
        }
    }
});
