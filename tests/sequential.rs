//! Experts of Megatron-Core one after the other and in one call, with a gate and without, held against `experts.py` and `mlp.py` of
//! core_v0.16.1: whose matmuls they are, how many there are, and what they keep.

use windtunnel::memory::{Settings, replay};
use windtunnel::program::{Instr, Program, Work};
use windtunnel::scenario::predict;
use windtunnel::scenario::predict::Settings as Predict;
use windtunnel::units::Bytes;

use crate::make;

/// Four experts a rank, which GELU activates without a gate and a router evens out.
const GELU: &str = r#"runtime = "megatron"
[topology]
name = "h100-sxm-80gb"
nodes = 1
[model]
config.model_type = "megatron"
config.num_layers = 2
config.hidden_size = 512
config.num_attention_heads = 8
config.vocab_size = 50257
config.max_position_embeddings = 1024
config.add_bias_linear = false
config.num_experts = 8
config.moe_router_topk = 1
config.moe_router_load_balancing_type = "sinkhorn"
[mesh]
tp = 2
ep = 2
[batch]
sequence = 1024
micro = 4
[tensor_parallel]
sequence = true
[precision]
param = "bf16"
[megatron]
bias_activation_fusion = false
moe_grouped_gemm = false
"#;

/// Changes of a line.
type Change = (&'static str, &'static str);

const TOGETHER: Change = ("moe_grouped_gemm = false", "moe_grouped_gemm = true");
const LOCAL: Change = ("[megatron]", "[megatron]\nimplementation = \"local\"\nattention = \"unfused\"");

fn with(changes: &[Change]) -> Program {
    make::parse(&make::replaced(GELU, changes)).job.compile().programs().remove(0)
}

/// How often work of a kind is launched.
fn launches(program: &Program, fits: impl Fn(&Work) -> bool) -> usize {
    let launched = |instr: &Instr| matches!(instr, Instr::Launch { kernel, .. } if fits(&program.kernel(*kernel).work));
    program.step.iter().filter(|instr| launched(instr)).count()
}

/// Matmuls of one expert: 4,096 tokens, of which each of eight experts takes its share from four ranks, by half of its width.
fn own(work: &Work) -> bool {
    let Work::Matmul { m, n, k, .. } = work else { return false };
    let mut sizes = [*m, *n, *k];
    sizes.sort_unstable();
    sizes == [512, 1024, 1024]
}

#[test]
fn each_expert_has_matmuls_of_its_own_and_together_they_have_one_call() {
    let (apart, together) = (with(&[]), with(&[TOGETHER]));
    // Two layers of four experts, two linears each, three products.
    assert_eq!(launches(&apart, own), 2 * 4 * 2 * 3);
    assert_eq!(launches(&together, own), 0);
    assert_eq!(launches(&apart, |work| matches!(work, Work::GroupedMatmul { .. })), 0);
    assert!(launches(&together, |work| matches!(work, Work::GroupedMatmul { .. })) > 0);
    assert_eq!(launches(&with(&[LOCAL]), own), 2 * 4 * 2 * 3);
}

#[test]
fn what_is_kept_for_backward_is_the_same_one_after_the_other_but_for_the_rows_that_are_put_together() {
    let held = |program: &Program| {
        let report = replay(program, Settings { expandable_segments: false, capacity: Bytes(1 << 43) });
        report.phases.iter().map(|phase| phase.peak_allocated.0).max().unwrap()
    };
    let (apart, together) = (held(&with(&[])), held(&with(&[TOGETHER])));
    // Three more workspaces of cuBLAS; and at most what the experts make, once more.
    let rows = 4096 * 512 * 2;
    assert!(together.abs_diff(apart) < 4 * 33 * (1 << 20) + 2 * rows, "{apart} and {together}");
}

#[test]
fn an_even_router_waits_for_the_device_in_every_round() {
    let waits = |program: &Program| program.step.iter().filter(|instr| matches!(instr, Instr::HostWait { .. })).count();
    let evened = waits(&with(&[]));
    let best = waits(&with(&[("load_balancing_type = \"sinkhorn\"", "load_balancing_type = \"none\"")]));
    // Two layers, three rounds.
    assert_eq!(evened, best + 6);
}

#[test]
fn what_megatron_refuses_of_experts_one_after_the_other_is_refused_by_name() {
    for (changes, words) in [
        (vec![("[megatron]", "[megatron]\nfp8 = \"tensorwise\"")], "one after the other"),
        (vec![("[megatron]", "[megatron]\nrecompute_modules = [\"moe_act\"]")], "one after the other"),
        (vec![("activation_fusion = false", "activation_fusion = true")], "not a gated SiLU"),
        (vec![TOGETHER, ("[megatron]", "[megatron]\nmoe_aux_loss = true")], "evens loads out"),
    ] {
        let text = make::replaced(GELU, &changes);
        let error =
            predict(&make::parse(&text), Predict::default()).map(|_| ()).expect_err("it is refused").to_string();
        assert!(error.contains(words), "{changes:?}: {error}");
    }
}
