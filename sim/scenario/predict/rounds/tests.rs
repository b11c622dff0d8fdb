//! Steps that are told from a few rounds, held against the run of all of them.

use std::sync::Arc;

use super::*;
use crate::program::Program;

fn plan(keys: &str) -> Scenario {
    let text = format!(
        "runtime = \"fsdp2\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 1\n[model]\nname = \"llama-3.1-8b\"\nlayers = 3\n{keys}"
    );
    Scenario::parse("plan.toml", &text).expect(keys)
}

const SETTINGS: Settings = Settings { fold: true, record: false, remedies: false };

/// Holds memory that is told from a few rounds against that of all of them, class by class: all to the byte. What the last stage keeps
/// of every micro-batch, its loss, is taken at once where rounds are not run: there a small segment more may be taken, or fewer.
fn holds_as_much(few: (&Flight, &[DeviceMemory]), all: (&Flight, &[DeviceMemory]), keys: &str) {
    let each = |(flight, devices): (&Flight, &[DeviceMemory])| -> Vec<_> {
        let of = |(program, device): (&Arc<Program>, &DeviceMemory)| {
            let report = &device.report;
            let peaks = (report.peak_allocated, report.breakdown.clone());
            (peaks, report.live(program), report.peak_reserved)
        };
        flight.classes.iter().zip(devices).map(of).collect()
    };
    const SMALL: u64 = 2 << 20;
    let (few, all) = (each(few), each(all));
    assert_eq!(few.len(), all.len(), "{keys}");
    let stages = all.len();
    for (stage, (few, all)) in few.iter().zip(&all).enumerate() {
        assert_eq!((&few.0, &few.1), (&all.0, &all.1), "{keys}: stage {stage}");
        let apart = if stage + 1 == stages { SMALL } else { 0 };
        assert!(few.2.0.abs_diff(all.2.0) <= apart, "{keys}: stage {stage}: {} {}", few.2, all.2);
    }
}

/// Holds a step that was extended against the run of all its micro-batches.
fn is_the_whole_step(scenario: &Scenario, extended: &Flown, keys: &str) {
    let flight = scenario.flight().expect("it is short enough");
    let written = Written { flight, memory: Memory::Replay };
    let run = run(scenario, written, SETTINGS, |job, _| job.run()).expect(keys);
    assert!(
        engine::agree(&extended.timeline, &run.timeline),
        "{keys}: {} {}",
        extended.timeline.step,
        run.timeline.step
    );
    assert_eq!(extended.timeline.ends, run.timeline.ends, "{keys}");
    holds_as_much((&extended.flight, &extended.memory.0), (&run.flight, &run.memory.0), keys);
    for (few, all) in extended.counts.iter().zip(&run.counts) {
        assert_eq!((&few.kernels, &few.comms, &few.exchanges), (&all.kernels, &all.comms, &all.exchanges), "{keys}");
        assert_eq!((few.flops, few.owners), (all.flops, all.owners), "{keys}");
    }
}

/// What makes a step too long to be written are many micro-batches: the few that are run instead say what all would.
#[test]
fn a_step_that_is_extended_is_the_step_that_is_run() {
    for keys in [
        "[mesh]\ndp_shard = 8\n[batch]\nsequence = 2048\naccumulation = 40",
        "[mesh]\ndp_shard = 8\n[batch]\nsequence = 128\naccumulation = 40",
        "[mesh]\ndp_shard = 4\ndp_replicate = 2\n[batch]\nsequence = 1024\naccumulation = 25\nsync_every_micro_batch = false",
        "[mesh]\ndp_shard = 8\n[batch]\nsequence = 512\naccumulation = 17\n[loop]\ntrain_metrics = 3",
    ] {
        let scenario = plan(keys);
        let runs = unwritten(&scenario.job).expect("many micro-batches");
        let long = extended(&scenario, SETTINGS, runs, None).expect(keys).expect("they agree");
        is_the_whole_step(&scenario, &long, keys);
    }
}

/// While the optimizer runs, the host gets ahead of the device. Where a micro-batch keeps it longer than the device, it loses that lead
/// after some micro-batches, so a few of them say nothing of the others.
#[test]
fn a_host_that_falls_behind_after_many_micro_batches_is_not_taken_to_keep_up() {
    let mut refused = 0;
    for sequence in [256, 384, 448, 512, 576, 640, 704, 768, 1024] {
        let keys = format!("[mesh]\ndp_shard = 8\n[batch]\nsequence = {sequence}\naccumulation = 48");
        let scenario = plan(&keys);
        let runs = short_runs(&scenario.job).expect("many micro-batches");
        match extended(&scenario, SETTINGS, runs, None).expect(&keys) {
            Some(long) => is_the_whole_step(&scenario, &long, &keys),
            None => refused += 1,
        }
    }
    assert!(refused < 9, "nothing was extended");
}

fn megatron(keys: &str) -> Scenario {
    model("llama-3.1-8b", keys)
}

fn model(name: &str, keys: &str) -> Scenario {
    let text = format!(
        "runtime = \"megatron\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 1\n[model]\nname = \"{name}\"\nlayers = 8\n{keys}"
    );
    Scenario::parse("plan.toml", &text).expect(keys)
}

