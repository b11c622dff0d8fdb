//! What other programs write is read without a panic, whole or damaged: every seed of the fuzz targets, and damage to each.

use std::ops::ControlFlow::Continue;
use std::path::Path;

use windtunnel::cost::Profile;
use windtunnel::explore::{plan, prices};
use windtunnel::gap::{bounds, choose, measured::measured, parts::gap};
use windtunnel::hardware::{Size, Topology};
use windtunnel::import::{IMPORTERS, Machine, Request, import, recognise};
use windtunnel::model::huggingface;
use windtunnel::receipt::check::case;
use windtunnel::receipt::read::Receipts;
use windtunnel::receipt::table::Tables;
use windtunnel::receipt::threshold;
use windtunnel::scenario::Scenario;
use windtunnel::schedule::csv;
use windtunnel::{log, trace};

use crate::command::Folder;
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

/// What is read is compared with itself, step by step: nothing differs.
#[test]
fn traces_are_read_or_refused() {
    let folder = Folder::new("traces_are_read_or_refused");
    let path = folder.path.join("trace");
    let own = [seeds("trace"), Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces/small")];
    let (mut read, mut all) = (0, 0);
    for seeds in own.iter().filter(|seeds| seeds.is_dir()) {
        all += each(seeds, 200, |bytes| {
            std::fs::write(&path, bytes).unwrap();
            let Ok(trace) = trace::read(&path, &|_, _| Continue(())) else { return };
            read += 1;
            for (_, device) in choose::ranks(&trace) {
                let Ok(step) = choose::step(&trace, device, None) else { continue };
                if let Some(side) = measured(&trace, device, step) {
                    let gaps = gap(&side, &side).parts.into_iter().map(|part| part.gap());
                    assert_eq!(gaps.sum::<i128>(), 0);
                }
            }
        });
    }
    assert!(read >= 9 && read < all, "{read} of {all}");
}

#[test]
fn logs_are_read_or_refused() {
    let mut read = 0;
    let all = each(&seeds("log"), 1_000, |bytes| {
        let Ok(run) = log::read("run.log", &text(bytes)) else { return };
        if let Ok(table) = run.measured("run.log", Some(64)) {
            assert!(table.parse::<toml::Table>().is_ok(), "{table}");
            read += 1;
        }
    });
    assert!(read >= 4 && read < all, "{read} of {all}");
}

#[test]
fn requests_of_plans_and_prices_are_read_or_refused() {
    let mut read = 0;
    let all = each(&seeds("plan_request"), 300, |bytes| {
        read += usize::from(plan::Request::parse("request.toml", &text(bytes)).is_ok());
    }) + each(&seeds("prices"), 1_000, |bytes| {
        for price in prices::read(&text(bytes)).unwrap_or_default() {
            assert!(price.per_chip_hour.is_finite() && price.per_chip_hour > 0.0, "{price:?}");
            read += 1;
        }
    });
    assert!(read >= 2 && read < all, "{read} of {all}");
}

#[test]
fn bounds_are_read_or_refused() {
    let mut read = 0;
    let all = each(&seeds("bounds"), 1_000, |bytes| {
        let text = text(bytes);
        read += usize::from(bounds::parse(text.trim()).is_ok() || threshold::parse(text.trim()).is_ok());
    });
    assert!(read >= 2 && read < all, "{read} of {all}");
}
