//! A measured step against its prediction: traces are made of a prediction, in PyTorch's own format, and then something is done to them.
//! What was done must be what the comparison names, and the parts must add up.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::Path;

use windtunnel::gap::compare::{Choice, Compared, compare};
use windtunnel::gap::idle::Why;
use windtunnel::gap::parts::Match;
use windtunnel::gap::predicted::predicted;
use windtunnel::gap::side::{Class, Item, Shape, Side};
use windtunnel::gap::{bounds, text};
use windtunnel::program::Pass;
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Prediction, Scenario, predict};
use windtunnel::trace::{self, Trace};
use windtunnel::units::Time;

use crate::command::Folder;

/// Four layers under FSDP2 on four chips: matmuls, attention, collectives and a host that launches it all.
fn scenario(sequence: u64) -> (Scenario, Prediction) {
    let scenario = Scenario::builder("four layers on four chips")
        .runtime("fsdp2")
        .topology("h100-sxm-80gb")
        .set("topology.chips", 4)
        .model("llama-3.1-8b")
        .set("model.layers", 4)
        .sequence(sequence)
        .build()
        .expect("the scenario is sound");
    let settings = Settings { record: true, remedies: false, ..Settings::default() };
    let prediction = predict(&scenario, settings).expect("it can be predicted");
    (scenario, prediction)
}

/// Where the trace's steps begin, in nanoseconds: its host runs ahead of them.
const START: u64 = 10_000_000_000;

/// A time in whole nanoseconds, as a profiler has it, written in microseconds.
fn micros(time: u64) -> String {
    format!("{}.{:03}", time / 1000, time % 1000)
}

/// The step of a side, `repeats` times over, as PyTorch's profiler would have recorded it on a rank.
fn kineto(side: &Side, rank: u32, repeats: u64) -> String {
    let step = side.step().0 / 1000;
    let base = START;
    let at = |time: Time, repeat: u64| base + repeat * step + time.saturating_sub(side.begin).0 / 1000;
    let mut events = String::new();
    let mut correlation = 0;
    // Which steps the host was in: it launches a step's first kernel at its beginning.
    for repeat in 0..repeats {
        let own = side.items.iter().filter(|item| item.own);
        let launches: Vec<u64> = own.clone().map(|item| launch(item, side, repeat, step)).collect();
        let (first, last) = (launches.iter().min().expect("something"), launches.iter().max().expect("something"));
        let _ = writeln!(
            events,
            r#"{{"ph":"X","cat":"user_annotation","name":"ProfilerStep#{repeat}","pid":1,"tid":1,"ts":{},"dur":{}}},"#,
            micros(first - 900),
            micros(last - first + 950),
        );
        for item in own {
            correlation += 1;
            let launched = launch(item, side, repeat, step);
            if !item.class.is_exchange() {
                operator(&mut events, item, launched);
            }
            let _ = writeln!(
                events,
                r#"{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":{},"dur":0.100,"args":{{"correlation":{correlation}}}}},"#,
                micros(launched - 100),
            );
            let (start, end) = (at(item.start, repeat), at(item.end, repeat));
            let _ = writeln!(
                events,
                r#"{{"ph":"X","cat":"kernel","name":"{}","pid":0,"tid":{stream},"ts":{},"dur":{},"args":{{"device":0,"stream":{stream},"correlation":{correlation}{}}}}},"#,
                kernel(item),
                micros(start),
                micros(end - start),
                collective(item),
                stream = item.stream + 7,
            );
        }
    }
    format!(
        "{{\"schemaVersion\":1,\"distributedInfo\":{{\"backend\":\"nccl\",\"rank\":{rank},\"world_size\":4}},\"record_shapes\":1,\"traceEvents\":[\n{}\n]}}",
        events.trim_end().trim_end_matches(',')
    )
}

/// When the host was through with launching, in nanoseconds of the trace.
fn launch(item: &Item, side: &Side, repeat: u64, step: u64) -> u64 {
    let launched = item.launched.expect("a program of whole steps knows its launches");
    let late = i128::from(START) + i128::from(repeat * step);
    let at = late + (i128::from(launched.0) - i128::from(side.begin.0)) / 1000;
    u64::try_from(at).expect("the trace begins before it")
}

