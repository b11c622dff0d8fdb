//! The SPMD lane: what its axes, policies and flags mean, and what it refuses.

use windtunnel::program::{Category, Collective, Instr};
use windtunnel::runtime::{Parts, spmd};
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Prediction, Scenario, predict};
use windtunnel::units::Bytes;

use crate::command::Folder;
use crate::{followed, make};

const BASE: &str = r#"
runtime = "xla"

[topology]
name = "tpu-v6e"
slice = "4x4"

[model]
name = "llama-3.1-8b"
layers = 4

[mesh]
fsdp = 16

[batch]
sequence = 4096
micro = 2

[xla]
remat_policy = "full"
flags = []
"#;

fn with(changes: &[(&str, &str)]) -> String {
    make::replaced(BASE, changes)
}

fn fly(changes: &[(&str, &str)]) -> Prediction {
    let scenario = Scenario::parse("spmd.toml", &with(changes)).unwrap();
    predict(&scenario, Settings { remedies: false, ..Settings::default() }).unwrap()
}

fn refused(changes: &[(&str, &str)]) -> String {
    followed::refusal("spmd.toml", &with(changes))
}

fn kept(policy: &str) -> Bytes {
    fly(&[("remat_policy = \"full\"", policy)]).memory.report.phases[0].breakdown.bytes(Category::Activation)
}

#[test]
fn what_a_policy_keeps_in_hbm_is_there_when_forward_ends() {
    let (full, projections, all) =
        (kept("remat_policy = \"full\""), kept("remat_policy = \"save_qkv_proj\""), kept("remat_policy = \"minimal\""));
    assert!(full < projections && projections < all, "{full:?} {projections:?} {all:?}");
    // Queries, keys and values of 8,192 tokens in bf16, in each of four blocks.
    let own = 4 * 2 * 8192 * (4096 + 2 * 1024);
    assert_eq!(projections.0 - full.0, own);
}

#[test]
fn what_is_offloaded_leaves_hbm_and_crosses_to_the_host_and_back() {
    let offloaded = fly(&[("remat_policy = \"full\"", "remat_policy = \"qkv_proj_offloaded\"")]);
    let copies = offloaded.parts.iter().filter(|part| part.name == "copy").map(|part| part.count).sum::<u64>();
    // Three tensors, four blocks, there and back.
    assert_eq!(copies, 3 * 4 * 2);
    assert_eq!(kept("remat_policy = \"qkv_proj_offloaded\""), kept("remat_policy = \"full\""));
}

#[test]
fn less_kept_is_more_computed() {
    let flops = |policy: &str| fly(&[("remat_policy = \"full\"", policy)]).classes[0].program.flops.0;
    let (none, minimal, full) =
        (flops("remat_policy = \"none\""), flops("remat_policy = \"minimal\""), flops("remat_policy = \"full\""));
    assert!(none < minimal && minimal < full);
}

#[test]
fn every_chip_gathers_every_weight_in_forward_and_again_in_backward() {
    let flown = fly(&[]);
    let bytes = exchanged(&flown, Collective::AllGather);
    let block: u64 = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336;
    let head = 4096 * 128_256;
    // In bf16; the head's once, for both of its matmuls.
    assert_eq!(bytes, 2 * (2 * 4 * block + head));
}

#[test]
fn replicas_over_slices_add_up_gradients_over_the_network_between_them() {
    let one = fly(&[]);
    let two = fly(&[("slice = \"4x4\"", "slice = \"4x4\"\nslices = 2")]);
    assert_eq!(two.tokens, 2 * one.tokens);
    assert!(two.step > one.step);
    // Shards of four blocks and both tables, and norms' gradients, in bf16.
    let block: u64 = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336;
    let between = 2 * (4 * block + 2 * 4096 * 128_256) / 16 + 4 * 2 * 2 * 4096;
    // Beside replicas nothing is exchanged in windows: within a slice gradients of blocks and of the head are all-reduced whole.
    let within = 2 * (4 * block + 4096 * 128_256);
    let summed = exchanged(&two, Collective::AllReduce) - exchanged(&one, Collective::AllReduce);
    assert_eq!(summed, between + within);
    let text = with(&[("slice = \"4x4\"", "slice = \"4x4\"\nslices = 2")]);
    let scenario = Scenario::parse("spmd.toml", &text).unwrap();
    let Parts::Compiled(job) = scenario.job.parts() else { panic!("of the SPMD lane") };
    assert_eq!((job.mesh.dcn_data, job.mesh.ranks()), (2, 32));
}

