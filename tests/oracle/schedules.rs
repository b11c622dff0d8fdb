//! Pipeline schedules, action by action, against `torch.distributed.pipelining` (`tests/oracles/schedules.json`).

use serde_json::Value;

use super::cases;
use windtunnel::schedule::{self, Costs, Lists, Lookahead, Lowering, Schedule, Shape, csv, picture, replay};
use windtunnel::units::Time;

/// A file's cases with the schedules of the same shape.
pub fn cases_of(file: &str) -> Vec<(Value, Schedule)> {
    let Some(file) = cases::read(file) else { return vec![] };
    let build = |case: &Value| {
        let count = |key: &str| u32::try_from(case[key].as_u64().unwrap()).unwrap();
        let shape =
            Shape { ranks: count("pp"), virtual_stages: count("virtual_stages"), microbatches: count("microbatches") };
        let schedule = schedule::build(case["schedule"].as_str().unwrap(), shape).unwrap();
        (case.clone(), schedule)
    };
    file["cases"].as_array().unwrap().iter().map(build).collect()
}

/// Fails at the first rank whose list differs.
pub fn assert_lists(id: &Value, what: &str, ours: &Lists, theirs: &Value) {
    let theirs = theirs.as_array().unwrap();
    assert_eq!(ours.ranks(), theirs.len(), "{id}");
    for (rank, theirs) in theirs.iter().enumerate() {
        let theirs: Vec<&str> = theirs.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        let ours: Vec<String> = ours.portions(rank).map(schedule::notation).collect();
        if let Some(at) =
            (0..ours.len().max(theirs.len())).find(|&at| ours.get(at).map(String::as_str) != theirs.get(at).copied())
        {
            let near = at.saturating_sub(5)..at + 5;
            let show = |list: &[String]| list[near.start.min(list.len())..near.end.min(list.len())].join(" ");
            let theirs: Vec<String> = theirs.iter().map(|&word| word.to_owned()).collect();
            panic!("{id} {what}, rank {rank}, entry {at}:\n  ours   {}\n  theirs {}", show(&ours), show(&theirs));
        }
    }
}

/// F = I = W = 1 and nothing to send, as the oracle counts.
pub fn unit(schedule: &Schedule) -> Costs {
    Costs::uniform(schedule.stages, [Time(1); 3], Time(0))
}

#[test]
fn oracle_every_ranks_actions_are_pytorchs() {
    let cases = cases_of("schedules.json");
    for (case, schedule) in &cases {
        assert_lists(&case["id"], "compute", &schedule.lists, &case["compute"]);
        for (stage, rank) in case["stage_to_rank"].as_object().unwrap() {
            assert_eq!(u64::from(schedule.rank_of[stage.parse::<usize>().unwrap()]), rank.as_u64().unwrap(), "{stage}");
        }
    }
    assert!(cases.len() >= 82 || cases::elsewhere(), "only {} cases found", cases.len());
}

#[test]
fn oracle_sends_receives_unshards_and_reductions_are_pytorchs() {
    for (case, schedule) in cases_of("schedules.json") {
        let lists = schedule::lower(&schedule, &lowering(&case["opts"])).unwrap();
        assert_lists(&case["id"], "with communication", &lists, &case["with_comms"]);
    }
}

#[test]
fn oracle_bubbles_and_times_are_the_same_to_the_unit() {
    for (case, schedule) in cases_of("schedules.json") {
        let (id, theirs) = (&case["id"], &case["replay"]);
        let timeline = replay(&schedule, &unit(&schedule)).unwrap();
        let units = |times: &Value| -> Vec<Time> {
            times.as_array().unwrap().iter().map(|time| Time(time.as_f64().unwrap() as u64)).collect()
        };
        assert_eq!(timeline.makespan().0 as f64, theirs["makespan"].as_f64().unwrap(), "{id}");
        assert_eq!(
            timeline.ranks.iter().map(|rank| rank.busy).collect::<Vec<_>>(),
            units(&theirs["busy_per_rank"]),
            "{id}"
        );
        assert_eq!(
            timeline.ranks.iter().map(|rank| rank.last).collect::<Vec<_>>(),
            units(&theirs["finish_per_rank"]),
            "{id}"
        );
        assert!((timeline.bubble() - theirs["bubble_fraction"].as_f64().unwrap()).abs() < 1e-12, "{id}");
        if let Some(closed) = case["closed_form_bubble"].as_f64().filter(|_| case["closed_form_match"] == true) {
            assert!((timeline.bubble() - closed).abs() < 1e-12, "{id}");
        }
        if let Some(starts) = theirs["start_times"].as_array() {
            for (rank, starts) in starts.iter().enumerate() {
                assert_eq!(timeline.start[schedule.lists.range(rank)], units(starts), "{id}, rank {rank}");
            }
        }
        assert!(picture::draw(&schedule, &timeline, 10_000).is_some(), "{id}");
    }
}

