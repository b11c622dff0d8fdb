//! Numbers of profiles and topologies: what cannot be is refused where it stands, what can be gives a prediction that ends.

use proptest::prelude::*;
use windtunnel::cost::Profile;
use windtunnel::hardware::{Size, Topology};

use crate::make::{self, TINY};

const PROFILES: [(&str, &str); 2] = [
    ("h100", include_str!("../sim/cost/profiles/h100-sxm-80gb.toml")),
    ("v6e", include_str!("../sim/cost/profiles/tpu-v6e.toml")),
];
const TOPOLOGIES: [(&str, &str); 2] =
    [("h100", include_str!("../topologies/h100-sxm-80gb.toml")), ("v6e", include_str!("../topologies/tpu-v6e.toml"))];
const BAD: [&str; 8] = ["nan", "inf", "-inf", "-1.5", "0.0", "1e-320", "-1e-320", "1e300"];

/// Where floats stand: the ranges of plain ones, and of those in front of a unit, with their lines.
fn floats(text: &str) -> Vec<(usize, std::ops::Range<usize>)> {
    let mut found = vec![];
    let mut start = 0;
    for (line, body) in text.split_inclusive('\n').enumerate() {
        for (at, _) in body.match_indices("= ").filter(|_| !body.starts_with('#')) {
            let rest = &body[at + 2..];
            let quoted = usize::from(rest.starts_with('"'));
            let length = rest[quoted..].find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(0);
            let (number, after) = rest[quoted..].split_at(length);
            let unit = after.strip_prefix(' ').is_some_and(|unit| {
                ["B/s", "Bytes", "us", "ns", "ms", "W", "MHz", "GHz", "GB", "MB", "GiB", "MiB", "TB", "TFLOP/s"]
                    .iter()
                    .any(|known| unit.starts_with(known) || unit.contains("B/s\""))
            });
            let float = if quoted == 1 { unit } else { number.contains('.') };
            if length > 0 && float {
                let from = start + at + 2 + quoted;
                found.push((line + 1, from..from + length));
            }
        }
        start += body.len();
    }
    found
}

/// Where times stand in the rows of tables of matmuls, `"n k: t t t"` and `"m n k: t"`, with their lines.
fn cells(text: &str) -> Vec<(usize, std::ops::Range<usize>)> {
    let mut found = vec![];
    let mut start = 0;
    for (line, body) in text.split_inclusive('\n').enumerate() {
        let row = body.trim_start().strip_prefix('"').and_then(|row| row.split_once(": "));
        let sizes = |head: &str| head.split(' ').all(|size| size.parse::<u64>().is_ok());
        if let Some((_, times)) = row.filter(|(head, _)| sizes(head)) {
            let mut at = start + body.find(": ").unwrap() + 2;
            for time in times.split_inclusive(' ') {
                let length = time.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(time.len());
                if length > 0 {
                    found.push((line + 1, at..at + length));
                }
                at += time.len();
            }
        }
        start += body.len();
    }
    found
}

fn changed(text: &str, range: std::ops::Range<usize>, to: &str) -> String {
    format!("{}{to}{}", &text[..range.start], &text[range.end..])
}

/// The tiny model's step on a profile: it ends, and takes some time.
fn ends(profile: Profile) {
    let scenario = make::parse(TINY);
    let scenario = windtunnel::scenario::Scenario { profile: profile.into(), ..scenario };
    let answer = windtunnel::scenario::predict(&scenario, windtunnel::scenario::predict::Settings::default()).unwrap();
    assert!(answer.step.0 > 0 && answer.step.seconds() < 1e6, "{}", answer.step);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_profile_with_a_number_that_cannot_be_is_refused_at_its_line(which in 0..2_usize, at in 0..10_000_usize, bad in 0..BAD.len()) {
        let (name, text) = PROFILES[which];
        let found = floats(text);
        let (line, range) = found[at % found.len()].clone();
        match Profile::parse("own.toml", &changed(text, range, BAD[bad])) {
            Err(error) => {
                let said = error.to_string();
                let there = said.contains(&format!(":{line}:")) || said.contains("[") || said.contains(&format!("line {line}"));
                prop_assert!(there && said.contains("own.toml"), "{name}, line {line}, {}: {said}", BAD[bad]);
            }
            // Zero is a time, or an error, that may be.
            Ok(profile) => {
                prop_assert_eq!(BAD[bad], "0.0", "{}, line {}", name, line);
                if which == 0 {
                    ends(profile);
                }
            }
        }
    }

    #[test]
    fn a_topology_with_a_number_that_cannot_be_is_refused_at_its_line(which in 0..2_usize, at in 0..1_000_usize, bad in 0..BAD.len()) {
        let (name, text) = TOPOLOGIES[which];
        let found = floats(text);
        let (line, range) = found[at % found.len()].clone();
        match Topology::parse("own.toml", &changed(text, range, BAD[bad]), &Size::Smallest) {
            Err(error) => prop_assert!(error.to_string().contains(&format!("own.toml:{line}:")), "{name}: {error}"),
            Ok(_) => prop_assert_eq!(BAD[bad], "0.0", "{}, line {}", name, line),
        }
    }
}

