//! What a step issues besides the plain loop, counted by hand: kernels and their bytes, waits of the host, collectives.

use windtunnel::program::{Category, Collective, Dispatch, Instr, Kernel, Pass, Program, Work};

use crate::make::{self, TINY};

/// Tokens of the tiny scenario's micro-batch, and the tiny model's vocabulary.
const T: u64 = 128;
const V: u64 = 512;

fn compile(text: &str) -> Program {
    make::program(text)
}

fn with(changes: &str) -> Program {
    compile(&make::apply(TINY, changes))
}

/// Kernels of a step, in order.
fn kernels(program: &Program) -> impl Iterator<Item = &Kernel> {
    program.step.iter().filter_map(|instr| match instr {
        Instr::Launch { kernel, .. } => Some(program.kernel(*kernel)),
        _ => None,
    })
}

/// Bytes read and written by the kernels of one name.
fn moved(program: &Program, name: &str) -> Vec<(u64, u64)> {
    kernels(program)
        .filter(|kernel| kernel.name == name)
        .filter_map(|kernel| match kernel.work {
            Work::Memory { read, written, .. } => Some((read.0, written.0)),
            _ => None,
        })
        .collect()
}

/// How often the host waits for the device in a step.
fn waits(program: &Program) -> usize {
    program.step.iter().filter(|instr| matches!(instr, Instr::HostWait { .. })).count()
}

/// The largest block of a category that a step takes \[B\].
fn largest(program: &Program, category: Category) -> u64 {
    let of = |instr: &Instr| match *instr {
        Instr::Alloc { buffer } if program.buffer(buffer).category == category => program.buffer(buffer).bytes.0,
        _ => 0,
    };
    program.step.iter().map(of).max().unwrap_or(0)
}

#[test]
fn flash_cross_entropy_reads_the_logits_once_each_way_and_widens_nothing() {
    let flash = with("loss.kind = 'flash_cross_entropy'");
    // bf16 logits, int64 targets, a loss and a log-sum-exp in fp32; backward also reads the losses' gradients.
    assert_eq!(moved(&flash, "xentropy_cuda_lib.forward"), [(2 * T * V + 8 * T, 8 * T)]);
    assert_eq!(moved(&flash, "xentropy_cuda_lib.backward"), [(2 * T * V + 16 * T, 2 * T * V)]);
    assert_eq!(largest(&flash, Category::Logits), 2 * T * V);
    assert_eq!(largest(&with("loss.kind = 'fp32'"), Category::Logits), 4 * T * V);
}

#[test]
fn a_compiled_loss_reads_the_logits_once_each_way_and_keeps_two_numbers_a_row() {
    let (eager, compiled) = (with("loss.kind = 'fp32'"), with("loss.kind = 'fp32', compile.loss = true"));
    // Backward also reads the targets and both numbers of each row.
    let backward = (2 * T * V + 16 * T, 2 * T * V);
    assert_eq!(moved(&compiled, "triton_red_fused__log_softmax"), [(2 * T * V, 8 * T)]);
    assert_eq!(moved(&compiled, "triton_red_fused__log_softmax_backward_data"), [backward]);
    assert_eq!(largest(&compiled, Category::Logits), 2 * T * V);
    // Where eager reads and writes 36 B for each logit, 10 of them to widen it and to narrow its gradient.
    let names = ["_log_softmax", "nll_loss_backward", "_log_softmax_backward_data"].map(|name| format!("aten.{name}"));
    let bytes = |program: &Program| -> u64 {
        names.iter().flat_map(|name| moved(program, name)).map(|(read, written)| read + written).sum()
    };
    assert_eq!((bytes(&eager), bytes(&compiled)), (24 * T * V, 0));
}

