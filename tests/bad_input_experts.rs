//! Experts that Megatron-Core could not spread, or exchanges that could not run beside other work, are answered with their
//! place and a remedy.

use crate::command::Folder;
use crate::make::{self, MEGATRON, TINY};

#[test]
fn experts_that_do_not_lie_on_the_mesh_are_told_why() {
    let model = "huggingface = \"config.json\"\nlayers = 4";
    let mixtral = MEGATRON.replace(model, "name = \"mixtral-8x7b\"\nlayers = 4");
    let split = mixtral.replace("pp = 2", "pp = 1\nep = 2\n\n[tensor_parallel]\nsequence = true");
    let folder = Folder::new("megatron-experts");
    let said = |text: &str| {
        folder.write("my.toml", text);
        folder.refuses(&["run", "my.toml"])
    };
    for (text, problem, remedy) in [
        (
            split.replace("ep = 2", "ep = 3"),
            "mesh.ep = 3 does not divide the 8 experts of mixtral-8x7b",
            "write mesh.ep = 1 or 2",
        ),
        (
            split.replace("ep = 2", "ep = 8"),
            "ep × etp = 8 × 2 does not divide the tp·cp·dp = 8 ranks",
            "write mesh.etp = 1",
        ),
        (
            split.replace("ep = 2", "etp = 1"),
            "mesh.etp = 1 splits experts otherwise than mesh.tp = 2",
            "mesh.ep = 2 or more",
        ),
        (split.replace("sequence = true", "sequence = false"), "is trained with a split sequence", "sequence = true"),
        (MEGATRON.replace("pp = 2", "pp = 2\nep = 2"), "and config has none", "take a model with experts"),
    ] {
        let said = said(&text);
        assert!(said.contains(problem) && said.contains(remedy), "{said}");
    }
    let dense = said(&format!("{MEGATRON}\n[megatron]\ndelay_wgrad_compute = true\n"));
    assert!(dense.contains("the key says how experts are run, and config has none"), "{dense}");
    let keys = |keys: &str| said(&format!("{split}\n[megatron]\n{keys}\n"));
    let unknown = keys("moe_token_dispatcher_type = \"pigeons\"");
    assert!(unknown.contains("no dispatcher of tokens is called \"pigeons\""), "{unknown}");
    assert!(unknown.contains("\"alltoall\" (rows go to the ranks of their experts)"), "{unknown}");
    let padded = keys("moe_pad_expert_input_to_capacity = true");
    assert!(padded.contains("filled up to a capacity, and none is written"), "{padded}");
    let drawn = keys("moe_router_force_load_balancing = true\nmoe_expert_capacity_factor = 1.0");
    assert!(drawn.contains("with a capacity of experts is not simulated"), "{drawn}");
    let nothing = keys("moe_expert_capacity_factor = 0.0");
    assert!(nothing.contains("1.0 is a balanced load"), "{nothing}");
    let local = keys("implementation = \"local\"\nmoe_permute_fusion = true");
    assert!(local.contains("moe_permute_fusion is Transformer Engine's"), "{local}");
    let twice = keys("recompute = { uniform = 1 }\nrecompute_modules = [\"moe_act\"]");
    assert!(twice.contains("runs parts of a block again"), "{twice}");
    for (modules, problem, remedy) in [
        ("\"mla_up_proj\"", "names mla_up_proj, and mixtral-8x7b has no latent attention", "remove \"mla_up_proj\""),
        ("\"shared_experts\"", "names shared_experts, and mixtral-8x7b has no shared experts", "remove"),
    ] {
        let said = keys(&format!("recompute_modules = [{modules}]"));
        assert!(said.contains(problem) && said.contains(remedy), "{said}");
    }
    let dense = said(&format!("{MEGATRON}\n[megatron]\nrecompute_modules = [\"moe\"]\n"));
    assert!(dense.contains("names moe, and config has no experts"), "{dense}");
}

#[test]
fn experts_that_see_narrower_rows_say_where_they_are_not_simulated() {
    const SUPER: &str = "name = \"nemotron-3-super-120b-a12b\"";
    let folder = Folder::new("megatron-narrower");
    let said = |text: &str| {
        folder.write("my.toml", text);
        folder.refuses(&["run", "my.toml"])
    };
    let model = "huggingface = \"config.json\"\nlayers = 4";
    let megatron = MEGATRON.replace(model, SUPER).replace("tp = 2\npp = 2", "ep = 8");
    for (rest, problem) in [
        ("moe_shared_expert_overlap = true", "an exchange of narrower rows, which Megatron-Core refuses"),
        (
            "cuda_graph_impl = \"transformer_engine\"\ncuda_graph_scope = [\"moe_router\"]",
            "see a narrower copy of the hidden state are not simulated",
        ),
    ] {
        let keys = format!("moe_token_dispatcher_type = \"alltoall\"\n{rest}");
        let said = said(&format!("{megatron}\n[megatron]\n{keys}\n"));
        assert!(said.contains(problem), "{said}");
    }
    let sharded =
        said(&(TINY.replace("huggingface = \"config.json\"", SUPER) + "[framework]\nexperts = \"torchtitan\"\n"));
    assert!(sharded.contains("a narrower copy of the hidden state"), "{sharded}");
}