/// Of a pipeline that repeats itself, four rounds are written, and the others are one of them over again.
#[test]
fn rounds_that_are_not_written_are_run() {
    let mut repeat = 0;
    for keys in [
        "[mesh]\ntp = 2\npp = 4\n[batch]\nsequence = 2048\naccumulation = 24",
        "[mesh]\ntp = 2\npp = 4\n[batch]\nsequence = 2048\naccumulation = 48\n[pipeline]\nvirtual_stages = 2",
        "[mesh]\ntp = 2\npp = 2\ncp = 2\n[batch]\nsequence = 4096\naccumulation = 40\n[pipeline]\nvirtual_stages = 4",
        "[mesh]\npp = 8\n[batch]\nsequence = 1024\naccumulation = 56\n[megatron]\nfp8 = \"tensorwise\"",
        "[mesh]\ntp = 2\npp = 4\n[batch]\nsequence = 1024\naccumulation = 64\n[pipeline]\nvirtual_stages = 2\noverlap_p2p = true",
        "[mesh]\npp = 2\n[batch]\nsequence = 1024\naccumulation = 16\n[megatron]\nrecompute = { uniform = 1 }",
    ] {
        let scenario = megatron(keys);
        let runs = short_runs(&scenario.job).expect("many micro-batches");
        // A host that is still getting ahead of its device after four rounds has no round that repeats.
        let Some(long) = from_one(&scenario, SETTINGS, runs, None).expect(keys) else { continue };
        repeat += 1;
        is_the_whole_step(&scenario, &long, keys);
        assert!(long.flight.instructions() * 5 < scenario.flight().expect(keys).instructions() * 4, "{keys}");
    }
    assert!(repeat >= 3, "{repeat} of 5 repeat");
}

/// What is written and run of a step does not grow with its micro-batches. It is counted in instructions, so that no clock is asked.
#[test]
fn more_micro_batches_are_no_more_work() {
    for keys in [
        "[mesh]\ntp = 2\npp = 4\n[batch]\nsequence = 2048\n",
        "[mesh]\ntp = 4\npp = 2\n[batch]\nsequence = 2048\n[pipeline]\nvirtual_stages = 4\n",
        "[mesh]\ntp = 2\npp = 4\n[batch]\nsequence = 2048\n[pipeline]\nvirtual_stages = 2\n",
    ] {
        let work = |accumulation: u32| {
            let keys = keys.replace("[batch]\n", &format!("[batch]\naccumulation = {accumulation}\n"));
            fly(&megatron(&keys), SETTINGS).expect(&keys).flight.instructions()
        };
        assert_eq!(work(96), work(384), "{keys}");
    }
}

/// What a step holds is known from a few of its rounds, whether or not its time is.
#[test]
fn rounds_that_are_not_written_take_memory_as_all_of_them_do() {
    for keys in [
        "[mesh]\ntp = 8\n[batch]\nsequence = 2048\naccumulation = 40",
        "[mesh]\ntp = 2\n[batch]\nsequence = 1000\naccumulation = 34\n[megatron]\nrecompute = \"core_attn\"",
        "[mesh]\ntp = 2\npp = 4\n[batch]\nsequence = 2048\naccumulation = 64",
        "[mesh]\npp = 8\n[batch]\nsequence = 1536\nmicro = 3\naccumulation = 96\n[megatron]\nfp8 = \"tensorwise\"",
        "[mesh]\ntp = 2\npp = 4\n[batch]\nsequence = 2048\naccumulation = 60\n[pipeline]\nvirtual_stages = 2",
        "[mesh]\ntp = 2\npp = 2\ncp = 2\n[batch]\nsequence = 4096\naccumulation = 40\n[pipeline]\nvirtual_stages = 4",
        "[mesh]\npp = 4\n[batch]\nsequence = 1536\naccumulation = 96\n[pipeline]\nvirtual_stages = 2\noverlap_p2p = true",
        "[mesh]\npp = 2\nep = 4\n[batch]\nsequence = 2048\naccumulation = 32\n[megatron]\nrecompute = { uniform = 1 }",
        "[mesh]\npp = 2\n[batch]\nsequence = 1024\naccumulation = 32\n[memory]\nexpandable_segments = true",
    ] {
        let experts = keys.contains("ep = ");
        let scenario = model(if experts { "qwen3-30b-a3b" } else { "llama-3.1-8b" }, keys);
        let memory = |job: &Plan| {
            let flight = scenario.written(job, scenario.most(SETTINGS)).expect(keys);
            let (devices, _) = memory::devices(&scenario, &flight);
            (flight, devices)
        };
        let (few, all) = (memory(&fewer(&scenario.job).0), memory(&scenario.job));
        assert!(few.0.instructions() * 3 < all.0.instructions() * 2, "{keys}");
        assert!(few.1.iter().all(|device| !device.report.rounds_missing), "{keys}");
        holds_as_much((&few.0, &few.1), (&all.0, &all.1), keys);
    }
}
