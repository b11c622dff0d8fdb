//! Configurations of other frameworks, each given to the importer that it looks like one of, or else to one that its length chooses: an
//! importer reads the machine as well, so that all of them for each input would be three inputs a second.
#![no_main]

use libfuzzer_sys::fuzz_target;
use windtunnel::import::{IMPORTERS, Machine, Request, import, recognise};

fuzz_target!(|text: &str| {
    let at = text.len();
    let importer = recognise("config", text).ok().flatten().unwrap_or(&IMPORTERS[at % IMPORTERS.len()]);
    let on = |name: &str| Machine { on: Some(name.to_owned()), ..Machine::default() };
    let machine = match at / IMPORTERS.len() % 2 {
        0 => Machine { nodes: Some(1), ..on("h100-sxm-80gb") },
        _ => Machine { slice: Some("4x4".to_owned()), ..on("tpu-v6e") },
    };
    let request = Request { file: "config", text, machine, ..Request::default() };
    if let Ok(imported) = import(importer, &request) {
        let _ = imported.text();
    }
});
