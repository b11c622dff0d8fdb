//! Points made from a known cost model give a profile that predicts as that model does.

use windtunnel::cost::{Basis, CostModel, OnNodes, Profile, Regime as Clocks, Software};
use windtunnel::program::{AttentionShape, Collective, Comm, DType, GroupId, MatmulLayout, MemoryKind, Work};
use windtunnel::units::Bytes;

mod few;
mod unused;

use super::{FitError, fit};
use crate::fit::{error, median, quantile};
use crate::plan::{between, kernels};
use crate::points::{Line, Machine, Point, Points, Regime, What, parse};

/// How much slower the known model is than the base's tables, so that a base left as it is would be found out.
const SLOWER: f64 = 1.25;
/// Half-width of the noise on every point, relative.
const NOISE: f64 = 0.015;

fn machine() -> Machine {
    let versions = [("driver", "580.95"), ("cuda", "13.0"), ("cublas", "13.1.0"), ("cudnn", "9.14.0")];
    Machine {
        chip: "NVIDIA H200".to_owned(),
        memory: 150_754_820_096,
        memory_bandwidth: 4.9e12,
        versions: versions.map(|(name, version)| (name.to_owned(), version.to_owned())).into(),
        tool: "windtunnel-calibrate 0.1.0 (abcdef0)".to_owned(),
        ..Machine::example()
    }
}

/// The known model: an H100's tables, which no H200 profile has, and slower by a quarter.
fn truth(work: &Work) -> f64 {
    let profile = Profile::find("h100-sxm-80gb").expect("shipped");
    SLOWER * predicted(&profile, work, Clocks::Burst)
}

fn predicted(profile: &Profile, work: &Work, clocks: Clocks) -> f64 {
    let software = Software { attention: windtunnel::cost::Backend::Cudnn, ..Software::default() };
    CostModel::new(profile, clocks).with(software).work(work).time.seconds()
}

fn matmul(m: u64, n: u64, k: u64, layout: MatmulLayout) -> Work {
    Work::Matmul { m, n, k, dtype: DType::Bf16, layout }
}

fn attention(sequence: u64, backward: bool) -> Work {
    let shape = AttentionShape {
        batch: 1,
        heads: 32,
        kv_heads: 8,
        queries: sequence,
        keys: sequence,
        head_dim: 128,
        causal: true,
        window: None,
        squares: None,
    };
    Work::Attention { shape, dtype: DType::Bf16, backward }
}

fn memory(kind: MemoryKind, bytes: u64) -> Work {
    Work::Memory { kind, read: Bytes(bytes / 2), written: Bytes(bytes / 2) }
}

/// What a calibrator would have written for some work.
fn what(work: &Work) -> What {
    match *work {
        Work::Matmul { .. } | Work::Attention { .. } => {
            kernels::what(work, &Software::default()).expect("the plan measures matmuls and attention")
        }
        Work::Memory { kind, read, written } => {
            let family = if kind == MemoryKind::Elementwise { "elementwise" } else { "norm" };
            What::Memory {
                family: family.to_owned(),
                kernel: format!("{family}_1r1w"),
                read: read.0,
                written: written.0,
            }
        }
        Work::GroupedMatmul { .. } | Work::HostMemory { .. } | Work::HostCopy { .. } | Work::Disk { .. } => {
            unreachable!("not asked for here")
        }
    }
}

fn point(what: What, regime: Regime, us: f64) -> Line {
    let (p10, p90) = (0.99 * us, 1.01 * us);
    let (board, algorithm) = (None, None);
    Line::Point(Point { what, regime, median: us, p10, p90, repeats: 30, outliers: 0, board, algorithm })
}

/// A journal of measured work: the machine, then a point a line with noise that goes up and down.
fn journal(works: &[Work]) -> String {
    let lines = std::iter::once(Line::Machine(machine())).chain(works.iter().enumerate().map(|(at, work)| {
        let noise = 1.0 + NOISE * (2.0 * (at as f64 * 0.618_034).fract() - 1.0);
        point(what(work), Regime::Burst, truth(work) * noise * 1e6)
    }));
    lines.map(|line| serde_json::to_string(&line).expect("JSON") + "\n").collect()
}

fn shapes(whats: &[What]) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
    whats.iter().filter_map(|what| match what {
        What::Matmul { m, n, k, .. } => Some((*m, *n, *k)),
        _ => None,
    })
}

