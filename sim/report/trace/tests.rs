//! The trace of a small sharded step, read back with a JSON parser.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::*;
use crate::engine::{Class, Costs, Job, Options, Timeline, simulate, simulate_job};
use crate::program::builder::Section;
use crate::program::{
    Builder, Category, Collective, Comm, DType, Direction, Dispatch, Group, Instr, MatmulLayout, MemoryKind, Pass,
    Program, Transfer, Work,
};
use crate::units::{Bytes, Time};

const COMPUTE: StreamId = StreamId(0);
const GATHER: StreamId = StreamId(1);

/// Three layers on four ranks in groups of two: gathered on a stream of their own, activations kept until backward.
fn program() -> Program {
    let mut b = Builder::new(4, &["default", "all-gather"]);
    let group = b.add_group(Group::new("dp_shard", 2, 1));
    let layers: Vec<_> = (0..3).map(|layer| b.add_scope(format!("layers.\"{layer}\""))).collect();
    b.alloc(Bytes(1000), COMPUTE, Category::Parameter, "weight");
    for section in [Section::First, Section::Step] {
        b.section(section);
        if section == Section::First {
            b.alloc(Bytes(2000), COMPUTE, Category::OptimizerState, "moments");
        }
        b.host(Dispatch::StepOverhead, 1);
        let mut kept = Vec::new();
        for (index, &layer) in layers.iter().enumerate() {
            b.enter(layer);
            b.mark(Mark::Hook("pre_forward", layer));
            let full = b.alloc(Bytes(300), GATHER, Category::UnshardedParameter, "gathered");
            b.collective(GATHER, Comm { kind: Collective::AllGather, group, bytes: Bytes(300), dtype: DType::Bf16 });
            b.wait_stream(COMPUTE, GATHER);
            kept.push(b.alloc(Bytes(70 + index as u64), COMPUTE, Category::Activation, "hidden"));
            let matmul = Work::Matmul { m: 8, n: 8, k: 8, dtype: DType::Bf16, layout: MatmulLayout::Forward };
            b.launch(COMPUTE, "aten.mm", matmul, Dispatch::Extra);
            b.free(full);
        }
        b.mark(Mark::PhaseEnd("fwd".to_owned()));
        b.set_pass(Pass::Backward);
        for hidden in kept.into_iter().rev() {
            b.recategorize(hidden, Category::UnshardedGradient);
            let work = Work::Memory { kind: MemoryKind::Foreach, read: Bytes(9), written: Bytes(9) };
            b.launch(COMPUTE, "aten.add_", work, Dispatch::Foreach);
            b.free(hidden);
        }
        b.mark(Mark::PhaseEnd("bwd".to_owned()));
        b.set_pass(Pass::Forward);
    }
    b.finish()
}

fn costs(program: &Program) -> Costs {
    let mut costs = Costs::free(program);
    costs.kernel.iter_mut().enumerate().for_each(|(id, cost)| cost.time = Time(2_000_003 + 17 * id as u64));
    costs.comm.iter_mut().for_each(|cost| cost.time = Time(3_000_001));
    costs.dispatch = [Time(400_007); Dispatch::COUNT];
    costs
}

const RECORDED: Options = Options { steps: 3, fold: true, record: true, queue_limit: 1024 };

/// The trace as text, and its events.
fn written(trace: &Trace<'_>) -> (String, Vec<Json>) {
    let mut bytes = Vec::new();
    trace.write(&mut bytes).expect("memory takes it");
    let text = String::from_utf8(bytes).expect("JSON is text");
    let file: Json = serde_json::from_str(&text).expect("it is JSON");
    let events = file["traceEvents"].as_array().expect("a list").clone();
    (text, events)
}

/// A time field in picoseconds, exactly.
fn ps(event: &Json, field: &str) -> u64 {
    (event[field].as_f64().expect("a number") * 1e6).round() as u64
}

fn with_phase<'e>(events: &'e [Json], phase: &'e str) -> impl Iterator<Item = &'e Json> {
    events.iter().filter(move |event| event["ph"] == phase)
}

fn timeline(program: &Program, options: Options) -> Timeline {
    simulate(program, &costs(program), options).expect("the program runs")
}

