//! A plan that Megatron-Core could not run, or a key that means nothing to it, is answered with its place and a remedy.

use crate::command::Folder;
use crate::make::{self, MEGATRON};

/// The scenario with `old` replaced by `new`; without `old`, `new` is added at the end.
fn edited(old: &str, new: &str) -> String {
    if old.is_empty() {
        return format!("{MEGATRON}\n{new}\n");
    }
    assert!(MEGATRON.contains(old), "{old}");
    MEGATRON.replacen(old, new, 1)
}

/// Runs the binary on the edited scenario, saved as `my.toml`.
fn refused(test: &str, old: &str, new: &str) -> String {
    let folder = Folder::new(test);
    folder.write("my.toml", &edited(old, new));
    folder.refuses(&["run", "my.toml"])
}

/// One mistake and the whole answer to it.
fn check(test: &str, old: &str, new: &str, expected: &str) {
    let said = refused(test, old, new);
    assert_eq!(said.trim_end(), expected.trim(), "\n{said}");
}

/// Mistakes, each with what its answer says of it and what it proposes.
fn says(test: &str, cases: &[(&str, &str, &str, &str)]) {
    for (number, (old, new, problem, remedy)) in cases.iter().enumerate() {
        let said = refused(&format!("{test}-{number}"), old, new);
        assert!(said.contains(problem) && said.contains("--> my.toml:"), "{new}\n{said}");
        assert!(said.trim_end().lines().last().unwrap_or_default().contains(remedy), "{new}\n{said}");
    }
}

#[test]
fn axes_that_do_not_tile_the_machine_are_told_what_would() {
    check(
        "megatron-dp",
        "pp = 2",
        "pp = 2\ndp = 4",
        "
error: the mesh holds 16 ranks but the topology has 8 chips (1 node of 8 chips = 8 chips of h100-sxm-80gb)
  --> my.toml:14:6
14 | dp = 4
   |      ^
mesh.dp must be 2 beside tp·cp·pp = 4; or change the topology's size",
    );
    says(
        "megatron-mesh",
        &[
            ("pp = 2", "pp = 3", "tp × pp = 2 × 3 = 6 does not divide the 8 chips", "product divides it"),
            ("pp = 2", "pp = 0", "mesh.pp = 0 is out of range", ""),
            ("pp = 2", "pp = 2\ndp_shard = 2", "mesh.dp_shard means nothing under runtime", "write mesh.dp"),
            ("pp = 2", "pp = 2\ndp_replicate = 2", "mesh.dp_replicate means nothing under runtime", "write mesh.dp"),
        ],
    );
}

#[test]
fn ranks_that_cannot_share_a_sequence_are_told_why() {
    check(
        "megatron-cp",
        "pp = 2\n\n[batch]\nsequence = 128",
        "cp = 2\n\n[batch]\nsequence = 126",
        "
error: mesh.cp = 2 cuts a sequence into 4 parts, and 126 tokens are no multiple
  --> my.toml:13:6
13 | cp = 2
   |      ^
write batch.sequence = 128, or a smaller mesh.cp",
    );
    let cp = "pp = 2\ncp = 2\n\n[megatron]\n";
    let local = format!("{cp}implementation = \"local\"");
    let unfused = format!("{cp}attention = \"unfused\"");
    let ring = format!("{cp}cp_comm_type = \"ring\"");
    let wide = "cp = 4\n\n[megatron]\ncp_comm_type = \"a2a\"";
    let levels = format!("{cp}cp_comm_type = \"a2a+p2p\"");
    let sizes = "cp = 4\n\n[megatron]\ncp_comm_type = \"a2a+p2p\"\nhierarchical_context_parallel_sizes = [2, 4]";
    let flat = format!("{cp}hierarchical_context_parallel_sizes = [2, 1]");
    says(
        "megatron-cp",
        &[
            ("pp = 2", &local, "context parallelism is Transformer Engine's", "or mesh.cp = 1"),
            ("pp = 2", &unfused, "context parallelism is Transformer Engine's", "megatron.attention = \"flash\""),
            (
                "pp = 2",
                &ring,
                "no way to share a sequence is called \"ring\"",
                "\"all_gather\" (keys and values of all",
            ),
            (
                "pp = 2",
                wide,
                "spreads heads over 4 ranks, and tp = 2 leaves 2",
                "write megatron.cp_comm_type = \"p2p\" or \"all_gather\"",
            ),
            ("pp = 2", &levels, "over the ranks of a group and tokens over groups", "\"p2p\" or \"all_gather\""),
            (
                "pp = 2",
                sizes,
                "not two numbers above 1 whose product is mesh.cp = 4",
                "\"all_gather\", and remove hierarchical_context_parallel_sizes",
            ),
            ("pp = 2", &flat, "\"p2p\" has one level", "remove the key"),
            ("", "[megatron]\ncp_comm_type = \"p2p\"", "mesh.cp does not split it", "write mesh.cp = 2 or more"),
        ],
    );
}

