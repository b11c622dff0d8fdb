//! A step under Megatron-FSDP against its own code around Megatron-Core's own model (`tests/oracles/megatron-fsdp.json`): blocks,
//! collectives and waits in host order, each on its stream, and peaks by phase.

use super::cases;
use super::megatron_case;
use serde_json::Value;
use std::collections::BTreeMap;
use windtunnel::memory::{Settings, replay};
use windtunnel::program::{Collective, Instr, Mark, Program, StreamId};
use windtunnel::runtime::megatron::{Fsdp, Implementation, MegatronPlan, Strategy, compile, unit_size};
use windtunnel::units::Bytes;

/// The job of a case.
pub fn job(c: &Value) -> MegatronPlan {
    let mut job = megatron_case::job(c);
    let strategy = match c["strategy"].as_str().unwrap() {
        "no_shard" => Strategy::Whole,
        "optim" => Strategy::Optimizer,
        "optim_grads" => Strategy::Gradients,
        _ => Strategy::Parameters,
    };
    job.fsdp = Some(Fsdp {
        strategy,
        unit_size: c["unit_size"].as_u64().unwrap_or_else(|| unit_size(&job, strategy)),
        double_buffer: c["double_buffer"].as_bool().unwrap(),
        gather_group: false,
    });
    job
}

/// Cases that ran, and what they ran to.
fn cases() -> Vec<(String, MegatronPlan, Value)> {
    let Some(file) = cases::read("megatron-fsdp.json") else { return vec![] };
    let all = file["cases"].as_array().unwrap().iter();
    let ran = all.filter(|case| case["outputs"]["error"].is_null());
    ran.map(|case| (case["id"].as_str().unwrap().to_owned(), job(&case["config"]), case["outputs"].clone())).collect()
}

/// The number that the script gives a stream.
fn lane(program: &Program, stream: StreamId) -> usize {
    match program.streams[stream.0 as usize] {
        "compute" => 0,
        "parameter gathers" => 1,
        "gradient reductions" => 2,
        _ => OTHER,
    }
}

/// Any other stream.
const OTHER: usize = 3;

/// A program's step as the script writes it down: blocks, collectives over replicas, waits for them and of streams for each
/// other, ends of phases.
fn issued(program: &Program) -> Vec<String> {
    let (mut list, mut asked, mut calls) = (vec![], StreamId(0), 0);
    // What each event marks, and by stream the last collective, if that is one over replicas.
    let (mut marks, mut last) = (BTreeMap::new(), BTreeMap::new());
    for instr in &program.step {
        match *instr {
            Instr::Alloc { buffer } | Instr::Free { buffer } => {
                let sign = if matches!(instr, Instr::Alloc { .. }) { '+' } else { '-' };
                let block = program.buffer(buffer);
                if block.bytes.0 > 0 {
                    list.push(format!("{sign}{}@{}", block.bytes.0, lane(program, block.stream)));
                }
            }
            Instr::Record { stream, event } => {
                // A communicator's stream waits for the one that asks.
                asked = stream;
                let mark = match lane(program, stream) {
                    OTHER => last.get(&stream).and_then(|call: &Option<u32>| Some(format!("call#{}", (*call)?))),
                    lane => Some(format!("{lane}#{calls}")),
                };
                marks.insert(event, mark);
            }
            Instr::Wait { stream, event } => {
                if let (lane @ 0..OTHER, Some(Some(mark))) = (lane(program, stream), marks.get(&event)) {
                    list.push(format!("wait:{lane}<{mark}"));
                }
            }
            Instr::HostWait { .. } => list.push(format!("wait:host#{calls}")),
            Instr::Collective { stream, comm, .. } => {
                let comm = program.comm(comm);
                let kind = match comm.kind {
                    Collective::AllGather => "allgather",
                    Collective::ReduceScatter => "reduce_scatter",
                    _ => "allreduce",
                };
                let counts = program.group(comm.group).name.starts_with("dp") && comm.bytes.0 > 8;
                if counts {
                    calls += 1;
                    list.push(format!("{kind}:{}@{}", comm.bytes.0, lane(program, asked)));
                }
                last.insert(stream, counts.then_some(calls));
            }
            Instr::Mark { mark } => {
                if let Mark::PhaseEnd(name) = &program.marks[mark as usize] {
                    list.push(name.clone());
                }
            }
            _ => {}
        }
    }
    list
}

/// What Megatron-Core issued, without what is not between replicas.
fn theirs(outputs: &Value, job: &MegatronPlan) -> Vec<String> {
    let mut list = vec![];
    // By call, how many of those until then are between replicas; and which are.
    let (mut until, mut between) = (vec![0], vec![false]);
    for event in outputs["events"].as_str().unwrap().split(' ') {
        let Some((kind, rest)) = event.split_once(':') else {
            list.push(event.to_owned());
            continue;
        };
        if kind == "wait" {
            let (who, number) = rest.split_once('#').unwrap();
            let number = number.parse::<usize>().unwrap();
            // A stream that is told to wait for itself, or for a call between other ranks; attention's second stream.
            let nothing = |(one, other): (&str, &str)| {
                one == other || other == "call" && !between[number] || [one, other].contains(&"3")
            };
            let nothing = who.split_once('<').is_some_and(nothing);
            list.extend((!nothing).then(|| format!("wait:{who}#{}", until[number])));
            continue;
        }
        // Where no other ranks gather and scatter, what is called one by one is between replicas, too.
        let alone = job.split.mesh.tp == 1 && job.split.mesh.cp == 1 && kind != "allreduce";
        let kind = kind.strip_suffix("_coalesced").or(alone.then_some(kind));
        list.extend(kind.map(|kind| format!("{kind}:{rest}")));
        until.push(until.last().unwrap() + usize::from(kind.is_some()));
        between.push(kind.is_some());
    }
    list
}