#[test]
fn a_compiled_loss_over_parts_compiles_each_part() {
    let parts = |count| with(&format!("loss.kind = 'chunked_output', loss.chunks = {count}, compile.loss = true"));
    let rows = T / 4;
    assert_eq!(moved(&parts(4), "triton_red_fused__log_softmax"), [(2 * rows * V, 8 * rows); 4]);
    assert_eq!(moved(&parts(4), "triton_red_fused__log_softmax_backward_data").len(), 4);
}

#[test]
fn a_metric_moves_ten_bytes_for_each_logit() {
    let metrics = with("loss.kind = 'flash_cross_entropy', loop.train_metrics = 2");
    assert_eq!(moved(&metrics, "aten._log_softmax"), [(2 * T * V, 2 * T * V); 2]);
    assert!(moved(&metrics, "aten._to_copy").iter().filter(|&&moved| moved == (2 * T * V, 4 * T * V)).count() == 2);
    let twice = with("loss.kind = 'flash_cross_entropy', loop.train_metrics = 2, batch.accumulation = 2");
    assert_eq!(moved(&twice, "aten._log_softmax").len(), 4);
}

#[test]
fn logits_kept_for_metrics_live_until_the_next_forward_has_made_others() {
    let peak = |metrics: i64| {
        let text =
            make::apply(TINY, "loss.kind = 'flash_cross_entropy', batch.sequence = 16384, batch.accumulation = 2");
        make::fly(&make::with(&text, "loop", "train_metrics", metrics)).memory.report.peak_allocated.0
    };
    let logits = 2 * 16_384 * V;
    // Forward ends with two sets of logits; what a metric takes later, 6 B for each, is less than backward's peak.
    // And at most 1 MiB that the allocator does not split off a block it had.
    assert!((logits..=logits + (2 << 20)).contains(&(peak(1) - peak(0))), "{} B", peak(1) - peak(0));
    assert_eq!(peak(2), peak(1));
}

#[test]
fn every_number_read_back_is_an_all_reduce_and_a_wait() {
    let (plain, synced) = (with("loop.host_syncs_per_step = 0"), with("loop.host_syncs_per_step = 3"));
    assert_eq!(waits(&synced) - waits(&plain), 3);
    let collectives =
        |program: &Program| program.step.iter().filter(|instr| matches!(instr, Instr::Collective { .. })).count();
    assert_eq!(collectives(&synced) - collectives(&plain), 3);
}

#[test]
fn a_host_that_waits_at_the_end_of_a_step_starts_the_next_with_an_empty_queue() {
    let text = make::apply(TINY, "batch.sequence = 32768");
    let step = |text: &str| make::fly(text).step;
    let (plain, synced) = (step(&text), step(&make::with(&text, "loop", "host_syncs_per_step", 1)));
    assert!(synced > plain, "{synced:?} {plain:?}");
}

/// Names of the kernels of the optimizer's own step, and all bytes they move.
fn optimizer(program: &Program) -> (Vec<&str>, u64) {
    let own = kernels(program).filter(|kernel| kernel.pass == Pass::Optimizer).filter_map(|kernel| match kernel.work {
        Work::Memory { read, written, .. } => Some((kernel.name, read.0 + written.0)),
        _ => None,
    });
    let (names, bytes): (Vec<_>, Vec<_>) = own.unzip();
    (names, bytes.iter().sum())
}

#[test]
fn a_loop_over_parameters_launches_torchs_eight_kernels_for_each() {
    let program = with("optimizer.implementation = 'for_loop', optimizer.clip_grad_norm = false");
    let parameters = make::program(TINY);
    let count = parameters.setup.iter().filter(|instr| is_parameter(&parameters, instr)).count();
    let (names, _) = optimizer(&program);
    // As `torch.optim.AdamW(foreach=False)` of PyTorch 2.15 calls them.
    let each =
        ["mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div", "add_", "addcdiv_"].map(|name| format!("aten.{name}"));
    assert_eq!(names.len(), 8 * count);
    assert!(names.chunks(8).all(|names| names == each), "{names:?}");
}

