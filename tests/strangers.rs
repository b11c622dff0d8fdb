//! Files from strangers: whichever number of one is none that can be, the file is refused, and nothing is computed from it.

use windtunnel::explore::plan::Request;
use windtunnel::failures::Rates;
use windtunnel::hardware::{Size, Topology};
use windtunnel::{Profile, Scenario};

use crate::command::Folder;
use crate::make;

/// Where the numbers of a text begin and end: those that stand free, and those of quantities, such as `"4.8 TB/s"`.
fn numbers(text: &str) -> Vec<std::ops::Range<usize>> {
    let mut found = vec![];
    let mut line_start = 0;
    for line in text.split_inclusive('\n') {
        let code = line.split('#').next().unwrap();
        let mut quoted = false;
        let mut last = '\n';
        let mut at = 0;
        while let Some(c) = code[at..].chars().next() {
            let digits =
                |rest: &str| rest.find(|c: char| !matches!(c, '0'..='9' | '.' | '_' | 'e')).unwrap_or(rest.len());
            if c.is_ascii_digit() && (!quoted && matches!(last, ' ' | '=' | '[' | ',') || quoted && last == '"') {
                let end = at + digits(&code[at..]);
                let rest = code[end..].split('"').next().unwrap();
                let unit = rest
                    .strip_prefix(' ')
                    .is_some_and(|unit| unit.chars().all(|c| c.is_ascii_alphabetic() || c == '/'));
                if !quoted || unit {
                    found.push(line_start + at..line_start + end);
                }
                at = end;
                last = '0';
                continue;
            }
            quoted ^= c == '"';
            last = c;
            at += c.len_utf8();
        }
        line_start += line.len();
    }
    found
}

/// Reads a file with each of some of its numbers replaced by what none is.
fn walk(name: &str, text: &str, most: usize, read: &dyn Fn(&str) -> Result<(), String>) {
    read(text).unwrap_or_else(|error| panic!("{name} is read as it is: {error}"));
    let all = numbers(text);
    assert!(!all.is_empty(), "{name} has numbers");
    let step = all.len().div_ceil(most);
    let mut taken = vec![];
    for number in all.into_iter().step_by(step) {
        for value in ["-1", "-0.5", "nan", "inf", "1e308"] {
            let changed = format!("{}{value}{}", &text[..number.start], &text[number.end..]);
            let line = text[..number.start].matches('\n').count();
            match read(&changed) {
                Ok(()) => taken.push(format!("{name}:{}: {}", line + 1, changed.lines().nth(line).unwrap())),
                Err(said) => assert!(!said.contains("panicked"), "{said}"),
            }
        }
    }
    assert!(taken.is_empty(), "taken for numbers:\n{}", taken.join("\n"));
}

const REQUEST: &str = "model = \"llama-3.1-8b\"\nsequence = 2048\nglobal_batch = 64\ntokens = \"10B\"\ntop = 4\n\
    [[machine]]\nname = \"h100-sxm-80gb\"\nsize = 2\n[limits]\nchips = 64\ndays = 30\nheadroom = \"2 GiB\"\n";

const PRICES: &str = "[[price]]\nmachine = \"h100-sxm-80gb\"\nper_chip_hour = 2.49\ncurrency = \"USD\"\ndate = \"2026-11-01\"\n\
    source = \"our contract\"\n";

#[test]
fn no_file_has_a_number_that_cannot_be() {
    let folder = Folder::new("strangers");
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let request = |text: &str| Request::parse("request.toml", text).map(drop).map_err(|error| said(&error));
    walk("request.toml", REQUEST, 100, &request);
    let priced = format!("prices = {:?}\n{REQUEST}", folder.path.join("prices.toml"));
    walk("prices.toml", PRICES, 100, &|text| {
        folder.write("prices.toml", text);
        request(&priced)
    });
    for (name, text) in [
        ("h100-sxm-80gb", include_str!("../topologies/h100-sxm-80gb.toml")),
        ("tpu-v6e", include_str!("../topologies/tpu-v6e.toml")),
        ("gb200-nvl72", include_str!("../topologies/gb200-nvl72.toml")),
    ] {
        let read =
            |text: &str| Topology::parse("mine.toml", text, &Size::Smallest).map(drop).map_err(|error| said(&error));
        walk(name, text, 1_000, &read);
    }
    walk("llama3-h100", include_str!("../sim/failures/llama3-h100.toml"), 1_000, &|text| {
        folder.write("rates.toml", text);
        let path = folder.path.join("rates.toml");
        Rates::load(path.to_str().unwrap()).map(drop).map_err(|error| said(&error))
    });
    let profile = |text: &str| Profile::parse("mine.toml", text).map(drop).map_err(|error| said(&error));
    walk("h200-sxm-141gb", include_str!("../sim/cost/profiles/h200-sxm-141gb.toml"), 60, &profile);
    let scenario = |text: &str| Scenario::parse(make::FILE, text).map(drop).map_err(|error| said(&error));
    walk("tiny", make::TINY, 100, &scenario);
    walk("megatron", make::MEGATRON, 100, &scenario);
}
