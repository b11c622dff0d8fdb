//! Points that are not used are counted by reason, and spoil nothing.

use super::*;

fn line(point: Line) -> String {
    point.text()
}

/// Lines of a journal beside the machine's.
fn with(text: String, lines: &[Line]) -> String {
    lines.iter().fold(text, |text, line| text + &line.text())
}

fn unused(text: &str, why: &str) -> usize {
    let left_out = fitted(text).left_out;
    left_out.iter().find(|(reason, _)| reason.contains(why)).map_or(0, |(_, points)| *points)
}

/// A sweep that fits, so that there is a profile to speak of.
fn sweep() -> String {
    journal(&(9..16).map(|power| attention(1 << power, false)).collect::<Vec<_>>())
}

fn gemm(dtype: &str, layout: &str) -> What {
    What::Matmul { m: 4096, n: 4096, k: 4096, dtype: dtype.to_owned(), layout: layout.to_owned() }
}

#[test]
fn a_point_of_no_size_is_left_out_and_the_others_are_fitted() {
    let alone = fitted(&sweep());
    let nothing = [
        What::Matmul { m: 0, n: 4096, k: 4096, dtype: "bf16".to_owned(), layout: "forward".to_owned() },
        What::Memory { family: "copy".to_owned(), kernel: "copy_1r1w".to_owned(), read: 0, written: 0 },
        What::HostCopy { bytes: 0, to_host: true },
    ];
    let lines = nothing.map(|what| point(what, Regime::Burst, 5.0));
    let text = with(sweep(), &lines);
    assert_eq!(unused(&text, "of no size"), 3);
    assert_eq!(fitted(&text).text, alone.text, "the profile is the same");
}

#[test]
fn words_that_no_profile_knows_are_named_and_counted() {
    let window = |window| {
        let What::Attention { backend, .. } = what(&attention(4096, false)) else { unreachable!("attention") };
        let What::Attention { batch, heads, kv_heads, queries, keys, head_dim, value_dim, causal, dtype, .. } =
            what(&attention(4096, false))
        else {
            unreachable!("attention")
        };
        let backward = false;
        What::Attention {
            backend,
            backward,
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            head_dim,
            value_dim,
            causal,
            window,
            dtype,
        }
    };
    let across = |kind: &str, nodes| What::Collective {
        kind: kind.to_owned(),
        ranks: 16,
        nodes,
        bytes: 1 << 20,
        in_place: false,
        dtype: "bfloat16".to_owned(),
    };
    for (what, regime, why) in [
        (gemm("fp7", "forward"), Regime::Burst, "matmuls: no profile knows the number format \"fp7\""),
        (gemm("bf16", "sideways"), Regime::Burst, "matmuls: no profile knows the layout \"sideways\""),
        (gemm("fp8_row", "forward"), Regime::Burst, "matmul fp8_row: no prediction uses it yet"),
        (gemm("bf16", "forward"), Regime::Sustained, "measured at sustained clocks alone"),
        (gemm("tf32", "forward"), Regime::Sustained, "forward matmuls in bf16 and fp8_tensor"),
        (what(&attention(8192, true)), Regime::Sustained, "only matmuls make a clock's factor"),
        (window(Some(512)), Regime::Burst, "attention: sliding windows are not fitted"),
        (across("all_gather", 2), Regime::Burst, "collectives across nodes are not fitted"),
        (across("broadcast", 1), Regime::Burst, "no section has \"broadcast\""),
        (across("send_recv", 1), Regime::Burst, "sends and receives are fitted between two ranks"),
        (What::Overhead { call: "nap".to_owned() }, Regime::Burst, "no profile knows the call \"nap\""),
        (What::Overhead { call: "graph_node".to_owned() }, Regime::Burst, "calls: no prediction uses them yet"),
    ] {
        assert_eq!(unused(&with(sweep(), &[point(what, regime, 700.0)]), why), 1, "{why}");
    }
}

