//! Few points, and points that cannot be, take over no more than they know.

use super::*;

fn with(text: String, lines: &[Line]) -> String {
    lines.iter().fold(text, |text, line| text + &line.text())
}

/// A section's median and 90th percentile, as written.
fn errors(fitted: &super::super::Fitted, section: &str) -> [f64; 2] {
    let text = windtunnel::cost::sections::Sections::of(&fitted.text);
    let text = &text.get(section).unwrap_or_else(|| panic!("no {section}")).text;
    // Of a matmul the points' own evidence is the last.
    let line = text.lines().rfind(|line| line.starts_with("evidence = ")).expect("evidence");
    ["median = ", "p90 = "].map(|name| {
        let (_, rest) = line.split_once(name).expect(name);
        rest.split(',').next().and_then(|figure| figure.parse().ok()).expect("a figure")
    })
}

fn takes(fitted: &super::super::Fitted, section: &str) -> bool {
    fitted.decisions.iter().any(|decision| decision.taken && decision.name == section)
}

fn left_out(fitted: &super::super::Fitted, why: &str) -> usize {
    fitted.left_out.iter().filter(|(reason, _)| reason.contains(why)).map(|(_, points)| points).sum()
}

fn call(name: &str, us: f64) -> Line {
    point(What::Overhead { call: name.to_owned() }, Regime::Burst, us)
}

fn copy(bytes: u64, to_host: bool) -> Line {
    // Without any scatter, so that a fit has no error at all.
    point(What::HostCopy { bytes, to_host }, Regime::Burst, 10.0 + bytes as f64 / 50e9 * 1e6)
}

#[test]
fn no_section_claims_less_error_than_clocks_scatter_by() {
    let exact = |work: &Work| point(what(work), Regime::Burst, truth(work) * 1e6);
    let mut lines: Vec<Line> = (9..16).map(|power| exact(&attention(1 << power, true))).collect();
    lines.extend((12..32).map(|power| exact(&memory(MemoryKind::Elementwise, 1 << power))));
    lines.extend((20..26).flat_map(|power| [copy(1 << power, false), copy(1 << power, true)]));
    let base = Profile::find("h200-sxm-141gb").expect("shipped");
    let known = matmul(4096, 4096, 4096, MatmulLayout::Forward);
    // What the base says, to the last bit: an error of zero without a floor.
    lines.push(point(what(&known), Regime::Burst, predicted(&base, &known, Clocks::Burst) * 1e6));
    let mut text = with(journal(&[]), &lines);
    for power in 9..34 {
        for kind in ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"] {
            text += &collective(kind, 8, 1 << power);
        }
        text += &collective("send_recv", 2, 1 << power);
    }
    let fitted = fitted(&text);
    for section in [
        "matmul.bf16",
        "attention.kernels cudnn backward d128 causal",
        "memory.stream",
        "memory.elementwise",
        "memory.host",
        "collectives.node",
        "collectives.node.pair",
    ] {
        let [median, p90] = errors(&fitted, section);
        assert!(median >= 0.01 && p90 >= median, "{section}: {median} {p90}");
    }
}

#[test]
fn the_error_of_a_long_sweep_is_of_points_left_out() {
    // A rate and a knee cannot follow times that jump up and down; in the fit they look better than they are.
    let line = |at: u64| {
        let work = attention(1024 + 512 * at, false);
        let up = if at.is_multiple_of(2) { 1.2 } else { 0.8 };
        point(what(&work), Regime::Burst, truth(&work) * 1e6 * up)
    };
    let long = fitted(&with(journal(&[]), &(0..24).map(line).collect::<Vec<_>>()));
    let [median, _] = errors(&long, "attention.kernels cudnn forward d128 causal");
    let few: Vec<_> = (0..24).map(|at| attention(1024 + 512 * at, false)).collect();
    let profile = Profile::parse("mine.toml", &long.text).expect("a profile");
    let inside = |(at, work): (usize, &Work)| {
        let up = if at.is_multiple_of(2) { 1.2 } else { 0.8 };
        error(predicted(&profile, work, Clocks::Burst), truth(work) * up)
    };
    let inside: Vec<f64> = few.iter().enumerate().map(inside).collect();
    let mean = |errors: &[f64]| errors.iter().sum::<f64>() / errors.len() as f64;
    let residual =
        long.residuals.iter().find(|r| r.section.starts_with("attention cudnn forward")).expect("a residual");
    assert!((residual.points, median > 0.1) == (24, true), "{residual:?}");
    assert!(residual.p90 > mean(&inside), "{residual:?} in the fit {inside:?}");
}

