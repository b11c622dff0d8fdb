//! Keys for PyTorch's own switches: what each does to the collectives, kernels and states of a step, counted by hand.

use windtunnel::program::{Category, Collective, DType, Instr, Program, Work};

use crate::make::{self, TINY};

/// Blocks of the tiny model.
const LAYERS: usize = 3;

fn with(changes: &str) -> Program {
    make::program(&make::apply(TINY, changes))
}

/// Whether two files come to the same program.
fn alike(one: &str, other: &str) -> bool {
    format!("{:?}", with(one)) == format!("{:?}", with(other))
}

fn count(program: &Program, kind: Collective) -> usize {
    let of_kind = |instr: &&Instr| matches!(**instr, Instr::Collective { comm, .. } if program.comm(comm).kind == kind);
    program.step.iter().filter(of_kind).count()
}

fn gathers(changes: &str) -> usize {
    count(&with(changes), Collective::AllGather)
}

/// Bytes that the optimizer's state takes over those of the parameters' shards.
fn states(changes: &str) -> u64 {
    let program = with(changes);
    let mut taken = [0, 0];
    for instr in program.before_second() {
        if let Instr::Alloc { buffer } = *instr {
            let buffer = program.buffer(buffer);
            match buffer.category {
                Category::Parameter => taken[0] += buffer.bytes.0,
                Category::OptimizerState if buffer.name != "clone" => taken[1] += buffer.bytes.0,
                _ => {}
            }
        }
    }
    taken[1] / taken[0]
}

#[test]
fn parameters_that_stay_gathered_until_the_last_micro_batch_are_gathered_once_less_in_each_forward() {
    let forward = 1 + LAYERS;
    let keep = "batch.accumulation = 4, fsdp.reshard_after_backward = 'last_micro_batch'";
    assert_eq!(gathers("batch.accumulation = 4"), 4 * (forward + LAYERS));
    assert_eq!(gathers(keep), forward + 4 * LAYERS);
    let never = "fsdp.reshard_after_forward = false";
    assert_eq!(gathers(&format!("batch.accumulation = 4, {never}")), 4 * forward);
    assert_eq!(gathers(&format!("{keep}, {never}")), forward);
    // Of one micro-batch there is nothing to keep.
    assert!(alike("batch.accumulation = 1", "fsdp.reshard_after_backward = 'last_micro_batch'"));
}

#[test]
fn replicas_all_reduce_every_micro_batch_or_once() {
    let mesh = "mesh.dp_shard = 4, mesh.dp_replicate = 2, batch.accumulation = 4";
    let once = with(&format!("{mesh}, batch.all_reduce_every_micro_batch = false"));
    let groups = 1 + LAYERS;
    assert_eq!(count(&with(mesh), Collective::AllReduce) - count(&once, Collective::AllReduce), 3 * groups);
    assert_eq!(count(&once, Collective::ReduceScatter), 4 * groups);
}

#[test]
fn who_all_reduces_is_no_question_without_replicas() {
    let said = |mesh: &str| {
        let every = format!("{mesh}, batch.accumulation = 4, batch.all_reduce_every_micro_batch = true");
        let scenario = make::parse(&make::apply(TINY, &every));
        scenario.idle.iter().any(|idle| idle.key == "batch.all_reduce_every_micro_batch")
    };
    assert!(said("mesh.dp_shard = 8"));
    assert!(!said("mesh.dp_shard = 4, mesh.dp_replicate = 2"));
}

