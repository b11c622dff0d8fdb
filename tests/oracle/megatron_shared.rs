//! Shared experts beside the dispatcher under Megatron-Core against Megatron-Core itself (`tests/oracles/megatron-shared.json`):
//! blocks, collectives and matmuls in host order, each on its stream, and peaks by phase.

use super::cases;
use super::megatron_experts::job;
use serde_json::Value;
use windtunnel::memory::{Settings, replay};
use windtunnel::program::{Instr, Mark, Program, StreamId};
use windtunnel::runtime::megatron::compile;
use windtunnel::units::Bytes;

fn each(mut look: impl FnMut(&str, &Value, &Value, &Program)) {
    let Some(file) = cases::read("megatron-shared.json") else { return };
    for case in file["cases"].as_array().unwrap() {
        let config = &case["config"];
        let number = |key: &str| config[key].as_u64().unwrap();
        let job = job(config);
        assert_eq!(windtunnel::runtime::megatron::refuses(&job), None, "{}", case["id"]);
        let stage = number("rank") / (number("world") / number("pp"));
        look(case["id"].as_str().unwrap(), config, &case["outputs"], &compile(&job).classes[stage as usize]);
    }
}

/// The number that the script gives a stream.
fn lane(program: &Program, stream: StreamId) -> usize {
    match program.streams[stream.0 as usize] {
        "compute" => 0,
        "shared experts" => 1,
        _ => 2,
    }
}

