//! Where one change does not do, two that do are found: checked by trying all.

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::IndexedRandom;
use rayon::prelude::*;

use super::tried::{Tried, combined};
use super::{Found, changes, find};
use crate::scenario::predict::need;
use crate::scenario::{Change, Scenario};

/// How many plans are drawn; `REMEDIES=200` draws more.
const PLANS: usize = 40;

/// A plan of some framework, mostly too large for its devices.
fn drawn(random: &mut ChaCha8Rng) -> String {
    let mut of = |values: &[&str]| (*values.choose(random).expect("not empty")).to_owned();
    let runtime = of(&["fsdp2", "fsdp2", "deepspeed-zero", "megatron", "megatron", "nanotron", "xla", "xla"]);
    let dense = ["llama-3.1-8b", "llama-2-13b", "qwen2.5-32b", "llama-3.1-70b", "qwen2.5-72b", "llama-3.1-405b"];
    let model = match &*runtime {
        "xla" => of(&dense[..4]),
        "nanotron" => "llama-3-8b\"\nkv_heads = 32\nvocab = \"131072".to_owned(),
        _ => of(&[&dense[..], &["mixtral-8x7b", "qwen3-30b-a3b", "qwen3-235b-a22b"]].concat()),
    }
    .replace("\"131072", "131072");
    let quoted = if model.contains('\n') { format!("\"{model}") } else { format!("\"{model}\"") };
    let topology = match &*runtime {
        "xla" => format!("name = \"tpu-v6e\"\nslice = \"{}\"", of(&["2x4", "4x4", "8x8", "16x16"])),
        _ => format!(
            "name = \"{}\"\nnodes = {}",
            of(&["h100-sxm-80gb", "a100-sxm-80gb", "h200-sxm-141gb"]),
            of(&["1", "2", "4", "8", "16"])
        ),
    };
    let mesh = match &*runtime {
        "megatron" => format!("tp = {}\npp = {}", of(&["1", "2", "4", "8"]), of(&["1", "2", "4"])),
        "nanotron" => format!("pp = {}", of(&["1", "2", "4"])),
        _ => String::new(),
    };
    let more = match &*runtime {
        "fsdp2" => of(&[
            "",
            "[compile]\nblocks = true",
            "[optimizer]\nimplementation = \"foreach\"",
            "[fsdp]\nwrap = \"root\"",
            "[fsdp]\nwrap = \"block\"\nreshard_after_forward = false",
            "[activation_checkpointing]\npolicy = \"full\"",
            "[memory]\nexpandable_segments = true",
        ]),
        "deepspeed-zero" => format!(
            "[zero]\nstage = {}\n[activation_checkpointing]\npolicy = \"{}\"",
            of(&["1", "2", "3"]),
            of(&["none", "full"])
        ),
        "megatron" => {
            let keys = ["distributed_optimizer = false", "distributed_optimizer = true", "recompute = \"none\""];
            format!("[megatron]\n{}", of(&keys))
        }
        "nanotron" => "[nanotron]\nzero_stage = 1".to_owned(),
        _ => format!("[xla]\nremat_policy = \"{}\"", of(&["full", "minimal", "save_qkv_proj"])),
    };
    let sequence = of(&["2048", "4096", "8192", "16384", "32768", "131072"]);
    let (micro, accumulation) = (of(&["1", "2", "4", "8"]), of(&["1", "4", "8"]));
    format!(
        "runtime = \"{runtime}\"\n[topology]\n{topology}\n[model]\nname = {quoted}\n[mesh]\n{mesh}\n[batch]\n\
         sequence = {sequence}\nmicro = {micro}\naccumulation = {accumulation}\n{more}\n"
    )
}