#[test]
fn exchanges_beside_another_micro_batch_say_what_they_need() {
    let model = "huggingface = \"config.json\"\nlayers = 4";
    let mixtral = MEGATRON.replace(model, "name = \"mixtral-8x7b\"\nlayers = 4");
    let whole = mixtral.replace("tp = 2\npp = 2", "pp = 2\nep = 2\n\n[pipeline]\nvirtual_stages = 2")
        + "\n[megatron]\nmoe_token_dispatcher_type = \"alltoall\"\noverlap_moe_expert_parallel_comm = true\n";
    let folder = Folder::new("megatron-together");
    for (old, new, problem, remedy) in [
        (
            "overlap_moe_expert_parallel_comm",
            "delay_wgrad_compute",
            "overlaps weight gradients with exchanges of experts, and none are overlapped",
            "overlap_moe_expert_parallel_comm = true",
        ),
        (
            "[megatron]\n",
            "[megatron]\ncross_entropy_fusion_impl = \"te\"\n",
            "says whose fused loss it is, and the loss is not fused",
            "cross_entropy_loss_fusion = true",
        ),
        (
            "[megatron]\n",
            "[megatron]\ndelay_wgrad_compute = true\ntp_comm_overlap = true\n",
            "leaves no weight gradients for later whose matmuls overlap with exchanges",
            "megatron.tp_comm_overlap = false",
        ),
        (
            "ep = 2\n",
            "",
            "hides what ranks with different experts exchange, and all have all",
            "write mesh.ep = 2 or more",
        ),
        (
            "virtual_stages = 2",
            "virtual_stages = 1",
            "runs stages in turns, and each rank has one",
            "virtual_stages = 2",
        ),
        (
            "virtual_stages = 2",
            "virtual_stages = 2\noverlap_p2p = false",
            "with pipeline.overlap_p2p = false each waits for its messages",
            "remove pipeline.overlap_p2p",
        ),
        ("virtual_stages = 2", "schedule = \"Megatron1F1B\"", "is a schedule of its own", "remove one of the two keys"),
        ("mixtral-8x7b", "llama-3.1-8b", "says how experts are run, and llama-3.1-8b has none", "remove the key"),
        ("[megatron]\n", "[megatron]\nrecompute = { uniform = 1 }\n", "cuts blocks into parts", "recompute = \"none\""),
        (
            "\"alltoall\"",
            "\"allgather\"",
            "is for the dispatchers \"alltoall\" and \"flex\", not \"allgather\"",
            "moe_token_dispatcher_type = \"alltoall\"",
        ),
    ] {
        let text = whole.replacen(old, new, 1);
        // A dense model has no experts to spread.
        let text = match new.contains("llama") {
            true => text.replacen("ep = 2\n", "", 1).replacen("moe_token_dispatcher_type = \"alltoall\"\n", "", 1),
            false => text,
        };
        folder.write("my.toml", &text);
        let said = folder.refuses(&["run", "my.toml"]);
        assert!(said.contains(problem) && said.contains(remedy), "{new}\n{said}");
    }
}

#[test]
fn the_schedule_of_exchanges_beside_another_micro_batch_is_asked_for_by_its_key() {
    let model = "huggingface = \"config.json\"\nlayers = 4";
    let schedule = "pp = 2\nep = 2\n\n[pipeline]\nvirtual_stages = 2\nschedule = \"MegatronCombined1F1B\"";
    let alone = MEGATRON.replace(model, "name = \"mixtral-8x7b\"\nlayers = 4").replace("tp = 2\npp = 2", schedule);
    let folder = Folder::new("megatron-combined");
    folder.write("my.toml", &alone);
    let said = folder.refuses(&["run", "my.toml"]);
    assert!(said.contains("is what overlap_moe_expert_parallel_comm makes of a pipeline, and that is off"), "{said}");
    assert!(
        said.contains("write megatron.overlap_moe_expert_parallel_comm = true, or remove pipeline.schedule"),
        "{said}"
    );
    let both = format!(
        "{alone}\n[megatron]\nmoe_token_dispatcher_type = \"alltoall\"\noverlap_moe_expert_parallel_comm = true\n"
    );
    assert!(make::parse(&both).simulable().is_ok());
}
