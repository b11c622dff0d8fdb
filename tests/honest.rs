//! What a file says changes the answer, is said to change nothing, or is refused.

use windtunnel::scenario::Scenario;
use windtunnel::scenario::predict::{Kind, Prediction, Settings, predict};
use windtunnel::units::Time;

use crate::command::Folder;
use crate::make::{self, MEGATRON, TINY};

/// Llama 3.1 8B of four layers on a machine of somebody's own: the shipped H100's with one number changed.
fn on_own_machine(test: &str, from: &str, to: &str) -> (Scenario, Prediction) {
    let folder = Folder::new(test);
    let shipped = include_str!("../topologies/h100-sxm-80gb.toml");
    folder.write("own.toml", &make::replaced(shipped, &[(from, to)]));
    let plan = "runtime = \"fsdp2\"\n[topology]\nname = \"own.toml\"\nnodes = 1\n[model]\nname = \"llama-3.1-8b\"\nlayers = 4\n\
                [mesh]\ndp_shard = 8\n[batch]\nsequence = 2048\n";
    folder.write("plan.toml", plan);
    let scenario = Scenario::load(folder.path.join("plan.toml")).expect("a plan that can be read");
    let answer = predict(&scenario, Settings::default()).expect("a plan that runs");
    (scenario, answer)
}

#[test]
fn links_of_half_the_bandwidth_take_up_to_twice_as_long_and_are_said_to_be_extrapolated() {
    let (_, before) = on_own_machine("own-links-before", "50 MiB", "50 MiB");
    let (scenario, slow) = on_own_machine("own-links", "\"450 GB/s\"", "\"225 GB/s\"");
    let of = |answer: &Prediction| -> Time {
        answer.parts.iter().filter(|part| part.group == "collective").map(|part| part.busy).sum()
    };
    let ratio = of(&slow).seconds() / of(&before).seconds();
    assert!((1.3..=2.0).contains(&ratio), "{ratio}");
    assert!(slow.unread.is_empty() && scenario.assumption_lines().iter().any(|line| line.contains("225 GB/s here")));
}

#[test]
fn a_table_that_a_runtime_does_not_read_is_refused_under_every_runtime() {
    let folder = Folder::new("unread-tables");
    folder.write("config.json", include_str!("tiny/config.json"));
    let bases = [
        ("nanotron", MEGATRON.replacen("\"megatron\"", "\"nanotron\"", 1)),
        ("megatron", MEGATRON.to_owned()),
        ("internevo", MEGATRON.replacen("\"megatron\"", "\"internevo\"", 1).replace("pp = 2\n", "")),
        ("deepspeed-zero", TINY.replacen("\"fsdp2\"", "\"deepspeed-zero\"", 1).replace("dp_shard", "dp")),
    ];
    for (runtime, base) in bases {
        for (table, key) in [("float8", "recipe = \"tensorwise\""), ("fsdp", ""), ("compile", "")] {
            folder.write("my.toml", &format!("{base}\n[{table}]\n{key}\n"));
            let said = folder.refuses(&["run", "my.toml"]);
            assert!(said.contains(&format!("[{table}] means nothing under runtime = {runtime:?}")), "{said}");
        }
    }
}

#[test]
fn every_micro_batch_reduces_its_gradients_unless_the_file_says_otherwise() {
    let reductions = |text: &str| {
        let program = make::program(text);
        let names = program.step.iter().filter(|instr| match instr {
            windtunnel::program::Instr::Collective { comm, .. } => {
                program.comm(*comm).kind == windtunnel::program::Collective::ReduceScatter
            }
            _ => false,
        });
        names.count()
    };
    let four = TINY.replace("sequence = 128", "sequence = 128\naccumulation = 4");
    let last = four.replace("accumulation = 4", "accumulation = 4\nsync_every_micro_batch = false");
    assert_eq!(reductions(&four), 4 * reductions(TINY));
    assert_eq!(reductions(&last), reductions(TINY));
}

#[test]
fn the_last_rank_of_an_unbalanced_ring_computes_nearly_twice_as_much() {
    let text = |balancer: &str| {
        format!(
            "runtime = \"fsdp2\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 1\n[model]\nname = \"llama-3.1-8b\"\nlayers = 2\n\
             [mesh]\ncp = 8\n[batch]\nsequence = 131072\n[compile]\nblocks = true\n[framework]\n\
             context_parallel_load_balancer = \"{balancer}\"\n"
        )
    };
    let attention = |balancer: &str| -> f64 {
        let answer = make::fly(&text(balancer));
        let parts = answer.parts.iter().filter(|part| part.name.contains("attention"));
        parts.map(|part| part.busy.seconds()).sum()
    };
    // c ranks: c - 1/2 steps' worth for the last one, c/2 for each where work is balanced.
    let ratio = attention("none") / attention("headtail");
    assert!((1.75..=1.95).contains(&ratio), "{ratio} of 15/8");
}

#[test]
fn mfu_in_fp8_says_whose_peak_it_is_a_share_of() {
    let fp8 = MEGATRON
        .replace("huggingface = \"config.json\"\nlayers = 4", "name = \"llama-3.1-8b\"\nlayers = 4")
        .replace("sequence = 128", "sequence = 4096");
    let of = |text: &str| make::fly(text).mfu[0].of;
    assert_eq!(of(&fp8), None);
    assert!(of(&format!("{fp8}\n[megatron]\nfp8 = \"delayed\"\n")).is_some_and(|of| of.contains("bf16")));
}

#[test]
fn a_report_says_how_many_runs_of_its_kind_were_measured_and_how_far_they_were_off() {
    let folder = Folder::new("runs-like-it");
    folder.write("config.json", include_str!("tiny/config.json"));
    folder.write("my.toml", TINY);
    let said = String::from_utf8(folder.windtunnel(&["run", "my.toml"]).stdout).expect("text");
    let line =
        said.lines().find(|line| line.trim_start().starts_with("measured runs")).expect("a line of measured runs");
    assert!(line.contains("match this setup"), "{line}");

    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let kind = "fsdp2 on h100-sxm-80gb, data parallel, dense layers, 16-bit matmuls, one node";
    assert!(Kind::PARTS.len() == 6 && words.contains(kind) && words.contains("in the median"), "{said}");
}

#[test]
fn a_release_fills_in_what_the_file_leaves_out_and_says_where_it_stands() {
    let text = format!("{TINY}\n[framework]\nrelease = \"torchtitan 0.2.2\"\n");
    let scenario = make::parse(&text);
    let says = |what: &str| scenario.assumption_lines().iter().any(|line| line.starts_with(what));
    assert!(says("fsdp.wrap = \"torchtitan\" (torchtitan 0.2.2: torchtitan/models/llama3/infra/parallelize.py"));
    assert!(says("optimizer.implementation = \"fused\" (torchtitan 0.2.2"));
    let own = make::parse(&format!("{text}\n[fsdp]\nwrap = \"block\"\n"));
    assert!(!own.assumption_lines().iter().any(|line| line.starts_with("fsdp.wrap")), "what is written stays");
}