/// A program's step as the script writes it down.
fn issued(program: &Program) -> Vec<String> {
    let (mut list, mut asked) = (vec![], StreamId(0));
    for instr in &program.step {
        match *instr {
            Instr::Alloc { buffer } | Instr::Free { buffer } => {
                let sign = if matches!(instr, Instr::Alloc { .. }) { '+' } else { '-' };
                let block = program.buffer(buffer);
                if block.bytes.0 > 0 {
                    list.push(format!("{sign}{}@{}", block.bytes.0, lane(program, block.stream)));
                }
            }
            // A communicator's stream waits for the one that asks.
            Instr::Record { stream, .. } => asked = stream,
            Instr::Collective { stream, comm, .. } => {
                let (comm, own) = (program.comm(comm), lane(program, stream) < 2);
                let asked = if own { stream } else { asked };
                list.push(format!(
                    "{}:{}@{}",
                    comm.kind.name().replace("e-s", "e_s").replace('-', ""),
                    comm.bytes.0,
                    lane(program, asked)
                ));
            }
            Instr::Launch { stream, kernel, .. } if program.kernel(kernel).name == "te.generic_gemm" => {
                list.push(format!("matmul@{}", lane(program, stream)));
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

/// Of forward and backward what is wanted.
fn compared(list: &[String], wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let of = |name: &str| list.iter().position(|event| event == name).unwrap_or(0);
    list[of("end:zero")..of("end:forward-backward")].iter().filter(|event| wanted(event)).cloned().collect()
}

fn is_block(event: &str) -> bool {
    event.starts_with(['+', '-'])
}

/// What Megatron-Core did. Where a tensor in fp8 is made, with its scales beside it, one block here stands for both; a scale alone
/// is left out, and so is what one rank exchanges with itself.
fn theirs(outputs: &Value, config: &Value) -> Vec<String> {
    let bytes = |event: &str| event[1..].split('@').next().unwrap().parse::<u64>().unwrap_or(0);
    let alone = |event: &str| {
        let collective = event.contains(':') && !event.starts_with("end");
        config["tp"] == 1 && event.starts_with("allreduce:8192@") || config["world"] == 1 && collective
    };
    let mut list: Vec<String> = vec![];
    for event in outputs["events"].as_str().unwrap().split(' ').filter(|event| !alone(event)) {
        match list.last_mut() {
            _ if is_block(event) && bytes(event) == 4 && config["fp8"].is_string() => {}
            Some(last) if is_block(event) && config["fp8"] == "blockwise" && bytes(last) == 32 * bytes(event) => {
                *last = format!("{}{}@{}", &event[..1], 33 * bytes(event), event.split('@').nth(1).unwrap());
            }
            _ => list.push(event.replace("_coalesced", "")),
        }
    }
    list
}

/// Where two lists part.
fn apart(id: &str, ours: &[String], theirs: &[String]) -> String {
    let at = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    if at == ours.len().max(theirs.len()) {
        return String::new();
    }
    let show = |list: &[String]| list.iter().skip(at.saturating_sub(6)).take(24).cloned().collect::<Vec<_>>().join(" ");
    let (of, and) = (ours.len(), theirs.len());
    format!("{id}: {of} and {and}, from {at}:\n  ours {}\n  theirs {}\n", show(ours), show(theirs))
}

#[test]
fn oracle_shared_experts_beside_the_dispatcher_exchange_and_multiply_in_megatrons_order_and_on_its_streams() {
    let mut wrong = String::new();
    each(|id, config, outputs, program| {
        let theirs = theirs(outputs, config);
        let of = |list: &[String]| compared(list, |event| !is_block(event));
        wrong += &apart(id, &of(&issued(program)), &of(&theirs));
    });
    assert!(wrong.is_empty(), "{wrong}");
}

/// Blocks let go of in a row as all their bytes: in fp8 numbers and scales go one by one.
fn in_rows(list: &[String]) -> Vec<String> {
    let bytes = |event: &String| event[1..].split('@').next().unwrap().parse::<u64>().unwrap();
    let frees = |event: &String| event.starts_with('-');
    let rows = list.chunk_by(|before, after| frees(before) && frees(after));
    rows.map(|row| if frees(&row[0]) { format!("-{}", row.iter().map(bytes).sum::<u64>()) } else { row[0].clone() })
        .collect()
}

#[test]
fn oracle_shared_experts_beside_the_dispatcher_take_and_let_go_of_blocks_of_their_stream_as_megatrons() {
    let mut wrong = String::new();
    each(|id, config, outputs, program| {
        let of = |list: &[String]| compared(list, |event| is_block(event) && event.ends_with("@1"));
        let (mut ours, mut theirs) = (of(&issued(program)), of(&theirs(outputs, config)));
        if config["fp8"].is_string() {
            (ours, theirs) = (in_rows(&ours), in_rows(&theirs));
        }
        wrong += &apart(id, &ours, &theirs);
    });
    assert!(wrong.is_empty(), "{wrong}");
}

/// Cases of parts that other oracles compare to the last block.
const PLAIN: [&str; 10] = [
    "overlap",
    "overlap-tp1",
    "overlap-one-rank",
    "overlap-fused-permute",
    "overlap-unfused-accumulation",
    "overlap-micro-2",
    "overlap-drop",
    "overlap-pad",
    "overlap-reduce",
    "overlap-pp2-first",
];

#[test]
fn oracle_shared_experts_beside_the_dispatcher_leave_the_others_large_blocks_where_megatrons_do() {
    let (mut wrong, mut checked) = (String::new(), 0);
    each(|id, config, outputs, program| {
        let large =
            |event: &str| is_block(event) && event[1..].split('@').next().unwrap().parse::<u64>().unwrap() >= 1 << 20;
        let of = |list: &[String]| compared(list, large);
        if PLAIN.contains(&id) {
            checked += 1;
            wrong += &apart(id, &of(&issued(program)), &of(&theirs(outputs, config)));
        }
    });
    assert!(checked == PLAIN.len() || cases::elsewhere(), "only {checked} cases");
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn oracle_shared_experts_beside_the_dispatcher_take_memory_as_megatrons() {
    let (mut table, mut far) = (String::new(), vec![]);
    each(|id, config, theirs, program| {
        // A mixture that has run again is named by its dispatcher until the next micro-batch.
        let again =
            config["recompute"] == "uniform" || config["again"].as_array().unwrap().iter().any(|one| one == "moe");
        let report = replay(program, Settings { expandable_segments: false, capacity: Bytes(1 << 43) });
        for phase in &report.phases {
            let of = |key: &str| theirs["phases"][&phase.name][key].as_u64().unwrap() as f64;
            let off = phase.peak_allocated.0 as f64 / of("peak") - 1.0;
            let end = (phase.end_allocated.0 as f64 - of("end")) / 1_048_576.0;
            table += &format!("{id:32} {:18} {:+.3} % {end:+.3} MiB\n", phase.name, 100.0 * off);
            if off.abs() >= if again && phase.name != "forward-backward" { 0.02 } else { 0.006 } {
                far.push(format!("{id}: {}", phase.name));
            }
        }
    });
    println!("{table}");
    assert!(far.is_empty(), "{far:?}\n{table}");
}
