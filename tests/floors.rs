//! Lower bounds are promises: no plan takes less memory or less time than its bound says.

use rayon::prelude::*;
use windtunnel::explore::plan::{Request, drafts, plan};
use windtunnel::scenario::predict::{Floors, Settings, predict};
use windtunnel::scenario::{Draft, Scenario};

/// How many plans are simulated of each request; `FLOOR_PLANS` takes another number.
const PLANS: usize = 40;

/// A prime that is larger than any space is long, so that plans come from all of it.
const STRIDE: usize = 1_000_003;

fn request(model: &str, layers: u32, machine: &str, sequence: u32, batch: u32, framework: &str, more: &str) -> Request {
    let text = format!(
        "model = {model:?}\nsequence = {sequence}\nglobal_batch = {batch}\nframeworks = [{framework:?}]\n\
         [[machine]]\n{machine}\n[set]\n\"model.layers\" = {layers}\n{more}"
    );
    Request::parse("request.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Small models on few machines: bounds hold or do not by what a plan is, not by how large it is.
fn requests() -> Vec<Request> {
    let h100 = "name = \"h100-sxm-80gb\"\nsize = 2";
    let a100 = "name = \"a100-sxm-80gb\"\nsize = 4";
    let schedules = "[vary]\n\"pipeline.schedule\" = [\"ZBH1\", \"Interleaved1F1B\"]\n\"megatron.implementation\" = [\"local\"]\n\
        \"megatron.overlap_grad_reduce\" = [false]\n\"megatron.overlap_param_gather\" = [false]";
    let fp8 = "\"megatron.fp8\" = \"delayed\"\n\"megatron.overlap_grad_reduce\" = false\n\"megatron.overlap_param_gather\" = false";
    // Gradients in bf16 are copied to fp32 by the optimizer, and the copies are kept until the next step begins.
    let copied = "\"megatron.grad_reduce_in_fp32\" = false\n\"megatron.fp8\" = \"delayed\"\n\"megatron.fp8_param_gather\" = true\n\
        \"megatron.implementation\" = \"transformer_engine\"";
    let plain = "\"megatron.distributed_optimizer\" = false\n\"megatron.overlap_param_gather\" = false\n\
        \"megatron.attention\" = \"unfused\"\n\"megatron.implementation\" = \"local\"";
    // Experts over several nodes, whose exchanges are most of a step, by each dispatcher, and beside other work.
    let across = "[vary]\n\"mesh.ep\" = [8, 16, 32, 64]\n\"mesh.pp\" = [1, 2, 4]\n\"pipeline.virtual_stages\" = [1, 2]\n\
        \"megatron.moe_shared_expert_overlap\" = [true, false]\n\
        \"megatron.moe_token_dispatcher_type\" = [\"alltoall\", \"allgather\", \"flex\"]";
    let beside = "[vary]\n\"mesh.ep\" = [4, 8, 16, 32]\n\"mesh.pp\" = [1, 2]\n\"pipeline.virtual_stages\" = [1, 3]\n\
        \"megatron.overlap_moe_expert_parallel_comm\" = [true, false]";
    vec![
        request("llama-3.1-8b", 8, h100, 2048, 64, "megatron", ""),
        request("llama-3.1-8b", 7, a100, 16_384, 32, "megatron", ""),
        request("llama-3.1-8b", 8, a100, 1024, 256, "megatron", schedules),
        request("llama-3.1-8b", 4, h100, 2048, 64, "megatron", fp8),
        request("gpt3-5b-nemo", 6, h100, 2048, 64, "megatron", copied),
        request("gpt3-5b-nemo", 8, a100, 2048, 64, "megatron", plain),
        request("mixtral-8x7b", 4, a100, 2048, 128, "megatron", ""),
        request("deepseek-v2-lite", 4, h100, 2048, 64, "megatron", ""),
        request("deepseek-v2-lite", 6, "name = \"h100-sxm-80gb\"\nsize = 8", 2048, 512, "megatron", across),
        request("qwen3-30b-a3b", 6, "name = \"h100-sxm-80gb\"\nsize = 8", 2048, 512, "megatron", beside),
        request("llama-3.1-8b", 8, h100, 2048, 64, "fsdp2", ""),
        request("llama-3.1-8b", 6, a100, 8192, 128, "fsdp2", "[vary]\n\"compile.blocks\" = [true, false]"),
        request("gpt2-xl", 6, h100, 1024, 256, "fsdp2", ""),
        request("llama-3.1-8b", 6, a100, 2048, 256, "deepspeed-zero", ""),
        request("llama-3.1-8b", 8, "name = \"tpu-v6e\"\nsize = \"4x4\"", 4096, 64, "xla", ""),
    ]
}

/// What a bound says and what the simulation says, where a plan is legal.
fn held(floors: &Floors, draft: &Draft) -> Option<(f64, f64)> {
    let scenario: Scenario = draft.scenario().ok()?;
    let answer = predict(&scenario, Settings { remedies: false, ..Settings::default() }).ok()?;
    let floor = floors.of(&scenario);
    let memory = &answer.memory;
    let needed = if memory.on_device { memory.device_total() } else { memory.wanted };
    assert!(floor.memory <= needed, "{} B are no bound of {} B\n{}", floor.memory.0, needed.0, draft.text());
    assert!(floor.step <= answer.step, "{} ps are no bound of {} ps\n{}", floor.step.0, answer.step.0, draft.text());
    Some((floor.memory.0 as f64 / needed.0 as f64, floor.step.0 as f64 / answer.step.0 as f64))
}

#[test]
fn no_plan_takes_less_than_its_bound() {
    let plans = std::env::var("FLOOR_PLANS").ok().and_then(|count| count.parse().ok()).unwrap_or(PLANS);
    for request in requests() {
        let all = drafts(&request);
        // Spread over the whole space, which lists plans axis by axis.
        let spread = (0..all.len()).map(|at| &all[at * STRIDE % all.len()]);
        let chosen: Vec<&Draft> = spread.filter(|draft| draft.tried(None).is_ok()).take(plans).collect();
        let floors = Floors::default();
        let ratios: Vec<(f64, f64)> = chosen.par_iter().filter_map(|draft| held(&floors, draft)).collect();
        let mean = |of: fn(&(f64, f64)) -> f64| ratios.iter().map(of).sum::<f64>() / ratios.len().max(1) as f64;
        let (memory, step) = (mean(|ratio| ratio.0), mean(|ratio| ratio.1));
        let name = (&request.model.name, request.frameworks[0].written());
        println!("{name:?}: {} of {} simulated, memory {memory:.3}, step {step:.3}", ratios.len(), chosen.len());
        assert!(ratios.len() > 4, "{name:?}: too few are legal");
        // A bound that says nothing would be kept, too.
        assert!(memory > 0.4 && step > 0.4, "{name:?}: memory {memory:.3}, step {step:.3}");
    }
}

/// A search over experts is as short as its bounds are good: of thousands of plans a few dozen are simulated.
#[test]
fn of_deepseek_v3_on_512_gpus_a_few_dozen_plans_are_simulated() {
    let text = "model = \"deepseek-v3\"\nsequence = 4096\nglobal_batch = 4096\nframeworks = [\"megatron\"]\n\
        [[machine]]\nname = \"h100-sxm-80gb\"\nsize = 64\n[vary]\n\"mesh.tp\" = [1, 2, 4]\n\"mesh.ep\" = [8, 16]\n\
        \"mesh.pp\" = [8, 16]\n\"pipeline.virtual_stages\" = [1]\n\"mesh.cp\" = [1]\n\"batch.micro\" = [1, 2]";
    let request = Request::parse("request.toml", text).unwrap_or_else(|error| panic!("{error}"));
    let answer = plan(request, false, &|_| ()).unwrap_or_else(|error| panic!("{error}"));
    let on = &answer.sites[0];
    println!("{:?}", on.counts);
    assert!(on.ranked.len() == 10 && on.counts.simulated <= 30 && on.counts.too_slow > 0, "{:?}", on.counts);
    let best = &on.ranked[0].plan;
    assert!(best.floor.step.seconds() > 0.85 * best.step.seconds(), "{} of {}", best.floor.step, best.step);
}

/// What is measured is bounded as well: each shipped scenario is no smaller and no faster than its bounds.
#[test]
fn shipped_scenarios_take_no_less_than_their_bounds() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let floors = Floors::default();
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let toml = files.iter().filter(|path| path.extension().is_some_and(|end| end == "toml"));
    let known = toml.filter_map(|path| held(&floors, &Scenario::load(path).unwrap().draft)).count();
    assert!(known > 15, "{known}");
}
