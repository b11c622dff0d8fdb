//! Which collectives are measured, and what each is worth.

use super::kind::Kind;
use crate::plan::Job;
use crate::points::{Machine, What};

/// Smallest and largest buffer \[B\].
const SIZES: (u64, u64) = (512, 8 << 30);

/// Share of a step's time in collectives that nothing hides: a tenth, of one in three steps.
const SHARE: f64 = 0.03;

/// Share of a GPU's memory that one collective may fill.
const MEMORY: f64 = 0.5;

/// The jobs on a machine: none with a single GPU.
pub fn plan(machine: &Machine) -> Vec<Job> {
    let gpus = u64::from(machine.gpus);
    let mut jobs: Vec<(What, f64)> = vec![];
    for ranks in groups(gpus) {
        for kind in Kind::ALL {
            for bytes in sizes() {
                let even = kind.even(bytes, ranks);
                let fills = 2.0 * even as f64;
                if even == 0 || fills > MEMORY * machine.memory as f64 {
                    continue;
                }
                let weight = weight(kind) * if ranks == gpus { 2.0 } else { 1.0 };
                jobs.push((what(kind, ranks, even, false), weight));
                // PyTorch's FSDP gathers into the buffer that holds its part, and DDP reduces in place.
                if matches!(kind, Kind::AllGather | Kind::AllReduce) && ranks == gpus {
                    jobs.push((what(kind, ranks, even, true), 0.5 * weight));
                }
            }
        }
    }
    let all: f64 = jobs.iter().map(|(_, weight)| weight).sum();
    jobs.into_iter().map(|(what, weight)| Job { what, value: SHARE * weight / all }).collect()
}

/// How many ranks: powers of two, and all.
fn groups(gpus: u64) -> Vec<u64> {
    let mut groups: Vec<u64> = (1..).map(|power| 1 << power).take_while(|ranks| *ranks <= gpus).collect();
    if gpus >= 2 && !groups.contains(&gpus) {
        groups.push(gpus);
    }
    groups
}

fn sizes() -> impl Iterator<Item = u64> {
    std::iter::successors(Some(SIZES.0), |bytes| Some(bytes * 2)).take_while(|bytes| *bytes <= SIZES.1)
}

/// How much of training each carries.
fn weight(kind: Kind) -> f64 {
    match kind {
        Kind::AllGather => 3.0,
        Kind::ReduceScatter | Kind::AllReduce => 2.0,
        Kind::AllToAll | Kind::SendRecv => 1.0,
    }
}

/// A collective inside this node, as points name it.
pub fn what(kind: Kind, ranks: u64, bytes: u64, in_place: bool) -> What {
    let (kind, dtype) = (kind.name().to_owned(), "bfloat16".to_owned());
    What::Collective { kind, ranks, nodes: 1, bytes, in_place, dtype }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(gpus: u32, memory: u64) -> Machine {
        Machine { gpus, memory, ..Machine::example() }
    }

    fn bytes(job: &Job) -> (u64, u64) {
        match job.what {
            What::Collective { ranks, bytes, .. } => (ranks, bytes),
            _ => unreachable!("only collectives are planned"),
        }
    }

    #[test]
    fn one_gpu_has_nobody_to_talk_to() {
        assert_eq!(plan(&machine(1, 141 << 30)), []);
    }

    #[test]
    fn eight_gpus_talk_in_twos_fours_and_all_from_512_bytes_to_8_gib() {
        let jobs = plan(&machine(8, 141 << 30));
        let ranks: std::collections::BTreeSet<u64> = jobs.iter().map(|job| bytes(job).0).collect();
        assert_eq!(ranks.into_iter().collect::<Vec<_>>(), [2, 4, 8]);
        assert_eq!(jobs.iter().map(|job| bytes(job).1).min(), Some(512));
        assert_eq!(jobs.iter().map(|job| bytes(job).1).max(), Some(8 << 30));
        assert!((jobs.iter().map(|job| job.value).sum::<f64>() - SHARE).abs() < 1e-9);
        assert!(jobs.iter().all(|job| super::super::understood(&job.what).is_ok()));
    }

    #[test]
    fn six_gpus_part_their_buffers_in_whole_grains() {
        let jobs = plan(&machine(6, 141 << 30));
        assert!(jobs.iter().any(|job| bytes(job) == (6, 480)));
        assert!(jobs.iter().all(|job| super::super::understood(&job.what).is_ok()));
    }

    #[test]
    fn small_memories_get_small_buffers() {
        let jobs = plan(&machine(2, 16 << 30));
        assert_eq!(jobs.iter().map(|job| bytes(job).1).max(), Some(4 << 30));
    }
}
