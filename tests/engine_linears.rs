//! Transformer Engine's linears in fp8 in an eager model under FSDP, as llm-foundry had them (`fc_type: te`, Transformer
//! Engine 0.10, `module/linear.py`): what multiplies in one byte, what is kept for backward, what is refused.

use std::collections::BTreeMap;

use windtunnel::model::block;
use windtunnel::model::style::{Linears, Style};
use windtunnel::program::{Builder, Category, DType, Instr, Program, Work};
use windtunnel::runtime::eager::{Eager, FrameworkState, Mode, ParamMap, Torch};

use crate::make;

/// Two blocks of MPT, two micro-batches.
const MPT: &str = r#"runtime = "fsdp1"

[topology]
name = "h100-sxm-80gb"
nodes = 1

[model]
name = "llm-foundry-mpt-1b"
layers = 2

[mesh]
dp_shard = 8

[batch]
sequence = 512
micro = 4
accumulation = 2

[framework]
linears = "transformer_engine_fp8"
"#;

/// How often each matmul runs in a step, by its type and sizes.
fn matmuls(program: &Program) -> BTreeMap<(&'static str, u64, u64, u64), usize> {
    let mut counts = BTreeMap::new();
    for instr in &program.step {
        let Instr::Launch { kernel, .. } = *instr else { continue };
        if let Work::Matmul { m, n, k, dtype, .. } = program.kernel(kernel).work {
            *counts.entry((dtype.name(), m, n, k)).or_default() += 1;
        }
    }
    counts
}

#[test]
fn blocks_multiply_in_one_byte_and_the_head_in_two() {
    let plain = make::program(&MPT.replace("transformer_engine_fp8", "torch"));
    let engine = make::program(MPT);
    let head = 50_368;
    for ((dtype, m, n, k), count) in matmuls(&plain) {
        assert_eq!(dtype, DType::Bf16.name());
        let of_head = [m, n, k].contains(&head);
        let dtype = if of_head { DType::Bf16 } else { DType::Fp8 };
        assert_eq!(matmuls(&engine).get(&(dtype.name(), m, n, k)), Some(&count), "{m} {n} {k}");
    }
    assert_eq!(engine.flops, plain.flops);
}

#[test]
fn a_transposed_byte_of_every_input_and_weight_is_kept_for_backward() {
    let scenario = make::parse(MPT);
    let job = scenario.job.train().expect("a job of PyTorch's");
    let dims = block::dims(&job.model, job.batch, job.seq, job.tensor);
    let kept = |linears| {
        let style = Style { linears, ..job.style };
        let graph = block::block(&job.model, dims, DType::Bf16, job.model.layers.at(0), style);
        let mut eager = Eager::new(
            Builder::new(1, &["compute"]),
            job.eager,
            graph.params.len(),
            FrameworkState::Torch(Torch::default()),
        );
        let input = eager.storage(2 * dims.tokens() * dims.d, "input");
        let (_, output) = eager.forward(&graph, input, ParamMap::from(0), Mode::Train);
        eager.release(output);
        let program = eager.program.finish();
        // Matmuls' workspaces come and go.
        let bytes = |buffer| match program.buffer(buffer) {
            one if one.category == Category::Workspace => 0,
            one => one.bytes.0,
        };
        program.setup.iter().fold(0, |held, instr| match *instr {
            Instr::Alloc { buffer } => held + bytes(buffer),
            Instr::Free { buffer } => held - bytes(buffer),
            _ => held,
        })
    };
    let (t, d, f) = (dims.tokens(), dims.d, dims.f);
    // One byte for two of what the three linears behind norms and activation read; the output projection's beside what
    // attention keeps; and of the weights a byte each.
    let (lost, gained) = (2 * (t * d + t * d + t * f), t * d + t * d + t * d + t * f + 4 * d * d + 2 * d * f);
    assert_eq!(kept(Linears::EngineFp8) + lost, kept(Linears::Torch) + gained);
}

#[test]
fn what_cannot_multiply_in_fp8_is_refused_with_what_can() {
    let refused = |text: &str| crate::followed::refusal(make::FILE, text);
    let a100 = refused(&MPT.replace("h100-sxm-80gb", "a100-sxm-80gb"));
    assert!(a100.contains("do not multiply in fp8") && a100.contains("H100"), "{a100}");
    let compiled = refused(&format!("{MPT}\n[compile]\nblocks = true\n"));
    assert!(compiled.contains("compile.blocks = false"), "{compiled}");
    let odd = refused(&MPT.replace("sequence = 512", "sequence = 511").replace("micro = 4", "micro = 1"));
    assert!(odd.contains("tokens in 8s"), "{odd}");
}