/// Times of a table [us] that no matmul of the chip takes: no number, none at all, faster than the chip, slower than a stuck one.
const BAD_TIMES: [&str; 12] =
    ["nan", "inf", "-inf", "-1.5", "0", "1e-320", "-1e-320", "1e-3", "1e8", "1e11", "1e300", "1e400"];

#[test]
fn a_table_with_a_time_that_cannot_be_is_refused_at_its_line() {
    let text = PROFILES[0].1;
    let found = cells(text);
    assert!(found.len() > 10_000, "{}", found.len());
    let points = "\n[matmul.bf16.points]\nevidence = { basis = \"measured\", points = 2, median = 0.1, p90 = 0.1, source = \"\" }\nrows = [\n  \"4096 4096 4096: 300\",\n  \"4096 4096 8192: 600\",\n]\n";
    let at = text.find("\n[matmul.fp8]").unwrap();
    let measured = changed(text, at..at, points);
    let own: Vec<_> =
        cells(&measured).into_iter().filter(|(_, range)| (at..at + points.len()).contains(&range.start)).collect();
    assert_eq!(own.len(), 2);
    assert!(Profile::parse("own.toml", &measured).is_ok());
    // A share of all cells, from one end of the table to the other, and the points of an own machine.
    let spread = found.iter().step_by(found.len() / 40).map(|cell| (text, cell));
    for (at, (text, (line, range))) in spread.chain(own.iter().map(|cell| (&*measured, cell))).enumerate() {
        for time in [BAD_TIMES[at % BAD_TIMES.len()], BAD_TIMES[(at + 5) % BAD_TIMES.len()]] {
            let said = Profile::parse("own.toml", &changed(text, range.clone(), time)).expect_err(time).to_string();
            assert!(said.starts_with(&format!("own.toml:{line}:")), "{time}: {said}");
        }
    }
}

#[test]
fn a_table_that_is_slow_throughout_is_refused_rather_than_predicted_from() {
    let text = PROFILES[0].1;
    for time in ["1e300", "1e11", "1e7"] {
        let mut slow = text.to_owned();
        for (_, range) in cells(text).into_iter().rev() {
            slow.replace_range(range, time);
        }
        let said = Profile::parse("own.toml", &slow).expect_err(time).to_string();
        assert!(said.contains("times as long as at full rate") && said.contains("at most 1000 times"), "{said}");
    }
}

#[test]
fn curves_and_launches_that_stand_still_are_refused() {
    let text = PROFILES[0].1;
    let launch = text.replacen("launch = \"2.728 us\"", "launch = \"9000 s\"", 1);
    let from = text.find("us = [").unwrap() + "us = [".len();
    let curve = changed(text, from..from + text[from..].find(',').unwrap(), "1e9");
    for (bad, why) in [(launch, "expected at most 1 s"), (curve, "times as long as at full rate")] {
        let said = Profile::parse("own.toml", &bad).unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn every_kind_of_number_is_found_in_the_files() {
    assert!(floats(PROFILES[0].1).len() > 150 && floats(PROFILES[1].1).len() > 100);
    assert!(TOPOLOGIES.iter().all(|(_, text)| floats(text).len() > 8));
}

#[test]
fn shipped_profiles_and_topologies_are_sound() {
    for name in Profile::names() {
        Profile::find(name).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn a_matmul_faster_than_the_chip_is_refused_with_both_rates() {
    let text = PROFILES[0].1;
    let fast = text.replacen("\"1024 16384: 16.27", "\"1024 16384: 0.00001627", 1);
    assert_ne!(text, fast);
    let said = Profile::parse("own.toml", &fast).unwrap_err().to_string();
    assert!(said.contains("1 x 1024 x 16384") && said.contains("above the chip's peak of 989 TFLOP/s"), "{said}");
    let mma = text.replacen("mma = 0.8271", "mma = 1.4", 1);
    assert!(Profile::parse("own.toml", &mma).unwrap_err().to_string().contains("waves.mma is 1.4"));
}

#[test]
fn a_hanging_share_and_an_error_of_no_number_name_line_and_key() {
    let text = PROFILES[0].1;
    let tiny = Profile::parse("own.toml", &text.replacen("mma = 0.8271", "mma = 1e-320", 1)).unwrap_err().to_string();
    let line = 1 + text.lines().position(|line| line.starts_with("mma = ")).unwrap();
    assert!(tiny.contains(&format!("own.toml:{line}:7")) && tiny.contains("mma is 1e-320: expected"), "{tiny}");
    let nan = Profile::parse("own.toml", &text.replacen("p90 = 0.1039", "p90 = nan", 1)).unwrap_err().to_string();
    assert!(nan.contains("p90 is nan: expected 0, or a number from"), "{nan}");
}