#[test]
fn a_model_that_cannot_be_split_so_far_is_told_how_far() {
    check(
        "megatron-heads",
        "tp = 2",
        "tp = 4",
        "
error: mesh.tp = 4 does not divide the 2 key-value heads of config
  --> my.toml:12:6
12 | tp = 4
   |      ^
write mesh.tp = 1 or 2",
    );
    let split = "sequence = 127\n[tensor_parallel]\nsequence = true";
    let said = refused("megatron-sp", "sequence = 128\naccumulation = 4", split);
    assert!(said.contains("mesh.tp = 2 does not divide the 127 tokens of a sequence"), "{said}");
    let said = refused("megatron-sp-alone", "tp = 2\npp = 2", "tp = 1\npp = 2\n[tensor_parallel]\nsequence = true");
    assert!(said.contains("mesh.tp does not split it"), "{said}");
}

#[test]
fn stages_that_do_not_come_out_even_are_told_a_list() {
    check(
        "megatron-layers",
        "layers = 4",
        "layers = 3",
        "
error: 3 blocks of config do not divide into 2 stages
  --> my.toml:13:6
13 | pp = 2
   |      ^
write pipeline.layers = [2, 1], or another list of 2 numbers",
    );
    says(
        "megatron-stages",
        &[
            ("", "[pipeline]\nlayers = [4]", "pipeline.layers has 1 numbers for 2 stages", "such as [2, 2]"),
            ("", "[pipeline]\nlayers = [4, 4]", "sums to 8, and config has 4 blocks", "such as [2, 2]"),
            ("", "[pipeline]\nlayers = [5, -1]", "has 5 blocks: expected 0 to 4", "such as [2, 2]"),
            ("", "[pipeline]\nlayers = [-1, 4]", "has -1 blocks: expected 0 to 4", "such as [2, 2]"),
            ("", "[pipeline]\nvirtual_stages = 4", "8 stages are more than the 4 blocks", "virtual_stages"),
            ("pp = 2", "pp = 1\n[pipeline]\nvirtual_stages = 2", "mesh.pp makes none", "remove the table"),
        ],
    );
}

#[test]
fn a_schedule_that_does_not_fit_the_pipeline_is_told_what_would() {
    says(
        "megatron-schedule",
        &[
            ("", "[pipeline]\nschedule = \"2F2B\"", "there is no schedule \"2F2B\"", "Megatron1F1B"),
            (
                "accumulation = 4",
                "accumulation = 3\n[pipeline]\nvirtual_stages = 2",
                "3 are no multiple of 2",
                "write batch.accumulation = 4",
            ),
            (
                "",
                "[pipeline]\nschedule = \"MegatronInterleaved\"",
                "several stages",
                "write pipeline.virtual_stages = 2",
            ),
            (
                "",
                "[pipeline]\noverlap_p2p = true",
                "Megatron1F1B sends and receives between computations",
                "virtual_stages = 2",
            ),
            (
                "",
                "[pipeline]\nschedule = \"Megatron1F1B\"\noverlap_p2p = true",
                "Megatron1F1B sends and receives between computations",
                "virtual_stages = 2 or more and pipeline.schedule = \"MegatronInterleaved\"",
            ),
            (
                "",
                "[pipeline]\nschedule = \"ZBVZeroBubble\"\nvirtual_stages = 2\noverlap_p2p = true",
                "ZBVZeroBubble waits for messages where they are used",
                "remove pipeline.overlap_p2p",
            ),
            (
                "accumulation = 4",
                "accumulation = 60000\n[megatron]\nimplementation = \"local\"\n[pipeline]\nschedule = \"ZB-1p\"",
                "60,000 micro-batches (batch.accumulation)",
                "write batch.accumulation = ",
            ),
        ],
    );
}

