//! Small plans of every framework.

use crate::make::{self, MEGATRON, TINY, replaced};

fn add(text: &str, changes: &[&str]) -> Vec<String> {
    let all = std::iter::once(text.to_owned());
    all.chain(changes.iter().map(|change| format!("# {change}\n{}", make::apply(text, change)))).collect()
}

/// What a plan is of, for messages.
pub fn name(plan: &str) -> String {
    let runtime = plan.lines().find_map(|line| line.strip_prefix("runtime = ")).unwrap_or_default();
    format!("{runtime} {}", plan.strip_prefix("# ").map_or("as it is", |rest| rest.lines().next().unwrap()))
}

const TPU: &str = "runtime = \"xla\"\n[topology]\nname = \"tpu-v6e\"\nslice = \"2x2\"\n[model]\nname = \"llama-3.1-8b\"\nlayers = 2\n[mesh]\n\
                   fsdp = 4\n[batch]\nsequence = 4096\n";
const TORCH_XLA: &str = "runtime = \"torch_xla\"\n[topology]\nname = \"tpu-v6e\"\nslice = \"2x2\"\n[model]\nname = \"llama-3.1-8b\"\nlayers = 2\n[mesh]\n\
                   fsdp = 4\n[batch]\nsequence = 4096\naccumulation = 2\n";
const INTERNEVO: &str = "runtime = \"internevo\"\n[topology]\nname = \"a100-sxm-80gb\"\nnodes = 1\n[model]\nname = \"internlm-7b\"\nlayers = 2\n[mesh]\ndp = 8\n\
         [batch]\nsequence = 2048\naccumulation = 2\n";

/// The same of two layers of a shipped model.
fn of(text: &str, model: &str) -> String {
    let mut file: toml::Table = text.parse().unwrap();
    let table = file["model"].as_table_mut().unwrap();
    table.remove("huggingface");
    table.insert("name".to_owned(), model.into());
    table.insert("layers".to_owned(), 2.into());
    file.to_string()
}

