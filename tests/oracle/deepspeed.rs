//! DeepSpeed's own schedule, instruction by instruction (`tests/oracles/deepspeed.json`).

use super::cases;
use super::schedules::{assert_lists, cases_of, words};
use windtunnel::schedule::{self, Lowering, Schedule};

/// Micro-batches that a stage holds at once: forwards that have not gone back.
fn held(schedule: &Schedule) -> Vec<u64> {
    schedule::in_flight(schedule, false).into_iter().map(u64::from).collect()
}

#[test]
fn oracle_every_stage_is_given_deepspeeds_instructions() {
    let cases = cases_of("deepspeed.json");
    for (case, schedule) in &cases {
        let id = format!("{} stages, {} micro-batches", case["pp"], case["microbatches"]).into();
        let lists = schedule::lower(schedule, &Lowering::default()).unwrap();
        assert_lists(&id, "with communication", &lists, &words(&case["with_comms"]));
        let buffers: Vec<u64> = case["buffers"].as_array().unwrap().iter().map(|one| one.as_u64().unwrap()).collect();
        assert!(held(schedule).iter().zip(&buffers).all(|(held, buffers)| held <= buffers), "{id}: {buffers:?}");
    }
    assert!(cases.len() >= 15 || cases::elsewhere(), "only {} cases found", cases.len());
}
