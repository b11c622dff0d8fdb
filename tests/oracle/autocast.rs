//! Decoders of other kinds than Llama under `torch.autocast`, on one device, against PyTorch 2.15 itself
//! (`tests/oracles/autocast.json`): peaks, and every allocation and free.

use super::cases::{self, Config, Dims};
use super::fsdp2_switches::events;
use windtunnel::memory::{Settings, replay};
use windtunnel::program::DType;
use windtunnel::runtime::fsdp::{MixedPrecision, Version};
use windtunnel::runtime::train::{self, Autocast, Checkpoint};
use windtunnel::units::Bytes;

/// Events, those frees in order of size that nothing lies between: PyTorch's hash map says which of the weights that autocast's cache
/// holds goes first.
pub fn sorted<S: Into<String>>(events: impl IntoIterator<Item = S>) -> Vec<String> {
    let mut events: Vec<String> = events.into_iter().map(Into::into).collect();
    for run in events.chunk_by_mut(|one, next| one.starts_with('-') && next.starts_with('-')) {
        run.sort();
    }
    events
}

#[test]
fn decoders_under_autocast_allocate_as_pytorch_does() {
    let Some(file) = cases::read("autocast.json") else { return };
    let (mut table, mut wrong) = (String::new(), String::new());
    for case in file["cases"].as_array().unwrap() {
        let id = case["id"].as_str().unwrap();
        let dims: Dims = serde_json::from_value(case["model_dims"].clone()).unwrap();
        let config: Config = serde_json::from_value(case["config"].clone()).unwrap();
        let mut job = cases::job(&dims, &config).unwrap();
        job.fsdp.version = Version::Unsharded;
        job.fsdp.wrap.blocks.fill(None);
        job.fsdp.mixed_precision = MixedPrecision { storage: DType::Fp32, param: None, reduce: None };
        job.sync_every = true;
        job.eager.unnamed_logits = true;
        job.autocast = Some(Autocast { cache: case["config"]["cache"].as_bool().unwrap() });
        assert!(matches!(job.checkpoint, Checkpoint::None | Checkpoint::Full));
        let program = train::compile(&job);
        let report = replay(&program, Settings { expandable_segments: false, capacity: Bytes(1 << 43) });
        let off = |key: &str, ours: Bytes| (ours.0 as f64 / case[key].as_u64().unwrap() as f64 - 1.0) * 100.0;
        let off = [off("peak_allocated", report.peak_allocated), off("peak_reserved", report.peak_reserved)];
        let (ours, theirs) = (sorted(events(&program)), sorted(case["events"].as_str().unwrap().split_whitespace()));
        table += &format!("{id:20} allocated {:+8.4} %   reserved {:+8.4} %\n", off[0], off[1]);
        if off[0].abs() > 0.01 || off[1].abs() > 1.5 {
            wrong += &format!("{id}: off\n");
        }
        if let Some(at) = (0..ours.len().max(theirs.len())).find(|&at| ours.get(at) != theirs.get(at)) {
            wrong += &format!("{id}: event {at} is {:?}, theirs {:?}\n", ours.get(at), theirs.get(at));
        }
    }
    println!("{table}");
    assert!(wrong.is_empty(), "{table}{wrong}");
}