#[test]
fn one_launch_takes_no_host_time_over_and_two_that_agree_take_launches_alone() {
    let one = fitted(&with(journal(&[]), &[call("launch", 2.0)]));
    assert!(one.kept.iter().filter(|name| name.starts_with("host.")).count() == 19, "{:?}", one.kept);
    assert_eq!(left_out(&one, "both `launch` and `launch_rate`"), 1);
    let both = fitted(&with(journal(&[]), &[call("launch", 2.0), call("launch_rate", 2.1)]));
    assert!(takes(&both, "host.foreach") && takes(&both, "host.extra"));
    assert!(both.kept.iter().filter(|name| name.starts_with("host.")).count() == 17, "{:?}", both.kept);
    let odd = fitted(&with(journal(&[]), &[call("launch", 9.0), call("launch_rate", 2.1)]));
    assert!(odd.kept.iter().any(|name| name == "host.extra"), "{:?}", odd.kept);
    assert!(odd.notes.iter().any(|note| note.contains("9.00 us alone and 2.10 us in a row")), "{:?}", odd.notes);
}

#[test]
fn an_event_takes_what_a_hop_takes_longer_than_a_kernel() {
    let both = fitted(&with(journal(&[]), &[call("kernel", 1.2), call("hop", 2.9)]));
    assert!(takes(&both, "event") && both.text.contains("[event]\ntime = \"1.7 us\""), "{}", both.text);
    let one = fitted(&with(journal(&[]), &[call("hop", 2.9)]));
    assert_eq!(left_out(&one, "takes both `kernel` and `hop`"), 1);
    let odd = fitted(&with(journal(&[]), &[call("kernel", 2.9), call("hop", 2.9)]));
    assert!(odd.kept.iter().any(|name| name == "event"), "{:?}", odd.kept);
    assert!(odd.notes.iter().any(|note| note.contains("the base's event stays")), "{:?}", odd.notes);
}

#[test]
fn a_matmul_far_from_the_base_is_left_out_and_named() {
    let (near, far) =
        (matmul(8192, 8192, 8192, MatmulLayout::Forward), matmul(4096, 4096, 8192, MatmulLayout::Forward));
    let base = Profile::find("h200-sxm-141gb").expect("shipped");
    let us = predicted(&base, &far, Clocks::Burst) * 1e6;
    for times in [2.6, 0.4] {
        let one = fitted(&with(journal(&[]), &[point(what(&far), Regime::Burst, times * us)]));
        assert_eq!(left_out(&one, "matmul bf16: more than 2 times off the base"), 1);
        assert!(one.notes.iter().any(|note| note.contains("the farthest is 4096 x 4096 x 8192")), "{:?}", one.notes);
        let profile = Profile::parse("mine.toml", &one.text).expect("a profile");
        let [after, before] = [&profile, &base].map(|profile| predicted(profile, &near, Clocks::Burst));
        assert!(after.to_bits() == before.to_bits(), "{after} {before}");
    }
    // Among points that are all slower by a quarter, the odd one stands out just as well.
    let mut works: Vec<Work> = (1..9).map(|at| matmul(1024 * at, 4096, 4096, MatmulLayout::Forward)).collect();
    let alone = fitted(&journal(&works));
    works.push(far);
    let text = with(journal(&works[..8]), &[point(what(&far), Regime::Burst, 4.0 * us)]);
    assert_eq!(fitted(&text).text, alone.text);
}

#[test]
fn where_many_matmuls_are_far_from_the_base_all_count() {
    let base = Profile::find("h200-sxm-141gb").expect("shipped");
    let line = |at: u64| {
        let work = matmul(512 * (at + 1), 4096, 4096, MatmulLayout::Forward);
        let factor = if at.is_multiple_of(2) { 1.0 } else { 3.0 };
        point(what(&work), Regime::Burst, predicted(&base, &work, Clocks::Burst) * 1e6 * factor)
    };
    let fitted = fitted(&with(journal(&[]), &(0..30).map(line).collect::<Vec<_>>()));
    assert!(fitted.notes.iter().any(|note| note.contains("does not know this machine")), "{:?}", fitted.notes);
    assert_eq!(left_out(&fitted, "off the base"), 0);
}

#[test]
fn matmuls_that_do_not_predict_each_other_leave_the_bases_figures() {
    // Noise of a factor of 1.7 up and down: no neighbour says anything of another, the table says more.
    let line = |at: u64| {
        let work = matmul(2048 + 256 * at, 4096, 4096, MatmulLayout::Forward);
        let base = Profile::find("h200-sxm-141gb").expect("shipped");
        let factor = [1.7, 1.0, 1.0 / 1.7, 1.0][at as usize % 4];
        point(what(&work), Regime::Burst, predicted(&base, &work, Clocks::Burst) * 1e6 * factor)
    };
    let fitted = fitted(&with(journal(&[]), &(0..12).map(line).collect::<Vec<_>>()));
    assert!(
        fitted.notes.iter().any(|note| note.starts_with("matmul bf16: 12 points predict each other to")),
        "{:?}",
        fitted.notes
    );
    assert!(fitted.kept.iter().any(|name| name == "matmul.bf16"), "{:?}", fitted.kept);
    assert!(!fitted.text.contains("[matmul.bf16.points]"));
    assert_eq!(left_out(&fitted, "the base predicts them better than they each other"), 12);
}