fn is_parameter(program: &Program, instr: &Instr) -> bool {
    matches!(*instr, Instr::Alloc { buffer } if program.buffer(buffer).category == Category::Parameter)
}

#[test]
fn decoupled_adamw_moves_80_bytes_for_each_element_and_torchs_fused_kernel_28() {
    let plain = "optimizer.clip_grad_norm = false, optimizer.weight_decay = 0.0";
    let decoupled = with(&format!("{plain}, optimizer.name = 'decoupled_adamw'"));
    let fused = with(&format!("{plain}, optimizer.name = 'adamw', optimizer.implementation = 'fused'"));
    let elements = optimizer(&fused).1 / 28;
    assert_eq!(optimizer(&decoupled).1, 80 * elements);
    let decays = with("optimizer.clip_grad_norm = false, optimizer.name = 'decoupled_adamw'");
    assert_eq!(optimizer(&decays).1, 88 * elements);
}

#[test]
fn a_step_count_on_the_device_is_read_back_for_each_parameter() {
    let name = "optimizer.name = 'decoupled_adamw', optimizer.step_on_device";
    let (host, device) = (with(&format!("{name} = false")), with(&format!("{name} = true")));
    let parameters = host.setup.iter().filter(|instr| is_parameter(&host, instr)).count();
    assert_eq!(waits(&device) - waits(&host), parameters);
}

#[test]
fn two_denominators_and_a_root_live_at_a_time() {
    let program = with("optimizer.implementation = 'for_loop'");
    let (mut live, mut most) = (0_i32, 0);
    for instr in &program.step {
        let of = |buffer| program.buffer(buffer).name == "aten.sqrt" || program.buffer(buffer).name == "aten.div";
        match *instr {
            Instr::Alloc { buffer } if of(buffer) => live += 1,
            Instr::Free { buffer } if of(buffer) => live -= 1,
            _ => {}
        }
        most = most.max(live);
    }
    assert_eq!((live, most), (0, 3));
}

/// Gathers and reduce-scatters of a GPT-2 of three blocks as llm-foundry wraps it, in the order the host issues them:
/// table, positions, norm and blocks, told apart by their bf16 bytes; reductions are in fp32, and in capitals.
fn foundry(changes: &str) -> String {
    let text = TINY.replace("huggingface = \"config.json\"", "name = \"gpt2\"\nlayers = 3");
    let text = text.replace("runtime = \"fsdp2\"", "runtime = \"fsdp1\"");
    let wrapped = "fsdp.wrap = 'llm_foundry', fsdp1.use_orig_params = true";
    let program = compile(&make::apply(&text, &format!("{wrapped}, {changes}")));
    let mut words = vec![];
    for instr in &program.step {
        let Instr::Collective { comm, .. } = *instr else { continue };
        let comm = program.comm(comm);
        let whole = |bytes: u64| match bytes / 2 {
            elements if elements == 50_257 * 768 => "t",
            elements if elements == 1024 * 768 => "p",
            elements if elements == 2 * 768 => "n",
            elements if elements == 12 * 768 * 768 + 13 * 768 => "b",
            other => panic!("{other} elements"),
        };
        match comm.kind {
            Collective::AllGather => words.push(whole(comm.bytes.0).to_owned()),
            Collective::ReduceScatter => words.push(whole(comm.bytes.0 / 2).to_uppercase()),
            _ => {}
        }
    }
    words.join(" ")
}

/// What PyTorch 2.15 issues in the third step for such a model, each child an FSDP1 unit with `use_orig_params`, mixed
/// precision and the given `backward_prefetch` and `forward_prefetch` (collectives logged, process group `fake`).
#[test]
fn llm_foundrys_units_are_gathered_and_reduced_in_pytorchs_order() {
    let post = foundry("fsdp1.backward_prefetch = 'post'");
    assert_eq!(post, "t p b b b n t t n b N b B b B p B P T");
    let pre = foundry("fsdp1.backward_prefetch = 'pre', fsdp.forward_prefetch = 1");
    assert_eq!(pre, "t p b b b n t t n b b N b B p B B P T");
    let kept = foundry("fsdp.reshard_after_forward = false, fsdp.forward_prefetch = 1");
    assert_eq!(kept, "t p b b b n N B B B P T");
}