fn everything() -> Vec<Work> {
    let mut works: Vec<Work> = vec![];
    for (at, (m, n, k)) in shapes(&between(std::iter::empty(), 400)).enumerate() {
        works.push(matmul(m, n, k, MatmulLayout::Forward));
        if at.is_multiple_of(10) {
            works.push(matmul(m, n, k, MatmulLayout::DataGradient));
            works.push(matmul(m, n, k, MatmulLayout::WeightGradient));
        }
    }
    for power in 9..16 {
        works.extend([false, true].map(|backward| attention(1 << power, backward)));
    }
    for power in 12..32 {
        works.push(memory(MemoryKind::Elementwise, 1 << power));
        works.push(memory(MemoryKind::Norm, 1 << power));
    }
    works
}

/// The journal of everything, fitted once for all tests.
fn whole() -> &'static super::Fitted {
    static FITTED: std::sync::OnceLock<super::Fitted> = std::sync::OnceLock::new();
    FITTED.get_or_init(|| fitted(&journal(&everything())))
}

fn fitted(text: &str) -> super::Fitted {
    let points = parse("points.jsonl", text).expect("a journal");
    let (path, base_text) = Profile::text("h200-sxm-141gb").expect("shipped");
    let base = Profile::parse(&path, &base_text).expect("shipped");
    fit("points.jsonl", &points, &base, &base_text, "mine").expect("a profile")
}

#[test]
fn points_of_a_known_model_give_a_profile_that_predicts_as_it_does() {
    let works = everything();
    let profile = Profile::parse("mine.toml", &whole().text).expect("a profile");
    let off = |work: &Work| error(predicted(&profile, work, Clocks::Burst), truth(work));
    let check = |name: &str, works: &[Work], most: f64, p90: f64| {
        let errors: Vec<f64> = works.iter().map(off).collect();
        let (middle, high) = (median(&errors), quantile(&errors, 0.9));
        assert!(middle <= most && high <= p90, "{name}: median {middle:.4}, p90 {high:.4} of {} points", errors.len());
    };
    let measured = |pick: fn(&Work) -> bool| works.iter().filter(|work| pick(work)).copied().collect::<Vec<_>>();
    let forward = |w: &Work| matches!(w, Work::Matmul { layout: MatmulLayout::Forward, .. });
    // Where it was measured, the noise of one point is what is left.
    check("matmuls that were measured", &measured(forward), NOISE, 2.0 * NOISE);
    check("gradients", &measured(|w| matches!(w, Work::Matmul { .. })), NOISE, 4.0 * NOISE);
    check("attention", &measured(|w| matches!(w, Work::Attention { .. })), NOISE, 2.0 * NOISE);
    check("memory", &measured(|w| matches!(w, Work::Memory { .. })), NOISE, 4.0 * NOISE);
    // Elsewhere, what the cost model is off by on any shape it was not given.
    let new: Vec<Work> = [(8192, 14_336, 4096), (8192, 4096, 14_336), (4096, 5120, 5120), (2048, 7168, 3584)]
        .into_iter()
        .chain((3..40).map(|i| (i * 640, 8192 - i * 64, 1024 + i * 320)))
        .map(|(m, n, k)| matmul(m, n, k, MatmulLayout::Forward))
        .collect();
    check("matmuls that were not measured", &new, 0.04, 0.12);
    let base = Profile::find("h200-sxm-141gb").expect("shipped");
    let unaided: Vec<f64> = new.iter().map(|work| error(predicted(&base, work, Clocks::Burst), truth(work))).collect();
    assert!(median(&unaided) > 0.15, "the base must not know the answer: {}", median(&unaided));
}

#[test]
fn a_fitted_profile_names_its_machine_and_keeps_what_was_not_measured() {
    let fitted = whole();
    let profile = Profile::parse("mine.toml", &fitted.text).expect("a profile");
    assert_eq!((profile.name.as_str(), profile.machine.chip.as_str()), ("mine", "NVIDIA H200"));
    assert_eq!(profile.machine.versions["cublas"], "13.1.0");
    assert_eq!(profile.machine.date.as_deref(), Some("2026-01-02T03:04:05Z"));
    let cost = profile.bf16.cost(8192, 8192, 8192);
    assert!(cost.basis <= Basis::Interpolated, "{cost:?}");
    let taken: Vec<&str> = fitted.decisions.iter().filter(|d| d.taken).map(|d| d.name.as_str()).collect();
    for name in
        ["matmul.bf16", "layout", "attention.kernels cudnn backward d128 causal", "memory.stream", "memory.norm"]
    {
        assert!(taken.contains(&name), "{name} is not among {taken:?}");
    }
    for name in ["matmul.fp8", "collectives.node", "host.eager_forward", "attention.kernels flash2 forward d128 causal"]
    {
        assert!(fitted.kept.iter().any(|kept| kept == name), "{name} is not among {:?}", fitted.kept);
    }
    assert!(fitted.decisions.iter().all(|d| !d.taken || d.why.contains("measured (")), "{:?}", fitted.decisions);
}