#[test]
fn too_few_points_under_load_and_of_memory_leave_the_bases_figures() {
    let works: Vec<Work> = (11..13).map(|power| matmul(1 << power, 4096, 4096, MatmulLayout::Forward)).collect();
    let slowed = |work: &Work, processors: u32, factor: f64| {
        let (slowed, beside, bandwidth) = (Box::new(what(work)), "spin".to_owned(), 0);
        point(What::Overlap { slowed, beside, processors, bandwidth }, Regime::Burst, factor * truth(work) * 1e6)
    };
    let mut lines: Vec<Line> = works.iter().map(|work| slowed(work, 24, 1.3)).collect();
    // One at another number of processors, and one whose kernel was not measured by itself.
    lines.push(slowed(&works[0], 8, 1.1));
    lines.push(slowed(&matmul(512, 512, 512, MatmulLayout::Forward), 24, 1.1));
    let few = fitted(&with(journal(&works), &lines));
    assert!(few.kept.iter().any(|name| name == "overlap.matmul"), "{:?}", few.kept);
    assert_eq!(left_out(&few, "overlap matmul: 3 at one number of processors are needed"), 2);
    assert_eq!(left_out(&few, "overlap matmul: another kernel beside"), 1);
    assert_eq!(left_out(&few, "overlap matmul: what was slowed was not measured by itself"), 1);

    let small = |count: u32| (20..20 + count).map(|power| memory(MemoryKind::Elementwise, 1 << power));
    let seven = fitted(&journal(&small(7).collect::<Vec<_>>()));
    assert!(seven.kept.iter().any(|name| name == "memory.stream"), "{:?}", seven.kept);
    assert_eq!(left_out(&seven, "memory: the stream that all families are shares of needs 8"), 7);
    let eight = fitted(&journal(&small(8).collect::<Vec<_>>()));
    assert!(takes(&eight, "memory.stream"), "{:?}", eight.decisions);
    let norms = |count: u32| {
        let norms = (23..23 + count).map(|power| memory(MemoryKind::Norm, 1 << power));
        fitted(&journal(&small(12).chain(norms).collect::<Vec<_>>()))
    };
    assert!(!takes(&norms(3), "memory.norm") && takes(&norms(4), "memory.norm"));
    assert_eq!(left_out(&norms(3), "memory norm: too few, a share needs 4"), 3);

    let copies: Vec<Line> = [20, 22, 24].map(|power| copy(1 << power, false)).into();
    let one_way = fitted(&with(journal(&[]), &copies));
    assert!(one_way.kept.iter().any(|name| name == "memory.host"), "{:?}", one_way.kept);
    assert_eq!(left_out(&one_way, "host copies: 3 sizes each way"), 3);
}

#[test]
fn fp8_that_is_faster_sustained_is_said_and_gives_no_factor_above_one() {
    let mut lines = vec![];
    for power in 11..15 {
        let work = matmul(1 << power, 4096, 4096, MatmulLayout::Forward);
        let us = truth(&work) * 1e6;
        let fp8 = match what(&work) {
            What::Matmul { m, n, k, layout, .. } => What::Matmul { m, n, k, layout, dtype: "fp8_tensor".to_owned() },
            other => other,
        };
        for (what, us, sustained) in [(what(&work), us, us / 0.85), (fp8, 0.6 * us, 0.57 * us)] {
            lines.push(point(what.clone(), Regime::Burst, us));
            lines.push(point(what, Regime::Sustained, sustained));
        }
    }
    let fitted = fitted(&with(journal(&[]), &lines));
    let note = "clock: 4 fp8 matmuls were faster sustained than in a burst";
    assert!(fitted.notes.iter().any(|said| said.starts_with(note)), "{:?}", fitted.notes);
    let profile = Profile::parse("mine.toml", &fitted.text).expect("a profile");
    assert!(error(profile.clock.matmul(1e-3, DType::Fp8), 1.0) < 1e-9);
}

#[test]
fn gradients_that_scatter_leave_the_bases_layout_and_others_keep_its_factor_of_fp8() {
    let base = Profile::find("h200-sxm-141gb").expect("shipped");
    let with_ratios = |ratios: [f64; 3]| {
        let lines = (11..14).zip(ratios).flat_map(|(power, ratio)| {
            let us = |layout| predicted(&base, &matmul(1 << power, 4096, 4096, layout), Clocks::Burst) * 1e6;
            let forward = us(MatmulLayout::Forward);
            let of = move |layout, ratio| {
                point(what(&matmul(1 << power, 4096, 4096, layout)), Regime::Burst, forward * ratio)
            };
            let gradients = [MatmulLayout::DataGradient, MatmulLayout::WeightGradient].map(|layout| of(layout, ratio));
            std::iter::once(of(MatmulLayout::Forward, 1.0)).chain(gradients)
        });
        fitted(&with(journal(&[]), &lines.collect::<Vec<_>>()))
    };
    let even = with_ratios([1.3, 1.3, 1.3]);
    assert!(takes(&even, "layout") && even.text.contains("\nfp8_gradient = 1.15\n"), "{:?}", even.notes);
    let scattered = with_ratios([0.6, 1.0, 1.4]);
    assert!(!takes(&scattered, "layout"));
    assert_eq!(left_out(&scattered, "gradients' layouts: the base predicts them better"), 6);
}
