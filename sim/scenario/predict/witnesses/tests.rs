//! Intervals of measured runs, each judged without its family, and what makes them.

use std::collections::{BTreeMap, BTreeSet};

use super::super::confidence::Confidence;
use super::held::Held;
use super::*;

fn kind(machine: &str) -> Kind {
    Kind {
        framework: "fsdp2".to_owned(),
        machine: machine.to_owned(),
        parallelism: "data".to_owned(),
        blocks: "dense".to_owned(),
        matmuls: "16-bit".to_owned(),
        nodes: "one".to_owned(),
    }
}

fn witness(machine: &str, family: &str, error: f64) -> Witness {
    Witness {
        family: family.to_owned(),
        lane: String::new(),
        kind: kind(machine),
        chips: 8,
        weight: 1.0,
        reasons: Reasons::default(),
        error,
    }
}

fn seen(witnesses: &[Witness]) -> Vec<Seen<'_>> {
    witnesses.iter().map(|one| (one, one.quotient())).collect()
}

#[test]
fn many_measured_runs_of_the_same_kind_make_it_and_others_hardly_count() {
    let far = (0..40).map(|i| witness("elsewhere", &format!("far {i}"), 0.5));
    let near = (0..401).map(|i| witness("here", &format!("near {i}"), 0.00025 * f64::from(i)));
    let all: Vec<Witness> = far.chain(near).collect();
    let (low, high) = ends(&seen(&all), &Reasons::default(), &kind("here"));
    assert!((0.0..0.01).contains(&-low), "all of its kind are too fast: {low}");
    assert!((high - 0.09).abs() < 0.01, "nine tenths of 0 to 0.1: {high}");
}

#[test]
fn runs_of_another_kind_say_how_far_and_not_which_way() {
    let others: Vec<Witness> = (0..50).map(|i| witness("elsewhere", &i.to_string(), 0.1)).collect();
    let (low, high) = ends(&seen(&others), &Reasons::default(), &kind("here"));
    assert!((low + 0.1).abs() < 0.01 && (high - 0.1).abs() < 0.01, "{low} {high}");
}

#[test]
fn a_step_that_waits_for_the_host_is_known_as_well_as_hosts_are() {
    let near: Vec<Witness> = (0..50).map(|i| witness("here", &i.to_string(), 0.01)).collect();
    let waits = Reasons { host: 0.6, issued: 1.0, ..Reasons::default() };
    let (low, high) = ends(&seen(&near), &waits, &kind("here"));
    assert!(low < -0.6 && high > 0.6, "a host that is not known to a factor of two: {low} {high}");
    let (low, high) = ends(&seen(&near), &Reasons::default(), &kind("here"));
    assert!(low > -0.02 && high < 0.02, "{low} {high}");
}

#[test]
fn every_line_of_the_file_is_read_and_written_back_alike() {
    let text = include_str!("../../../cost/profiles/measured-runs.csv");
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(lines.next(), Some(Witness::columns().as_str()));
    for (line, witness) in lines.zip(WITNESSES.iter()) {
        assert_eq!(witness.line(), line);
    }
    assert!(WITNESSES.len() > 700, "{}", WITNESSES.len());
    let families: BTreeSet<&str> = WITNESSES.iter().map(|one| one.family.as_str()).collect();
    assert_eq!(
        families.len(),
        WITNESSES.chunk_by(|one, other| one.family == other.family).count(),
        "families lie together"
    );
}

impl Held {
    /// Lane and chip, the host's share of the step, the number of chips.
    fn cells(&self) -> [String; 3] {
        let hosts = [(0.05, "under 5 % host"), (0.15, "5 to 15 % host"), (0.30, "15 to 30 % host")];
        let host =
            hosts.iter().find(|(below, _)| self.run.reasons.host < *below).map_or("over 30 % host", |found| found.1);
        let size = match self.run.chips {
            ..=8 => "up to 8 chips",
            9..=128 => "9 to 128 chips",
            _ => "over 128 chips",
        };
        let machine = &self.run.kind.machine;
        let chip = if machine.starts_with("tpu") { machine } else { machine.split('-').next().unwrap_or(machine) };
        [format!("{} on {chip}", self.run.lane), host.to_owned(), size.to_owned()]
    }
}

/// How likely it is that so many of all hold, or fewer, or so many or more, whichever is less likely, if each does with 80 %: twice that.
fn chance(hold: usize, all: usize) -> f64 {
    let log = |n: usize| libm::lgamma(n as f64 + 1.0);
    let exactly = |k: usize| {
        let ways = log(all) - log(k) - log(all - k);
        libm::exp(ways + k as f64 * libm::log(0.8) + (all - k) as f64 * libm::log(0.2))
    };
    let (few, many): (f64, f64) = ((0..=hold).map(exactly).sum(), (hold..=all).map(exactly).sum());
    2.0 * few.min(many)
}