#[test]
fn units_are_gathered_together_or_apart() {
    // The root once, others in both passes.
    for (wrap, units) in [
        ("fsdp.wrap = 'block'", LAYERS),
        ("fsdp.wrap = { together = 2 }", 2),
        ("fsdp.wrap = { lists = [[0,2],1] }", 2),
        ("fsdp.wrap = { lists = [2] }", 1),
        ("fsdp.wrap = { modules = ['attention','feed_forward'] }", 2 * LAYERS),
        ("fsdp.wrap = { modules = ['attention','feed_forward','block'] }", 3 * LAYERS),
        ("fsdp.wrap = { modules = ['attention.wq'] }", LAYERS),
        ("fsdp.ends = ['embedding']", LAYERS + 1),
        ("fsdp.ends = ['head']", LAYERS + 1),
        ("fsdp.ends = ['norm_and_head']", LAYERS + 1),
        ("fsdp.ends = ['embedding','norm']", LAYERS + 2),
    ] {
        assert_eq!(gathers(wrap), 1 + 2 * units, "{wrap}");
    }
    // Nothing is left for the root.
    assert_eq!(gathers("fsdp.ends = ['embedding','norm','head']"), 2 * (LAYERS + 3));
    assert!(alike(
        "fsdp.wrap = 'torchtitan'",
        "fsdp.ends = ['embedding','norm_and_head'], fsdp.head_reshard_after_forward = false"
    ));
    assert!(alike("fsdp.wrap = { blocks = [0,2] }", "fsdp.wrap = { lists = [0,2] }"));
}

#[test]
fn checkpoints_name_layers_one_by_one_or_in_ranges() {
    let policy = |text: &str| format!("activation_checkpointing.policy = {text}");
    assert!(alike(&policy("{ layers = [0,2] }"), &policy("{ layers = [2,[0,1]] }")));
    assert!(alike(&policy("{ first = 2 }"), &policy("{ layers = [[0,2]] }")));
    assert!(alike(&policy("{ first = 3 }"), &policy("'full'")));
    // torchtitan's policy of a Llama's layer, said by name.
    assert!(alike(&policy("{ save = ['attention','every_second_mm'] }"), &policy("'selective_op'")));
    assert!(!alike(&policy("{ save = ['mm'] }"), &policy("'full'")));
    assert!(!alike(&policy("'full'"), &format!("{}, activation_checkpointing.use_reentrant = true", policy("'full'"))));
}

#[test]
fn optimizers_keep_the_states_that_pytorchs_keep() {
    for (optimizer, count) in [
        ("optimizer.name = 'adamw'", 2),
        ("optimizer.name = 'adam'", 2),
        ("optimizer.amsgrad = true", 3),
        ("optimizer.name = 'sgd'", 0),
        ("optimizer.name = 'sgd', optimizer.momentum = 0.9", 1),
        ("optimizer.name = 'sgd', optimizer.momentum = 0.9, optimizer.nesterov = true", 1),
        ("precision.storage = 'bf16'", 2),
        ("precision.storage = 'bf16', optimizer.master_weights = true", 6),
    ] {
        assert_eq!(states(optimizer), count, "{optimizer}");
    }
}

#[test]
fn weight_decay_and_momentum_are_pytorchs_by_default_and_listed() {
    for (name, lines) in [
        ("adamw", &["optimizer.weight_decay = 0.01"][..]),
        ("adam", &["optimizer.weight_decay = 0.0"]),
        ("sgd", &["optimizer.weight_decay = 0.0", "optimizer.momentum = 0.0"]),
    ] {
        let scenario = make::parse(&make::apply(TINY, &format!("optimizer.name = '{name}'")));
        for line in lines {
            assert!(
                scenario.assumption_lines().iter().any(|said| said == line),
                "{name}: {:?}",
                scenario.assumption_lines()
            );
        }
    }
    // Adam adds decay to a copy of the gradients, AdamW shrinks the weights in place.
    assert!(!alike("optimizer.name = 'adam'", "optimizer.name = 'adam', optimizer.weight_decay = 0.1"));
    assert!(alike("optimizer.name = 'adam'", "optimizer.name = 'adamw', optimizer.weight_decay = 0.0"));
}

#[test]
fn compiling_the_sharded_model_compiles_each_of_its_layers() {
    assert!(alike("compile.model = true", "compile.blocks = true"));
}