fn operator(events: &mut String, item: &Item, launched: u64) {
    let name = item.name.replace('.', "::");
    let dims = match item.shape {
        Shape::Matmul([m, n, k]) => format!("[[{m},{k}],[{k},{n}]]"),
        Shape::Attention { dims: [a, b, c, d], .. } => {
            format!("[[{a},{b},{c},{d}],[{a},{b},{c},{d}],[{a},{b},{c},{d}]]")
        }
        _ => "[]".to_owned(),
    };
    let name = match (item.class, item.shape) {
        (Class::Matmul, _) => "aten::mm".to_owned(),
        (Class::Attention, Shape::Attention { backward: true, .. }) => "aten::_flash_attention_backward".to_owned(),
        (Class::Attention, _) => "aten::_flash_attention_forward".to_owned(),
        _ => name,
    };
    let pass = match item.pass {
        Some(Pass::Optimizer) => Some("Optimizer.step#AdamW.step"),
        Some(Pass::Backward | Pass::Recompute) => Some("autograd::engine::evaluate_function: MmBackward0"),
        _ => None,
    };
    let mut write = |name: &str, cat: &str, dims: &str, around: u64| {
        let _ = writeln!(
            events,
            r#"{{"ph":"X","cat":"{cat}","name":"{name}","pid":1,"tid":1,"ts":{},"dur":{},"args":{{"Input Dims":{dims}}}}},"#,
            micros(launched - 200 - around),
            micros(250 + 2 * around),
        );
    };
    if let Some(name) = pass {
        write(name, if name.starts_with("Opt") { "user_annotation" } else { "cpu_op" }, "[]", 20);
    }
    write(&name, "cpu_op", &dims, 0);
}

fn kernel(item: &Item) -> &'static str {
    match item.class {
        Class::AllGather => "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        Class::ReduceScatter => "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        Class::AllReduce => "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        Class::Matmul => "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT",
        Class::Attention => "void flash_fwd_kernel<Flash_fwd_kernel_traits<128>>(Flash_fwd_params)",
        _ => "void at::native::vectorized_elementwise_kernel<4>(int)",
    }
}

fn collective(item: &Item) -> String {
    if !item.class.is_exchange() {
        return String::new();
    }
    let elements = item.bytes.0 / 2;
    let (name, put_in, got) = match item.class {
        Class::AllGather => ("_allgather_base", elements / 4, elements),
        Class::ReduceScatter => ("_reduce_scatter_base", elements, elements / 4),
        _ => ("allreduce", elements, elements),
    };
    format!(
        r#","Collective name":"{name}","dtype":"BFloat16","In msg nelems":{put_in},"Out msg nelems":{got},"Group size":4,"Process Group Name":"0""#
    )
}

/// Reads what a profiler would have written.
fn read(text: &str) -> Trace {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("it is written");
    trace::read(Path::new(file.path()), &|_, _| ControlFlow::Continue(())).expect("it is a trace")
}

fn compared(of: &(Scenario, Prediction), sides: &[(u32, Side)], rank: u32) -> Compared {
    let traces: Vec<(String, Trace)> =
        sides.iter().map(|(rank, side)| (format!("rank{rank}.json"), read(&kineto(side, *rank, 3)))).collect();
    let choice = Choice { rank: Some(rank), ..Choice::default() };
    compare(&of.0, &of.1, &traces, choice).expect("they can be compared")
}

/// All that comes after a moment, later by some time: on every stream, and in what the host launches.
fn delayed(side: &Side, from: Time, by: Time) -> Side {
    let after = |time: Time| if time >= from { time + by } else { time };
    let items = side.items.iter().map(|item| Item {
        start: after(item.start),
        end: after(item.end),
        launched: item.launched.map(after),
        ..item.clone()
    });
    Side { items: items.collect(), end: side.end + by, ..side.clone() }
}

const MILLISECOND: Time = Time(1_000_000_000);

/// Nanoseconds of a profiler cut off up to one of each event.
fn near(found: i128, put: Time) -> bool {
    (found - i128::from(put.0)).abs() < i128::from(MILLISECOND.0) / 20
}