#[test]
fn a_track_has_a_name_and_its_slices_lie_in_the_step_one_after_the_other() {
    let program = program();
    let timeline = timeline(&program, RECORDED);
    let trace = Trace::new("small", &program, &timeline);
    let (_, events) = written(&trace);
    let window = Window::of(&trace);
    let mut tracks = BTreeMap::<(u64, u64), Vec<(u64, u64)>>::new();
    for slice in with_phase(&events, "X") {
        let key = (slice["pid"].as_u64().expect("a number"), slice["tid"].as_u64().expect("a number"));
        tracks.entry(key).or_default().push((ps(slice, "ts"), ps(slice, "ts") + ps(slice, "dur")));
    }
    let named = |pid: u64, tid: u64| {
        with_phase(&events, "M").any(|e| e["name"] == "thread_name" && e["pid"] == pid && e["tid"] == tid)
    };
    // Host, phases, two streams.
    assert_eq!(tracks.len(), 4);
    for ((pid, tid), mut slices) in tracks {
        assert!(named(pid, tid));
        slices.sort_unstable();
        assert!(slices.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{slices:?}");
        assert!(slices.iter().all(|slice| slice.1 <= window.at(timeline.ends[2]).0));
    }
    let begin = window.at(window.begin);
    assert!(begin > Time::ZERO, "the host has a lead");
    let before = with_phase(&events, "X").find(|e| e["name"] == "before step 2").expect("the lead is shown");
    assert_eq!((ps(before, "ts"), ps(before, "dur")), (0, begin.0));
    let device = |tid: u32| with_phase(&events, "X").filter(move |e| e["tid"] == tid);
    assert!(device(track(COMPUTE)).all(|slice| ps(slice, "ts") >= begin.0));
    let busy: u64 = device(track(COMPUTE)).map(|slice| ps(slice, "dur")).sum();
    assert_eq!(busy, timeline.busy[0].kernel.iter().map(|time| time.0).sum::<u64>());
    assert!(with_phase(&events, "M").any(|e| e["args"]["name"] == "rank 0 (stands for all 4)"));
}

#[test]
fn a_collective_says_what_is_exchanged_and_how_long_it_waited() {
    let program = program();
    let timeline = timeline(&program, RECORDED);
    let (text, events) = written(&Trace::new("small", &program, &timeline));
    let gather = with_phase(&events, "X").find(|e| e["cat"] == "collective").expect("there are some");
    assert_eq!(gather["name"], "all-gather dp_shard 300 B");
    assert_eq!(gather["args"]["scope"], "layers.\"0\"");
    assert_eq!(gather["args"]["waited_us"].as_f64(), Some(0.0));
    assert!(text.contains(r#""dur":3.000001,"#));
    let matmul = with_phase(&events, "X").find(|e| e["name"] == "aten.mm").expect("there are some");
    assert_eq!(matmul["cat"], "forward");
    assert_eq!(matmul["args"]["work"], "bf16 [8, 8]·[8, 8], forward");
    assert_eq!(matmul["args"]["flop"], 1024);
}

#[test]
fn memory_starts_and_ends_at_what_is_live_and_shows_only_changes() {
    let program = program();
    let timeline = timeline(&program, RECORDED);
    let (_, events) = written(&Trace::new("small", &program, &timeline));
    let counters = |name: &'static str| with_phase(&events, "C").filter(move |e| e["name"] == name);
    let stacked: Vec<(u64, &Json)> = counters("memory by category").map(|e| (ps(e, "ts"), &e["args"])).collect();
    assert_eq!(stacked[0].0, 0);
    assert!(stacked.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 != pair[1].1));
    let sum = |args: &Json| args.as_object().expect("series").values().map(|v| v.as_u64().expect("bytes")).sum::<u64>();
    for total in counters("memory") {
        let at = stacked.iter().find(|(time, _)| *time == ps(total, "ts")).expect("a total has its parts");
        assert_eq!(sum(at.1), sum(&total["args"]));
    }
    let mut live = memory::Live::at_start(&program);
    let start = live.totals;
    program.step.iter().for_each(|instr| live.apply(&program, instr));
    assert_eq!(live.totals, start, "the step is steady");
    for (_, args) in [stacked[0], stacked[stacked.len() - 1]] {
        for &category in Category::ALL {
            assert_eq!(args[category.label()].as_u64().unwrap_or(0), live.totals[category as usize]);
        }
    }
    assert_eq!(sum(stacked[0].1), 3000);
}

#[test]
fn the_marked_peak_is_that_of_the_allocators_replay() {
    let program = program();
    let timeline = timeline(&program, RECORDED);
    let (_, events) = written(&Trace::new("small", &program, &timeline));
    let settings = crate::memory::Settings { expandable_segments: false, capacity: Bytes(1 << 40) };
    let report = crate::memory::replay(&program, settings);
    let peak = with_phase(&events, "i").find(|e| e["cat"] == "memory").expect("it is marked");
    let most = report.phases.iter().max_by_key(|phase| phase.peak_requested).expect("a step has phases");
    for (category, bytes) in most.breakdown.sorted() {
        assert_eq!(peak["args"][category.label()], bytes.0, "{}", category.label());
    }
    assert_eq!(peak["name"], format!("peak: {} asked for", most.peak_requested));
}

#[test]
fn every_rank_of_a_full_run_shows_what_the_folded_one_shows() {
    let program = program();
    let folded = timeline(&program, RECORDED);
    let full = timeline(&program, Options { fold: false, ..RECORDED });
    let (_, folded) = written(&Trace::new("small", &program, &folded));
    let (_, full) = written(&Trace::new("small", &program, &full));
    // Slices, counters and instants of a rank; on the first also those of its host.
    let of = |events: &[Json], rank: u32, host: bool| -> Vec<Json> {
        let mut own: Vec<Json> = ["X", "C", "i"].iter().flat_map(|phase| with_phase(events, phase)).cloned().collect();
        own.retain(|e| e["pid"] == process(rank));
        own.retain(|e| host || e["tid"].as_u64().is_some_and(|tid| tid > u64::from(PHASES)));
        own.iter_mut().for_each(|e| e["pid"] = Json::Null);
        own
    };
    assert_eq!(of(&full, 0, true), of(&folded, 0, true));
    for rank in 1..4 {
        assert_eq!(of(&full, rank, true), of(&folded, 0, false));
    }
    assert_eq!(with_phase(&folded, "s").count(), 0);
}

#[test]
fn arrows_join_the_members_of_one_collective() {
    let program = program();
    let costs = costs(&program);
    let mut late = costs.clone();
    late.dispatch = [Time(900_001); Dispatch::COUNT];
    let classes = [Class { program: &program, costs: &costs }, Class { program: &program, costs: &late }];
    let class_of = vec![0, 1, 0, 0];
    let job = Job { classes: &classes, class_of: &class_of };
    let timeline = simulate_job(job, Options { fold: false, ..RECORDED }).expect("the job runs");
    let programs = vec![&program, &program];
    let trace = Trace { scenario: "late", programs, class_of, timeline: &timeline, apart: None, from_step: Some(1) };
    let (_, events) = written(&trace);
    let mut arrows = BTreeMap::<u64, Vec<(String, u64, u64)>>::new();
    for phase in ["s", "t", "f"] {
        for e in with_phase(&events, phase) {
            let arrow = (phase.to_owned(), e["pid"].as_u64().expect("a number"), ps(e, "ts"));
            arrows.entry(e["id"].as_u64().expect("a number")).or_default().push(arrow);
        }
    }
    // Two steps of three layers in two groups.
    assert_eq!(arrows.len(), 12);
    for arrow in arrows.values() {
        let [(s, from, out), (f, to, into)] = &arrow[..] else { panic!("{arrow:?}") };
        assert_eq!((s.as_str(), f.as_str(), from + 1, out), ("s", "f", *to, into));
        let inside = |e: &&Json| ps(e, "ts") <= *out && *out <= ps(e, "ts") + ps(e, "dur");
        let gathers = with_phase(&events, "X").filter(|e| e["cat"] == "collective" && e["pid"] == *from);
        assert_eq!(gathers.filter(inside).count(), 1);
    }
}

/// One of two stages of two ranks: the first sends its result on, twice in a step.
fn stage(sends: bool) -> Program {
    let mut b = Builder::new(4, &["default", "messages"]);
    let group = b.add_group(Group::new("pp", 2, 2));
    b.section(Section::Step);
    let work = Work::Memory { kind: MemoryKind::Foreach, read: Bytes(9), written: Bytes(9) };
    let direction = if sends { Direction::Send } else { Direction::Receive };
    for _ in 0..2 {
        if sends {
            b.launch(COMPUTE, "aten.add_", work, Dispatch::Foreach);
            b.wait_stream(GATHER, COMPUTE);
        }
        b.exchange(GATHER, &[Transfer { direction, group, ahead: 1, bytes: Bytes(64), dtype: DType::Bf16 }]);
        if !sends {
            b.wait_stream(COMPUTE, GATHER);
            b.launch(COMPUTE, "aten.add_", work, Dispatch::Foreach);
        }
    }
    b.finish()
}

#[test]
fn arrows_lead_from_the_sender_of_a_message_to_its_receiver() {
    let programs = [stage(true), stage(false)];
    let costs = programs.each_ref().map(|program| {
        let mut costs = costs(program);
        costs.transfer[0].time = Time(1_000_007);
        costs
    });
    let classes = [0, 1].map(|at| Class { program: &programs[at], costs: &costs[at] });
    let class_of = vec![0, 0, 1, 1];
    for fold in [true, false] {
        let job = Job { classes: &classes, class_of: &class_of };
        let timeline = simulate_job(job, Options { fold, ..RECORDED }).expect("the job runs");
        let (programs, class_of) = (programs.iter().collect(), class_of.clone());
        let trace =
            Trace { scenario: "two stages", programs, class_of, timeline: &timeline, apart: None, from_step: None };
        let (_, events) = written(&trace);
        let names: Vec<&str> = with_phase(&events, "M")
            .filter(|e| e["name"] == "process_name")
            .map(|e| e["args"]["name"].as_str().expect("a name"))
            .collect();
        let all = ["rank 0", "rank 1", "rank 2", "rank 3"];
        assert_eq!(names, if fold { vec!["rank 0 (stands for 2)", "rank 2 (stands for 2)"] } else { all.to_vec() });
        let slice_at = |pid: &Json, ts: u64| {
            let inside = |e: &&Json| ps(e, "ts") <= ts && ts <= ps(e, "ts") + ps(e, "dur");
            let slices = with_phase(&events, "X").filter(|e| e["cat"] == "message" && e["pid"] == *pid);
            slices.filter(inside).map(|e| e["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
        };
        let starts: Vec<&Json> = with_phase(&events, "s").collect();
        assert_eq!(starts.len(), if fold { 2 } else { 4 });
        for start in starts {
            let end = with_phase(&events, "f").find(|e| e["id"] == start["id"]).expect("every arrow ends");
            assert_eq!(start["pid"].as_u64().map(|pid| pid + 2), end["pid"].as_u64());
            assert_eq!(slice_at(&start["pid"], ps(start, "ts")), ["send pp 64.0 B"]);
            assert_eq!(slice_at(&end["pid"], ps(end, "ts")), ["receive pp 64.0 B"]);
        }
    }
}

#[test]
fn the_same_run_gives_the_same_bytes() {
    let program = program();
    let options = Options { fold: false, ..RECORDED };
    let [one, other] = [timeline(&program, options), timeline(&program, options)]
        .map(|timeline| written(&Trace::new("small", &program, &timeline)).0);
    assert_eq!(one, other);
}

#[test]
fn a_program_with_nothing_in_it_has_an_empty_trace() {
    let mut program = Builder::new(1, &["default"]).finish();
    let empty = timeline(&program, RECORDED);
    assert_eq!(with_phase(&written(&Trace::new("empty", &program, &empty)).1, "X").count(), 0);
    program.step.push(Instr::Host { dispatch: Dispatch::StepOverhead, count: 1 });
    let hosts = timeline(&program, RECORDED);
    assert_eq!((hosts.host_begins, hosts.host_times), (vec![Time(800_014)], vec![vec![Time(1_200_021)]]));
}
