//! Boards that may draw less than their own power.

use windtunnel::scenario::Scenario;
use windtunnel::scenario::advice::Unstated;
use windtunnel::scenario::predict::{Prediction, Settings, predict};

use crate::command::Folder;
use crate::make::replaced;

const SAMPLE: &str = include_str!("../scenarios/llama3.1-8b-fsdp2-8xh100.toml");

/// Llama 3.1 8B under FSDP2 on eight H100, with more said of its machine.
fn with(more: &str) -> (Scenario, Prediction) {
    let text = replaced(SAMPLE, &[("name = \"h100-sxm-80gb\"", &format!("name = \"h100-sxm-80gb\"\n{more}"))]);
    let scenario = Scenario::parse("power.toml", &text).expect("a plan that can be read");
    let answer = predict(&scenario, Settings::default()).expect("a plan that runs");
    (scenario, answer)
}

#[test]
fn a_lower_limit_slows_a_step_by_no_more_than_the_square_law_of_its_dynamic_power() {
    let (_, own) = with("");
    let (_, stated) = with("power_limit = \"700 W\"");
    let (_, limited) = with("power_limit = \"500 W\"");
    assert_eq!(own.step, stated.step);
    let slower = limited.step.seconds() / own.step.seconds();
    // 500 and 700 W less the 120 W that clocks do not move.
    let square = (580.0f64 / 380.0).sqrt();
    assert!((1.05..square).contains(&slower), "{slower}");
    let width = |answer: &Prediction| answer.interval.1.seconds() / answer.interval.0.seconds();
    assert!(width(&limited) >= width(&own), "the law is less sure than the measurement");
}

/// The same where the topology's file says what its boards draw.
fn on_boards_of(power: &str) -> Result<Scenario, String> {
    let folder = Folder::new(&format!("power-{}", power.replace(' ', "")));
    let shipped = include_str!("../topologies/h100-sxm-80gb.toml");
    folder.write("own.toml", &replaced(shipped, &[("\"700 W\"", &format!("{power:?}"))]));
    folder.write("plan.toml", &replaced(SAMPLE, &[("\"h100-sxm-80gb\"", "\"own.toml\"")]));
    Scenario::load(folder.path.join("plan.toml")).map_err(|error| error.to_string())
}

#[test]
fn boards_of_a_users_own_that_draw_less_are_as_slow_as_limited_ones() {
    let own = on_boards_of("500 W").expect("a plan that can be read");
    let answer = predict(&own, Settings::default()).expect("a plan that runs");
    let (_, limited) = with("power_limit = \"500 W\"");
    assert_eq!(answer.step, limited.step);
    assert!(!answer.unread.iter().any(|idle| idle.key == "chip.power"));
    // Of a board that draws less than any takes as a limit nothing is known.
    let said = on_boards_of("100 W").expect_err("no such board");
    assert!(said.contains("draws 100 W at most") && said.contains("measured under 700 W"), "{said}");
}

#[test]
fn clocks_of_h100_limited_to_500_w_are_those_of_metas_boards_of_500_w() {
    let rate = |text: &str| {
        let scenario = Scenario::parse("power.toml", text).expect("a plan that can be read");
        scenario.profile.clock.matmul(1e-3, windtunnel::program::DType::Bf16)
    };
    let limit = "name = \"h100-sxm-80gb\"\npower_limit = \"500 W\"";
    let limited = rate(&replaced(SAMPLE, &[("name = \"h100-sxm-80gb\"", limit)]));
    let board = rate(&replaced(SAMPLE, &[("\"h100-sxm-80gb\"", "\"h100-hbm2e-96gb-500w\"")]));
    assert!((limited / board - 1.0).abs() < 1e-4, "{limited} and {board}");
}

#[test]
fn a_limit_that_the_file_leaves_out_is_among_what_decides() {
    let asked = |(scenario, answer): (Scenario, Prediction)| {
        let unstated = Unstated::of(&scenario, &answer, |_| ());
        let defaults = unstated.map_or(vec![], |unstated| unstated.defaults);
        defaults.iter().any(|line| line.starts_with("topology.power_limit = "))
    };
    assert!(asked(with("")));
    assert!(!asked(with("power_limit = \"700 W\"")) && !asked(with("clocks = \"burst\"")));
}

#[test]
fn a_limit_that_changes_nothing_is_named_and_one_that_no_board_takes_is_refused() {
    let (scenario, _) = with("clocks = \"burst\"\npower_limit = \"500 W\"");
    assert!(scenario.idle.iter().any(|idle| idle.key == "topology.power_limit"));
    for (limit, said) in [("900 W", "200 W to 700 W"), ("100 W", "200 W to 700 W"), ("500", "expected one of W, kW")] {
        let text = replaced(SAMPLE, &[("\"h100-sxm-80gb\"", &format!("\"h100-sxm-80gb\"\npower_limit = \"{limit}\""))]);
        let error = Scenario::parse("power.toml", &text).expect_err("a limit that is out of range").to_string();
        assert!(error.contains(said), "{error}");
    }
}