#[test]
fn a_chip_waits_for_the_host_only_where_the_loop_reads_something_back() {
    let quiet = fly(&[]);
    assert_eq!(quiet.breakdown.host_bound.0, 0);
    let asked = fly(&[("flags = []", "flags = []\nhost_syncs_per_step = 4")]);
    // 129 us each: what a matmul takes longer by the host's clock than in the device's trace.
    let lost = (asked.step.seconds() - quiet.step.seconds()) * 1e6;
    assert!((lost - 4.0 * 129.0).abs() < 1.0, "{lost}");
    assert!((asked.breakdown.host_bound.seconds() * 1e6 - 4.0 * 129.0).abs() < 1.0);
}

/// Bytes of a kind of collective in a step of one chip.
fn exchanged(flown: &Prediction, kind: Collective) -> u64 {
    let program = &flown.classes[0].program;
    let comms = program.step.iter().filter_map(|instr| match instr {
        Instr::Collective { comm, .. } => Some(program.comm(*comm)),
        _ => None,
    });
    comms.filter(|comm| comm.kind == kind).map(|comm| comm.bytes.0).sum()
}

#[test]
fn chips_that_share_a_sequence_share_its_attention_and_gather_keys_and_values() {
    let alone = fly(&[("fsdp = 16", "fsdp = 4\ndata = 4"), ("sequence = 4096", "sequence = 16384")]);
    let shared = fly(&[
        ("fsdp = 16", "fsdp = 4\ncontext = 4"),
        ("sequence = 4096", "sequence = 16384"),
        ("micro = 2", "micro = 8"),
    ]);
    // As many tokens a chip, and as much arithmetic.
    assert_eq!(alone.tokens, shared.tokens);
    assert_eq!(alone.classes[0].program.flops, shared.classes[0].program.flops);
    // Keys and values of eight sequences: in each of four blocks forward, and in backward for the kernel that runs again and
    // its own.
    let whole: u64 = 2 * 2 * 8 * 128 * 8 * 16384;
    let weights = |flown: &Prediction| exchanged(flown, Collective::AllGather);
    assert_eq!(weights(&shared) - weights(&alone), 4 * 2 * whole);
}

#[test]
fn what_lies_on_the_tensor_axis_is_gathered_and_scattered_where_it_was_summed() {
    let split = ("fsdp = 16", "fsdp = 4\ntensor = 4");
    let whole = fly(&[split, ("flags = []", "flags = []\nactivation_embed = false")]);
    let parts = fly(&[split, ("flags = []", "flags = []\nactivation_embed = true")]);
    // Two sums a block forward, one of them again in backward, and two for gradients; one for the head's, one for the words'.
    let sum: u64 = 2 * 4096 * 8192;
    let norms_and_clip = |flown: &Prediction| exchanged(flown, Collective::AllReduce) % sum;
    assert_eq!(exchanged(&whole, Collective::AllReduce) - norms_and_clip(&whole), sum * (4 * 5 + 2));
    assert_eq!(exchanged(&parts, Collective::AllReduce), norms_and_clip(&whole));
    let scattered = exchanged(&parts, Collective::ReduceScatter) - exchanged(&whole, Collective::ReduceScatter);
    assert_eq!(scattered, sum * (4 * 5 + 2));
    // A block's input, a quarter of it on each chip.
    let kept = |flown: &Prediction| flown.memory.report.phases[0].breakdown.bytes(Category::Activation).0;
    assert!(kept(&parts) < kept(&whole));
}

