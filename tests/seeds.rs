//! What other programs write is read without a panic, whole or damaged: every seed of the fuzz targets, and damage to each.

use std::path::Path;

use windtunnel::cost::Profile;
use windtunnel::hardware::{Size, Topology};
use windtunnel::import::{IMPORTERS, Machine, Request, import, recognise};
use windtunnel::model::huggingface;
use windtunnel::receipt::check::case;
use windtunnel::receipt::read::Receipts;
use windtunnel::receipt::table::Tables;
use windtunnel::scenario::Scenario;
use windtunnel::schedule::csv;

use crate::mutations::each;

fn seeds(target: &str) -> std::path::PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/seeds")).join(target)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn schedules_in_csv_are_read_or_refused() {
    let mut read = 0;
    let all = each(&seeds("schedule_csv"), 2_000, |bytes| {
        let _ = csv::lists("plan.csv", &text(bytes));
        read += usize::from(csv::read("plan.csv", &text(bytes)).is_ok());
    });
    assert!(read >= 3 && read < all, "{read} of {all}");
}

#[test]
fn receipts_are_mapped_or_refused() {
    let tables = Tables::shipped();
    let mut mapped = 0;
    each(&seeds("receipts_jsonl"), 60, |bytes| {
        let mut receipts = Receipts::default();
        receipts.read("runs.jsonl", bytes);
        mapped += receipts.entries.iter().filter(|entry| case(entry, &tables).is_ok()).count();
    });
    assert!(mapped > 20, "{mapped}");
}

#[test]
fn models_are_read_or_refused() {
    let mut read = 0;
    let all = each(&seeds("hugging_face"), 1_000, |bytes| {
        if let Ok(model) = huggingface::parse(&text(bytes), "config.json") {
            assert!(model.params().total > 0);
            read += 1;
        }
    });
    assert!(read >= 7 && read < all, "{read} of {all}");
}

#[test]
fn configurations_of_other_frameworks_are_read_or_refused() {
    let machine = Machine { on: Some("h100-sxm-80gb".to_owned()), nodes: Some(1), ..Machine::default() };
    let mut read = 0;
    let all = each(&seeds("configurations"), 300, |bytes| {
        let text = text(bytes);
        let _ = recognise("config", &text);
        for importer in IMPORTERS {
            let request = Request { file: "config", text: &text, machine: machine.clone(), ..Request::default() };
            read += usize::from(import(importer, &request).is_ok_and(|imported| !imported.text().is_empty()));
        }
    });
    assert!(read >= 3 && read < all, "{read} of {all}");
}

#[test]
fn scenarios_are_read_or_refused() {
    let mut read = 0;
    let all = each(&seeds("scenario"), 100, |bytes| {
        read += usize::from(Scenario::parse("scenario.toml", &text(bytes)).and_then(|plan| plan.simulable()).is_ok());
    });
    assert!(read > 5 && read < all, "{read} of {all}");
}

#[test]
fn machines_are_read_or_refused() {
    let mut read = 0;
    let all = each(&seeds("machine"), 300, |bytes| {
        read += usize::from(Topology::parse("own.toml", &text(bytes), &Size::Smallest).is_ok());
        let _ = Profile::parse("own.toml", &text(bytes));
    });
    assert!(read >= 2 && read < all, "{read} of {all}");
}