#[test]
fn the_same_points_give_the_same_bytes_and_fitting_again_changes_nothing_else() {
    let text = journal(&everything());
    let once = whole();
    assert_eq!(once.text, fitted(&text).text);
    let base = Profile::parse("once.toml", &once.text).expect("a profile");
    let points = parse("points.jsonl", &text).expect("a journal");
    let twice = fit("points.jsonl", &points, &base, &once.text, "mine").expect("a profile");
    assert!(twice.text.matches("[matmul.bf16.points]").count() == 1, "points are replaced, not added to");
    assert!(twice.kept.iter().any(|kept| kept == "matmul.fp8"));
}

#[test]
fn a_journal_that_was_cut_loses_its_last_line_and_no_more() {
    let works = [attention(1024, false), attention(2048, false), attention(4096, false)];
    let text = journal(&works);
    let last = text.trim_end().rfind('\n').expect("several lines") + 1;
    let before: Points = parse("p", &text[..last]).expect("a journal");
    assert_eq!((before.points.len(), before.half), (works.len() - 1, None));
    for cut in last + 1..text.len() - 1 {
        let read = parse("p", &text[..cut]).expect("a journal");
        assert_eq!((read.points, read.half), (before.points.clone(), Some(works.len() + 1)), "cut at byte {cut}");
    }
    // Without its end alone the line is whole.
    let whole = parse("p", &text[..text.len() - 1]).expect("a journal");
    assert_eq!((whole.points.len(), whole.half), (works.len(), None));
    // What breaks off elsewhere, or ends the file and is no beginning of a line of points, is no interrupt.
    for wrong in [text.replacen("\"regime\"", "\"regi", 1), text.clone() + "{\"pint\":", text.clone() + "\"point"] {
        let why = parse("p", wrong).expect_err("damaged").to_string();
        assert!(why.starts_with("p:2: ") || why.starts_with("p:5: "), "{why}");
    }
}

#[test]
fn imported_points_that_name_their_chip_alone_go_to_a_base_of_that_chip_alone() {
    let base = Profile::find("h100-sxm-80gb").expect("shipped");
    for (chip, fits) in [
        ("NVIDIA H100 80GB HBM3", true),
        ("H100", true),
        ("NVIDIA H200", false),
        ("NVIDIA H100 PCIe", false),
        ("a GPU", false),
        ("", false),
    ] {
        let imported = Machine { chip: chip.to_owned(), processors: 0, memory_bandwidth: 0.0, ..machine() };
        assert_eq!(super::same_chip(&imported, &base).is_ok(), fits, "{chip:?}");
    }
}

#[test]
fn points_of_another_chip_than_the_base_are_refused_with_both_figures() {
    let points = parse("points.jsonl", journal(&[attention(1024, false)])).expect("a journal");
    let (path, base_text) = Profile::text("b200-sxm").expect("shipped");
    let base = Profile::parse(&path, &base_text).expect("shipped");
    let why = fit("points.jsonl", &points, &base, &base_text, "mine").expect_err("another chip").to_string();
    assert!(why.contains("132 processors") && why.contains("148 processors") && why.contains("--base"), "{why}");
    let none = fit("points.jsonl", &Points::default(), &base, &base_text, "mine");
    assert!(matches!(none, Err(FitError::Nothing(_))));
}

#[test]
fn sustained_points_make_a_clock_and_points_under_load_make_an_overlap() {
    let works: Vec<Work> = (11..15).map(|power| matmul(1 << power, 4096, 4096, MatmulLayout::Forward)).collect();
    let mut text = journal(&works);
    for work in &works {
        let us = truth(work) * 1e6;
        let slowed = |processors, beside: &str, us| {
            let (slowed, beside, bandwidth) = (Box::new(what(work)), beside.to_owned(), 0);
            point(What::Overlap { slowed, beside, processors, bandwidth }, Regime::Burst, us)
        };
        for line in [
            point(what(work), Regime::Sustained, us / 0.85),
            slowed(24, "spin", 1.3 * us),
            slowed(4, "spin", 1.05 * us),
            slowed(0, "spin", us),
        ] {
            text += &(serde_json::to_string(&line).expect("JSON") + "\n");
        }
    }
    let fitted = fitted(&text);
    let profile = Profile::parse("mine.toml", &fitted.text).expect("a profile");
    assert!((profile.overlap.matmul.factor - 1.3).abs() < 0.02, "{}", profile.overlap.matmul.factor);
    assert!((profile.clock.matmul(1e-3, DType::Bf16) - 0.85).abs() < 0.02);
}