#[test]
fn eight_bits_are_multiplied_where_the_chip_has_units_for_them() {
    let seven = ("name = \"tpu-v6e\"\nslice = \"4x4\"", "name = \"tpu-v7x\"\nslice = \"2x2x4\"");
    let all = ("fsdp = 16", "fsdp = 32");
    let half = fly(&[seven, all]);
    let full = fly(&[seven, all, ("flags = []", "flags = []\nquantization = \"fp8_full\"\nfixed_calibration = true")]);
    let own = fly(&[seven, all, ("flags = []", "flags = []\nquantization = \"fp8_full\"")]);
    assert!(full.step < own.step && own.step < half.step);
    let int8 = fly(&[("flags = []", "flags = []\nquantization = \"int8\"")]);
    assert!(int8.step < fly(&[]).step);
    let said = refused(&[("flags = []", "flags = []\nquantization = \"fp8_full\"")]);
    assert!(said.contains("TPU v6e has no units for fp8"), "{said}");
    let said = refused(&[seven, all, ("flags = []", "flags = []\nquantization = \"int8\"")]);
    assert!(said.contains("nobody published how fast TPU7x is in int8"), "{said}");
    let said = refused(&[("flags = []", "flags = []\nfixed_calibration = true")]);
    assert!(said.contains("write xla.quantization"), "{said}");
}

#[test]
fn a_first_moment_in_half_the_bytes_leaves_its_other_half_free() {
    let state = |flown: &Prediction| flown.memory.report.breakdown.bytes(Category::OptimizerState).0;
    let half = fly(&[("flags = []", "flags = []\nmu_dtype = \"bfloat16\"")]);
    assert_eq!(4 * state(&half), 3 * state(&fly(&[])));
}

#[test]
fn plain_feed_forwards_beside_attention_have_two_matrices_and_one_norm() {
    let flown = fly(&[("name = \"llama-3.1-8b\"\nlayers = 4", "name = \"maxtext-32b\"\nlayers = 4")]);
    let block: u64 = 4 * 8192 * 8192 + 2 * 8192 * 32768;
    let head = 8192 * 32768;
    assert_eq!(exchanged(&flown, Collective::AllGather), 2 * (2 * 4 * block + head));
}

#[test]
fn keys_of_wrapped_models_are_refused_with_the_reason() {
    for (table, reason) in [
        ("[fsdp]\nreshard_after_forward = true", "nothing is wrapped, resharded or prefetched here"),
        ("[fsdp]\nforward_prefetch = 1", "nothing is wrapped, resharded or prefetched here"),
        ("[activation_checkpointing]\npolicy = \"full\"", "write xla.remat_policy"),
        ("[compile]\nblocks = true", "the whole step is compiled"),
        ("[memory]\nexpandable_segments = true", "there is no allocator to set"),
        ("[precision]\nparam = \"bf16\"", "parameters are in fp32"),
    ] {
        let said = refused(&[("[xla]", &format!("{table}\n\n[xla]"))]);
        assert!(said.contains(reason) && said.contains("spmd.toml:"), "{table}: {said}");
    }
}

