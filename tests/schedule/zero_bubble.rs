//! The table of Qi et al. 2024 (arXiv 2401.10241, table 4): bubble rates that the authors computed from their profiled
//! T_F, T_B, T_W and T_comm (A100, appendix, "profiled time statistics"), and memory that they measured.
//!
//! The bubble rate is (cost − m·(T_F+T_B+T_W)) / cost with the longest time of a rank as the cost. What a micro-batch keeps
//! per layer is the paper's table 1: s·b·h·(34 + 5·a·s/h) until the gradient of the input, 32·s·b·h of it until the
//! gradient of the weights.

use serde_json::Value;
use windtunnel::schedule::order::megatron;
use windtunnel::schedule::order::zero_bubble::{Memory, search};
use windtunnel::schedule::{self, Costs, Schedule, Shape, peak_memory, replay};
use windtunnel::units::Time;

/// Of a model on 8 ranks: heads, hidden size, and per number of micro-batches forward, gradients of inputs, of weights and
/// a transfer, in microseconds.
struct Profile {
    model: &'static str,
    heads: u64,
    hidden: u64,
    /// Stages on each rank where a stage is one layer.
    layers: u32,
    times: [(u32, [u64; 4]); 3],
}

const PROFILES: [Profile; 2] = [
    Profile {
        model: "1.5b",
        heads: 24,
        hidden: 2304,
        layers: 3,
        times: [
            (24, [18_522, 18_086, 9_337, 601]),
            (32, [18_513, 18_086, 9_331, 626]),
            (64, [18_546, 18_097, 9_321, 762]),
        ],
    },
    Profile {
        model: "6.2b",
        heads: 32,
        hidden: 4096,
        layers: 4,
        times: [
            (24, [29_718, 29_444, 19_927, 527]),
            (32, [29_802, 29_428, 19_530, 577]),
            (64, [29_935, 29_621, 19_388, 535]),
        ],
    },
];

/// A schedule of the paper with its costs and what it keeps, in the paper's s·b·h a layer.
struct Row {
    name: &'static str,
    schedule: Schedule,
    costs: Costs,
    memory: u64,
}

fn rows(profile: &Profile, microbatches: u32, [forward, input, weight, hop]: [u64; 4]) -> Vec<Row> {
    const RANKS: u32 = 8;
    let shape = Shape { ranks: RANKS, virtual_stages: 1, microbatches };
    let parts = |share: u64| [forward, input, weight].map(|time| Time(time * 1_000_000 / share));
    let costs = Costs::uniform(RANKS as usize, parts(1), Time(hop * 1_000_000));
    let activation = 34 + 5 * profile.heads * 1024 / profile.hidden;
    let kept = [activation, 32];
    let searched = |name: &str, times: u64| {
        let memory = Memory { activation, for_weights: 32, limit: times * u64::from(RANKS) * activation };
        search(name, shape, &costs, memory).unwrap()
    };
    let layered = Shape { virtual_stages: profile.layers, ..shape };
    let of = |name: &'static str, schedule: Schedule, share: u64| {
        let costs = Costs::uniform(schedule.stages, parts(share), Time(hop * 1_000_000));
        let kept = vec![kept; schedule.stages];
        let memory = peak_memory(&schedule, &kept).into_iter().max().unwrap() * u64::from(profile.layers) / share;
        Row { name, schedule, costs, memory }
    };
    let interleaved = megatron::interleaved(layered, megatron::Settings::of(layered)).unwrap();
    vec![
        of("1f1b", schedule::build("1F1B", shape).unwrap(), 1),
        of("zb-1p", searched("ZB-1p", 1), 1),
        of("1f1b-i", interleaved, u64::from(profile.layers)),
        of("zb-2p", searched("ZB-2p", 2), 1),
    ]
}

/// The paper's rows of the receipts.
fn measured() -> Vec<Value> {
    let text = std::fs::read_to_string("tests/receipts/public.jsonl").unwrap();
    let of_paper = text.lines().filter(|line| line.contains("\"misc-zb-table-4-"));
    of_paper.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What the paper says of a model and a schedule with so many micro-batches.
fn said<'r>(receipts: &'r [Value], profile: &Profile, microbatches: u32, name: &str) -> &'r Value {
    let (model, ending) = (format!("-{}-", profile.model), format!("-m{microbatches}-{name}"));
    let found = receipts.iter().find(|receipt| {
        let id = receipt["id"].as_str().unwrap();
        id.contains(&model) && id.ends_with(&ending)
    });
    &found.unwrap_or_else(|| panic!("no row {model} {ending}"))["measured"]
}

#[test]
fn bubble_rates_are_the_papers() {
    let (receipts, mut table, mut checked) = (measured(), String::new(), 0);
    for profile in &PROFILES {
        for (microbatches, times) in profile.times {
            for row in rows(profile, microbatches, times) {
                let theirs = said(&receipts, profile, microbatches, row.name)["bubble_rate_calc"].as_f64().unwrap();
                let ours = replay(&row.schedule, &row.costs).unwrap().bubble_rate();
                table +=
                    &format!("{} m {microbatches} {:6} paper {theirs:.4} here {ours:.4}\n", profile.model, row.name);
                assert!((ours - theirs).abs() < 0.004, "{table}");
                checked += 1;
            }
        }
    }
    println!("{table}");
    assert_eq!(checked, 24);
}

#[test]
fn zb_v_on_16_ranks_is_the_papers_with_the_transfer_time_that_its_1f1b_implies() {
    // Table 6 runs the 6.2B model on 16 ranks of two nodes with twice the micro-batch: half the layers on a rank, so about
    // the compute times of 8 ranks. The paper prints no profile for it. A transfer of 1.65 ms follows from its 1F1B with 48
    // micro-batches, which waits for 2(p−1)·(m+p−1)/p of them; the other five rates are not used.
    let [forward, input, weight, _] = PROFILES[1].times[0].1;
    for (m, zbv, one) in [(48, 0.0697, 0.2668), (64, 0.0533, 0.2206), (128, 0.0274, 0.139)] {
        let of = |name: &str, virtual_stages: u32| {
            let shape = Shape { ranks: 16, virtual_stages, microbatches: m };
            let schedule = schedule::build(name, shape).unwrap();
            let parts = [forward, input, weight].map(|time| Time(time * 1_000_000 / u64::from(virtual_stages)));
            let costs = Costs::uniform(schedule.stages, parts, Time(1_650_000_000));
            replay(&schedule, &costs).unwrap().bubble_rate()
        };
        let ours = [of("ZBVZeroBubble", 2), of("1F1B", 1)];
        println!("m {m}: ZB-V paper {zbv} here {:.4}, 1F1B paper {one} here {:.4}", ours[0], ours[1]);
        assert!((ours[0] - zbv).abs() < 0.002 && (ours[1] - one).abs() < 0.002, "{m}: {ours:?}");
    }
}

#[test]
fn schedules_rank_by_memory_as_measured() {
    let receipts = measured();
    for profile in &PROFILES {
        for (microbatches, times) in profile.times {
            let rows = rows(profile, microbatches, times);
            let theirs = |row: &Row| {
                said(&receipts, profile, microbatches, row.name)["peak_mem_gb_as_printed"].as_f64().unwrap()
            };
            for pair in rows.windows(2) {
                assert!(pair[0].memory <= pair[1].memory, "{} {}: {}", pair[0].name, pair[0].memory, pair[1].memory);
                assert!(theirs(&pair[0]) <= theirs(&pair[1]), "the rows here stand in the order measured");
            }
        }
    }
}
