//! DeepSpeed's ZeRO around a PyTorch module: what each stage moves and holds, and what is refused. Blocks and collectives of a
//! step are held against DeepSpeed itself in `oracle/deepspeed_memory.rs`.

use proptest::prelude::*;
use windtunnel::program::{Category, Collective, Instr, Program, Work};
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Prediction, predict};

use crate::command::Folder;
use crate::make;

/// The tiny model on eight ranks.
pub const ZERO: &str = r#"runtime = "deepspeed-zero"

[topology]
name = "h100-sxm-80gb"
nodes = 1

[model]
huggingface = "config.json"

[mesh]
dp = 8

[batch]
sequence = 128
accumulation = 2

[zero]
stage = 2
reduce_bucket_size = 20_000
"#;

fn peak(flown: &Prediction) -> u64 {
    flown.classes.iter().map(|class| class.memory.report.peak_allocated.0).max().unwrap()
}

/// Whether a step of a scenario holds at its end what it held at its beginning.
pub fn balanced(text: &str) -> bool {
    let program = make::program(text);
    let mut held = vec![false; program.buffers.len()];
    let stays = |instr: &&Instr| match **instr {
        Instr::Free { buffer } => program.buffer(buffer).category != Category::Workspace,
        _ => true,
    };
    let first = program.before_second().filter(stays);
    let before = make::live(&program, first, &mut held);
    (0..2).all(|_| make::live(&program, program.step.iter().filter(stays), &mut held) == before)
}