#[test]
fn oracle_activations_in_flight_are_the_same() {
    for (case, schedule) in cases_of("schedules.json") {
        for (early, key) in [(false, "release_at_B_or_W"), (true, "release_at_B_or_I")] {
            let theirs: Vec<u64> = case["max_inflight_activations"]
                .as_array()
                .unwrap()
                .iter()
                .map(|rank| rank[key].as_u64().unwrap())
                .collect();
            let ours: Vec<u64> = schedule::in_flight(&schedule, early).into_iter().map(u64::from).collect();
            assert_eq!(ours, theirs, "{} {key}", case["id"]);
        }
    }
}

#[test]
fn oracle_as_many_stages_are_unsharded_at_once() {
    for (case, schedule) in cases_of("schedules.json") {
        let Some(theirs) = case["max_unsharded_stages"].as_array() else { continue };
        let most = case["opts"]["max_active_stages"].as_u64().unwrap_or(3) as usize;
        let lists = schedule::lower(&schedule, &Lowering { max_active_stages: most, ..Lowering::default() }).unwrap();
        for (rank, theirs) in theirs.iter().enumerate() {
            let (mut live, mut peak) = (0, 0);
            for action in lists.rank(rank) {
                match action.kind {
                    schedule::Kind::Unshard => live += 1,
                    schedule::Kind::Reshard => live -= 1,
                    _ => {}
                }
                peak = peak.max(live);
            }
            assert_eq!(peak, theirs.as_u64().unwrap(), "{}, rank {rank}", case["id"]);
        }
    }
}

/// A list written in one line.
pub fn words(lists: &Value) -> Value {
    let split = |list: &Value| list.as_str().unwrap().split_whitespace().collect::<Vec<_>>().into();
    lists.as_array().unwrap().iter().map(split).collect::<Vec<Value>>().into()
}

/// PyTorch's options of a case.
fn lowering(options: &Value) -> Lowering {
    let plain = Lowering::default();
    Lowering {
        max_active_stages: options["max_active_stages"].as_u64().map_or(plain.max_active_stages, |most| most as usize),
        unshard_lookahead: match &options["unshard_lookahead"] {
            Value::Array(ranks) => {
                Lookahead::Ranks(ranks.iter().map(|ahead| ahead.as_u64().unwrap() as usize).collect())
            }
            Value::String(_) => Lookahead::Auto,
            _ => Lookahead::Full,
        },
        defer_reduce_grad_wait: options["defer_reduce_grad_wait"] == true,
        defer_pp_recv: options["defer_pp_recv"] == true,
        ..plain
    }
}

#[test]
fn oracle_odd_shapes_and_options_are_pytorchs() {
    let cases = cases_of("lowered.json");
    for (case, schedule) in &cases {
        let id: Value = format!("{} {}", schedule.name, case["opts"]).into();
        assert_lists(&id, "compute", &schedule.lists, &words(&case["compute"]));
        let lists = schedule::lower(schedule, &lowering(&case["opts"])).unwrap();
        assert_lists(&id, "with communication", &lists, &words(&case["with_comms"]));
    }
    assert!(cases.len() >= 150 || cases::elsewhere(), "only {} cases found", cases.len());
}

#[test]
fn oracle_what_is_read_from_a_csv_is_issued_as_pytorch_does() {
    let Some(file) = cases::read("schedule-csv.json") else { return };
    for case in file["cases"].as_array().unwrap() {
        let schedule = csv::read("plan.csv", case["csv"].as_str().unwrap()).unwrap();
        let lists = schedule::lower(&schedule, &Lowering::default()).unwrap();
        assert_lists(&case["csv"], "with communication", &lists, &words(&case["with_comms"]));
    }
}

#[test]
fn oracle_every_schedule_survives_pytorchs_csv() {
    for (case, schedule) in cases_of("schedules.json") {
        let read = csv::read("a.csv", &schedule.lists.csv()).unwrap();
        assert_eq!((&read.lists, &read.rank_of), (&schedule.lists, &schedule.rank_of), "{}", case["id"]);
        if schedule.batching == schedule::Batching::Eager {
            let lists = schedule::lower(&schedule, &Lowering::default()).unwrap();
            assert_eq!(csv::lists("a.csv", &lists.csv()).unwrap(), lists, "{}", case["id"]);
        }
    }
}
