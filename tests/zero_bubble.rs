//! Backwards in halves under Megatron: what a zero-bubble schedule saves, what it holds for that, what it does not change.

use std::collections::BTreeMap;

use windtunnel::program::{Builder, Category, DType, Instr, MatmulLayout, Program, Work};
use windtunnel::runtime::eager::framework::{Megatron, WeightGradients};
use windtunnel::runtime::eager::main_gradients::{MainGradients, ParamHooks};
use windtunnel::runtime::eager::{Eager, FrameworkState};
use windtunnel::runtime::megatron::{Chunk, Ends};
use windtunnel::scenario::predict;
use windtunnel::scenario::predict::{Prediction, Settings};

use crate::make;

/// Four stages of two blocks, eight micro-batches.
const GPT: &str = r#"runtime = "megatron"

[topology]
name = "a100-sxm-80gb"
nodes = 1

[model]
name = "gpt-megatron-1.7b"
layers = 8

[mesh]
pp = 4

[batch]
sequence = 2048
accumulation = 8

[pipeline]
schedule = "1F1B"

[megatron]
implementation = "local"
attention = "unfused"
"#;

fn with(schedule: &str) -> String {
    GPT.replace("1F1B", schedule)
}

/// How often each matmul runs in a step.
fn matmuls(program: &Program) -> BTreeMap<(u64, u64, u64, bool), usize> {
    let mut counts = BTreeMap::new();
    for instr in &program.step {
        let Instr::Launch { kernel, .. } = *instr else { continue };
        let Work::Matmul { m, n, k, layout, .. } = program.kernel(kernel).work else { continue };
        let weight = matches!(layout, MatmulLayout::WeightGradient | MatmulLayout::MainGradient(_));
        *counts.entry((m, n, k, weight)).or_default() += 1;
    }
    counts
}

#[test]
fn the_same_matmuls_leave_less_bubble_when_weights_wait() {
    let (whole, halves) = (make::fly(GPT), make::fly(&with("ZB-H1")));
    for (one, other) in whole.classes.iter().zip(&halves.classes) {
        assert_eq!(matmuls(&one.program), matmuls(&other.program));
        assert_eq!(one.program.flops, other.program.flops);
    }
    assert!(halves.bubble() < whole.bubble(), "{} and {}", halves.bubble(), whole.bubble());
    assert!(halves.step < whole.step);
}

#[test]
fn a_step_of_any_zero_bubble_schedule_ends_with_what_it_began_with() {
    for schedule in ["ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p", "ZBVZeroBubble"] {
        let stages = if schedule.starts_with("ZB-") { 1 } else { 2 };
        let text = make::with(&with(schedule), "pipeline", "virtual_stages", stages);
        for program in make::parse(&text).job.compile().classes {
            let mut held = vec![false; program.buffers.len()];
            let before = make::live(&program, program.before_second(), &mut held);
            assert_eq!(make::live(&program, &program.step, &mut held), before, "{schedule}");
            assert_eq!(make::live(&program, &program.step, &mut held), before, "{schedule}");
        }
        let answer = make::fly(&text);
        assert_eq!(answer.breakdown.total(), answer.step, "{schedule}");
    }
}

#[test]
fn simulating_every_rank_of_a_zero_bubble_pipeline_changes_nothing() {
    let text = with("ZB-H1").replace("layers = 8", "layers = 4").replace("accumulation = 8", "accumulation = 4");
    let scenario = make::parse(&text);
    let fly = |fold| -> Prediction { predict(&scenario, Settings { fold, ..Settings::default() }).unwrap() };
    let (folded, full) = (fly(true), fly(false));
    assert_eq!((folded.timeline.ranks.len(), full.timeline.ranks.len()), (4, 8));
    assert_eq!((folded.step, folded.breakdown), (full.step, full.breakdown));
}

#[derive(Debug)]
struct Nothing;

impl ParamHooks for Nothing {
    fn read(&mut self, _: &mut Builder, _: usize) {}
    fn arrived(&mut self, _: &mut Builder, _: usize) {}
}

/// What a micro-batch keeps from the gradient of the input to the gradients of the weights: 32·s·b·h in two-byte numbers
/// for each block (Qi et al. 2024, arXiv 2401.10241, table 1).
#[test]
fn inputs_and_output_gradients_of_all_linears_are_held_until_the_weights_gradients_are_made() {
    let job = make::parse(&with("ZB-H1")).job;
    let job = job.megatron().expect("a plan of Megatron's");
    let after = |weights: bool| {
        let chunk = Chunk::new(job, Ends::NONE, 0..3, 0);
        let megatron = Box::new(Megatron::new(MainGradients::new(DType::Fp32, true, Box::new(Nothing))));
        let framework = FrameworkState::Megatron(megatron);
        let mut eager = Eager::new(Builder::new(1, &["compute"]), job.split.eager(), chunk.params().len(), framework);
        let hidden = 2 * job.split.seq * job.split.batch * job.split.model.width;
        let input = eager.storage(hidden, "input");
        let (frame, output) = chunk.forward(&mut eager, Some(input));
        eager.release(output);
        let gradient = eager.storage_as(hidden, Category::BackwardTemporary, "gradient");
        eager.framework.megatron_mut().unwrap().weights = WeightGradients::Deferred(vec![]);
        let made = chunk.backward(&mut eager, frame, Some(gradient)).unwrap();
        eager.release(made);
        let list = eager.framework.megatron_mut().unwrap().weights.take_deferred();
        assert_eq!(list.len(), 3 * 4);
        if weights {
            eager.run_deferred(list);
        }
        let program = eager.program.finish();
        let all = program.before_second().chain(&program.step);
        make::live(&program, all, &mut vec![false; program.buffers.len()])
    };
    let hidden = job.split.seq * job.split.batch * job.split.model.width;
    assert_eq!((after(false), after(true)), (3 * 32 * hidden, 0));
}

#[test]
fn what_the_zero_bubble_fork_falls_back_from_is_refused() {
    for (new, what, remedy) in [
        ("\"transformer_engine\"", "Transformer Engine", "write megatron.implementation = \"local\", or"),
        ("\"local\"\ngradient_accumulation_fusion = false", "gradient_accumulation_fusion", "fusion = true"),
        ("\"local\"\noverlap_grad_reduce = true", "overlap_grad_reduce", "overlap_grad_reduce = false"),
    ] {
        let text = with("ZB-H1").replace("\"local\"", new);
        let said = crate::followed::refusal("my.toml", &text);
        assert!(said.contains(what) && said.contains("schedule = \"ZB-H1\"\n"), "{said}");
        let last = said.lines().last().unwrap_or_default();
        assert!(last.contains(remedy) && last.ends_with("pipeline.schedule = \"Megatron1F1B\""), "{said}");
    }
}
