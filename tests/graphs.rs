//! CUDA graphs under Megatron-Core: what they may change of a step, and what they may not.

use crate::make::{MEGATRON, fly, parse, replaced};
use windtunnel::program::{Dispatch, Instr, Program};

const NONE: &str = "cuda_graph_impl = \"none\"";
const LAYERS: &str = "cuda_graph_impl = \"transformer_engine\"";
const ATTENTION: &str = "cuda_graph_impl = \"transformer_engine\"\ncuda_graph_scope = [\"attn\"]";
const FEED_FORWARD: &str = "cuda_graph_impl = \"transformer_engine\"\ncuda_graph_scope = [\"mlp\"]";
const ITERATION: &str = "cuda_graph_impl = \"local\"\ncuda_graph_scope = [\"full_iteration\"]";

/// The tiny model on one stage, with these keys.
fn scenario(keys: &str) -> String {
    let alone = replaced(MEGATRON, &[("pp = 2\n", "")]);
    format!("{alone}\n[megatron]\ncheck_for_nan = false\n{keys}\n")
}

/// The same of a model that keeps a device busy.
fn busy(keys: &str) -> String {
    let large = [
        ("huggingface = \"config.json\"\nlayers = 4", "name = \"llama-3.1-8b\"\nlayers = 4"),
        ("sequence = 128", "sequence = 8192"),
    ];
    replaced(&scenario(keys), &large)
}

/// Launches that the host pays for, one by one.
fn issued(program: &Program) -> usize {
    let mut inside = false;
    let mut count = 0;
    for instr in &program.step {
        match *instr {
            Instr::Graph { begins } => inside = begins,
            Instr::Launch { .. } | Instr::Collective { .. } if !inside => count += 1,
            _ => {}
        }
    }
    count
}

#[test]
fn a_step_that_waits_for_the_host_is_shorter_the_more_of_it_is_in_graphs() {
    let steps = [NONE, FEED_FORWARD, LAYERS, ITERATION].map(|keys| fly(&scenario(keys)).step);
    assert!(steps.is_sorted_by(|longer, shorter| longer > shorter), "{steps:?}");
    let attention = fly(&scenario(ATTENTION)).step;
    assert!(steps[0] > attention && attention > steps[2], "{steps:?} {attention}");
}

#[test]
fn a_step_that_the_device_is_busy_with_takes_as_long_but_for_copies_into_static_buffers() {
    let [plain, layers, iteration] = [NONE, LAYERS, ITERATION].map(|keys| fly(&busy(keys)));
    // Four blocks of four micro-batches: hidden states, masks and angles, and gradients.
    let more = layers.breakdown.compute.seconds() / plain.breakdown.compute.seconds();
    assert!((1.0..1.03).contains(&more), "{more}");
    // The masks cross from the host on a stream of their own, beside what is left of the step before.
    let whole = iteration.breakdown.compute.seconds() / plain.breakdown.compute.seconds();
    assert!((0.97..1.0).contains(&whole), "{whole}");
    assert!(layers.breakdown.host_bound <= plain.breakdown.host_bound);
}

#[test]
fn a_graph_is_one_launch_and_takes_no_memory_in_a_step() {
    let [plain, layers, iteration] = [NONE, LAYERS, ITERATION].map(|keys| parse(&scenario(keys)).job.compile());
    let graphs =
        |program: &Program| program.step.iter().filter(|instr| matches!(instr, Instr::Graph { begins: true })).count();
    let counts = [&plain, &layers, &iteration].map(|flight| graphs(&flight.classes[0]));
    assert_eq!(counts, [0, 4 * 4 * 2, 1], "blocks times micro-batches, forward and backward");
    let left = [&plain, &layers, &iteration].map(|flight| issued(&flight.classes[0]));
    assert!(left.is_sorted_by(|more, fewer| more > fewer), "{left:?}");
    let wrapped = layers.classes[0].step.iter();
    let forward = |instr: &&Instr| matches!(instr, Instr::Host { dispatch: Dispatch::GraphForward, .. });
    assert_eq!(wrapped.filter(forward).count(), 16);
    let mut inside = false;
    for instr in &iteration.classes[0].step {
        match *instr {
            Instr::Graph { begins } => inside = begins,
            Instr::Alloc { .. } | Instr::Free { .. } => assert!(!inside),
            Instr::HostWait { .. } => assert!(!inside, "nothing in a graph waits for the device"),
            _ => {}
        }
    }
}

#[test]
fn what_graphs_take_they_keep() {
    for prediction in [LAYERS, ITERATION].map(|keys| fly(&busy(keys))) {
        let class = &prediction.classes[0];
        let pool = class.program.graph_pool.unwrap();
        assert!(class.memory.report.reserved_by_stream[usize::from(pool.0)].0 > 0);
        let taken = class.program.step.iter().filter_map(|instr| match *instr {
            Instr::Alloc { buffer } => Some(class.program.buffer(buffer)),
            _ => None,
        });
        assert!(taken.filter(|buffer| buffer.stream == pool).all(|buffer| buffer.bytes.0 == 0));
    }
}
