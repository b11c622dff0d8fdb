//! DeepSpeed's Ulysses (`mesh.cp` under ZeRO): what changes hands, what ranks hold, and what is refused. Blocks and collectives of
//! a step are held against DeepSpeed itself in `oracle/deepspeed_memory.rs`.

use windtunnel::program::{Collective, Instr, Program};
use windtunnel::scenario::predict;
use windtunnel::scenario::predict::Settings;

use crate::command::Folder;
use crate::make;
use crate::zero::balanced;

/// The tiny model, of four heads and two key-value heads of 16 numbers, on eight ranks.
const SHARED: &str = r#"runtime = "deepspeed-zero"

[topology]
name = "h100-sxm-80gb"
nodes = 1

[model]
huggingface = "config.json"

[mesh]
cp = 2

[batch]
sequence = 128
accumulation = 2

[activation_checkpointing]
policy = "none"

[zero]
stage = 2
reduce_bucket_size = 20_000
"#;

fn by(ranks: u64) -> String {
    SHARED.replace("cp = 2", &format!("cp = {ranks}"))
}

/// Bytes of all collectives of a kind that are more than numbers.
fn moved(program: &Program, kind: Collective) -> u64 {
    let comms = program.step.iter().filter_map(|instr| match *instr {
        Instr::Collective { comm, .. } => Some(*program.comm(comm)),
        _ => None,
    });
    comms.filter(|comm| comm.kind == kind && comm.bytes.0 > 64).map(|comm| comm.bytes.0).sum()
}

#[test]
fn queries_keys_values_and_the_context_change_hands_in_each_pass() {
    // Three blocks, two micro-batches. A token has four heads of queries and of the context, and two of keys and of values, which
    // four ranks repeat.
    let pass = |ranks: u64| 3 * 2 * (128 / ranks) * 16 * 2 * (2 * 4 + 2 * ranks.max(2));
    for ranks in [2, 4] {
        let sent = |text: &str| moved(&make::program(text), Collective::AllToAll);
        assert_eq!(sent(&by(ranks)), 2 * pass(ranks));
        assert_eq!(sent(&by(ranks).replace("\"none\"", "\"full\"")), 3 * pass(ranks));
    }
}

#[test]
fn gradients_are_reduced_in_fp32_where_ranks_share_a_sequence() {
    for (stage, kind) in [(1, Collective::AllReduce), (2, Collective::AllReduce), (3, Collective::ReduceScatter)] {
        let text = |ranks| by(ranks).replace("stage = 2", &format!("stage = {stage}"));
        let reduced = |ranks| moved(&make::program(&text(ranks)), kind);
        assert_eq!(reduced(2), 2 * reduced(1));
    }
}

#[test]
fn a_rank_of_four_holds_less_than_half_of_a_long_sequence() {
    let long = |ranks: u64| make::fly(&by(ranks).replace("sequence = 128", "sequence = 32_768"));
    let peak = |ranks| long(ranks).classes[0].memory.report.peak_allocated.0;
    assert!(2 * peak(4) < peak(1), "{} {}", peak(4), peak(1));
}

#[test]
fn whatever_shares_a_sequence_a_step_ends_with_what_it_began_with() {
    for (stage, ranks, policy, micro) in [
        (1, 2, "none", 1),
        (1, 4, "full", 2),
        (2, 2, "full", 1),
        (2, 4, "none", 2),
        (3, 2, "none", 2),
        (3, 4, "full", 1),
    ] {
        let text =
            by(ranks).replace("stage = 2", &format!("stage = {stage}")).replace("\"none\"", &format!("{policy:?}"));
        let text = text.replace("sequence = 128", &format!("sequence = 128\nmicro = {micro}"));
        assert!(balanced(&text), "{text}");
        let scenario = make::parse(&text);
        let fly = |fold| predict(&scenario, Settings { fold, ..Settings::default() }).unwrap();
        assert_eq!(fly(true).step, fly(false).step);
        assert_eq!(scenario.job.tokens(), 2 * 128 * micro * 8 / ranks);
    }
}

#[test]
fn a_report_says_who_shares_a_sequence() {
    let folder = Folder::new("ulysses-report");
    folder.write("my.toml", SHARED);
    folder.write("config.json", include_str!("tiny/config.json"));
    let said = String::from_utf8(folder.windtunnel(&["run", "my.toml"]).stdout).unwrap();
    assert!(said.contains(" · cp 2 × dp 4 · 128 tokens × 1 per replica × 2 micro-batches"), "{said}");
    let said = String::from_utf8(folder.windtunnel(&["show", "plan", "my.toml"]).stdout).unwrap();
    assert!(said.contains("cp=2, dp=4"), "{said}");
    let said = String::from_utf8(folder.windtunnel(&["ceiling", "my.toml", "--max", "256"]).stdout).unwrap();
    assert!(said.contains("2 micro-batches per replica"), "{said}");
}

#[test]
fn what_cannot_be_shared_is_refused_with_what_to_write() {
    let of = |old: &str, new: &str| SHARED.replacen(old, new, 1);
    let three = of("nodes = 1", "chips = 6");
    let cases = [
        (three.replace("cp = 2", "cp = 3"), "mesh.cp = 3 does not divide the 4 heads", "write mesh.cp = 1 or 2"),
        (three.replace("cp = 2", "cp = 3\ndp = 2"), "does not divide the 4 heads", "1 or 2, and leave mesh.dp open"),
        (
            of("huggingface = \"config.json\"", "huggingface = \"config.json\"\nhidden = 96\nheads = 6\nkv_heads = 3"),
            "of mesh.cp = 2 and the 3 key-value heads of",
            "write mesh.cp = 1",
        ),
        (
            of("cp = 2", "cp = 4").replace("sequence = 128", "sequence = 126"),
            "mesh.cp = 4 does not divide a sequence of 126 tokens",
            "write batch.sequence = 128",
        ),
        (
            of("\"none\"", "\"selective_op\""),
            "selective checkpointing where ranks share a sequence has no rules",
            "write policy = \"full\", or mesh.cp = 1",
        ),
        (
            of("stage = 2", "stage = 3\nzero_quantized_gradients = true").replace("nodes = 1", "nodes = 2"),
            "zero.zero_quantized_gradients has no rules where ranks share a sequence",
            "write mesh.cp = 1",
        ),
        (
            of("huggingface = \"config.json\"", "name = \"mistral-7b-v0.1\"\nlayers = 2"),
            "sliding windows have no rules where ranks share a sequence",
            "write mesh.cp = 1",
        ),
        (of("cp = 2", "cp = 3"), "cp = 3 does not divide the 8 chips", "write axes whose product divides it"),
        (of("cp = 2", "cp = 2\ndp = 8"), "the mesh holds 16 ranks but the topology has 8 chips", "mesh.dp must be 4"),
        (of("cp = 2", "cp = 2\ntp = 2"), "mesh.tp means nothing", "mesh.cp"),
    ];
    for (number, (text, problem, remedy)) in cases.iter().enumerate() {
        let folder = Folder::new(&format!("ulysses-{number}"));
        folder.write("my.toml", text);
        folder.write("config.json", include_str!("tiny/config.json"));
        let said = folder.refuses(&["run", "my.toml"]);
        assert!(said.contains(problem) && said.contains("--> my.toml:"), "{number}\n{said}");
        assert!(said.contains(remedy), "{number}\n{said}");
    }
}
