//! Small plans of every runtime, which between them accept every integer there is, and shipped ones, whose steps are long.

use crate::make::{MEGATRON, TINY, apply, replaced};
use crate::{disks, megatron_fsdp, stages, user_buffers};

/// Of models that are known by name.
const SHIPPED: [&str; 5] = [
    include_str!("../../scenarios/llama3.1-8b-fsdp2-8xh100.toml"),
    include_str!("../../scenarios/llama3.1-8b-deepspeed-zero3-8xh100.toml"),
    include_str!("../../scenarios/llama-8.9b-nanotron-8xh100.toml"),
    include_str!("../../scenarios/gpt3-175b-megatron-1024xa100.toml"),
    include_str!("../../scenarios/llama3.1-405b-torchtitan-3d-512xh100.toml"),
];

pub fn all() -> Vec<toml::Table> {
    let mut plans = crate::defaults::plans();
    let tiny = |changes: &str| apply(TINY, changes);
    let megatron = |changes: &str| apply(MEGATRON, changes);
    let pipeline =
        replaced(TINY, &[("dp_shard = 8", "pp = 2"), ("sequence = 128", "sequence = 128\naccumulation = 4")]);
    let files = "{ device = \"nvme\", nvme_path = \"/n\", max_in_cpu = 0, buffer_count = 40 }";
    let zero = |stage: u32| {
        let text = replaced(TINY, &[("\"fsdp2\"", "\"deepspeed-zero\""), ("dp_shard", "dp")]);
        apply(&text, &format!("zero.stage = {stage}"))
    };
    plans.extend([
        tiny("loss.kind = 'vocabulary_chunked'"),
        tiny("loss.kind = 'chunked_output'"),
        tiny("loss.kind = 'chunked_linear'"),
        tiny("loss.kind = 'chunked_gradients'"),
        tiny("activation_checkpointing.policy = 'full'"),
        apply(&pipeline, "pipeline.schedule = '1F1B'"),
        apply(&pipeline, "pipeline.schedule = 'Interleaved1F1B'"),
        apply(&pipeline, "pipeline.schedule = 'ZBVZeroBubble'"),
        megatron("megatron.recompute = 'full'"),
        replaced(MEGATRON, &[("tp = 2\npp = 2", "cp = 4")])
            + "[megatron]\ncp_comm_type = \"a2a+p2p\"\nhierarchical_context_parallel_sizes = [2, 2]\n",
        zero(3),
        tiny("model.name = 'gpt2'").replace("huggingface = \"config.json\"\n", ""),
        user_buffers::text(8, "tp_comm_overlap = true\ntp_comm_proj_fprop = { pipeline = 0 }"),
        user_buffers::text(8, "tp_comm_overlap = true\ntp_comm_fc2_fprop = { pipeline = 0 }"),
        megatron_fsdp::sharded(&[]),
        stages::BASE.to_owned(),
        stages::BASE.replace("[xla]", "[xla]\npipeline_parallel_layers = 4"),
        disks::on_disks("8 GB/s", "offload_optimizer = { device = \"nvme\", nvme_path = \"/n\" }\n"),
        disks::on_disks("8 GB/s", &format!("offload_optimizer.device = \"cpu\"\noffload_param = {files}\n")),
        disks::on_disks("8 GB/s", "offload_optimizer.device = \"cpu\"\noffload_param.device = \"cpu\"\n"),
        tiny("measured.tokens_per_second_per_chip = 5.0"),
    ]);
    plans.extend(SHIPPED.map(str::to_owned));
    plans.iter().map(|plan| plan.parse().expect(plan)).collect()
}