#[test]
fn a_schedule_that_no_megatron_runs_is_told_which_is_nearest_and_who_runs_it() {
    let cases = |name: &str, stages: u32, own: &str, runtime: &str| {
        let table = format!("[pipeline]\nschedule = {name:?}\nvirtual_stages = {stages}");
        (table, name.to_owned(), format!("pipeline.schedule = \"{own}\", or runtime = {runtime:?}"))
    };
    let cases = [
        cases("GPipe", 1, "Megatron1F1B", "fsdp2"),
        cases("Interleaved1F1B", 1, "Megatron1F1B", "fsdp2"),
        cases("Interleaved1F1B", 2, "MegatronInterleaved", "fsdp2"),
        cases("LoopedBFS", 2, "MegatronInterleaved", "fsdp2"),
        cases("InterleavedZeroBubble", 1, "ZB-H1\" and megatron.implementation = \"local", "fsdp2"),
        cases("DualPipeV", 2, "ZBVZeroBubble\" and megatron.implementation = \"local", "fsdp2"),
        cases("AFAB", 1, "Megatron1F1B", "nanotron"),
        cases("DeepSpeed1F1B", 1, "Megatron1F1B", "deepspeed"),
    ];
    let cases: Vec<_> = cases.iter().map(|(table, name, remedy)| ("", &table[..], &name[..], &remedy[..])).collect();
    says("megatron-elsewhere", &cases);
    says("megatron-csv", &[("", "[pipeline]\nschedule = \"a.csv\"", "Megatron's schedules are code", "\"fsdp2\"")]);
}

#[test]
fn switches_that_need_others_name_them() {
    let distributed = "megatron.distributed_optimizer = true";
    says(
        "megatron-switches",
        &[
            (
                "",
                "[megatron]\noverlap_param_gather = true",
                "overlap_param_gather gathers",
                "overlap_grad_reduce = true",
            ),
            ("", "[megatron]\nbucket_size = 1000", "are one bucket", "overlap_grad_reduce = true"),
            ("", "[megatron]\nexp_avg_dtype = \"bf16\"", "precision-aware", distributed),
            ("", "[megatron]\nmain_params_dtype = \"bf16\"", "cannot be bf16", "\"fp32\", \"fp16\""),
            ("", "[megatron]\nfp8_param_gather = true", "nothing multiplies in fp8", "megatron.fp8"),
            ("", "[megatron]\nfp8 = \"delayed\"\nfp8_param_gather = true", "steps all parameters", distributed),
            ("", "[megatron]\nfp8 = \"delayed\"\nimplementation = \"local\"", "Transformer Engine's", "implementation"),
            ("", "[megatron]\ntp_comm_overlap = true", "a split sequence", "tensor_parallel.sequence = true"),
            ("", "[megatron]\ntp_comm_bulk_sm_margin = true", "and there are none", "tp_comm_overlap = true"),
            ("", "[megatron]\nrecompute.uniform = 0", "recompute.uniform = 0 is out of range", "1 or more"),
        ],
    );
}

#[test]
fn fp8_is_refused_on_chips_that_lack_it_recipe_by_recipe() {
    let on = |chips: &str, recipe: &str| {
        let text = MEGATRON.replacen("h100-sxm-80gb", chips, 1);
        let folder = Folder::new(&format!("megatron-fp8-{chips}-{recipe}"));
        folder.write("my.toml", &format!("{text}\n[megatron]\nfp8 = \"{recipe}\"\n"));
        folder.refuses(&["run", "my.toml"])
    };
    for recipe in ["delayed", "tensorwise", "blockwise"] {
        let said = on("a100-sxm-80gb", recipe);
        assert!(said.contains("do not multiply in fp8") && said.contains("--> my.toml:"), "{said}");
        assert!(said.trim_end().ends_with("remove megatron.fp8, or choose H100, H200 or B200"), "{said}");
    }
    let said = on("b200-sxm", "blockwise");
    assert!(said.contains("of compute capability 10.0 Transformer Engine emulates"), "{said}");
    assert!(said.contains("choose H100 or H200, or a scale for each tensor"), "{said}");
}