#[test]
fn unpadding_reads_six_numbers_back_in_each_blocks_forward_and_copies_four_tensors_each_way() {
    let (plain, packed) = (with("attention.unpad = false"), with("attention.unpad = true"));
    const BLOCKS: usize = 3;
    assert_eq!(waits(&packed) - waits(&plain), 6 * BLOCKS);
    // Queries are 4 heads of 16 wide, keys and values 2: bf16, and an int64 index for each token.
    let (q, kv) = (2 * 64 * T, 2 * 32 * T);
    let copy = |bytes: u64| (bytes + 8 * T, bytes);
    assert_eq!(moved(&packed, "aten.gather")[..3], [q, kv, kv].map(copy));
    assert_eq!(moved(&packed, "aten.index_put_"), [copy(q); BLOCKS]);
    assert_eq!(moved(&packed, "aten.index"), [copy(q); BLOCKS]);
    // Autograd runs the latest first: v, k, q.
    assert_eq!(moved(&packed, "aten.scatter_")[..3], [kv, kv, q].map(copy));
    let again = with("attention.unpad = true, activation_checkpointing.policy = 'full'");
    assert_eq!(waits(&again) - waits(&plain), 12 * BLOCKS);
}

#[test]
fn pytorch_1_13_copies_every_gradient_that_needs_no_padding() {
    let text = TINY.replace("runtime = \"fsdp2\"", "runtime = \"fsdp1\"");
    let pads = |always| compile(&make::with(&text, "fsdp1", "always_pads", always));
    assert!(moved(&pads(false), "aten.constant_pad_nd").is_empty());
    let copied = moved(&pads(true), "aten.constant_pad_nd");
    // One for each of three blocks and the root, fp32 as it is reduced, all of the model together.
    let parameters = 4 * make::parse(&text).job.model().params().total;
    assert_eq!(copied.len(), 4);
    assert_eq!(copied.iter().copied().reduce(|a, b| (a.0 + b.0, a.1 + b.1)), Some((parameters, parameters)));
}

#[test]
fn a_host_pays_for_modules_more_than_for_operators() {
    let flown = make::fly(make::MEGATRON);
    let [linear, fused, operator] =
        [Dispatch::TransformerEngineForward, Dispatch::ModuleForward, Dispatch::EagerForward].map(|dispatch| {
            let program = flown.programs()[0];
            let names: Vec<_> = program.kernels.iter().filter(|k| k.dispatch == dispatch).map(|k| k.name).collect();
            (names, flown.classes[0].evidence.dispatch[dispatch as usize].time)
        });
    assert!(linear.0.contains(&"te.generic_gemm"), "{:?}", linear.0);
    assert!(fused.0.contains(&"fused_rope"), "{:?}", fused.0);
    assert!(operator.0.iter().all(|name| !name.starts_with("te.")), "{:?}", operator.0);
    assert!(linear.1 > fused.1 && fused.1 > operator.1);
    // Megatron's own modules are Python throughout.
    let own = make::fly(&format!("{}\n[megatron]\nimplementation = \"local\"\n", make::MEGATRON));
    let matmuls = own.programs()[0].kernels.iter().filter(|kernel| matches!(kernel.work, Work::Matmul { .. }));
    assert!(matmuls.clone().count() > 0);
    for kernel in matmuls {
        assert!([Dispatch::ModuleForward, Dispatch::ModuleBackward].contains(&kernel.dispatch), "{}", kernel.name);
    }
}