/// A line of a journal for a collective of eight GPUs or fewer that takes a latency and a bandwidth.
fn collective(kind: &str, ranks: u64, bytes: u64) -> String {
    let us = 10.0 + bytes as f64 * (ranks - 1) as f64 / ranks as f64 / 350e9 * 1e6;
    let (kind, dtype) = (kind.to_owned(), "bfloat16".to_owned());
    let what = What::Collective { kind, ranks, nodes: 1, bytes, in_place: false, dtype };
    serde_json::to_string(&point(what, Regime::Burst, us)).expect("JSON") + "\n"
}

#[test]
fn collectives_of_a_whole_node_replace_the_published_ones_and_fewer_do_not() {
    let mut half = journal(&[]);
    for kind in ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv"] {
        for ranks in [2, 4] {
            half.extend((9..34).map(|power| collective(kind, ranks, 1 << power)));
        }
    }
    let mut whole = half.clone();
    for kind in ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"] {
        whole.extend((9..34).map(|power| collective(kind, 8, 1 << power)));
    }
    let fewer = fitted(&half);
    assert!(fewer.kept.iter().any(|name| name == "collectives.node"), "{:?}", fewer.kept);
    assert!(
        fewer.notes.iter().any(|note| note.contains("up to 4 ranks") && note.contains("knows 8")),
        "{:?}",
        fewer.notes
    );
    let fitted = fitted(&whole);
    let profile = Profile::parse("mine.toml", &fitted.text).expect("a profile");
    let costs = CostModel::new(&profile, Clocks::Burst);
    let comm = Comm { kind: Collective::AllGather, group: GroupId(0), bytes: Bytes(3 << 30), dtype: DType::Bf16 };
    let cost = costs.collective(&comm, OnNodes { ranks_per_node: 8, nodes: 1 });
    let known = 10e-6 + (3u64 << 30) as f64 * 7.0 / 8.0 / 350e9;
    assert!(error(cost.time.seconds(), known) < 0.02, "{cost:?} instead of {known}");
    for name in ["collectives.node", "collectives.node.pair"] {
        assert!(fitted.decisions.iter().any(|d| d.taken && d.name == name), "{:?}", fitted.decisions);
    }
    let residual = fitted.residuals.iter().find(|r| r.section == "collectives in a node").expect("a residual");
    assert!(residual.median < 0.05, "{residual:?}");
}

#[test]
fn one_odd_matmul_point_moves_no_matmul_far_from_it_and_leaves_none_published() {
    let base = Profile::find("h200-sxm-141gb").expect("shipped");
    let (small, far) =
        (matmul(64, 64, 64, MatmulLayout::Forward), |profile: &Profile| profile.bf16.cost(8192, 8192, 8192));
    // Almost as far from the base as a point may lie and still count.
    let us = 1.9 * predicted(&base, &small, Clocks::Burst) * 1e6;
    let fitted = fitted(&(journal(&[]) + &point(what(&small), Regime::Burst, us).text()));
    let profile = Profile::parse("mine.toml", &fitted.text).expect("a profile");
    let (base, cost) = (far(&base), far(&profile));
    assert!(cost.time.seconds() < 1.5 * base.time.seconds(), "{cost:?}, {base:?}");
    assert!(cost.basis > Basis::Published && cost.spread > base.spread, "{cost:?}, {base:?}");
}

#[test]
fn points_of_machines_with_other_power_limits_are_refused_and_another_than_the_bases_is_noted() {
    let (path, base_text) = Profile::text("h200-sxm-141gb").expect("shipped");
    let base = Profile::parse(&path, &base_text).expect("shipped");
    let mut points = parse("points.jsonl", journal(&[attention(1024, false)])).expect("a journal");
    points.machines[0].power_limit = Some(500.0);
    let alone = fit("points.jsonl", &points, &base, &base_text, "mine").expect("a profile");
    assert!(alone.notes.iter().any(|note| note.contains("500 W") && note.contains("700 W")), "{:?}", alone.notes);
    points.machines.push(machine());
    let why = fit("points.jsonl", &points, &base, &base_text, "mine").expect_err("unlike machines").to_string();
    assert!(why.contains("500 W") && why.contains("700 W"), "{why}");
}

#[test]
fn one_point_makes_no_clock() {
    let works = [matmul(4096, 4096, 4096, MatmulLayout::Forward)];
    let sustained = point(what(&works[0]), Regime::Sustained, truth(&works[0]) * 1e6 / 0.85);
    let text = journal(&works) + &serde_json::to_string(&sustained).expect("JSON") + "\n";
    let few = fitted(&text);
    assert!(few.kept.iter().any(|name| name == "clock"), "{:?}", few.kept);
    assert!(few.notes.iter().any(|note| note.starts_with("clock: 1 matmuls")), "{:?}", few.notes);
}
