//! Stacks of Mamba-2, attention, feed-forward and expert layers under Megatron-Core against Megatron-Core itself: collectives in host order,
//! and memory phase by phase (`tests/oracles/megatron-hybrid.json`).

use super::cases;
use super::megatron_case;
use super::megatron_experts;
use super::megatron_step::{self, issued};
use serde_json::Value;
use windtunnel::memory::{Settings, replay};
use windtunnel::model::experts::Experts;
use windtunnel::model::{Activation, Dense, FeedForward, Gating, Layer, Layers, Mamba2, Mixer, Position};
use windtunnel::program::Program;
use windtunnel::runtime::megatron::{Core, MegatronPlan, compile};
use windtunnel::units::Bytes;

pub fn job(c: &Value) -> MegatronPlan {
    let number = |key: &str| c[key].as_u64().unwrap();
    let mut job = megatron_experts::job(c);
    let plain = job.split.model.layers.at(0).clone();
    let Mixer::Attention(mut attention) = plain.mixer else { unreachable!("the cases' attention is that of heads") };
    attention.head_dim = number("head_dim");
    // The arguments of Megatron-LM's own tests are GPT's: learned positions, GELU, biases, scores in matmuls.
    let gelu = c["gelu"] == true;
    let gating = Gating::Plain(if gelu { Activation::Gelu } else { Activation::ReluSquared });
    let latent = c["moe_latent"].as_u64();
    let experts = plain.experts().map(|experts| Experts { gating, latent, ..experts.clone() });
    let head_dim = number("mamba_head");
    let mamba = Mamba2 {
        heads: c["mamba_heads"].as_u64().unwrap_or(2 * number("hidden") / head_dim),
        head_dim,
        groups: number("mamba_groups"),
        state: number("mamba_state"),
        conv: 4,
        chunk: 128,
        conv_bias: true,
        bias: false,
    };
    let dense = FeedForward::Dense(Dense { width: number("ffn"), gating, bias: c["bias"] == true });
    let mut parts = c["pattern"].as_str().unwrap().split('/').map(|part| part.chars().collect::<Vec<char>>());
    let (pattern, ahead) = (parts.next().unwrap(), parts.next().unwrap_or_default());
    let count = pattern.len() as u64;
    let layer = |letter: char| {
        let (mixer, feed_forward) = match letter {
            'M' => (Mixer::Mamba2(mamba), FeedForward::None),
            '*' => (Mixer::Attention(attention), FeedForward::None),
            '-' => (Mixer::None, dense.clone()),
            'E' => (Mixer::None, FeedForward::Experts(experts.clone().unwrap())),
            other => panic!("no layer is {other}"),
        };
        Layer { mixer, feed_forward, norms: plain.norms }
    };
    job.split.model.layers = Layers::new(count, 0, count, |place| layer(pattern[place as usize]));
    job.split.model.mtp_block = ahead.into_iter().map(layer).collect();
    job.split.model.mtp_repeated = c["repeated"] == true;
    job.split.model.position = if gelu { Position::Learned { positions: number("seq") } } else { Position::None };
    let stages = u64::from(job.split.mesh.pp);
    job.split.pipeline.layers = match c["first_stage"].as_u64() {
        Some(first) => vec![first, count - first],
        None => vec![count / stages; stages as usize],
    };
    job.split.sequence_parallel = c["sp"] == true && job.split.mesh.tp > 1;
    job.split.block.fused_activation &= gelu;
    job.split.block.core = match c["unfused_attention"] == true {
        true => Core::Unfused { fused_softmax: true },
        false => Core::Flash,
    };
    job
}

/// A stack in which nothing mixes tokens, which no reader makes; and what Megatron-Core 0.16 runs without recomputing what it is told to.
const REFUSED: [&str; 2] = ["feed-forward", "hybrid-uniform"];

/// Whether a case has something that is not read here: layers that are left in bf16.
fn is_other(config: &Value) -> bool {
    config["first_last_bf16"].is_number()
}

fn each(mut look: impl FnMut(&str, &Value, &Value, &Program)) {
    let Some(file) = cases::read("megatron-hybrid.json") else { return };
    let mut refused = vec![];
    for case in file["cases"].as_array().unwrap() {
        let (id, config) = (case["id"].as_str().unwrap(), &case["config"]);
        if is_other(config) {
            continue;
        }
        let job = job(config);
        if let Some(refusal) = windtunnel::runtime::megatron::refuses(&job) {
            println!("{id}: {refusal:?}");
            refused.push(id);
            continue;
        }
        let flight = compile(&job);
        look(id, config, &case["outputs"], &flight.classes[megatron_case::stage(config)]);
    }
    assert_eq!(refused, REFUSED);
}