#[test]
fn specs_that_do_not_divide_and_slices_nobody_rents_are_refused() {
    for (change, reason) in [
        (("fsdp = 16", "fsdp = 8"), "a slice of tpu-v6e has 16 chips"),
        (("fsdp = 16", "tensor = 16"), "does not divide the 8 key-value heads"),
        (("fsdp = 16", "fsdp = 16\ndcn_data = 2"), "1 slices are rented"),
        (("fsdp = 16", "dp_shard = 16"), "axes here are pipeline, data, fsdp"),
        (("slice = \"4x4\"", "slice = \"3x5\""), "its slices are"),
        (("slice = \"4x4\"", "slice = \"16x32\""), "its slices are"),
        (("slice = \"4x4\"", "nodes = 2"), "sold in slices"),
        (("remat_policy = \"full\"", "remat_policy = \"most\""), "save_qkv_proj"),
        (("remat_policy = \"full\"", "remat_policy = \"full\"\nquery_proj = \"device\""), "goes with a custom policy"),
        (
            ("remat_policy = \"full\"", "remat_policy = \"custom\"\ndecoder_layer_input = \"remat\""),
            "cannot be computed again",
        ),
        (("flags = []", "flags = [\"GO_FASTER\"]"), "\"GO_FASTER\" is neither a group of flags nor a flag"),
        (("flags = []", "flags = []\nnum_vocab_tiling = 3"), "does not divide the 8192 tokens"),
    ] {
        let said = refused(&[change]);
        assert!(said.contains(reason), "{change:?}: {said}");
    }
}

#[test]
fn its_axes_and_table_are_refused_elsewhere() {
    let cuda = "runtime = \"fsdp2\"\n[topology]\nname = \"h200-sxm-141gb\"\nnodes = 1\n[model]\nname = \"llama-3.1-8b\"\n\
                [mesh]\nfsdp = 8\n[batch]\nsequence = 4096\n";
    let said = followed::refusal("spmd.toml", cuda);
    assert!(said.contains("mesh.fsdp is an axis of runtime = \"xla\""), "{said}");
    let said = Scenario::parse("spmd.toml", &cuda.replace("fsdp = 8", "[xla]")).unwrap_err().to_string();
    assert!(said.contains("[xla] belongs to runtime = \"xla\""), "{said}");
}

#[test]
fn a_gates_product_is_made_again_by_its_backward_alone() {
    // As in the compiled step: one fusion has three results, both gradients and the product.
    let flown = fly(&[]);
    let count = |name: &str| flown.parts.iter().filter(|part| part.name == name).map(|part| part.count).sum::<u64>();
    assert_eq!((count("gate"), count("gate backward")), (4, 4));
}

#[test]
fn compiling_is_spread_over_a_run_and_a_full_cache_spares_it() {
    let job = |keys: &str| {
        let scenario = Scenario::parse("spmd.toml", &with(&[("flags = []", &format!("flags = []\n{keys}"))])).unwrap();
        let Parts::Compiled(job) = scenario.job.parts() else { panic!("of the SPMD lane") };
        job.run
    };
    let (least, most) = windtunnel::runtime::spmd::compiled_in();
    // A published log's first step less a later one; what one processor was busy for with such steps.
    assert!((least.seconds() - (44.923 - 5.667)).abs() < 0.5 && most.seconds() == 270.0);
    let run = job("steps = 30\nshapes = 3");
    assert_eq!(run.compiling().1.seconds(), 3.0 * most.seconds());
    let first = job("steps = 30\nshapes = 3\npersistent_cache = true");
    assert!(first.cached);
    assert_eq!(first.compiling(), job("steps = 30\nshapes = 3").compiling(), "the first run fills the cache");
    let said = refused(&[("flags = []", "flags = []\nsteps = 2\nshapes = 3")]);
    assert!(said.contains("3 shapes in 2 steps"), "{said}");
    // The report says so, and promises nothing of a first run.
    let text = with(&[("flags = []", "flags = []\npersistent_cache = true")]);
    let scenario = Scenario::parse("spmd.toml", &text).unwrap();
    let flown = predict(&scenario, Settings { remedies: false, ..Settings::default() }).unwrap();
    let report = windtunnel::report::text::report(&scenario, &flown, Default::default());
    assert!(report.contains("first run: one shape, 39.0 s to 270 s each, kept in the persistent cache"), "{report}");
    let text = with(&[("flags = []", "flags = []\nsteps = 30\nhost_syncs_per_step = 2")]);
    let scenario = Scenario::parse("spmd.toml", &text).unwrap();
    let flown = predict(&scenario, Settings { remedies: false, ..Settings::default() }).unwrap();
    let shown = windtunnel::report::text::report(&scenario, &flown, windtunnel::report::text::Detail::default());
    for words in
        ["Cold against steady state", "one shape, 39.0 s to 270 s each", "30 steps in", "2 a step, 129 us each"]
    {
        assert!(shown.contains(words), "{words}: {shown}");
    }
}