#[test]
fn second_dimensions_are_gathered_as_much_and_copied_into_place() {
    let (plain, second) = (with("fsdp.wrap = 'block'"), with("fsdp.shard_dim_1 = ['wo','feed_forward.w2.weight']"));
    assert_eq!(count(&plain, Collective::AllGather), count(&second, Collective::AllGather));
    let copies = |program: &Program| {
        let copy = |instr: &&Instr| matches!(**instr, Instr::Launch { kernel, .. } if program.kernel(kernel).name == "aten.cat");
        program.step.iter().filter(copy).count()
    };
    // Two parameters a layer, at each gather; and their gradients.
    assert!(copies(&second) >= copies(&plain) + 2 * 2 * LAYERS);
}

#[test]
fn autocast_keeps_residuals_in_fp32_and_multiplies_in_bf16() {
    let autocast = "precision.autocast = 'bf16'";
    let matmuls = |text: &str| {
        let program = with(text);
        let matmul = |work: &Work| matches!(work, Work::Matmul { dtype: DType::Bf16, .. });
        program.kernels.iter().filter(|kernel| matmul(&kernel.work)).count()
    };
    assert!(matmuls("precision.param = 'fp32'") == 0 && matmuls(autocast) > 0);
    // The hidden state between blocks is kept in twice the bytes of a model in bf16.
    let state = |text: &str| {
        let program = with(text);
        let sizes = program.buffers.iter().filter(|buffer| buffer.category == Category::Activation);
        sizes.map(|buffer| buffer.bytes.0).max().expect("a step has activations")
    };
    assert!(state(autocast) >= state("precision.param = 'bf16'"));
    // The cache keeps casts of checkpointed blocks until forward is over.
    let full = format!("{autocast}, activation_checkpointing.policy = 'full'");
    assert!(!alike(&full, &format!("{full}, precision.autocast_cache = false")));
    // Gathers are in fp32: autocast casts what has been gathered.
    let gathered = |text: &str| {
        let program = with(text);
        let bytes = program.step.iter().filter_map(|instr| match *instr {
            Instr::Collective { comm, .. } if program.comm(comm).kind == Collective::AllGather => {
                Some(program.comm(comm).bytes.0)
            }
            _ => None,
        });
        bytes.sum::<u64>()
    };
    assert_eq!(gathered(autocast), 2 * gathered("precision.param = 'bf16'"));
}

#[test]
fn what_autocast_is_not_simulated_with_is_refused_with_what_to_write() {
    let refusal = |changes: &str| {
        let text = make::apply(TINY, &format!("precision.autocast = 'bf16', {changes}"));
        windtunnel::scenario::Scenario::parse(make::FILE, &text).expect_err(changes).to_string()
    };
    for (changes, named) in [
        ("precision.param = 'bf16'", "precision.param = \"bf16\" leaves it none to cast"),
        ("precision.storage = 'bf16'", "remove precision.storage"),
        ("precision.autocast = 'fp16'", "torch.autocast in fp16"),
        ("compile.blocks = true", "compile.blocks = false"),
        ("mesh.dp_shard = 4, mesh.tp = 2", "tensor parallelism"),
        ("mesh.dp_shard = 4, mesh.cp = 2", "context parallelism"),
        ("activation_checkpointing.policy = 'selective_op'", "policy = \"full\""),
        ("framework.modules = 'transformers'", "transformers' classes"),
        ("loss.kind = 'bf16'", "loss.kind = \"fp32\""),
        ("framework.fused_rms_norm = false", "framework.fused_rms_norm = true"),
    ] {
        let said = refusal(changes);
        assert!(said.contains(named), "{changes}: {said}");
    }
    let flat = make::apply(TINY, "precision.autocast = 'bf16'").replace("\"fsdp2\"", "\"fsdp1\"");
    let said = windtunnel::scenario::Scenario::parse(make::FILE, &flat).expect_err("flat parameters").to_string();
    assert!(said.contains("FSDP1's flat parameters"), "{said}");
    let cache = make::apply(TINY, "precision.autocast_cache = false");
    let said = windtunnel::scenario::Scenario::parse(make::FILE, &cache).expect_err("no autocast").to_string();
    assert!(said.contains("precision.autocast = \"bf16\""), "{said}");
}