#[test]
fn a_file_of_nothing_usable_is_refused_with_the_reasons() {
    let text = with(journal(&[]), &[point(gemm("fp7", "forward"), Regime::Burst, 5.0)]);
    let points = parse("points.jsonl", text).expect("a journal");
    let (path, base_text) = Profile::text("h200-sxm-141gb").expect("shipped");
    let base = Profile::parse(&path, &base_text).expect("shipped");
    let why = fit("points.jsonl", &points, &base, &base_text, "mine").expect_err("nothing usable").to_string();
    assert!(why.starts_with("none of the 1 points of points.jsonl can be used") && why.contains("\"fp7\""), "{why}");
}

#[test]
fn points_measured_beside_others_are_left_out() {
    let others = Machine { disturbed: Some("1 process(es) use it: 4711 (trainer)".to_owned()), ..machine() };
    let slow = point(what(&attention(4096, false)), Regime::Burst, 1e6);
    let text = with(sweep(), &[Line::Machine(others), slow]);
    assert_eq!(unused(&text, "others used the device"), 1);
    assert_eq!(fitted(&text).text, fitted(&sweep()).text);
}

#[test]
fn of_what_was_measured_several_times_the_median_counts() {
    let us = truth(&attention(4096, false)) * 1e6;
    let again = |factor: f64| point(what(&attention(4096, false)), Regime::Burst, factor * us);
    // The sweep's own, and four more: two wild ones do not count, wherever they stand.
    let text = with(sweep(), &[again(1.0), again(1.001), again(90.0), again(9.0)]);
    let several = fitted(&text);
    let note = several.notes.iter().find(|note| note.contains("measured more than once")).expect("a note");
    assert!(note.starts_with("1 things were measured more than once, 5 times in all"), "{note}");
    assert!(note.contains("the farthest apart by a factor of 9"), "{note}");
    let profile = Profile::parse("mine.toml", &several.text).expect("a profile");
    let off = error(predicted(&profile, &attention(4096, false), Clocks::Burst), truth(&attention(4096, false)));
    assert!(off < 2.0 * NOISE, "{off}");
}

#[test]
fn what_a_compiler_says_is_no_measurement() {
    let said = Line::Compiled(crate::points::Compiled {
        what: gemm("bf16", "forward"),
        slice: "v6e:1x1".to_owned(),
        argument: 1,
        output: 1,
        temp: 0,
        flops: 1,
        collectives: std::collections::BTreeMap::new(),
        estimated_cycles: Some(1),
    });
    let with_it = fitted(&with(sweep(), &[said]));
    assert!(with_it.notes.iter().any(|note| note == "1 are a compiler's word, not measured: they are left out"));
    assert_eq!(with_it.text, fitted(&sweep()).text);
}

#[test]
fn a_line_that_breaks_off_and_what_could_not_be_measured_are_said() {
    let skip = Line::Skipped(crate::points::Skipped {
        what: gemm("fp8_block", "forward"),
        regime: Regime::Burst,
        why: "cuBLASLt: no algorithm".to_owned(),
    });
    // What was measured in the end is no longer said.
    let again = Line::Skipped(crate::points::Skipped {
        what: what(&attention(1024, false)),
        regime: Regime::Burst,
        why: "out of device memory".to_owned(),
    });
    let whole = with(sweep(), &[skip, again]);
    let text = whole.clone() + &line(point(gemm("bf16", "forward"), Regime::Burst, 5.0))[..40];
    let notes = fitted(&text).notes;
    assert!(notes.iter().any(|note| note.starts_with("line 11 breaks off")), "{notes:?}");
    assert!(notes.iter().any(|note| note == "1 could not be measured: cuBLASLt: no algorithm"), "{notes:?}");
    assert!(!notes.iter().any(|note| note.contains("out of device memory")), "{notes:?}");
    assert_eq!(fitted(&text).text, fitted(&whole).text);
}