#[test]
fn beyond_the_ceiling_the_compiler_refuses_in_its_own_words() {
    let folder = Folder::new("spmd-ceiling");
    folder.write("a.toml", BASE);
    let said = String::from_utf8(folder.windtunnel(&["ceiling", "a.toml"]).stdout).unwrap();
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        said.contains("Ran out of memory in memory space hbm. Used") && !said.contains("the allocator finds"),
        "{said}"
    );
}

#[test]
fn tensors_kept_one_by_one_are_let_go_one_by_one_where_memory_is_short() {
    let kept = "remat_policy = \"custom\"\nquery_proj = \"device\"\nkey_proj = \"device\"\nvalue_proj = \"device\"";
    let text = with(&[("remat_policy = \"full\"", kept), ("flags = []", "flags = []")]);
    let mut scenario = Scenario::parse("spmd.toml", &text).unwrap();
    let least = predict(&Scenario::parse("spmd.toml", &with(&[])).unwrap(), Settings::default()).unwrap().memory.wanted;
    let most = predict(&scenario, Settings::default()).unwrap().memory.wanted;
    assert!(most > least);
    scenario.topology.chip.memory = Bytes((least.0 + most.0) / 2);
    let remedies = predict(&scenario, Settings::default()).unwrap().memory.remedies;
    for to in ["offload", "remat"] {
        let line = format!("xla.query_proj = \"{to}\", xla.key_proj = \"{to}\", xla.value_proj = \"{to}\"");
        assert!(remedies.iter().any(|remedy| remedy.change == line), "{line}: {remedies:?}");
    }
}

/// The job of the base scenario with another model.
fn job_of(model: &str, layers: u64) -> spmd::XlaPlan {
    let named = format!("name = \"{model}\"\nlayers = {layers}");
    let text = with(&[("name = \"llama-3.1-8b\"\nlayers = 4", &named)]);
    let scenario = Scenario::parse("spmd.toml", &text).unwrap_or_else(|error| panic!("{model}: {error}"));
    match scenario.job.parts() {
        Parts::Compiled(job) => job.clone(),
        _ => panic!("of the SPMD lane"),
    }
}

#[test]
fn a_block_has_the_parameters_of_its_model() {
    for model in [
        "llama-3.1-8b",
        "gemma-3-12b",
        "maxtext-32b",
        "gpt3-175b-nemo",
        "mixtral-8x7b",
        "deepseek-v2-lite",
        "deepseek-v3",
        "gpt-oss-120b",
    ] {
        let job = job_of(model, 8);
        let count = |block: spmd::Block| block.weights.iter().map(|w| w.numbers()).sum::<u64>() + block.norms;
        for layer in job.model.layers.kinds() {
            assert_eq!(count(spmd::Block::of(&job, layer)), layer.params(job.model.width).0, "{model}");
        }
    }
}

