//! The chance that a step fits, held against PyTorch's own allocator on devices with about as much memory as the step needs.
//!
//! `capped.json`: 36 steps of FSDP2 (PyTorch 2.15, kernels replaced by nothing), each under five limits between 92 and 108 % of what it
//! reserves without one; `capped.py` made it.

use super::cases::{self, Config, Dims};
use windtunnel::memory::{self, Settings};
use windtunnel::runtime::train;
use windtunnel::scenario::predict::chance_within;
use windtunnel::units::Bytes;

/// A step under a limit.
struct Capped {
    id: String,
    /// The limit over what the step reserves without one.
    share: f64,
    ran: bool,
    /// The chance that is stated, and what was said without chances.
    chance: f64,
    yes: bool,
}

fn all() -> Vec<Capped> {
    let mut all = vec![];
    for case in cases::read("capped.json").iter().flat_map(|file| file["cases"].as_array().unwrap()) {
        let dims: Dims = serde_json::from_value(case["model_dims"].clone()).unwrap();
        let config: Config = serde_json::from_value(case["config"].clone()).unwrap();
        let Some(job) = cases::job(&dims, &config) else { continue };
        let program = train::compile(&job);
        let need = case["need"].as_u64().unwrap();
        for capped in case["caps"].as_array().unwrap() {
            let cap = capped["cap"].as_u64().unwrap();
            let expandable = case["expandable_segments"].as_bool().unwrap();
            let (chance, yes) = chance_within(&program, Bytes(cap), expandable);
            let id = case["id"].as_str().unwrap().to_owned();
            let share = cap as f64 / need as f64;
            all.push(Capped { id, share, ran: capped["ran"].as_bool().unwrap(), chance, yes });
        }
    }
    all
}

#[test]
fn oracle_a_step_near_its_limit_fits_as_pytorchs_allocator_says() {
    let all = all();
    if all.is_empty() && cases::elsewhere() {
        return;
    }
    assert!(all.len() >= 120, "{}", all.len());
    let said = |one: &Capped| format!("{} at {:.4} of its need: {:.2}", one.id, one.share, one.chance);
    // The replay at the very limit is PyTorch's allocator to the byte: it gives the same segments back.
    let wrong: Vec<String> = all.iter().filter(|one| one.yes != one.ran).map(said).collect();
    assert_eq!(wrong, [""; 0], "the replay is wrong");
    let open = |one: &&Capped| (0.1..=0.9).contains(&one.chance);
    let wrong: Vec<String> = all.iter().filter(|one| !open(one) && (one.chance > 0.5) != one.ran).map(said).collect();
    assert_eq!(wrong, [""; 0], "a firm verdict is wrong");
    let count = all.iter().filter(open).count();
    assert!(count * 4 <= all.len(), "{count} of {} are called open", all.len());
    let far: Vec<&Capped> = all.iter().filter(|one| (one.share - 1.0).abs() > 0.03).collect();
    let firm = far.iter().filter(|one| !open(one)).count();
    println!("{count} of {} open; {firm} of {} more than 3 % from the limit are firm", all.len(), far.len());
    assert!(firm * 20 >= far.len() * 17, "{firm} of {}", far.len());
}

#[test]
fn oracle_what_pytorch_says_of_memory_in_pieces_is_what_is_said() {
    /// Segments of large blocks are whole multiples of this (`c10/core/AllocatorConfig.h`, `kRoundLarge`).
    const SEGMENT: u64 = 2 << 20;
    let (mut exact, mut pieces) = (0, 0);
    for case in cases::read("capped.json").iter().flat_map(|file| file["cases"].as_array().unwrap()) {
        let dims: Dims = serde_json::from_value(case["model_dims"].clone()).unwrap();
        let config: Config = serde_json::from_value(case["config"].clone()).unwrap();
        let Some(job) = cases::job(&dims, &config) else { continue };
        let program = train::compile(&job);
        for capped in case["caps"].as_array().unwrap().iter().filter(|capped| !capped["refused"].is_null()) {
            let capacity = Bytes(capped["cap"].as_u64().unwrap());
            let under = |expandable_segments| memory::replay(&program, Settings { expandable_segments, capacity });
            let (failed, _) = under(false).out_of_memory.expect("a step that fails");
            let refused = &capped["refused"];
            let of = |key: &str| refused[key].as_u64().unwrap();
            let said = [failed.requested.0.next_multiple_of(SEGMENT), failed.allocated.0, failed.reserved.0];
            let by_pytorch = ["segment", "allocated", "reserved"].map(of);
            exact += u64::from(said == by_pytorch);
            let off = said.iter().zip(by_pytorch).map(|(said, of)| said.abs_diff(of)).max();
            assert!(off <= Some(SEGMENT), "{} in {capacity}: {said:?}, {by_pytorch:?}", case["id"]);
            let mended = capped["ran_with_expandable_segments"].as_bool().unwrap();
            assert_eq!(under(true).out_of_memory.is_none(), mended, "{} in {capacity}", case["id"]);
            pieces += u64::from(failed.allocated + failed.requested <= capacity);
        }
    }
    assert!(pieces >= 20 || pieces == 0 && cases::elsewhere(), "{pieces}");
    // In one step tensors of 1.25 MiB got other free blocks; a block with at most 1 MiB more than that is not split, and counts whole.
    assert!(exact + 1 >= pieces, "{exact} of {pieces}");
}
