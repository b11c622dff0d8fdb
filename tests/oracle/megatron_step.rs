//! A pipeline rank's step under Megatron-Core against Megatron-Core itself: collectives in host order, every block that is taken
//! and given back, and memory phase by phase (`tests/oracles/megatron.json`, `megatron-modules.json`).

use super::cases;
use super::megatron_case;
use serde_json::Value;
use windtunnel::memory::{Settings, replay};
use windtunnel::program::{Collective, Direction, Instr, Mark, Program};
use windtunnel::runtime::megatron::{self, Implementation, MegatronPlan, Recompute};
use windtunnel::units::Bytes;

/// Collectives and messages as the script writes them down, with the bytes of all tensors of each.
pub fn theirs(outputs: &Value) -> Vec<String> {
    let all = outputs["collectives"].as_str().unwrap().split_whitespace();
    let whole = |one: &str| match one.split_once(':') {
        Some((kind, tensors)) if kind != "end" => {
            let bytes: u64 = tensors.split('+').map(|bytes| bytes.parse::<u64>().unwrap()).sum();
            format!("{kind}:{bytes}")
        }
        _ => one.to_owned(),
    };
    all.map(whole).collect()
}

/// A program's collectives and messages, as the script writes them down.
pub fn issued(program: &Program) -> Vec<String> {
    let mut list = vec![];
    for instr in &program.step {
        match *instr {
            Instr::Collective { comm, .. } => {
                let comm = program.comm(comm);
                let data = program.group(comm.group).name.as_str();
                let data = data.starts_with("dp") || data == "expert_dp";
                let kind = match (comm.kind, data) {
                    (Collective::AllGather, false) => "allgather_base",
                    (Collective::AllGather, true) => "allgather_into_tensor_coalesced",
                    (Collective::ReduceScatter, false) => "reduce_scatter_base",
                    (Collective::ReduceScatter, true) => "reduce_scatter_tensor_coalesced",
                    (Collective::AllReduce, true) if comm.bytes.0 > 8 => "allreduce_coalesced",
                    // The loss for the log, which the script does not reduce.
                    (Collective::AllReduce, true) => continue,
                    (Collective::AllReduce, false) => "allreduce",
                    (Collective::AllToAll, _) => "alltoall_base",
                    (Collective::Rows(rows), _) => {
                        list.push(format!("{}:{}", Collective::Rows(rows).name(), comm.bytes.0));
                        continue;
                    }
                    (kind, _) => panic!("{}", kind.name()),
                };
                // Rows of experts are gathered and scattered as lists.
                let listed = program.group(comm.group).name == "etp";
                let kind = if listed { kind.trim_end_matches("_base") } else { kind };
                list.push(format!("{kind}:{}", comm.bytes.0));
            }
            Instr::Exchange { exchange, .. } => {
                list.extend(program.exchange(exchange).map(|transfer| {
                    let kind = if transfer.direction == Direction::Send { "send" } else { "recv" };
                    format!("{kind}:{}", transfer.bytes.0)
                }));
            }
            Instr::Mark { mark } => {
                if let Mark::PhaseEnd(name) = &program.marks[mark as usize] {
                    list.push(format!("end:{name}"));
                }
            }
            _ => {}
        }
    }
    list
}

fn each(mut look: impl FnMut(&str, &MegatronPlan, &Value, &Program)) {
    let files = ["megatron.json", "megatron-modules.json"].map(cases::read);
    for case in files.iter().flatten().flat_map(|file| file["cases"].as_array().unwrap()) {
        let job = megatron_case::job(&case["config"]);
        let flight = megatron::compile(&job);
        let stage = megatron_case::stage(&case["config"]);
        look(case["id"].as_str().unwrap(), &job, &case["outputs"], &flight.classes[stage]);
    }
}

/// Of ranks in a ring every other one receives before it sends.
fn messages_in_any_order(issued: &mut [String]) {
    let message = |one: &String| one.starts_with("send") || one.starts_with("recv");
    for row in issued.chunk_by_mut(|before, after| message(before) && message(after)) {
        row.sort();
    }
}

#[test]
fn oracle_collectives_and_messages_are_issued_in_megatrons_order() {
    let (mut wrong, mut count) = (String::new(), 0);
    each(|id, job, outputs, program| {
        let (mut ours, mut theirs) = (issued(program), theirs(outputs));
        let mesh = job.split.mesh;
        // Over one rank the script still calls them; nothing is exchanged.
        let alone = mesh.ranks() == 1;
        let words = format!("allreduce:{}", 4 * job.split.batch * job.split.seq / u64::from(mesh.cp));
        theirs.retain(|one| one.starts_with("end") || !(alone || mesh.tp == 1 && *one == words));
        ours.retain(|one| one.starts_with("end") || !alone);
        if mesh.dp * mesh.cp == 1 {
            theirs.retain(|one| !one.contains("coalesced"));
        }
        if mesh.cp > 1 {
            messages_in_any_order(&mut ours);
            messages_in_any_order(&mut theirs);
        }
        count += ours.len();
        if ours != theirs {
            let at = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
            let show =
                |list: &[String]| list.iter().skip(at.saturating_sub(2)).take(6).cloned().collect::<Vec<_>>().join(" ");
            wrong +=
                &format!("{id}: {} and {}, from {at}: {} | {}\n", ours.len(), theirs.len(), show(&ours), show(&theirs));
        }
    });
    assert!(count > 5000 || cases::elsewhere(), "only {count} collectives");
    assert!(wrong.is_empty(), "{wrong}");
}