#[test]
fn oracle_hybrids_collectives_are_issued_in_megatrons_order() {
    let (mut wrong, mut count) = (String::new(), 0);
    each(|id, config, theirs, program| {
        // Where stages are several, training.py has all ranks but the first reduce behind their last backward (`grad_sync_func`); the
        // script does not.
        if config["pp"] != 1 && config["overlap_grad_reduce"] == true {
            return;
        }
        count += 1;
        let alone = config["world"] == 1;
        let tokens =
            config["seq"].as_u64().unwrap() * config["micro"].as_u64().unwrap() / config["cp"].as_u64().unwrap();
        let of_words = config["tp"] == 1;
        let of_tokens = format!("allreduce:{}", 4 * tokens);
        let nobody = |one: &str| alone || of_words && (one == of_tokens || one == "allreduce:64");
        let between = |one: &String| one.starts_with("end") || !nobody(one);
        let mut theirs = megatron_step::theirs(theirs);
        theirs.retain(between);
        let mut ours: Vec<String> = issued(program).into_iter().filter(between).collect();
        let number = |key: &str| config[key].as_u64().unwrap();
        let replicas = number("world") / (number("tp") * number("pp"));
        // Buckets of one replica: the script reduces and gathers them all the same.
        let single = replicas == 1 || !config["experts"].is_null() && replicas == number("ep");
        for list in [&mut ours, &mut theirs] {
            if single {
                let ended = list.iter().position(|one| one == "end:forward-backward").unwrap();
                let mut at = 0;
                list.retain(|one| {
                    at += 1;
                    !(one.starts_with("reduce_scatter_tensor_coalesced") || at > ended && one.contains("_coalesced"))
                });
            }
            // Of messages that ranks of a ring batch, which is first goes by the rank.
            let message = |one: &String| config["cp"] != 1 && (one.starts_with("recv") || one.starts_with("send"));
            list.chunk_by_mut(|one, other| message(one) && message(other)).for_each(<[String]>::sort);
        }
        let same = |(ours, theirs): (&String, &String)| {
            let at_once = || theirs.replace("allgather_into_tensor_coalesced", "allgather_base");
            ours == theirs || config["fp8"] == "blockwise" && *ours == at_once()
        };
        let at = ours.iter().zip(&theirs).take_while(|&pair| same(pair)).count();
        if at < ours.len().max(theirs.len()) {
            let show =
                |list: &[String]| list.iter().skip(at.saturating_sub(2)).take(6).cloned().collect::<Vec<_>>().join(" ");
            wrong +=
                &format!("{id}: {} and {}, from {at}: {} | {}\n", ours.len(), theirs.len(), show(&ours), show(&theirs));
        }
    });
    assert!(wrong.is_empty(), "of {count}:\n{wrong}");
}

#[test]
fn oracle_hybrids_memory_of_a_step_agrees_with_megatrons_phase_by_phase() {
    let (mut table, mut far) = (String::new(), vec![]);
    each(|id, config, theirs, program| {
        // A mixture that has run again leaves more between steps (`megatron_experts.rs`).
        let run_again = config["again"].as_array().unwrap().iter().any(|one| one == "moe");
        let report = replay(program, Settings { expandable_segments: false, capacity: Bytes(1 << 43) });
        let theirs_of = |phase: &str, key: &str| theirs["phases"][phase][key].as_u64().unwrap();
        let mut line = format!("{id:30}");
        for phase in &report.phases {
            let peak = theirs_of(&phase.name, "peak");
            let off = phase.peak_allocated.0 as f64 - peak as f64;
            let end = phase.end_allocated.0 as f64 - theirs_of(&phase.name, "end") as f64;
            let left = run_again && phase.name != "forward-backward";
            if (off / peak as f64).abs() >= if left { 0.02 } else { 0.01 } {
                far.push(format!("{id}: {} {:+.2} %", phase.name, 100.0 * off / peak as f64));
            }
            line += &format!(" {} {:+.3} {:+.3} MiB", phase.name, off / 1048576.0, end / 1048576.0);
        }
        let reserved = report.peak_reserved.0 as f64 / theirs["peak_reserved"].as_f64().unwrap() - 1.0;
        table += &format!("{line} reserved {:+.2} %\n", 100.0 * reserved);
    });
    println!("{table}");
    assert!(far.is_empty(), "{far:?}\n{table}");
}