/// Of a phase the part that is compared: all of forward and backward, of the rest what is between replicas.
fn compared(list: Vec<String>) -> Vec<String> {
    let mut compared = vec![];
    for phase in list.split_inclusive(|event| event.starts_with(char::is_alphabetic) && !event.contains(':')) {
        let whole = phase.last().is_some_and(|name| name == "forward-backward");
        let between = |event: &&String| whole || !event.ends_with("@0") || event.contains(':');
        compared.extend(phase.iter().filter(between).cloned());
    }
    compared
}

/// Sorts what is let go of in a row.
fn frees_in_any_order(events: &mut [String]) {
    events.chunk_by_mut(|before, after| before.starts_with('-') && after.starts_with('-')).for_each(<[String]>::sort);
}

#[test]
fn oracle_megatron_fsdp_issues_blocks_and_collectives_as_its_own_code_does() {
    let (mut wrong, mut checked) = (String::new(), 0);
    for (id, job, outputs) in cases() {
        let mut ours = compared(issued(&compile(&job).classes[0]));
        let mut theirs = compared(theirs(&outputs, &job));
        if job.split.block.implementation == Implementation::TransformerEngine {
            // Gradients of one function's parameters become ready at once, and come out of a heap.
            frees_in_any_order(&mut ours);
            frees_in_any_order(&mut theirs);
        }
        checked += theirs.len();
        if ours != theirs {
            let at = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
            let show = |list: &[String]| {
                list.iter().skip(at.saturating_sub(6)).take(18).cloned().collect::<Vec<_>>().join(" ")
            };
            let (of, and) = (ours.len(), theirs.len());
            wrong += &format!("{id}: {of} and {and}, from {at}:\n  ours {}\n  theirs {}\n", show(&ours), show(&theirs));
        }
    }
    assert!(checked > 20_000 || cases::elsewhere(), "only {checked} events");
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn oracle_megatron_fsdp_peaks_and_ends_of_phases_are_those_of_its_own_code() {
    let (mut table, mut worst, mut apart) = (String::new(), 0.0_f64, 0.0_f64);
    for (id, job, outputs) in cases() {
        let report =
            replay(&compile(&job).classes[0], Settings { expandable_segments: false, capacity: Bytes(1 << 43) });
        table += &format!("{id:32}");
        for phase in &report.phases {
            let of = |key: &str| outputs["phases"][&phase.name][key].as_u64().unwrap() as f64;
            let off = phase.peak_allocated.0 as f64 / of("peak") - 1.0;
            let end = phase.end_allocated.0 as f64 - of("end");
            table += &format!(" {} {:+.3} % {:+.3} MiB", phase.name, 100.0 * off, end / 1_048_576.0);
            if phase.name == "forward-backward" {
                worst = worst.max(off.abs());
            }
            // Blocks that are not split are up to 1 MiB larger than what was asked for.
            apart = apart.max((end / 1_048_576.0).abs());
        }
        let reserved = outputs["peak_reserved"].as_f64().unwrap();
        table += &format!(" reserved {:+.2} %\n", 100.0 * (report.peak_reserved.0 as f64 / reserved - 1.0));
    }
    println!("{table}");
    assert!(worst < 0.005 && apart < 4.0, "{table}");
}

#[test]
fn oracle_megatron_fsdp_cuts_a_model_into_the_groups_of_its_own_code() {
    for (id, job, outputs) in cases() {
        let program = &compile(&job).classes[0];
        let whole = job.fsdp.unwrap().strategy == Strategy::Whole;
        let ranks = if whole { 1 } else { u64::from(job.split.mesh.data().size) };
        let main = program.setup.iter().filter_map(|instr| match *instr {
            Instr::Alloc { buffer } => Some(program.buffer(buffer)).filter(|buffer| buffer.name == "main_param"),
            _ => None,
        });
        let ours: Vec<u64> = main.map(|buffer| buffer.bytes.0 * ranks / 4).collect();
        let groups = outputs["groups"].as_array().unwrap().iter();
        let theirs: Vec<u64> = groups.map(|group| group["elements"].as_u64().unwrap()).collect();
        assert_eq!(ours, theirs, "{id}");
    }
}

#[test]
fn oracle_megatron_fsdp_stops_itself_where_it_is_refused_here() {
    let Some(file) = cases::read("megatron-fsdp.json") else { return };
    let all = file["cases"].as_array().unwrap().iter();
    let stopped = all.filter(|case| !case["outputs"]["error"].is_null()).map(|case| {
        let error = case["outputs"]["error"].as_str().unwrap();
        (case["id"].as_str().unwrap(), error.split(':').next().unwrap())
    });
    let expected = [
        ("whole-no-overlap", "AttributeError"),
        ("params-plain-optimizer", "AttributeError"),
        ("engine-llama-fused", "RuntimeError"),
    ];
    assert!(stopped.eq(expected) || cases::elsewhere());
}
