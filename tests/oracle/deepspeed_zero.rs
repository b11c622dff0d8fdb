//! DeepSpeed's own ZeRO, event by event (`tests/oracles/deepspeed-zero.json`).

use serde_json::Value;
use windtunnel::runtime::zero::{
    AllReduce, Buckets, Coordinator, Gathering, Partition, Reduction, Scatters, gathered_elements,
};

use super::cases;

/// The file's cases of one of `stages`.
fn cases_of(stages: &[u64]) -> Vec<Value> {
    let Some(file) = cases::read("deepspeed-zero.json") else { return vec![] };
    let all = file["cases"].as_array().unwrap().iter();
    all.filter(|case| stages.contains(&case["stage"].as_u64().unwrap())).cloned().collect()
}

fn numbers(list: &Value) -> Vec<u64> {
    list.as_array().unwrap().iter().map(|one| one.as_u64().unwrap()).collect()
}

fn indices(list: &Value) -> Vec<usize> {
    numbers(list).into_iter().map(|one| one as usize).collect()
}

/// A setting, or DeepSpeed's default.
fn setting(case: &Value, key: &str, default: u64) -> u64 {
    case["zero"][key].as_u64().unwrap_or(default)
}

fn switch(case: &Value, key: &str, default: bool) -> bool {
    case["zero"][key].as_bool().unwrap_or(default)
}

fn events(case: &Value) -> impl Iterator<Item = (&str, &Value)> {
    case["events"].as_array().unwrap().iter().map(|event| (event[0].as_str().unwrap(), &event[1]))
}

/// Elements are in bf16.
const BF16: u64 = 2;

#[test]
fn oracle_zero_1_and_2_reduce_deepspeeds_slices_in_its_order() {
    let cases = cases_of(&[1, 2]);
    for case in &cases {
        let settings = Reduction {
            ranks: case["ranks"].as_u64().unwrap() as u32,
            bucket: setting(case, "reduce_bucket_size", 500_000_000),
            contiguous: switch(case, "contiguous_gradients", true),
            round_robin: switch(case, "round_robin_gradients", false),
        };
        let partition = Partition::new(settings, &numbers(&case["elements"]));
        let mut buckets = Buckets::new(&partition);
        let (mut ours, mut theirs, mut backward) = (vec![], vec![], false);
        for (event, what) in events(case) {
            match event {
                "backward" => backward = true,
                "step" => {
                    ours.extend(buckets.flush().iter().map(AllReduce::elements));
                    backward = false;
                }
                "ready" => ours.extend(buckets.ready(indices(what)[0]).iter().map(AllReduce::elements)),
                "all_reduce" if backward => theirs.push(what.as_u64().unwrap() / BF16),
                "all_gather" => assert_eq!(what.as_u64().unwrap(), partition.each() * 8 * BF16, "{}", case["zero"]),
                _ => {}
            }
        }
        assert_eq!(ours, theirs, "{}", case["zero"]);
    }
    assert!(cases.len() >= 7 || cases::elsewhere(), "only {} cases found", cases.len());
}

#[test]
fn oracle_zero_3_gathers_and_lets_go_of_deepspeeds_parameters_in_its_order() {
    let cases = cases_of(&[3]);
    for case in &cases {
        let defaults = Gathering::default();
        let settings = Gathering {
            prefetch: setting(case, "stage3_prefetch_bucket_size", defaults.prefetch),
            persist: setting(case, "stage3_param_persistence_threshold", defaults.persist),
            live: setting(case, "stage3_max_live_parameters", defaults.live),
            reuse: setting(case, "stage3_max_reuse_distance", defaults.reuse),
        };
        let modules: Vec<Vec<usize>> = case["modules"].as_array().unwrap().iter().map(indices).collect();
        let order = indices(&case["order"]);
        let mut ours = Coordinator::new(settings, &numbers(&case["elements"]), &modules, &order);
        // Of our first backward, which begins with everything away, as theirs do.
        let mut expected: Vec<(&str, Vec<usize>)> = vec![];
        let mut found = vec![];
        let mut backward = false;
        ours.begin();
        for (event, what) in events(case) {
            match event {
                "backward" => backward = true,
                "step" => {
                    note(&mut found, "free", ours.finish());
                    break;
                }
                "fetch" => {
                    let module = what.as_u64().unwrap() as usize;
                    ours.fetch(module, backward)
                        .gathers()
                        .into_iter()
                        .for_each(|params| note(&mut found, "gather", params));
                }
                "release" => note(&mut found, "free", ours.release(what.as_u64().unwrap() as usize)),
                "gather" | "free" => note(&mut expected, event, indices(what)),
                _ => {}
            }
        }
        assert_eq!(found, expected, "{}", case["zero"]);
    }
    assert!(cases.len() >= 11 || cases::elsewhere(), "only {} cases found", cases.len());
}

#[test]
fn oracle_zero_3_reduces_deepspeeds_buckets() {
    for case in cases_of(&[3]) {
        let elements = numbers(&case["elements"]);
        let mut scatters = Scatters::new(setting(&case, "reduce_bucket_size", 500_000_000));
        let (mut ours, mut theirs) = (vec![], vec![]);
        for (event, what) in events(&case) {
            match event {
                "ready" => {
                    let param = indices(what)[0];
                    ours.push(scatters.ready(param, elements[param]));
                }
                "step" => ours.push(scatters.flush()),
                "reduce" => theirs.push(indices(what)),
                _ => {}
            }
        }
        ours.retain(|params| !params.is_empty());
        assert_eq!(ours, theirs, "{}", case["zero"]);
        assert!(!theirs.is_empty());
    }
}

/// What DeepSpeed holds between steps: parameters in bf16; of each rank's part a copy in fp32 and two moments; under ZeRO-3
/// only that part of parameters and gradients in bf16, small parameters whole, and the bucket. Beside that lie tokens.
#[test]
fn oracle_between_steps_zero_holds_what_its_closed_forms_say() {
    for case in cases_of(&[1, 2, 3]) {
        let (elements, ranks) = (numbers(&case["elements"]), case["ranks"].as_u64().unwrap());
        let held = case["memory"][0][1].as_u64().unwrap();
        let all: u64 = elements.iter().sum();
        let flat = Reduction { ranks: ranks as u32, bucket: 0, contiguous: true, round_robin: false };
        let (expected, slack) = match case["stage"].as_u64().unwrap() {
            3 => {
                let persist = setting(&case, "stage3_param_persistence_threshold", Gathering::default().persist);
                let stay: u64 = elements.iter().filter(|&&elements| elements <= persist).sum();
                let bucket = setting(&case, "reduce_bucket_size", 500_000_000);
                (BF16 * (bucket + stay) + 16 * gathered_elements(&elements, ranks as u32) / ranks, 1 << 20)
            }
            _ => (BF16 * all + 12 * Partition::new(flat, &elements).each(), 8 << 10),
        };
        assert!(held >= expected && held - expected <= slack, "{}: {held} and {expected}", case["zero"]);
    }
}

/// Writes down what happened; frees in a row have no order of their own.
fn note<'e>(list: &mut Vec<(&'e str, Vec<usize>)>, what: &'e str, params: Vec<usize>) {
    match list.last_mut() {
        _ if params.is_empty() => {}
        Some((last, known)) if what == "free" && *last == "free" => {
            known.extend(params);
            known.sort_unstable();
        }
        _ => list.push((what, params)),
    }
}