/// A block that is taken or given back, and its bytes.
type Event = (char, u64);

/// A program's blocks in order, and how many of these events are the optimizer's.
fn blocks(program: &Program) -> (Vec<Event>, usize) {
    let (mut list, mut before) = (vec![], 0);
    for instr in &program.step {
        let event = match *instr {
            Instr::Alloc { buffer } => ('+', program.buffer(buffer).bytes.0),
            Instr::Free { buffer } => ('-', program.buffer(buffer).bytes.0),
            Instr::Mark { mark } => {
                if matches!(&program.marks[mark as usize], Mark::PhaseEnd(name) if name == "forward-backward") {
                    before = list.len();
                }
                continue;
            }
            _ => continue,
        };
        list.extend((event.1 > 0).then_some(event));
    }
    let optimizer = list.len() - before;
    (list, optimizer)
}

/// What the optimizer takes beside its temporaries: parts of the gradients' norm and counts of its steps, all of them smaller
/// than this. They move no peak, and are not simulated.
const OPTIMIZERS_SMALL: u64 = 4_000;

/// In a pipeline numbers for the log, and what is left of a result that was sent, go a few blocks sooner or later.
const PIPELINES_SMALL: u64 = 8;

/// Cases in which messages go a few blocks sooner or later, too: their blocks are the same in another order.
const OTHERWISE: [&str; 2] = ["pp2-last", "pp2-vpp2-first"];

#[test]
fn oracle_every_block_of_a_step_is_taken_and_given_back_in_megatrons_order() {
    let (mut wrong, mut count) = (String::new(), 0);
    each(|id, job, outputs, program| {
        let Some(text) = outputs["events"].as_str() else { return };
        let event = |event: &str| (event.chars().next().unwrap(), event[1..].parse::<u64>().unwrap());
        let mut theirs: Vec<Event> = text.split_whitespace().map(event).collect();
        let (mut ours, mut optimizer) = blocks(program);
        if job.split.mesh.pp > 1 {
            optimizer = ours[ours.len() - optimizer..].iter().filter(|event| event.1 > PIPELINES_SMALL).count();
            for list in [&mut ours, &mut theirs] {
                list.retain(|event| event.1 > PIPELINES_SMALL);
            }
        }
        let before = ours.len() - optimizer;
        let heap = job.split.block.implementation == Implementation::TransformerEngine
            && matches!(job.split.block.recompute, Recompute::Uniform { .. });
        for list in [&mut ours, &mut theirs] {
            let mut of_optimizer = list.split_off(before.min(list.len()));
            // It steps parameters with weight decay before those without; here all are stepped at once.
            of_optimizer.retain(|event| event.1 >= OPTIMIZERS_SMALL);
            of_optimizer.sort_unstable();
            if heap {
                // Gradients of one function's parameters become ready at once, and the engine's queue is a heap: inside a
                // checkpoint it gives them out in another order.
                list.chunk_by_mut(|before, after| before.0 == '-' && after.0 == '-').for_each(<[Event]>::sort);
            }
            list.extend(of_optimizer);
            if OTHERWISE.contains(&id) {
                list.sort_unstable();
            }
        }
        count += 1;
        if let Some(at) = (0..ours.len().max(theirs.len())).find(|&at| ours.get(at) != theirs.get(at)) {
            let show =
                |list: &[Event]| format!("{:?}", &list[at.saturating_sub(4).min(list.len())..list.len().min(at + 8)]);
            let of = (ours.len(), theirs.len());
            wrong += &format!("{id}: event {at} of {of:?}:\n  ours {}\n  theirs {}\n", show(&ours), show(&theirs));
        }
    });
    assert!(count >= 40 || cases::elsewhere(), "only {count} cases");
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn oracle_memory_of_a_step_agrees_with_megatrons_phase_by_phase() {
    let (mut table, mut exact, mut count) = (String::new(), 0, 0);
    let mut worst: f64 = 0.0;
    each(|id, _, theirs, program| {
        let report = replay(program, Settings { expandable_segments: false, capacity: Bytes(1 << 43) });
        let theirs_of = |phase: &str, key: &str| theirs["phases"][phase][key].as_u64().unwrap();
        let mut line = format!("{id:30}");
        let mut same = true;
        for phase in &report.phases {
            let peak = theirs_of(&phase.name, "peak");
            let off = phase.peak_allocated.0 as f64 - peak as f64;
            let end = phase.end_allocated.0 as f64 - theirs_of(&phase.name, "end") as f64;
            same &= off == 0.0 && end == 0.0;
            worst = worst.max((off / peak as f64).abs());
            line += &format!(" {} {:+.3} {:+.3} MiB", phase.name, off / 1048576.0, end / 1048576.0);
        }
        let reserved = report.peak_reserved.0 as f64 / theirs["peak_reserved"].as_f64().unwrap() - 1.0;
        table += &format!("{line} reserved {:+.2} %\n", 100.0 * reserved);
        exact += usize::from(same);
        count += 1;
    });
    println!("{table}{exact} of {count} to the byte");
    assert!(worst < 0.01, "{table}");
}