#[test]
fn a_step_that_ran_as_predicted_has_no_gap_and_every_kernel_pairs() {
    let of = scenario(4096);
    let side = predicted(&of.1, 0).expect("rank 0");
    let compared = compared(&of, &[(0, side)], 0);
    assert_eq!(compared.gap.explained(), compared.gap.gap());
    assert!(near(compared.gap.gap(), Time::ZERO), "{}", text::report(&compared.about, &compared.gap, 120));
    let alone = compared.gap.parts.iter().filter(|part| part.matched != Match::Same);
    let alone: Vec<String> = alone.map(text::name).collect();
    assert!(alone.is_empty(), "{alone:?}");
    assert!(text::findings(&compared.gap).is_empty(), "{}", text::report(&compared.about, &compared.gap, 120));
}

#[test]
fn one_slow_kernel_is_named_with_its_module() {
    let of = scenario(4096);
    let side = predicted(&of.1, 0).expect("rank 0");
    let slow = side
        .items
        .iter()
        .position(|item| item.class == Class::Matmul && item.scope.contains(".2") && item.pass == Some(Pass::Forward));
    let slow = slow.expect("a matmul of the third layer");
    let mut edited = delayed(&side, side.items[slow].end, MILLISECOND);
    edited.items[slow].end = side.items[slow].end + MILLISECOND;
    edited.items[slow].start = side.items[slow].start;
    let compared = compared(&of, &[(0, edited)], 0);
    assert_eq!(compared.gap.explained(), compared.gap.gap());
    let report = text::report(&compared.about, &compared.gap, 400);
    let part = compared.gap.parts.iter().find(|part| !part.slow.is_empty()).expect(&report);
    assert_eq!((part.class, part.slow.len()), (Class::Matmul, 1), "{report}");
    assert_eq!(part.slow[0].scope, &*side.items[slow].scope, "{report}");
    assert!(near(part.gap(), MILLISECOND), "{report}");
    assert!(report.contains("far slower than the others"), "{report}");
}

#[test]
fn all_matmuls_slower_by_a_tenth_are_said_to_run_at_1_10() {
    let of = scenario(4096);
    let side = predicted(&of.1, 0).expect("rank 0");
    // Every matmul a tenth longer, and all that comes after it later.
    let mut edited = side.clone();
    let mut order: Vec<usize> = (0..side.items.len()).filter(|&at| side.items[at].class == Class::Matmul).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(side.items[at].start));
    for at in order {
        let (end, more) = (side.items[at].end, Time(side.items[at].time().0 / 10));
        let start = edited.items[at].start;
        edited = delayed(&edited, end, more);
        edited.items[at].start = start;
        edited.items[at].end = end + more;
    }
    let compared = compared(&of, &[(0, edited)], 0);
    let report = text::report(&compared.about, &compared.gap, 120);
    assert_eq!(compared.gap.explained(), compared.gap.gap());
    let (_, sum) = compared.gap.classes().into_iter().find(|(class, _)| *class == Class::Matmul).expect("matmuls");
    let ratio = sum.ratio().expect("both sides have them");
    assert!((ratio - 1.1).abs() < 0.002, "{ratio}\n{report}");
    let tight = bounds::parse("matmul=5%,attention=1%").expect("bounds");
    let broken = bounds::broken(&tight, &compared.gap);
    assert!(broken.len() == 1 && broken[0].starts_with("matmul: 1.10"), "{broken:?}");
}

#[test]
fn a_host_that_stalls_in_the_optimizer_is_named() {
    let of = scenario(1024);
    let side = predicted(&of.1, 0).expect("rank 0");
    let first = side.items.iter().filter(|item| item.class == Class::Optimizer).map(|item| item.start).min();
    let stalled = delayed(&side, first.expect("an optimizer"), MILLISECOND);
    // The host is late with the optimizer's first kernel: so it launches it when it begins.
    let mut stalled = stalled;
    for item in stalled.items.iter_mut().filter(|item| item.class == Class::Optimizer) {
        item.launched = Some(item.start);
    }
    let compared = compared(&of, &[(0, stalled)], 0);
    let report = text::report(&compared.about, &compared.gap, 120);
    assert_eq!(compared.gap.explained(), compared.gap.gap());
    let worst = compared.gap.idle.first().expect(&report);
    assert_eq!((worst.why, worst.before), (Why::Host, Some(Pass::Optimizer)), "{report}");
    assert!(near(worst.gap(), MILLISECOND), "{report}");
}