#[test]
fn keys_of_other_runtimes_are_answered_with_the_key_to_use_instead() {
    check(
        "megatron-fsdp",
        "",
        "[fsdp]\ncpu_offload = true",
        "
error: [fsdp] means nothing under runtime = \"megatron\"
  --> my.toml:19:2
19 | [fsdp]
   |  ^
Megatron-Core shards optimizer states: write megatron.distributed_optimizer = true, in place of [fsdp]",
    );
    says(
        "megatron-foreign",
        &[
            ("", "[activation_checkpointing]\npolicy = \"full\"", "means nothing", "megatron.recompute"),
            ("", "[compile]\nblocks = true", "[compile] means nothing", "[megatron]"),
            ("", "[loss]\nkind = \"fp32\"", "[loss] means nothing", "megatron.cross_entropy_loss_fusion"),
            ("", "[framework]\nrope = \"complex\"", "framework.rope means nothing", "megatron.rope_fusion"),
            ("", "[framework]\nrepeat_kv = true", "framework.repeat_kv means nothing", "megatron.implementation"),
            ("", "[precision]\nreduce = \"fp32\"", "precision.reduce means nothing", "megatron.grad_reduce_in_fp32"),
            ("", "[precision]\nstorage = \"fp32\"", "precision.storage means nothing", "megatron.main_params_dtype"),
            ("", "[precision]\nparam = \"fp32\"", "precision.param cannot be fp32", "\"bf16\" or \"fp16\""),
            ("", "[optimizer]\nname = \"adamw\"", "optimizer.name means nothing", "remove the key"),
            ("", "[attention]\nunpad = true", "attention.unpad means nothing", "megatron.attention"),
        ],
    );
}

#[test]
fn keys_of_megatron_are_refused_elsewhere() {
    let folder = Folder::new("megatron-elsewhere");
    let elsewhere = |text: String| {
        folder.write("my.toml", &text);
        folder.refuses(&["run", "my.toml"])
    };
    for (new, expected) in [
        ("[megatron]\nimplementation = \"local\"", "[megatron] belongs to runtime = \"megatron\""),
        ("[pipeline]\nvirtual_stages = 2", "[pipeline] says how stages take turns, and mesh.pp makes none"),
    ] {
        let said = elsewhere(format!("{}\n{new}\n", make::TINY));
        assert!(said.contains(expected), "{said}");
    }
    for axis in ["dp", "etp"] {
        let said = elsewhere(make::TINY.replace("dp_shard = 8", &format!("{axis} = 2")));
        assert!(said.contains(&format!("mesh.{axis} is an axis of runtime = \"megatron\"")), "{said}");
    }
}

#[test]
fn a_plan_that_runs_badly_is_told_so() {
    // Whose optimizer it is is noted of every plan.
    let notes = |text: &str| {
        let said = make::parse(text).assumption_lines();
        said.into_iter().filter(|line| !line.contains("FusedAdam")).collect::<Vec<_>>().join("\n")
    };
    let few = edited("accumulation = 4", "accumulation = 1");
    assert!(notes(&few).contains("1 micro-batches are fewer than 2 pipeline ranks"), "{}", notes(&few));
    assert!(notes(&few).contains("50 % of the step"), "{}", notes(&few));
    assert!(!notes(MEGATRON).contains("note:"), "{}", notes(MEGATRON));
    let wide = MEGATRON
        .replace("nodes = 1", "nodes = 2")
        .replace("tp = 2\npp = 2", "tp = 16")
        .replace("huggingface = \"config.json\"\nlayers = 4", "name = \"bloom-176b\"");
    assert!(notes(&wide).contains("mesh.tp = 16 leaves the 8 chips of a node"), "{}", notes(&wide));
}

#[test]
fn messages_are_shared_out_only_where_tensor_parallel_ranks_hold_the_same() {
    let parts = "[pipeline]\nscatter_gather = true";
    says(
        "megatron-scatter-gather",
        &[
            (
                "[batch]",
                &format!("[tensor_parallel]\nsequence = true\n{parts}\n[batch]"),
                "holds a part of its own",
                "remove",
            ),
            ("tp = 2\npp = 2", &format!("tp = 1\npp = 2\n{parts}"), "mesh.tp makes none", "remove"),
            (
                "accumulation = 4\n",
                "accumulation = 4\n[pipeline]\nscatter_gather = true\nvirtual_stages = 2\n",
                "in batches that it waited for",
                "write pipeline.overlap_p2p = false",
            ),
            ("", "[pipeline]\nscatter_gather = true\nschedule = \"ZB-1p\"", "until March 2023", "remove"),
        ],
    );
}

#[test]
fn whose_norm_it_is_is_asked_only_of_megatrons_own_layer_norm() {
    says(
        "megatron-layer-norm",
        &[
            ("", "[megatron]\nlayer_norm = \"fused\"", "there is none here", "Transformer Engine"),
            ("", "[megatron]\nimplementation = \"local\"\nlayer_norm = \"torch\"", "there is none here", "RMSNorm"),
            ("", "[megatron]\nlayer_norm = \"apex\"", "there is no choice `apex` here", ""),
        ],
    );
}

