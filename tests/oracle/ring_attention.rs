//! What attention of PyTorch's context parallelism issues, against itself (`tests/oracles/ring-attention.json`).

use super::cases;
use crate::make::{self, TINY};
use windtunnel::program::{Collective, Direction, Instr, Program, Work};

/// Exchanges of the ranks that share a sequence, and kernels of attention, as the script writes them down.
fn issued(program: &Program) -> Vec<String> {
    let mut list = vec![];
    for instr in &program.step {
        match *instr {
            Instr::Collective { comm, .. } => {
                let comm = program.comm(comm);
                if program.group(comm.group).name == "cp" {
                    assert_eq!(comm.kind, Collective::AllGather);
                    list.push(format!("all_gather_into_tensor:{}", comm.bytes.0));
                }
            }
            Instr::Exchange { exchange, .. } => {
                let sends = program.exchange(exchange).filter(|end| end.direction == Direction::Send);
                list.extend(sends.map(|end| format!("all_to_all_single:{}", end.bytes.0)));
            }
            Instr::Launch { kernel, .. } => {
                if let Work::Attention { shape, backward, .. } = program.kernel(kernel).work {
                    let pass = if backward { "backward" } else { "forward" };
                    let mask = if shape.causal { "causal" } else { "whole" };
                    list.push(format!("{pass}:{}x{}:{mask}", shape.queries, shape.keys));
                }
            }
            _ => {}
        }
    }
    list
}

#[test]
fn oracle_a_ring_of_pytorchs_issues_what_pytorch_does_in_order() {
    let Some(file) = cases::read("ring-attention.json") else { return };
    for case in file["cases"].as_array().unwrap() {
        let (ranks, method) = (case["ranks"].as_u64().unwrap(), case["method"].as_str().unwrap());
        let mesh = format!("dp_shard = {}\ncp = {ranks}", 8 / ranks);
        let text = TINY.replace("dp_shard = 8", &mesh);
        let keys = format!("[compile]\nblocks = true\n[framework]\ncontext_parallel_rotate_method = \"{method}\"");
        let ours = issued(&make::program(&format!("{text}\n{keys}\n")));
        let theirs: Vec<&str> = case["issued"].as_str().unwrap().split(' ').collect();
        let backward = theirs.iter().position(|one| one.starts_with("backward")).unwrap();
        // Before the first kernel of backward stands its first exchange.
        let (forward, backward) = theirs.split_at(backward - 1);
        let layers = 3;
        let whole: Vec<&str> = [forward.repeat(layers), backward.repeat(layers)].concat();
        assert_eq!(ours, whole, "{ranks} {method}");
    }
}