/// Settings of all stages, from buckets and distances of nothing to those of everything.
fn settings() -> impl Strategy<Value = String> {
    let sizes = || prop::sample::select(vec![1_u64, 64, 5_000, 20_000, 1_000_000]);
    let stage = (1..=3_u32, sizes(), any::<bool>(), any::<bool>(), 1..=3_u32);
    let three = (sizes(), sizes(), sizes(), sizes(), sizes());
    let rest = (0..3_usize, any::<bool>(), prop::sample::select(vec![1_u32, 2, 8]), 0..3_usize, 0..6_u32);
    (stage, three, rest).prop_map(|(stage, three, (policy, early_stop, chips, optimizer, offload))| {
        let (stage, bucket, overlap, round_robin, accumulation) = stage;
        let (prefetch, persist, live, reuse, group) = three;
        let policy = ["none", "full", if stage < 3 { "selective_op" } else { "full" }][policy];
        let (name, implementation) = [("adamw", "fused"), ("adamw", "foreach"), ("sgd", "foreach")][optimizer];
        let own = match stage {
            3 => format!(
                "stage3_prefetch_bucket_size = {prefetch}\nstage3_param_persistence_threshold = {persist}\n\
                 stage3_max_live_parameters = {live}\nstage3_max_reuse_distance = {reuse}\nsub_group_size = {group}\n"
            ),
            _ => format!("round_robin_gradients = {round_robin}\n"),
        };
        let chips = if stage == 3 { chips.max(2) } else { chips };
        let own = match (offload, stage) {
            (0, _) => own,
            (2, 3) => format!("{own}offload_optimizer.device = \"cpu\"\noffload_param.device = \"cpu\"\n"),
            (3, 3) => format!("{own}zero_hpz_partition_size = 2\n"),
            (4, 3) => format!("{own}zero_quantized_weights = true\n"),
            (5, 3) => format!("{own}zero_quantized_weights = true\nzero_hpz_partition_size = 2\n"),
            (4.., _) => own,
            (1, 3) => format!("{own}offload_optimizer = {{ device = \"cpu\", ratio = 0.3 }}\n"),
            _ => format!("{own}offload_optimizer.device = \"cpu\"\n"),
        };
        let optimizer = match offload {
            _ if !own.contains("offload") => format!("name = \"{name}\"\nimplementation = \"{implementation}\"\n"),
            _ => "name = \"adamw\"\n".to_owned(),
        };
        let zero = format!("stage = {stage}\nreduce_bucket_size = {bucket}\noverlap_comm = {overlap}\n{own}");
        let text = ZERO.replace("stage = 2\nreduce_bucket_size = 20_000\n", &zero);
        let text = text.replace("accumulation = 2", &format!("accumulation = {accumulation}"));
        let text = text.replace("nodes = 1", &format!("chips = {chips}")).replace("dp = 8", &format!("dp = {chips}"));
        format!(
            "{text}\n[activation_checkpointing]\npolicy = \"{policy}\"\nearly_stop = {early_stop}\n\n\
             [optimizer]\n{optimizer}"
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_settings_a_step_ends_with_what_it_began_with(text in settings()) {
        prop_assert!(balanced(&text), "{text}");
        let scenario = make::parse(&text);
        let fly = |fold| predict(&scenario, Settings { fold, ..Settings::default() }).unwrap();
        let (folded, full) = (fly(true), fly(false));
        prop_assert_eq!(folded.step, full.step);
        prop_assert!(folded.step.0 > 0);
    }
}

#[test]
fn zero_2_reduces_every_micro_batch_and_zero_1_only_the_last() {
    let reduced = |stage: u32| {
        let program = make::program(&ZERO.replace("stage = 2", &format!("stage = {stage}")));
        let collectives = program.step.iter().filter_map(|instr| match *instr {
            Instr::Collective { comm, .. } => Some(*program.comm(comm)),
            _ => None,
        });
        let large = collectives.filter(|comm| comm.kind == Collective::AllReduce && comm.bytes.0 > 16);
        large.map(|comm| comm.bytes.0).sum::<u64>()
    };
    assert!(reduced(1) > 0);
    assert_eq!(reduced(2), 2 * reduced(1));
}

#[test]
fn between_micro_batches_zero_1_holds_all_gradients_and_zero_2_its_part() {
    let many = ZERO.replace("accumulation = 2", "accumulation = 4");
    let flown = |stage: u32| make::fly(&many.replace("stage = 2", &format!("stage = {stage}")));
    assert!(peak(&flown(1)) > peak(&flown(2)));
}

/// Bytes that a step moves in collectives of a kind.
fn moved(keys: &str, kind: Collective) -> u64 {
    let program = make::program(&ZERO.replace("stage = 2", keys));
    let comms = program.step.iter().filter_map(|instr| match *instr {
        Instr::Collective { comm, .. } => Some(*program.comm(comm)),
        _ => None,
    });
    comms.filter(|comm| comm.kind == kind).map(|comm| comm.bytes.0).sum()
}

#[test]
fn zero_3_scatters_every_gradient_once_a_micro_batch_and_gathers_again_what_is_used_late() {
    // All sizes are multiples of eight: no part is filled up. Two micro-batches of two bytes an element.
    let all = 2 * 2 * make::parse(ZERO).job.model().params().total;
    assert_eq!(moved("stage = 3", Collective::ReduceScatter), all);
    let keys = "stage = 3\nstage3_param_persistence_threshold = 0\nstage3_prefetch_bucket_size = 0\n";
    // With the default distance of reuse a small model stays from forward to backward.
    assert_eq!(moved(keys, Collective::AllGather), all);
    let again = moved(&format!("{keys}stage3_max_reuse_distance = 0"), Collective::AllGather);
    assert!(again > all && again <= 2 * all, "{again} {all}");
}

#[test]
fn zero_3_holds_less_than_zero_2_where_nothing_is_kept_for_reuse() {
    let keys = "stage = 3\nstage3_param_persistence_threshold = 0\nstage3_prefetch_bucket_size = 0\n";
    let three = ZERO.replace("stage = 2", &format!("{keys}stage3_max_reuse_distance = 0"));
    assert!(peak(&make::fly(&three)) < peak(&make::fly(ZERO)));
}

/// Bytes that a step copies to the host's memory, and from it.
fn crossed(program: &Program) -> (u64, u64) {
    let copies = program.step.iter().filter_map(|instr| match *instr {
        Instr::Launch { kernel, .. } => match program.kernel(kernel).work {
            Work::HostCopy { bytes, to_host } => Some((bytes.0, to_host)),
            _ => None,
        },
        _ => None,
    });
    copies.fold((0, 0), |(to, from), (bytes, to_host)| if to_host { (to + bytes, from) } else { (to, from + bytes) })
}

#[test]
fn what_is_stepped_on_the_host_crosses_there_in_fp32_and_back_in_bf16() {
    // One micro-batch of eight ranks: four bytes of each rank's eighth go there, two come back.
    let part = make::parse(ZERO).job.model().params().total / 8;
    let once = |stage: u32| {
        let keys = format!("stage = {stage}\noffload_optimizer.device = \"cpu\"");
        let text = ZERO.replace("accumulation = 2", "accumulation = 1").replace("stage = 2", &keys);
        crossed(&make::program(&text))
    };
    assert_eq!(once(1), (4 * part, 2 * part));
    assert_eq!(once(2), (4 * part, 2 * part));
    // Under ZeRO-3 each gradient also goes there in bf16, and comes back.
    assert_eq!(once(3), (6 * part, 4 * part));
}

#[test]
fn an_optimizer_on_the_host_leaves_no_states_on_the_device() {
    for stage in [1, 2, 3] {
        let keys = format!("stage = {stage}\noffload_optimizer.device = \"cpu\"");
        let text = ZERO.replace("stage = 2", &keys);
        let here = |text: &str| {
            let program = make::program(text);
            let states = [Category::OptimizerState, Category::Parameter];
            let all = program.before_second().filter_map(|instr| match *instr {
                Instr::Alloc { buffer } => Some(program.buffer(buffer)),
                _ => None,
            });
            all.filter(|buffer| states.contains(&buffer.category)).map(|buffer| buffer.bytes.0).sum::<u64>()
        };
        // Under ZeRO-3 the rank's part of parameters in bf16 stays.
        let part = make::parse(ZERO).job.model().params().total / 8;
        assert_eq!(here(&text), if stage == 3 { 2 * part } else { 0 });
        let host = make::program(&text).host;
        assert!(host.held.0 >= 16 * part && host.all >= host.held && host.pinned < host.all, "{host:?}");
    }
}

#[test]
fn states_of_the_405b_do_not_fit_in_a_nodes_host_memory() {
    let text = ZERO.replace("stage = 2", "stage = 3\noffload_optimizer.device = \"cpu\"");
    let memory = make::fly(&text.replace("huggingface = \"config.json\"", "name = \"llama-3.1-405b\"")).memory;
    assert!(memory.refused() && memory.host.unwrap().shortfall().0 > 2_000_000_000_000);
}

#[test]
fn with_a_second_copy_in_each_node_only_the_first_gather_of_a_parameter_crosses_nodes() {
    let keys = "stage = 3\nstage3_param_persistence_threshold = 0\nstage3_prefetch_bucket_size = 0\nstage3_max_reuse_distance = 0\nzero_hpz_partition_size = 4";
    let program = make::program(&ZERO.replace("stage = 2", keys));
    let mut gathered = [0, 0];
    for instr in &program.step {
        if let Instr::Collective { comm, .. } = *instr
            && let comm = program.comm(comm)
            && comm.kind == Collective::AllGather
        {
            gathered[usize::from(program.group(comm.group).size == 4)] += comm.bytes.0;
        }
    }
    // Two micro-batches: all parameters once from all ranks, then, but for those that stay between two uses, within nodes.
    let all = 2 * make::parse(ZERO).job.model().params().total;
    assert_eq!(gathered[0], all);
    assert!(gathered[1] > all && gathered[1] <= 3 * all, "{gathered:?} {all}");
}

#[test]
fn parameters_in_eight_bits_are_half_of_what_is_gathered_but_for_scales() {
    let keys = "stage = 3\nstage3_param_persistence_threshold = 0\n";
    let wide = moved(keys, Collective::AllGather);
    let narrow = moved(&format!("{keys}zero_quantized_weights = true"), Collective::AllGather);
    assert!(narrow > wide / 2 && narrow < wide / 2 + wide / 100, "{narrow} {wide}");
}

#[test]
fn gradients_in_four_bits_cross_nodes_as_an_eighth_of_a_quarter() {
    let keys = "stage = 3\nstage3_param_persistence_threshold = 0\nzero_quantized_gradients = true";
    let two = ZERO.replace("nodes = 1", "nodes = 2").replace("dp = 8", "dp = 16");
    let program = make::program(&two.replace("stage = 2", keys));
    let mut sent = [0, 0];
    for instr in &program.step {
        if let Instr::Collective { comm, .. } = *instr
            && let comm = program.comm(comm)
            && comm.kind == Collective::AllToAll
        {
            sent[usize::from(program.group(comm.group).stride > 1)] += comm.bytes.0;
        }
    }
    // Half a byte of each element of a matrix in each of two micro-batches, and a scale for each row or column.
    let all = make::parse(ZERO).job.model().params().total;
    assert!(sent[0] > all * 9 / 10 && sent[0] < all * 3 / 2, "{sent:?} {all}");
    assert_eq!(sent[1], sent[0] / 8);
}

#[test]
fn a_second_buffer_is_what_overlap_holds_more() {
    let large = ZERO.replace("20_000", "20_000_000");
    let overlaps = large.replace("stage = 2", "stage = 2\noverlap_comm = true");
    let more = peak(&make::fly(&overlaps)) - peak(&make::fly(&large));
    assert!(more.abs_diff(2 * 20_000_000) < 1 << 20, "{more}");
}

#[test]
fn what_a_file_leaves_open_is_what_deepspeed_has_for_it() {
    let open = ZERO.replace("reduce_bucket_size = 20_000\n", "");
    let said = make::parse(&open).assumption_lines().join("\n");
    for line in ["zero.reduce_bucket_size = 500000000", "zero.overlap_comm = false", "optimizer.clip_grad_norm = true"]
    {
        assert!(said.contains(line), "{line}\n{said}");
    }
}

#[test]
fn what_zero_has_no_rules_for_is_refused_with_what_to_write() {
    let refused = |number: usize, text: &str| {
        let folder = Folder::new(&format!("zero-{number}"));
        folder.write("my.toml", text);
        folder.write("config.json", include_str!("tiny/config.json"));
        folder.refuses(&["run", "my.toml"])
    };
    let zero = |old: &str, new: &str| ZERO.replacen(old, new, 1);
    let cases = [
        (zero("stage = 2", "stage = 3\nround_robin_gradients = true"), "means nothing under stage = 3", "stage = 2"),
        (
            zero("stage = 2", "stage = 3").replace("[zero]", "[loss]\nkind = \"fused_linear\"\n\n[zero]"),
            "a loss that takes the head in parts is not simulated under zero.stage = 3",
            "write loss.kind = \"fp32\", or zero.stage = 2",
        ),
        (
            zero("stage = 2", "stage = 3")
                .replace("[zero]", "[activation_checkpointing]\npolicy = \"selective_op\"\n\n[zero]"),
            "selective checkpointing is not simulated under zero.stage = 3",
            "write activation_checkpointing.policy = \"full\", or zero.stage = 2",
        ),
        (
            zero("huggingface = \"config.json\"", "name = \"mixtral-8x7b\""),
            "experts, which mixtral-8x7b has",
            "dense model",
        ),
        (
            zero("stage = 2", "stage = 3").replace("nodes = 1", "chips = 1").replace("dp = 8", "dp = 1"),
            "on one rank has no parts to gather",
            "stage = 2",
        ),
        (zero("stage = 2", "stage = 0"), "zero.stage = 0 shards nothing", "write stage = 1"),
        (zero("stage = 2", "stage = 4"), "zero.stage = 4 is none of DeepSpeed's", "write stage = 1"),
        (zero("stage = 2\n", ""), "does not say zero.stage", "write stage = 1"),
        (zero("stage = 2", "stage = 2\nstage3_max_live_parameters = 5"), "is read under stage = 3 alone", "remove"),
        (
            zero("stage = 2", "stage = 2\noffload_optimizer = { device = \"cpu\", pin_memory = false }"),
            "profiles are of copies to pinned memory",
            "pin_memory = true",
        ),
        (
            zero("stage = 2", "stage = 2\noffload_optimizer = { device = \"cpu\", ratio = 0.5 }"),
            "ratio is read under stage = 3 alone",
            "stage = 3",
        ),
        (
            zero("stage = 2", "stage = 3\noffload_optimizer = { device = \"cpu\", ratio = 1.5 }"),
            "ratio = 1.5 is out of range",
            "",
        ),
        (
            zero("stage = 2", "stage = 2\noffload_param.device = \"cpu\""),
            "offload_param is read under stage = 3",
            "stage = 3",
        ),
        (
            zero("stage = 2", "stage = 3\noffload_param.device = \"cpu\""),
            "what is stepped on the device has no rules",
            "offload_optimizer.device",
        ),
        (
            zero("stage = 2", "stage = 2\noffload_optimizer.device = \"cpu\"")
                .replace("[zero]", "[optimizer]\nname = \"sgd\"\n\n[zero]"),
            "sgd on the host has no rules",
            "name = \"adamw\"",
        ),
        (
            zero("stage = 2", "stage = 2\noffload_optimizer.device = \"cpu\"")
                .replace("[zero]", "[optimizer]\nimplementation = \"fused\"\n\n[zero]"),
            "implementation means nothing on the host",
            "remove the key",
        ),
        (zero("stage = 2", "stage = 2\nzero_hpz_partition_size = 4"), "is read under stage = 3 alone", "stage = 3"),
        (
            zero("stage = 2", "stage = 3\nzero_hpz_partition_size = 3"),
            "8 ranks cannot be cut into groups of zero.zero_hpz_partition_size = 3",
            "divisor",
        ),
        (
            zero("stage = 2", "stage = 2\nzero_quantized_weights = true"),
            "zero_quantized_weights is read under stage = 3 alone",
            "stage = 3",
        ),
        (zero("stage = 2", "stage = 2\ncontiguous_gradients = false"), "contiguous_gradients = false", "= true"),
        (zero("stage = 2", "stage = 2\nprefetch = 5"), "prefetch", ""),
        (zero("reduce_bucket_size = 20_000", "reduce_bucket_size = 0"), "reduce_bucket_size = 0 is out of range", ""),
        (zero("dp = 8", "dp = 4\ntp = 2"), "mesh.tp means nothing", "mesh.dp"),
        (zero("dp = 8", "pp = 8"), "mesh.pp means nothing", "mesh.dp"),
        (zero("dp = 8", "dp = 4"), "the mesh holds 4 ranks but the topology has 8 chips", "mesh.dp must be 8"),
        (zero("[zero]", "[fsdp]\nwrap = \"root\"\n[zero]"), "[fsdp] means nothing", "zero.stage"),
        (zero("[zero]", "[precision]\nparam = \"fp16\"\n[zero]"), "parameters in fp16 have no rules", "\"bf16\""),
        (
            zero("\"deepspeed-zero\"", "\"fsdp2\"").replace("dp = 8", "dp_shard = 8"),
            "[zero] belongs to",
            "deepspeed-zero",
        ),
    ];
    for (number, (text, problem, remedy)) in cases.iter().enumerate() {
        let said = refused(number, text);
        assert!(said.contains(problem) && said.contains("--> my.toml:"), "{number}\n{said}");
        assert!(said.contains(remedy), "{number}\n{said}");
    }
}
