//! Adapters (LoRA) under Megatron-Core against Megatron-Core itself: collectives in host order, and memory phase by phase
//! (`tests/oracles/megatron-lora.json`).

use super::cases;
use super::megatron_case;
use super::megatron_experts;
use super::megatron_step::{self, issued};
use serde_json::Value;
use windtunnel::memory::{Settings, replay};
use windtunnel::model::trained::{Code, Lora, Trained, module_of};
use windtunnel::program::Program;
use windtunnel::runtime::megatron::{MegatronPlan, compile};
use windtunnel::units::Bytes;

fn job(c: &Value) -> MegatronPlan {
    let mut job = megatron_experts::job(c);
    let asked = c["target"].as_array().unwrap().iter().map(|name| module_of(name.as_str().unwrap()).unwrap());
    let lora = Lora {
        rank: c["dim"].as_u64().unwrap(),
        modules: asked.collect(),
        dropout: c["adapter_dropout"].as_f64().unwrap() > 0.0,
        dtype: job.split.dtype,
        own_type: false,
        code: Code::Megatron,
        packed: None,
    };
    job.split.sequence_parallel = c["sp"] == true && job.split.mesh.tp > 1;
    let inputs = c["block_input_grad"] == true;
    job.split.trained =
        Some(Trained { embedding: false, layers_from: 0, norm: false, head: false, inputs, lora: Some(lora) });
    job
}

fn each(mut look: impl FnMut(&str, &Value, &Value, &Program)) {
    let Some(file) = cases::read("megatron-lora.json") else { return };
    for case in file["cases"].as_array().unwrap() {
        let (id, config) = (case["id"].as_str().unwrap(), &case["config"]);
        let job = job(config);
        let refusal = windtunnel::runtime::megatron::refuses(&job);
        assert!(refusal.is_none(), "{id}: {refusal:?}");
        let flight = compile(&job);
        look(id, config, &case["outputs"], &flight.classes[megatron_case::stage(config)]);
    }
}

#[test]
fn oracle_adapters_collectives_are_issued_in_megatrons_order() {
    let (mut wrong, mut count) = (String::new(), 0);
    each(|id, config, theirs, program| {
        count += 1;
        // Over one rank the script still calls them; nothing is exchanged.
        let alone = config["world"] == 1;
        let of_words = config["tp"] == 1;
        let of_tokens = format!("allreduce:{}", 4 * config["seq"].as_u64().unwrap());
        let size = |key: &str| config[key].as_u64().unwrap();
        let one_replica = size("world") == size("tp") * size("pp");
        let of_gradients = |one: &str| one_replica && one.starts_with("allreduce_coalesced");
        let nobody = |one: &str| alone || of_gradients(one) || of_words && one == of_tokens;
        let between = |one: &String| one.starts_with("end") || !nobody(one);
        let mut theirs = megatron_step::theirs(theirs);
        theirs.retain(between);
        let ours: Vec<String> = issued(program).into_iter().filter(between).collect();
        let at = ours.iter().zip(&theirs).take_while(|&(ours, theirs)| ours == theirs).count();
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
fn oracle_adapters_memory_of_a_step_agrees_with_megatrons_phase_by_phase() {
    let (mut table, mut far) = (String::new(), vec![]);
    each(|id, config, theirs, program| {
        // Where stages are virtual each chunk has rotary angles of its own, half a MiB, and up to 3 MiB more are not explained: more
        // than 1 % of jobs as small as these.
        let limit = if config["vpp"].is_number() { 0.014 } else { 0.01 };
        let report = replay(program, Settings { expandable_segments: false, capacity: Bytes(1 << 43) });
        let theirs_of = |phase: &str, key: &str| theirs["phases"][phase][key].as_u64().unwrap();
        let mut line = format!("{id:30}");
        for phase in &report.phases {
            let peak = theirs_of(&phase.name, "peak");
            let off = phase.peak_allocated.0 as f64 - peak as f64;
            let end = phase.end_allocated.0 as f64 - theirs_of(&phase.name, "end") as f64;
            if (off / peak as f64).abs() >= limit {
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
