//! What an answer proposes helps, and what it points at is what is wrong.

use windtunnel::scenario::{Scenario, ScenarioError};

use crate::followed;
use crate::make::{FILE, MEGATRON, replaced};

/// Reads a scenario, and asks whether there are rules for all of it.
fn read(text: &str) -> Result<Scenario, ScenarioError> {
    let scenario = Scenario::parse(FILE, text)?;
    scenario.simulable()?;
    Ok(scenario)
}

fn refusal(text: &str) -> String {
    followed::refusal(FILE, text)
}

/// What is replaced, and by what.
type Edit<'t> = (&'t str, &'t str);

/// The refusal of an edited scenario of Megatron-Core holds all words.
fn says(cases: &[(&[Edit<'_>], &[&str])]) {
    for (edits, words) in cases {
        let said = refusal(&replaced(MEGATRON, edits));
        for word in *words {
            assert!(said.contains(word), "{edits:?}: expected {word:?} in\n{said}");
        }
    }
}

/// A model by its name under FSDP2, with other tables.
fn named(model: &str, mesh: &str, rest: &str) -> String {
    format!(
        "runtime = \"fsdp2\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 8\n[model]\nname = \"{model}\"\n[mesh]\n{mesh}\n\
         [batch]\nsequence = 4096\n{rest}"
    )
}

#[test]
fn the_axis_that_does_not_tile_the_machine_is_the_one_pointed_at() {
    says(&[
        (&[("tp = 2", "tp = 3")], &["tp × pp = 3 × 2 = 6 does not divide the 8 chips", "| tp = 3"]),
        (&[("tp = 2", "tp = 5"), ("pp = 2", "pp = 1")], &["tp = 5 does not divide the 8 chips", "| tp = 5"]),
        (&[("pp = 2", "pp = 2\ncp = 3")], &["tp × cp × pp = 2 × 3 × 2 = 12 does not divide", "| cp = 3"]),
        (&[("pp = 2", "pp = 3")], &["| pp = 3"]),
    ]);
}

#[test]
fn a_split_that_is_proposed_tiles_the_machine_and_everything_it_splits() {
    // 4,090 is a multiple of 5, which 8 chips are not.
    let text = replaced(
        MEGATRON,
        &[
            ("huggingface = \"config.json\"\nlayers = 4", "name = \"llama-3.1-8b\""),
            ("tp = 2\npp = 2", "tp = 8"),
            ("sequence = 128", "sequence = 4090"),
        ],
    ) + "[tensor_parallel]\nsequence = true\n";
    let said = refusal(&text);
    assert!(said.ends_with("write batch.sequence = 4096, or mesh.tp = 2"), "{said}");
    assert!(read(&replaced(&text, &[("sequence = 4090", "sequence = 4096")])).is_ok());
    assert!(read(&replaced(&text, &[("tp = 8", "tp = 2")])).is_ok());
    // One of each pair of ranks that share a sequence has two parts of it.
    let text = replaced(MEGATRON, &[("pp = 2", "cp = 2"), ("sequence = 128", "sequence = 124\nmicro = 1")]);
    let said = refusal(&replaced(&text, &[("tp = 2", "tp = 4")]));
    assert!(said.ends_with("write mesh.tp = 1 or 2"), "{said}");
}

#[test]
fn a_word_of_megatrons_own_for_recomputation_is_told_how_it_is_written() {
    let recompute =
        |value: &str| replaced(MEGATRON, &[("[batch]", &format!("[megatron]\nrecompute = {value}\n\n[batch]"))]);
    for (value, words) in [
        ("\"full\"", "{ uniform = 1 } is all blocks, each for itself, and { block = 8 } eight of each stage"),
        ("\"selective\"", "\"core_attn\" is the attention core, and recompute_modules names other parts"),
        ("{ uniform = 1, block = 2 }", "{ uniform = 1, block = 2 } makes several choices, and there is one to make"),
    ] {
        let said = refusal(&recompute(value));
        assert!(said.contains(words), "{said}");
    }
    for value in ["{ uniform = 1 }", "{ block = 8 }", "\"core_attn\""] {
        assert!(read(&recompute(value)).is_ok(), "{value}");
    }
}

#[test]
fn blocks_that_megatron_would_look_for_behind_a_stages_last_are_refused() {
    let recompute =
        |value: &str| replaced(MEGATRON, &[("[batch]", &format!("[megatron]\nrecompute = {value}\n\n[batch]"))]);
    let said = refusal(&recompute("{ uniform = 100 }"));
    assert!(
        said.contains("takes 100 blocks at a time, and a stage has 2")
            && said.ends_with("write { uniform = 1 } or { uniform = 2 }")
    );
    let uneven = "{ uniform = 2 }\n[pipeline]\nlayers = [1, 3]";
    assert!(refusal(&recompute(uneven)).ends_with("write { uniform = 1 }"));
    assert!(read(&recompute("{ uniform = 2 }")).is_ok());
    // DeepSpeed ends a stretch where a stage does.
    assert!(read(&recompute("{ uniform = 100 }").replace("\"megatron\"", "\"deepspeed\"")).is_ok());
}

#[test]
fn a_stage_of_more_blocks_than_the_model_has_is_told_how_many_there_are() {
    let layers = "[pipeline]\nlayers = [9223372036854775807, 33]\n\n[batch]";
    says(&[(&[("[batch]", layers)], &["has 9223372036854775807 blocks: expected 0 to 4", "such as [2, 2]"])]);
}

#[test]
fn what_megatron_fsdp_is_without_a_strategy_is_said_before_what_that_wants() {
    let on = "[megatron]\nuse_megatron_fsdp = true\ndistributed_optimizer = true\n";
    let text = replaced(MEGATRON, &[("pp = 2", "pp = 1"), ("[batch]", &format!("{on}\n[batch]"))]);
    let said = refusal(&text);
    assert!(
        said.contains("without megatron.data_parallel_sharding_strategy is no_shard, and under no_shard"),
        "{said}"
    );
    let remedy =
        "write megatron.data_parallel_sharding_strategy = \"optim_grads_params\", or megatron.overlap_grad_reduce";
    assert!(said.contains(remedy), "{said}");
    assert!(
        read(&replaced(&text, &[(on, &format!("{on}data_parallel_sharding_strategy = \"optim_grads_params\"\n"))]))
            .is_ok()
    );
    let both = format!("{on}overlap_grad_reduce = true\noverlap_param_gather = true\n");
    assert!(read(&replaced(&text, &[(on, &both)])).is_ok());
    let written = format!("{on}data_parallel_sharding_strategy = \"no_shard\"\n");
    let said = refusal(&replaced(&text, &[(on, &written)]));
    assert!(said.contains("error: under no_shard") || said.starts_with("under no_shard"), "{said}");
    assert!(said.contains("| data_parallel_sharding_strategy = \"no_shard\""), "{said}");
}

#[test]
fn a_framework_by_another_name_is_told_which_runtime_it_is() {
    for (name, words) in [
        ("torchtitan", "write \"fsdp2\", which is FSDP2 (PyTorch fully_shard, CUDA)"),
        ("zero3", "write \"deepspeed-zero\", which is DeepSpeed ZeRO"),
        ("deepspeed_zero", "write \"deepspeed-zero\", which is DeepSpeed ZeRO"),
        ("Megatron-DeepSpeed", "write \"deepspeed\", which is Megatron-DeepSpeed"),
        ("Megatron-LM", "write \"megatron\", which is Megatron-Core"),
        ("maxtext", "write \"xla\""),
        ("deepspeeed", "deepspeed (Megatron-DeepSpeed), deepspeed-zero (DeepSpeed ZeRO)"),
    ] {
        let said = refusal(&replaced(MEGATRON, &[("\"megatron\"", &format!("\"{name}\""))]));
        assert!(said.contains(&format!("there is no runtime {name:?}")) && said.contains(words), "{said}");
    }
}

#[test]
fn a_mixture_without_rules_is_told_the_change_that_gives_it_some() {
    const GROUPED: &str = "[framework]\nexperts = \"grouped\"\n";
    const TITAN: &str = "[framework]\nexperts = \"torchtitan\"\n";
    for (model, mesh, rest, remedy) in [
        ("qwen3-30b-a3b", "tp = 2", TITAN, "write mesh.tp = 1"),
        ("deepseek-v2", "", GROUPED, "write framework.experts = \"torchtitan\""),
        ("deepseek-v3", "", GROUPED, "write framework.experts = \"torchtitan\""),
        (
            "mixtral-8x7b",
            "",
            "[activation_checkpointing]\npolicy = \"selective_op\"\n",
            "experts = \"torchtitan\", or activation",
        ),
        ("mixtral-8x7b", "", "[compile]\nblocks = true\n", "write compile.blocks = false"),
        (
            "mixtral-8x7b",
            "",
            "[framework]\nexperts = \"loop\"\n[model.expert_load]\nmeasured = [1, 1, 1, 1, 1, 1, 1, 0]\n",
            "write model.expert_load = \"balanced\"",
        ),
    ] {
        let said = refusal(&named(model, mesh, rest));
        assert!(said.lines().last().unwrap().contains(remedy), "{model}: expected {remedy:?} in\n{said}");
    }
    let split = "[tensor_parallel]\nsequence = true\n";
    let said = refusal(&named("qwen3-30b-a3b", "tp = 2", &format!("{TITAN}{split}")));
    assert!(said.ends_with("write mesh.tp = 1 without [tensor_parallel]"), "{said}");
    assert!(read(&named("qwen3-30b-a3b", "tp = 1", TITAN)).is_ok());
    assert!(read(&named("deepseek-v2", "", TITAN)).is_ok());
    let fsdp1 = named("mixtral-8x7b", "", "").replace("\"fsdp2\"", "\"fsdp1\"");
    assert!(refusal(&fsdp1).ends_with("write runtime = \"fsdp2\""));
}

#[test]
fn a_histogram_that_no_router_can_make_is_refused_with_the_reason() {
    let counts = |counts: &str| named("mixtral-8x7b", "", &format!("[model.expert_load]\nmeasured = {counts}\n"));
    let said = refusal(&counts("[100, 0, 0, 0, 0, 0, 0, 0]"));
    for words in [
        "sends 100.0 % of all copies to one expert, and each token goes to 2 different experts of mixtral-8x7b",
        "none gets more than 50.0 %",
        "write how many tokens each expert was sent",
    ] {
        assert!(said.contains(words), "{said}");
    }
    assert!(refusal(&counts("[51, 7, 7, 7, 7, 7, 7, 6]")).contains("51.5 %"));
    assert!(read(&counts("[50, 8, 7, 7, 7, 7, 7, 7]")).is_ok());
}