#[test]
fn sorted_experts_multiply_each_tokens_copies_and_nothing_else() {
    let mixtral = ("name = \"llama-3.1-8b\"\nlayers = 4", "name = \"mixtral-8x7b\"\nlayers = 4");
    let sorted = fly(&[mixtral]);
    // A place for every copy: as many rows in experts, and masks are multiplied with besides, forward and for gradients.
    let places = fly(&[mixtral, ("flags = []", "flags = []\ncapacity_factor = 1.0")]);
    let flops = |flown: &Prediction| flown.classes[0].program.flops.0;
    let [tokens, width, all] = [8192_u128, 4096, 8192];
    let mask = 2 * tokens * width * all;
    // To places and back, forward and again; three gradients.
    assert_eq!((flops(&places) - flops(&sorted)) % mask, 0);
    assert!((4 * 4..=4 * 8).contains(&((flops(&places) - flops(&sorted)) / mask)));
    // Weights are gathered alike. Scores are put in their places by index: all chips get all tokens' numbers, whole and in
    // three parts, of two experts in four bytes, forward and again; in backward scores of eight experts.
    let all_tokens = 16 * 8192;
    let scores = 4 * all_tokens * (2 * (4 + 3 * 4) * 2 + 8 * 2);
    let gathered = |flown: &Prediction| exchanged(flown, Collective::AllGather);
    assert_eq!(gathered(&places) - gathered(&sorted), scores);
}

#[test]
fn an_axis_of_experts_is_refused_where_it_says_nothing() {
    let mixtral = ("name = \"llama-3.1-8b\"\nlayers = 4", "name = \"mixtral-8x7b\"\nlayers = 4");
    let places = ("flags = []", "flags = []\ncapacity_factor = 1.25");
    let four = ("fsdp = 16", "fsdp = 4\nexpert = 4");
    let cases = [
        (vec![mixtral, places, ("fsdp = 16", "expert = 16")], "mesh.expert = 16 does not divide the 8 experts"),
        (vec![mixtral, four, ("flags = []", "flags = []\nexpert_exchange = \"weights\"")], "tokens go to them"),
        (
            vec![mixtral, four, places, ("flags = []", "flags = []\nexpert_exchange = \"ring\"")],
            "a ring of experts sorts",
        ),
        (vec![mixtral, ("flags = []", "flags = []\nragged_buffer_factor = 2.0")], "over an expert axis"),
        (vec![four, ("flags = []", "flags = []\nexpert_exchange = \"tokens\"")], "no experts are spread over one"),
        (vec![mixtral, places, ("fsdp = 16", "fsdp = 16\nexpert = 4")], "a slice of tpu-v6e has 16 chips"),
        // A product that no machine word holds.
        (
            vec![(
                "fsdp = 16",
                "data = 65536\nfsdp_transpose = 65536\ncontext = 65536\nexpert = 65536\ntensor = 65536",
            )],
            "= 1208925819614629174706176, and a slice of tpu-v6e has 16 chips",
        ),
    ];
    for (changes, said) in cases {
        let refusal = refused(&changes);
        assert!(refusal.contains(said), "{refusal}");
    }
}

#[test]
fn other_weights_are_sharded_over_the_axis_of_experts_too() {
    let mixtral = ("name = \"llama-3.1-8b\"\nlayers = 4", "name = \"mixtral-8x7b\"\nlayers = 4");
    let places = ("flags = []", "flags = []\ncapacity_factor = 1.25");
    let sent = ("flags = []", "flags = []\ncapacity_factor = 1.25\nexpert_exchange = \"tokens\"");
    let four = ("fsdp = 16", "fsdp = 4\nexpert = 4");
    let held = |flown: &Prediction| flown.memory.report.phases[0].breakdown.bytes(Category::Parameter);
    let (alone, gathered, sent) = (fly(&[mixtral, places]), fly(&[mixtral, four, places]), fly(&[mixtral, four, sent]));
    // A share of everything lies on a chip, whichever axes have it.
    assert_eq!(held(&alone), held(&gathered));
    assert_eq!(held(&alone), held(&sent));
    // What is sent: a block's places of two sequences a chip, there and back, forward, again, and for gradients.
    let rows = 2 * (4096 * 2 * 5 / 4);
    let more = exchanged(&sent, Collective::AllToAll) - exchanged(&alone, Collective::AllToAll);
    assert_eq!(more, 4 * 6 * 2 * rows * 4096);
    // What is gathered less: experts of other chips.
    assert!(exchanged(&sent, Collective::AllGather) < exchanged(&gathered, Collective::AllGather));
}