#[test]
fn a_late_rank_is_named_by_the_traces_of_the_others() {
    let of = scenario(4096);
    let side = predicted(&of.1, 0).expect("rank 0");
    // Rank 2 is a millisecond late for an exchange that nothing outlasts and nothing runs across the beginning of: the others wait.
    let clear = |at: usize| {
        let across = |time: Time| side.items.iter().any(|item| item.start < time && item.end > time);
        !across(side.items[at].start) && !across(side.items[at].end)
    };
    let mut exchanges = (0..side.items.len()).filter(|&at| side.items[at].class.is_exchange() && clear(at));
    let gather = exchanges.next().expect("gradients' norms are summed when all else is done");
    let Item { start, end, class, .. } = side.items[gather];
    let mut late = delayed(&side, start, MILLISECOND);
    late.items[gather].end = end + MILLISECOND;
    let mut waits = delayed(&side, end, MILLISECOND);
    waits.items[gather].start = start;
    waits.items[gather].end = end + MILLISECOND;
    let sides = [(0, waits.clone()), (1, waits.clone()), (2, late), (3, waits)];
    let compared = self::compared(&of, &sides, 0);
    let report = text::report(&compared.about, &compared.gap, 120);
    assert_eq!(compared.gap.explained(), compared.gap.gap());
    let worst = compared.gap.late.first().expect(&report);
    assert_eq!((worst.rank, worst.class), (2, class), "{report}");
    // What computes meanwhile hides some of it.
    assert!((MILLISECOND.0 / 2..=MILLISECOND.0 + MILLISECOND.0 / 20).contains(&worst.waited.0), "{report}");
    assert!(report.contains("for rank 2, which comes last"), "{report}");
    // Seen from the late rank nobody waits: it was late itself.
    let late = self::compared(&of, &sides, 2);
    assert!(
        late.gap.late.iter().all(|late| late.waited < MILLISECOND),
        "{}",
        text::report(&late.about, &late.gap, 120)
    );
}

#[test]
fn kernels_that_nobody_predicted_are_counted() {
    let of = scenario(4096);
    let side = predicted(&of.1, 0).expect("rank 0");
    let mut edited = side.clone();
    let matmul = side.items.iter().position(|item| item.class == Class::Matmul).expect("a matmul");
    for number in (1..=12).rev() {
        let end = edited.items[matmul].end;
        edited = delayed(&edited, end, MILLISECOND);
        edited.items[matmul].end = end;
        let launched = side.items[matmul].launched.map(|launched| launched + Time(number * 300_000));
        let shape = Shape::matmul(77, 777, 7777);
        let more = Item { start: end, end: end + MILLISECOND, launched, shape, ..side.items[matmul].clone() };
        edited.items.insert(matmul + 1, more);
    }
    let compared = compared(&of, &[(0, edited)], 0);
    let report = text::report(&compared.about, &compared.gap, 120);
    assert_eq!(compared.gap.explained(), compared.gap.gap());
    let part = compared.gap.parts.iter().find(|part| part.matched == Match::NotPredicted).expect(&report);
    assert_eq!((part.measured.count, part.shape), (12, Shape::matmul(77, 777, 7777)), "{report}");
}

/// Half the tokens: no matmul has a shape that was predicted.
#[test]
fn a_trace_of_another_job_is_asked_about() {
    let of = scenario(4096);
    let question = "is it of this scenario?";
    let asked = |sequence: u64| {
        let side = predicted(&scenario(sequence).1, 0).expect("rank 0");
        let compared = compared(&of, &[(0, side)], 0);
        text::report(&compared.about, &compared.gap, 400).contains(question)
    };
    assert!(asked(2048));
    assert!(!asked(4096));
}