#[test]
fn more_queues_than_cuda_has_are_refused() {
    says(
        "device-max-connections",
        &[
            ("", "[framework]\ndevice_max_connections = 0", "is 1 to 32", "8, which is CUDA's default"),
            ("", "[framework]\ndevice_max_connections = 33", "is 1 to 32", "8, which is CUDA's default"),
        ],
    );
}

#[test]
fn what_no_graph_can_hold_is_refused_with_what_can() {
    let engine =
        |scope: &str| format!("[megatron]\ncuda_graph_impl = \"transformer_engine\"\ncuda_graph_scope = {scope}");
    let local = |scope: &str| format!("[megatron]\ncuda_graph_impl = \"local\"\ncuda_graph_scope = {scope}");
    let whole = "[\"full_iteration\"]";
    let silent = format!("{}\ncheck_for_nan = false", local(whole));
    let again = format!("{}\nrecompute = {{ uniform = 1 }}", engine("[]"));
    let core = format!("{}\nrecompute = \"core_attn\"", engine("[\"attn\"]"));
    let fp8 = format!("{}\nfp8 = \"tensorwise\"", engine("[\"mlp\"]"));
    let own = format!("{}\nimplementation = \"local\"", engine("[]"));
    let plain = format!("[pipeline]\nschedule = \"1F1B\"\n{}", engine("[]"));
    let blocking = format!("{}\n[framework]\nlaunch_blocking = true", engine("[]"));
    says(
        "megatron-graphs",
        &[
            ("", "[megatron]\ncuda_graph_scope = [\"attn\"]", "nothing is", "cuda_graph_impl = \"transformer_engine\""),
            ("", &engine("[\"mamba\"]"), "no layer is one", "remove \"mamba\""),
            ("", &engine("[\"moe_router\"]"), "the model has none", "[\"attn\", \"mlp\"]"),
            ("", &engine(whole), "not by Transformer Engine", "cuda_graph_impl = \"local\""),
            ("", &local("[]"), "with cuda_graph_scope = [\"full_iteration\"] alone", "\"transformer_engine\""),
            ("", &local("[\"full_iteration\", \"attn\"]"), "no other scope", "remove the others"),
            ("", &local(whole), "megatron.check_for_nan reads back", "check_for_nan = false"),
            ("", &silent, "the host waits for each of them", "pipeline.overlap_p2p = true"),
            ("", &again, "captures them with full_iteration alone", "megatron.recompute = \"none\""),
            ("", &core, "runs nothing again", "megatron.recompute = \"none\""),
            ("", &fp8, "linears in fp8", "narrower megatron.cuda_graph_scope"),
            ("", &own, "Megatron's own modules", "megatron.implementation = \"transformer_engine\""),
            ("", &plain, "Megatron-Core's own schedules", "write pipeline.schedule = \"Megatron1F1B\", or megatron"),
            ("", &blocking, "the host waits for each", "remove framework.launch_blocking"),
        ],
    );
}

#[test]
fn whose_loader_reads_is_told_by_release() {
    says(
        "loader",
        &[
            ("", "[megatron]\nget_batch = \"0.0\"", "no release of Megatron-LM", "such as \"0.12\""),
            ("", "[megatron]\nget_batch = \"nemo\"", "no release of Megatron-LM", "\"each_rank\" for NeMo"),
            (
                "",
                "[megatron]\nget_batch = \"0.4\"\ncreate_attention_mask_in_dataloader = false",
                "masks are made on the device",
                "get_batch = \"0.6\"",
            ),
            (
                "",
                "[megatron]\nget_batch = \"2.5\"\nuse_megatron_fsdp = true\ndistributed_optimizer = true",
                "neither context parallelism nor Megatron-FSDP",
                "get_batch = \"0.16\"",
            ),
        ],
    );
    // Releases between those that changed it are as the one before them.
    let step = |release: &str| make::fly(&edited("", &format!("[megatron]\nget_batch = \"{release}\""))).step;
    assert_eq!([step("0.9"), step("0.15"), step("0.19")], [step("0.5"); 3]);
    assert_eq!([step("0.3"), step("3.0")], [step("2.5"); 2]);
    assert_eq!(step("0.17"), step("0.16"));
    assert!(step("0.16") > step("0.5"));
}

#[test]
fn flex_attention_belongs_to_pytorchs_own_blocks() {
    let cases = [(
        "",
        "[attention]\nbackend = \"flex\"",
        "FlexAttention is simulated in PyTorch's own blocks",
        "write another attention.backend, or runtime = \"fsdp2\"",
    )];
    says("megatron-flex", &cases);
}