/// Plans that do not fit, with what they lack \[B\].
fn misfits(count: usize) -> Vec<(String, Scenario, i128)> {
    let mut random = ChaCha8Rng::seed_from_u64(48);
    let mut found = vec![];
    let mut drew = 0;
    while found.len() < count {
        drew += 1;
        assert!(drew < 100 * count, "{} of {drew}", found.len());
        let text = drawn(&mut random);
        let Ok(scenario) = Scenario::parse("drawn.toml", &text) else { continue };
        if scenario.simulable().is_err() {
            continue;
        }
        let Some(need) = need(&scenario).filter(|need| need.total.is_none()) else { continue };
        // A hundred times too large is nobody's plan.
        if need.lacks < 4 * i128::from(scenario.topology.chip.memory.0) {
            found.push((text, scenario, need.lacks));
        }
    }
    found
}

#[test]
fn where_two_changes_make_a_plan_fit_no_more_than_two_are_offered() {
    let count = std::env::var("REMEDIES").ok().and_then(|count| count.parse().ok()).unwrap_or(PLANS);
    let (mut alone, mut pairs, mut more, mut none) = (0, 0, 0, 0);
    for (text, scenario, lacks) in misfits(count) {
        let Found { remedies, nearest } = find(&scenario, lacks);
        let offered =
            remedies.iter().map(|remedy| &*remedy.change).filter(|change| !change.starts_with("batch.sequence"));
        let offered: Vec<&str> = offered.collect();
        let tried = |change: Change| Tried::of(&scenario, change);
        let fits = |tried: &Tried| tried.need.total.is_some();
        let singles: Vec<Tried> = changes(&scenario).into_par_iter().filter_map(tried).collect();
        let one: Vec<String> = singles.iter().filter(|one| fits(one)).map(|one| one.change.to_string()).collect();
        if !one.is_empty() {
            alone += 1;
            assert_eq!(offered, one, "{text}");
            continue;
        }
        let both =
            singles.iter().enumerate().flat_map(|(at, one)| singles[at + 1..].iter().map(move |other| [one, other]));
        let both: Vec<Change> = both.filter_map(|pair| combined(&scenario, pair.map(|one| &one.change))).collect();
        let fitting: Vec<Tried> = both.into_par_iter().filter_map(tried).filter(fits).collect();
        if !fitting.is_empty() {
            pairs += 1;
            let is_pair = |change: &&str| fitting.iter().any(|pair| pair.change.to_string() == *change);
            assert!(!offered.is_empty() && offered.iter().all(is_pair), "{text}\n{offered:?}");
        } else if !offered.is_empty() {
            more += 1;
        } else {
            none += 1;
            let helps = singles.iter().any(|one| one.need.lacks < lacks);
            assert_eq!(nearest.is_some(), helps, "{text}");
        }
    }
    println!("{count} plans: {alone} fit with one change, {pairs} with two, {more} with more, {none} not at all");
    assert!(pairs >= count / 16 && alone + pairs + more >= count / 4, "{alone} {pairs} {more} {none}");
}

#[test]
fn changes_that_each_make_up_for_a_smaller_batch_do_so_together() {
    let text = "runtime = \"fsdp2\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 1\n[model]\nname = \"llama-3.1-8b\"\n[mesh]\n\
        [batch]\nsequence = 8192\nmicro = 4\naccumulation = 3\n";
    let scenario = Scenario::parse("batch.toml", text).unwrap_or_else(|error| panic!("{error}"));
    let all = changes(&scenario);
    let with = |key: &'static str| all.iter().filter(move |change| change.keys().any(|(known, _)| known == key));
    let smaller: Vec<String> = with("batch.micro").map(Change::to_string).collect();
    assert_eq!(smaller, ["batch.micro = 2, batch.accumulation = 6", "batch.micro = 1, batch.accumulation = 12"]);
    let split = with("mesh.cp").next().expect("two ranks can share a sequence");
    let both =
        combined(&scenario, [split, with("batch.micro").next().expect("two sequences")]).expect("they go together");
    assert!(both.keys().any(|(key, value)| key == "batch.accumulation" && value == Some(&12.into())), "{both}");
    let same = scenario.draft.changed(&both).scenario().expect("it can be read");
    assert_eq!(same.job.tokens(), scenario.job.tokens());
    let halves: Vec<&Change> = with("batch.micro").collect();
    assert!(combined(&scenario, halves).is_none(), "one key cannot have two values");
}
