//! Simulating one rank for all identical ones changes nothing, to the picosecond.

use proptest::prelude::*;
use windtunnel::scenario::predict;
use windtunnel::scenario::predict::Settings;
use windtunnel::units::Time;

use crate::make;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_folded_run_is_the_full_run(text in make::scenarios()) {
        let scenario = make::parse(&text);
        let fly = |fold| predict(&scenario, Settings { fold, ..Settings::default() }).unwrap();
        let (folded, full) = (fly(true), fly(false));
        prop_assert_eq!(folded.step, full.step);
        prop_assert_eq!(folded.interval, full.interval);
        for breakdown in &full.timeline.breakdown {
            prop_assert_eq!(&folded.breakdown, breakdown);
        }
        prop_assert_eq!(&folded.timeline.busy[0].kernel, &full.timeline.busy[0].kernel);
        prop_assert_eq!(&folded.timeline.busy[0].comm, &full.timeline.busy[0].comm);
        prop_assert_eq!(&folded.timeline.busy[0].comm_exposed, &full.timeline.busy[0].comm_exposed);
        prop_assert_eq!(folded.parts, full.parts);
        prop_assert_eq!(folded.shares, full.shares);
    }

    #[test]
    fn compute_exposed_communication_host_and_waiting_are_the_whole_step(text in make::scenarios()) {
        let answer = make::fly(&text);
        let parts = answer.breakdown;
        let sum = parts.compute + parts.exposed_communication + parts.host_bound + parts.waiting;
        prop_assert_eq!((sum, parts.bubble), (answer.step, Time::ZERO));
    }
}

/// FSDP1 with its rate limiter, compiled blocks and several nodes are among the shipped scenarios.
#[test]
fn every_shipped_scenario_of_up_to_64_ranks_folds() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut checked = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let scenario = windtunnel::scenario::Scenario::load(&path).unwrap();
        if scenario.topology.chips() > 64 {
            continue;
        }
        let fly = |fold| predict(&scenario, Settings { fold, remedies: false, ..Settings::default() }).unwrap();
        let (folded, full) = (fly(true), fly(false));
        assert_eq!(folded.step, full.step, "{}", path.display());
        for (rank, &class) in full.timeline.breakdown.iter().zip(&full.class_of) {
            let mut alone = folded.classes[class as usize].breakdown;
            // What the allocator's calls add is no part of the timeline.
            alone.host_bound = alone.host_bound.saturating_sub(folded.stall);
            assert_eq!(*rank, alone, "{}", path.display());
        }
        assert_eq!(folded.parts, full.parts, "{}", path.display());
        checked += 1;
    }
    assert!(checked >= 9, "only {checked} scenarios");
}