pub fn plans() -> Vec<String> {
    let fsdp1 = replaced(TINY, &[("\"fsdp2\"", "\"fsdp1\"")]);
    let single =
        replaced(TINY, &[("\"fsdp2\"", "\"single_device\""), ("nodes = 1", "chips = 1"), ("dp_shard = 8", "")]);
    let ddp = of(&replaced(TINY, &[("\"fsdp2\"", "\"ddp\""), ("dp_shard = 8", "")]), "llama-3.2-1b");
    let deepspeed = replaced(MEGATRON, &[("\"megatron\"", "\"deepspeed\"")]);
    let nanotron = replaced(MEGATRON, &[("\"megatron\"", "\"nanotron\"")]);
    let zero = replaced(TINY, &[("\"fsdp2\"", "\"deepspeed-zero\""), ("dp_shard", "dp")]);
    let zero = format!("{zero}accumulation = 2\n[zero]\nstage = 2\nreduce_bucket_size = 20000\n");
    let nvme = replaced(
        &zero,
        &[
            ("\"h100-sxm-80gb\"", &format!("{:?}", make::disks(8, "20 GB/s"))),
            (
                "stage = 2\nreduce_bucket_size = 20000",
                "stage = 3\nstage3_param_persistence_threshold = 0\nstage3_prefetch_bucket_size = 1000",
            ),
        ],
    );
    let on_disk = |table: &str| format!("[zero.{table}]\ndevice = \"nvme\"\nnvme_path = \"/nvme\"\n");
    let nvme = nvme + &on_disk("offload_param") + &on_disk("offload_optimizer");
    let to_all = "mesh.ep = 2, megatron.moe_token_dispatcher_type = 'alltoall'";
    let open = replaced(TINY, &[("dp_shard = 8", "")]);
    let experts = |text: &str| of(text, "mixtral-8x7b");
    let flat = replaced(MEGATRON, &[("tp = 2\npp = 2", ""), ("layers = 4", "layers = 2")]);
    [
        add(TINY, &[
            "batch.accumulation = 2",
            "topology.nodes = 2, mesh.dp_replicate = 2, batch.accumulation = 2",
            "activation_checkpointing.policy = 'full'",
            "activation_checkpointing.policy = 'selective_op', compile.blocks = true",
            "compile.blocks = true",
            "precision.param = 'fp32'",
            "mesh.dp_shard = 4, mesh.tp = 2",
            "mesh.dp_shard = 4, mesh.cp = 2, compile.blocks = true",
            "optimizer.implementation = 'fused'",
            "activation_checkpointing.policy = 'full', compile.blocks = true",
            "activation_checkpointing.policy = 'full', precision.autocast = 'bf16'",
            "activation_checkpointing.policy = 'full', activation_checkpointing.use_reentrant = true",
            "topology.nodes = 2, mesh.dp_replicate = 2",
            "mesh.dp_shard = 4, mesh.pp = 2, batch.accumulation = 4, model.layers = 4",
            "fsdp.wrap = 'root'",
            "fsdp.reshard_after_forward = false",
            "optimizer.name = 'sgd'",
            "optimizer.name = 'sgd', optimizer.momentum = 0.9",
            "loss.kind = 'chunked_output'",
            "loss.kind = 'flash_cross_entropy'",
            "framework.modules = 'transformers'",
            "framework.modules = 'transformers', attention.implementation = 'eager'",
            "compile.blocks = true, float8.recipe = 'tensorwise'",
            "attention.backend = 'flex'",
            "attention.unpad = true",
            "fsdp.wrap = 'torchtitan'",
            "fsdp.cpu_offload = true",
            "fsdp.cpu_offload = true, optimizer.name = 'sgd'",
            "loss.kind = 'chunked_linear'",
            "loss.kind = 'fused_linear'",
            "loss.kind = 'vocabulary_chunked'",
            "loss.kind = 'chunked_gradients', fsdp.wrap = 'torchtitan'",
            "framework.cuda_graphs = true, batch.accumulation = 2",
            "framework.release = 'torchtitan 0.3.0'",
            "optimizer.name = 'decoupled_adamw'",
            "trained.freeze = ['embedding']",
            "lora.rank = 8, lora.modules = ['q_proj','v_proj']",
            "dpo.implementation = 'torchtune'",
            "dpo.implementation = 'trl', framework.modules = 'transformers'",
            "lora.rank = 8, lora.modules = ['q_proj','v_proj'], dpo.implementation = 'torchtune'",
            "compile.blocks = true, float8.recipe = 'tensorwise', float8.all_gather = true",
        ]),
        add(&of(TINY, "llama-3.2-1b"), &["fsdp.wrap = 'torchtitan'", "batch.accumulation = 2", "compile.blocks = true", "mesh.dp_shard = 4, mesh.cp = 2, compile.blocks = true"]),
        add(&of(TINY, "llama-3.1-8b"), &["framework.release = 'torchtitan 0.3.0'", "framework.release = 'torchtitan 0.2.2'", "mesh.dp_shard = 4, mesh.tp = 2, compile.blocks = true", "mesh.dp_shard = 4, mesh.pp = 2, batch.accumulation = 4, model.layers = 8, pipeline.schedule = 'Interleaved1F1B'"]),
        add(&open, &["topology.nodes = 2"]),
        add(&replaced(&open, &[("nodes = 1", "chips = 4")]), &[]),
        add(&experts(TINY), &["framework.experts = 'torchtitan'", "framework.experts = 'torchtitan', mesh.ep = 2"]),
        add(&make::apply(&of(TINY, "deepseek-v2-lite"), "framework.experts = 'torchtitan'"), &["mesh.ep = 4"]),
        add(&replaced(TINY, &[("h100-sxm-80gb", "b200-sxm")]), &["compile.blocks = true"]),
        add(&of(TINY, "llm-foundry-mpt-125m"), &[]),
        add(&fsdp1, &["batch.accumulation = 2", "activation_checkpointing.policy = 'full'", "topology.nodes = 2, mesh.dp_replicate = 2", "fsdp.wrap = 'root'"]),
        add(&ddp, &["batch.accumulation = 2", "activation_checkpointing.policy = 'full'", "ddp.gradient_as_bucket_view = true", "ddp.find_unused_parameters = true", "precision.autocast = 'bf16'", "topology.nodes = 2"]),
        add(&single, &["batch.accumulation = 2", "activation_checkpointing.policy = 'full'", "precision.storage = 'bf16'", "precision.storage = 'bf16', lora.rank = 8, lora.modules = ['all-linear']", "dpo.implementation = 'trl'", "dpo.implementation = 'torchtune'", "precision.storage = 'bf16', lora.rank = 8, lora.modules = ['all-linear'], dpo.implementation = 'trl'", "optimizer.clip_grad_norm = false", "optimizer.clip_grad_norm = false, optimizer.in_backward = true"]),
        add(&of(&single, "llama-3.2-1b"), &["precision.autocast = 'bf16'"]),
        add(MEGATRON, &[
            "megatron.implementation = 'local'",
            "megatron.attention = 'unfused'",
            "pipeline.virtual_stages = 2",
            "megatron.distributed_optimizer = true",
            "megatron.distributed_optimizer = true, megatron.overlap_grad_reduce = true, megatron.overlap_param_gather = true",
            "megatron.distributed_optimizer = true, megatron.overlap_grad_reduce = true, megatron.overlap_param_gather = true, pipeline.virtual_stages = 2",
            "megatron.fp8 = 'delayed'",
            "megatron.recompute = { uniform = 1 }",
            "megatron.cross_entropy_loss_fusion = true",
            "lora.rank = 2, lora.modules = ['linear_qkv','linear_fc2']",
        ]),
        add(&flat, &["megatron.cuda_graph_impl = 'local', megatron.cuda_graph_scope = ['full_iteration'], megatron.check_for_nan = false", "mesh.tp = 2", "mesh.cp = 2", "batch.accumulation = 1", "topology.nodes = 2", "mesh.tp = 2, tensor_parallel.sequence = true, megatron.tp_comm_overlap = true"]),
        add(&of(&flat, "gpt-megatron-1.7b"), &["megatron.implementation = 'local'"]),
        add(&experts(&flat), &["mesh.ep = 2", "mesh.ep = 2, megatron.moe_token_dispatcher_type = 'flex'"]),
        add(&make::apply(&of(&flat, "deepseek-v2-lite"), to_all), &["megatron.moe_shared_expert_overlap = true"]),
        add(&make::apply(&experts(&flat), to_all), &[
            "megatron.moe_expert_capacity_factor = 1.0",
            "mesh.pp = 2, pipeline.virtual_stages = 2, model.layers = 4, megatron.overlap_moe_expert_parallel_comm = true",
        ]),
        add(&flat, &[
            "megatron.distributed_optimizer = true, megatron.use_megatron_fsdp = true, megatron.data_parallel_sharding_strategy = 'optim_grads_params'",
            "megatron.distributed_optimizer = true, megatron.overlap_grad_reduce = true, megatron.overlap_param_gather = true",
        ]),
        add(&of(&flat, "llama-3.2-1b"), &[
            "megatron.distributed_optimizer = true, megatron.use_megatron_fsdp = true, megatron.data_parallel_sharding_strategy = 'optim_grads'",
            "megatron.distributed_optimizer = true, megatron.use_megatron_fsdp = true, megatron.data_parallel_sharding_strategy = 'optim_grads_params'",
            "megatron.distributed_optimizer = true, megatron.use_megatron_fsdp = true, megatron.data_parallel_sharding_strategy = 'optim_grads_params', megatron.fsdp_double_buffer = true",
            "megatron.distributed_optimizer = true, megatron.fp8 = 'delayed'",
            "megatron.distributed_optimizer = true, megatron.overlap_grad_reduce = true",
            "megatron.cuda_graph_impl = 'transformer_engine', megatron.cuda_graph_scope = ['attn'], megatron.check_for_nan = false",
        ]),
        add(&deepspeed, &["mesh.tp = 1"]),
        add(
            &make::apply(&of(&nanotron, "llama-3.2-1b"), "model.layers = 12"),
            &["nanotron.zero_stage = 1", "mesh.pp = 1", "batch.accumulation = 1"],
        ),
        add(&zero, &["zero.stage = 1", "zero.stage = 3, zero.stage3_param_persistence_threshold = 0, zero.stage3_prefetch_bucket_size = 1000", "zero.stage = 2, zero.offload_optimizer = { device = 'cpu' }", "zero.stage = 3, zero.stage3_param_persistence_threshold = 0, zero.stage3_prefetch_bucket_size = 1000, zero.offload_param = { device = 'cpu' }, zero.offload_optimizer = { device = 'cpu' }", "batch.accumulation = 1", "topology.nodes = 2, mesh.dp = 16"]),
        add(INTERNEVO, &["internevo.zero1 = 1", "mesh.dp = 4, mesh.tp = 2", "batch.accumulation = 1"]),
        add(&of(&nvme, "llama-3.1-8b"), &[]),
        add(&replaced(TPU, &[("tpu-v6e", "tpu-v7x"), ("2x2", "2x2x1"), ("fsdp = 4", "fsdp = 8")]), &["xla.quantization = 'fp8_full'"]),
        add(&replaced(TPU, &[("fsdp = 4\n", "\n")]), &["topology.slices = 2"]),
        add(&replaced(TPU, &[("name = \"tpu-v6e\"", "name = \"h100-sxm-80gb\""), ("slice = \"2x2\"", "chips = 4")]), &[]),
        add(TPU, &[
            "xla.remat_policy = 'custom'", "mesh.fsdp = 2, mesh.pipeline = 2, batch.micro = 2, model.layers = 8, xla.num_layers_per_pipeline_stage = 2","mesh.fsdp = 2, mesh.tensor = 2", "xla.attention = 'dot_product'", "xla.scan_layers = false", "mesh.fsdp = 2, mesh.pipeline = 2, batch.micro = 2, model.layers = 4, xla.num_pipeline_repeats = 2", "topology.slices = 2"]),
        add(TORCH_XLA, &["torch_xla.attention = 'flash'", "torch_xla.attention = 'eager', mesh.fsdp = 2, mesh.tensor = 2", "batch.accumulation = 1", "mesh.fsdp = 1, mesh.data = 4"]),
        add(&experts(TPU), &["mesh.fsdp = 2, mesh.expert = 2, xla.capacity_factor = 1.0", "mesh.fsdp = 2, mesh.expert = 2, xla.ragged_buffer_factor = 1.5"]),
    ].concat()
}