#[test]
fn intervals_hold_what_they_say_of_runs_whose_family_they_have_not_seen() {
    let all = Held::all();
    let share = |runs: &[&Held]| runs.iter().filter(|one| one.holds()).count() as f64 / runs.len() as f64;
    let every: Vec<&Held> = all.iter().collect();
    let overall = share(&every);
    assert!((0.76..=0.84).contains(&overall), "{overall:.3} of all");
    let mut cells: BTreeMap<String, Vec<&Held>> = BTreeMap::new();
    for one in &all {
        one.cells().into_iter().for_each(|cell| cells.entry(cell).or_default().push(one));
    }
    for (cell, runs) in &cells {
        // A publisher is what stands before the model in a family's name.
        let publisher = |one: &&&Held| one.run.family.split(':').next().unwrap_or("").to_owned();
        let publishers: BTreeSet<String> = runs.iter().map(|one| publisher(&one)).collect();
        let (hold, of) = (runs.iter().filter(|one| one.holds()).count(), runs.len());
        println!("{cell}: {hold} of {of}, {} publishers", publishers.len());
        match of >= 40 && publishers.len() >= 3 {
            true => assert!((0.68..=0.90).contains(&share(runs)), "{cell}: {hold} of {of}"),
            false => assert!(chance(hold, of) >= 0.01, "{cell}: {hold} of {of}"),
        }
    }
}

#[test]
fn what_is_called_surer_is_off_by_less_in_the_median_and_in_nine_of_ten() {
    let all = Held::all();
    let mut before = (0.0, 0.0);
    for &confidence in Confidence::ALL {
        let mut off: Vec<f64> =
            all.iter().filter(|one| one.confidence() == confidence).map(|one| miss(one.run.error).abs()).collect();
        off.sort_by(f64::total_cmp);
        assert!(off.len() > 50, "{confidence}: {}", off.len());
        let these = (off[(off.len() - 1) / 2], off[(off.len() - 1) * 9 / 10]);
        println!("{confidence}: {} runs, {:.3} in the median, {:.3} in nine of ten", off.len(), these.0, these.1);
        assert!(these.0 > before.0 && these.1 > before.1, "{confidence}: {these:?} after {before:?}");
        before = these;
    }
}

/// Intervals that hold all by being wide are worth nothing: 21.3 % was the mean width of those they took the place of.
#[test]
fn intervals_are_no_wider_than_they_need_be() {
    let width = |one: &Held| (libm::exp(one.high) - libm::exp(one.low), one.run.weight);
    let widths: Vec<(f64, f64)> = Held::all().iter().map(width).collect();
    let mean =
        widths.iter().map(|(width, weight)| width * weight).sum::<f64>() / widths.iter().map(|one| one.1).sum::<f64>();
    println!("{mean:.4}");
    assert!(mean <= 0.213, "{mean:.4}");
}

/// The constants of `reasons.rs`: by none of them a quarter larger or smaller are the errors likelier.
#[test]
fn what_reasons_make_a_step_err_is_what_the_runs_say() {
    let weights = |family: &[Witness]| family.iter().map(|one| one.weight).sum::<f64>();
    let cost = |scale: &dyn Fn(&Reasons) -> f64| -> f64 {
        let families = WITNESSES.chunk_by(|one, other| one.family == other.family);
        let each = families.flat_map(|family| {
            let together = libm::pow(weights(family), -0.2);
            family.iter().map(move |one| (one, one.weight * together))
        });
        each.map(|(one, weight)| {
            let scale = scale(&one.reasons);
            weight * (libm::log(scale) + one.error.abs() / scale)
        })
        .sum()
    };
    let best = cost(&Reasons::scale);
    for part in 0..Reasons::PARTS.len() {
        if matches!(Reasons::PARTS[part], "host" | "issued") {
            continue;
        }
        for factor in [0.75, 1.25] {
            let changed = cost(&|reasons: &Reasons| {
                let mut parts = reasons.parts();
                parts[part] *= factor;
                Reasons::from_parts(parts).scale()
            });
            assert!(changed > best, "{} times {factor}: {changed:.3} against {best:.3}", Reasons::PARTS[part]);
        }
    }
}

#[test]
fn a_run_of_the_file_is_judged_without_its_family() {
    let first = &WITNESSES[0];
    let step = Time::from_seconds(1.0);
    let (_, with) = interval(step, &first.reasons, &first.kind, "");
    let (_, without) = interval(step, &first.reasons, &first.kind, &first.family);
    assert!(without.runs < with.runs && without.families < with.families);
}
