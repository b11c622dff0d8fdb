//! Schedules from files, and what is said of wrong ones.

use crate::command::Folder;
use windtunnel::schedule::{self, Batching, Schedule, Shape, csv};

fn refused(text: &str) -> String {
    csv::read("plan.csv", text).unwrap_err().to_string()
}

#[test]
fn idle_slots_and_blanks_mean_nothing() {
    let schedule = csv::read("plan.csv", "0F0,0F1,,0B0, 0B1\n,1F0,1B0,1F1,1B1\n").unwrap();
    assert_eq!(schedule.lists.csv(), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    assert_eq!((schedule.stages, schedule.microbatches, schedule.rank_of), (2, 2, vec![0, 1]));
}

#[test]
fn a_wrong_cell_is_named_with_its_file_line_and_column() {
    let wrong = refused("0F0,0F1,0B0,0B1\n1F0, 1X0,1F1,1B1\n");
    assert!(wrong.starts_with("plan.csv:2:6: \"1X0\" is no action (its kind is unknown)"), "{wrong}");
    let wrong = refused("F0\n");
    assert!(wrong.starts_with("plan.csv:1:1: \"F0\" is no action (it does not start with a stage"), "{wrong}");
    let wrong = refused("0F0,0B\n");
    assert!(wrong.starts_with("plan.csv:1:5: \"0B\" is no action (its micro-batch is missing)"), "{wrong}");
    let wrong = refused("0F0,0SEND_F0,0B0\n");
    assert!(wrong.starts_with("plan.csv:1:5: 0SEND_F0 is communication"), "{wrong}");
    let wrong = refused("(0F0;0F1)OVERLAP\n");
    assert!(wrong.starts_with("plan.csv:1:1: \"(0F0;0F1)OVERLAP\" is no overlap"), "{wrong}");
    let wrong = refused("0F99999999\n");
    assert!(wrong.contains("its micro-batch is not below 16,777,216"), "{wrong}");
    assert!(refused("").starts_with("plan.csv:1:1: no action"), "{}", refused(""));
}

#[test]
fn a_contradiction_is_named_with_its_file_line_and_column() {
    for (text, said) in [
        ("0B0,0F0\n", "1:1: 0B0: comes before its forward"),
        ("0F0,,0W0,0I0\n", "1:6: 0W0: comes before the backward of the input"),
        ("0F0, 0F0,0B0\n", "1:6: 0F0: the same has been done before"),
        ("0F0,0B0\n,0F1,0B1\n", "2:2: 0F1: stage 0 is rank 0's already"),
        ("0F0,0F1,0B1\n", "1:9: stage 0: micro-batch 0 of 2 has no backward"),
        ("0F0,0I0\n", "1:5: stage 0: micro-batch 0 of 1 has no backward"),
        ("1F0,1B0\n", "1:1: stage 0: micro-batch 0 of 1 has no forward"),
        ("0F0,0B0,0F1,0B1\n1F1,1F0,1B1,1B0\n", "1:5: the schedule never ends: rank 0 waits to run 0B0, rank 1 waits"),
    ] {
        assert!(refused(text).starts_with(&format!("plan.csv:{said}")), "{}", refused(text));
    }
    let many = refused("0F0,65535F16777215\n");
    assert!(many.starts_with("plan.csv:1:5: 65536 stages and 16777216 micro-batches are "), "{many}");
}

#[test]
fn a_schedule_that_never_ends_says_who_waits_for_whom() {
    let lists = csv::lists("plan.csv", "0F0,0B0,0F1,0B1\n1F1,1F0,1B1,1B0\n").unwrap();
    let schedule = Schedule::new("plan.csv".to_owned(), lists, Batching::Eager).unwrap();
    let costs = schedule::Costs::uniform(2, [windtunnel::units::Time(1); 3], windtunnel::units::Time(0));
    let said = schedule::replay(&schedule, &costs).unwrap_err().to_string();
    assert_eq!(said, "the schedule never ends: rank 0 waits at 0B0 for stage 1, rank 1 waits at 1F1 for stage 0");
    assert!(schedule::lower(&schedule, &schedule::Lowering::default()).is_err());
}

#[test]
fn what_a_schedule_is_said_to_idle_is_what_its_numbers_say() {
    let folder = crate::command::Folder::new("schedule-idle");
    let said = |name: &str| {
        let arguments = ["show", "schedule", name, "--stages", "4", "--microbatches", "8"];
        String::from_utf8(folder.windtunnel(&arguments).stdout).unwrap()
    };
    let (full, waits) = (said("ZB-H2"), said("1F1B"));
    assert!(full.contains("bubble 11.11 %"), "{full}");
    assert!(
        full.contains("all of it before a rank's first action or after its last: once begun, no rank waits"),
        "{full}"
    );
    assert!(waits.contains("between its first action and its last a rank waits"), "{waits}");
    let list = String::from_utf8(folder.windtunnel(&["show", "schedule"]).stdout).unwrap();
    assert!(!list.contains("no rank idles"), "{list}");
}

#[test]
fn a_shape_that_a_schedule_is_not_made_for_is_refused_with_a_remedy() {
    let said = |name: &str, ranks: u32, virtual_stages: u32, microbatches: u32| {
        schedule::build(name, Shape { ranks, virtual_stages, microbatches }).unwrap_err().to_string()
    };
    assert!(
        said("1F1B", 4, 1, 3).starts_with("1F1B needs at least 4 micro-batches (one for each rank, in PyTorch), not 3")
    );
    assert!(
        said("DualPipeV", 4, 2, 7).starts_with("DualPipeV needs at least 8 micro-batches (one for each stage), not 7")
    );
    assert_eq!(
        said("ZBVZeroBubble", 4, 1, 8),
        "ZBVZeroBubble runs two stages on each rank, not 1: give it virtual = 2"
    );
    assert!(said("Interleaved1F1B", 4, 2, 9).contains("take a multiple of the 4 pipeline ranks, such as 8 or 12"));
    assert!(
        said("2F2B", 4, 2, 9)
            .starts_with("no schedule is called \"2F2B\" (did you mean \"1F1B\"?): expected one of GPipe, 1F1B, ")
    );
    assert_eq!(said("GPipe", 0, 1, 1), "the number of pipeline ranks is 0: expected 1 to 65536");
    assert_eq!(
        said("ZB-1p", 2000, 1, 1000),
        "ZB-1p is searched turn by turn, and 2000 ranks × 1000 micro-batches are too many: take 524 micro-batches or \
         fewer, or ZB-H1, which is written down"
    );
}

#[test]
fn the_command_draws_a_schedule_and_writes_pytorchs_csv() {
    let folder = Folder::new("show_schedule");
    let shape = ["--stages", "2", "--virtual", "2", "--microbatches", "4"];
    let run = |more: &[&str]| {
        let arguments: Vec<&str> = [&["show", "schedule"], more].concat();
        let output = folder.windtunnel(&arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = run(&[&["interleaved-1f1b"], shape.as_slice()].concat());
    assert!(shown.contains("0 │ 0F0 0F1 2F0 2F1"), "{shown}");
    assert!(shown.contains("bubble 11.11 % of 27 units"), "{shown}");
    let csv = run(&[&["DualPipeV"], shape.as_slice(), &["--csv"]].concat());
    assert!(csv.starts_with("0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,"), "{csv}");
    folder.write("mine.csv", &csv);
    assert!(run(&["mine.csv"]).contains("mine.csv: 4 stages on 2 ranks, 4 micro-batches"));
    assert!(
        run(&[&["GPipe"], &["--stages", "2", "--microbatches", "1", "--csv", "--lowered"][..]].concat())
            .starts_with("0F0,0SEND_F0,0RECV_B0,0B0\n")
    );
    assert!(run(&[]).contains("ZB-H1"));
    let said = folder.refuses(&["show", "schedule", "mine.csv", "--stages", "2"]);
    assert!(said.contains("leave out --stages"), "{said}");
    assert!(folder.refuses(&["show", "schedule", "GPipe"]).contains("how many ranks and micro-batches?"));
    assert!(folder.refuses(&["show", "schedule", "missing.csv"]).contains("cannot read the schedule missing.csv: "));
}
