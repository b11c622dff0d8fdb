//! A search that is ended early: it answers with what it has, and what it says of the rest is so.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use windtunnel::explore::plan::{Answer, PlanError, Progress, Request, json, plan, plan_until, text};
use windtunnel::units::Time;

/// A small mixture of experts on four nodes.
const REQUEST: &str = "model = \"deepseek-v2-lite\"\nsequence = 2048\nglobal_batch = 256\ntop = 3\n\
    [[machine]]\nname = \"h100-sxm-80gb\"\nsize = 4\n[set]\n\"model.layers\" = 6\n";

fn request() -> Request {
    Request::parse("request.toml", REQUEST).expect("a request")
}

/// The answer once so many plans were simulated, or looked at.
fn after(most: usize, counts: fn(&Progress) -> bool) -> Result<Answer, PlanError> {
    let heard = AtomicUsize::new(0);
    let told = |progress: Progress| {
        heard.fetch_add(usize::from(counts(&progress)), Ordering::Relaxed);
    };
    plan_until(request(), false, &told, (&|| heard.load(Ordering::Relaxed) >= most, None))
}

#[test]
fn what_is_undecided_is_counted_and_no_plan_of_it_is_faster_than_is_said() {
    let whole = plan(request(), false, &|_| ()).expect("plans");
    let all = &whole.sites[0];
    assert!(all.counts.undecided == 0 && all.possible.is_none() && !text::report(&whole, 100).contains("so far"));
    for most in [2, 4, 6] {
        let part = after(most, |progress| matches!(progress, Progress::Simulated)).expect("a plan or more");
        let on = &part.sites[0];
        let counts = on.counts;
        assert!(counts.undecided > 0 && part.is_partial(), "{counts:?}");
        let decided = counts.simulated + counts.too_large + counts.too_slow;
        assert_eq!(decided + counts.undecided, counts.legal, "{counts:?}");
        // What the whole search found and this one did not takes no less than is said to be possible.
        let possible = on.possible.expect("a bound of what is undecided");
        let found: Vec<_> = on.all().map(|plan| &plan.candidate.keys).collect();
        let missing: Vec<_> = all.all().filter(|plan| !found.contains(&&plan.candidate.keys)).collect();
        assert!(!missing.is_empty() && missing.iter().all(|plan| plan.step >= possible), "{most}");
        let said = text::report(&part, 1000);
        assert!(
            said.contains("Fastest so far: ") && said.contains(" plans are not decided, and none of them "),
            "{said}"
        );
        let machine = &json::report(&part)["machines"][0];
        assert_eq!(machine["counts"]["undecided"], counts.undecided);
        assert_eq!(machine["least_undecided_step_time_s"], possible.seconds());
    }
}

#[test]
fn a_first_plan_is_there_before_all_are_looked_at() {
    let part = after(40, |progress| matches!(progress, Progress::Looked)).expect("the best of a few plans");
    let on = &part.sites[0];
    assert!(on.counts.simulated == 1 && on.ranked.len() == 1 && on.possible == Some(Time::ZERO), "{:?}", on.counts);
    assert!(text::report(&part, 1000).contains("some of them have no bound yet"));
}

#[test]
fn a_search_without_any_time_says_that_it_found_nothing_yet() {
    let error = plan_until(request(), false, &|_| (), (&|| true, None)).expect_err("no time").to_string();
    assert!(
        error.contains("the search ended before it found a plan") && error.contains("give it more time"),
        "{error}"
    );
}

#[test]
fn an_interrupt_and_a_budget_end_a_search_and_not_the_program() {
    let plan = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windtunnel"));
        let model = ["plan", "--model", "deepseek-v3", "--on", "h100-sxm-80gb:512gpus", "--global-batch", "4096"];
        command.args(model).args(["--sequence", "4096"]).args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the program")
    };
    let child = plan(&[]);
    // Either it has a plan by then, or it says that it has none.
    std::thread::sleep(Duration::from_secs(1));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let by_budget = plan(&["--budget", "1s"]);
    for (child, code) in [(child, 130), (by_budget, 0)] {
        let ended = child.wait_with_output().unwrap();
        let [told, said] = [&ended.stdout, &ended.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        match ended.status.code() {
            Some(2) => assert!(said.contains("before it found a plan"), "{said}"),
            ended => assert!(ended == Some(code) && told.contains("Fastest so far: "), "{ended:?}: {told}{said}"),
        }
    }
}