#[test]
fn what_does_not_fit_together_is_refused_in_words() {
    let of = scenario(4096);
    let side = predicted(&of.1, 0).expect("rank 0");
    let of_rank = |rank: u32| (format!("rank{rank}.json"), read(&kineto(&side, rank, 2)));
    let refused = |traces: &[(String, Trace)], choice: Choice| {
        compare(&of.0, &of.1, traces, choice).map(|_| ()).expect_err("it does not fit")
    };
    let twice = refused(&[of_rank(1), of_rank(1)], Choice::default());
    assert!(twice.contains("both of rank 1"), "{twice}");
    let other = refused(&[of_rank(1)], Choice { rank: Some(3), step: None });
    assert!(other.contains("write one of 1"), "{other}");
    let step = refused(&[of_rank(0)], Choice { rank: None, step: Some(9) });
    assert!(step.contains("write one of 0, 1"), "{step}");
    let mut larger = of_rank(0);
    larger.1.world = Some(64);
    let larger = refused(&[larger], Choice::default());
    assert!(larger.contains("a job of 64 ranks"), "{larger}");
    for spec in ["matmul", "matmal=5%", "matmul=x%"] {
        assert!(bounds::parse(spec).expect_err("no bound").contains("--fail-above"));
    }
}

#[test]
fn the_command_reports_writes_and_fails_above_a_bound() {
    let of = scenario(4096);
    let side = predicted(&of.1, 0).expect("rank 0");
    let folder = Folder::new("gap");
    folder.write(
        "mine.toml",
        "description = \"four layers on four chips\"\nruntime = \"fsdp2\"\n[topology]\nname = \"h100-sxm-80gb\"\nchips = 4\n[model]\n\
         name = \"llama-3.1-8b\"\nlayers = 4\n[mesh]\ndp_shard = 4\n[batch]\nsequence = 4096\n",
    );
    folder.write("rank0.json", &kineto(&side, 0, 3));
    let run = |more: &[&str]| {
        let output = folder.windtunnel(&[&["check", "mine.toml", "--trace-in", "rank0.json"], more].concat());
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (code, report, said) =
        run(&["--fail-above", "step=1%", "--fail-above", "matmul=1%", "--json", "gap.json", "--trace", "both.json"]);
    assert_eq!(code, Some(0), "{report}{said}");
    assert!(
        report.contains("mine.toml against rank0.json, rank 0, ProfilerStep#1") && report.contains("All bounds hold."),
        "{report}"
    );
    let json: serde_json::Value = serde_json::from_slice(&folder.read("gap.json")).expect("it is JSON");
    let sum = |list: &str| {
        json[list].as_array().expect(list).iter().map(|part| part["adds_s"].as_f64().expect("a number")).sum::<f64>()
    };
    assert!((sum("parts") + sum("idle") - json["gap_s"].as_f64().expect("a number")).abs() < 1e-9, "{json:#}");
    let both: serde_json::Value = serde_json::from_slice(&folder.read("both.json")).expect("it is JSON");
    let processes =
        both["traceEvents"].as_array().expect("events").iter().filter(|event| event["name"] == "process_name");
    let names: Vec<&str> = processes.filter_map(|event| event["args"]["name"].as_str()).collect();
    assert_eq!(names, ["measured", "predicted"]);
    let (code, report, _) = run(&["--fail-above", "all-to-all=5%"]);
    assert_eq!(code, Some(1), "{report}");
    assert!(report.contains("all-to-all: there is nothing that prediction and trace both have"), "{report}");
    for (arguments, word) in [
        (vec!["check", "mine.toml", "mine.toml", "--trace-in", "rank0.json"], "one scenario"),
        (vec!["check", "mine.toml", "--trace-in", "mine.toml"], "mine.toml"),
        (vec!["check", "mine.toml", "--trace-in", "rank0.json", "--rank", "2"], "write one of 0"),
        (vec!["check", "mine.toml", "--trace-in", "rank0.json", "--fail-above", "matmul"], "matmul=5%"),
        (vec!["check", "mine.toml", "--trace", "both.json"], "--trace-in"),
        (vec!["check", "mine.toml", "--on", "h100-sxm-80gb"], "--trace-in"),
    ] {
        let said = folder.refuses(&arguments);
        assert!(said.contains(word), "{arguments:?}: {said}");
    }
}
