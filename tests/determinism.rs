//! The same scenario gives the same bytes, wherever and however often it is run.

use windtunnel::report::json;
use windtunnel::scenario::predict;
use windtunnel::scenario::predict::Settings;

use crate::command::Folder;
use crate::make;

const SCENARIO: &str = include_str!("../scenarios/llama3.1-8b-fsdp2-8xh100.toml");

#[test]
fn two_runs_write_the_same_bytes_wherever_they_run() {
    let runs = [("here", "1", "C"), ("elsewhere", "7", "tr_TR.UTF-8")].map(|(folder, threads, locale)| {
        let folder = Folder::new(folder);
        folder.write("a.toml", SCENARIO);
        let mut command = folder.command();
        command.args(["run", "a.toml", "--mfu-all", "--json", "a.json", "--trace", "a.trace"]);
        command.env("RAYON_NUM_THREADS", threads).env("LC_ALL", locale).env("TZ", "Asia/Kathmandu");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (output.stdout, folder.read("a.json"), folder.read("a.trace"))
    });
    assert!(runs[0].0 == runs[1].0, "the reports differ");
    assert!(runs[0].1 == runs[1].1, "the JSON differs");
    assert!(runs[0].2 == runs[1].2, "the traces differ");
    assert!(runs[0].1.len() > 1000 && runs[0].2.len() > 1000);
}

#[test]
fn json_on_standard_output_is_nothing_but_json() {
    let folder = Folder::new("stdout");
    folder.write("a.toml", SCENARIO);
    let output = folder.windtunnel(&["run", "a.toml", "--json", "-"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["format"], 1);
    assert!(value["step_time_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn threads_do_not_disturb_each_other() {
    let answers: Vec<String> = std::thread::scope(|scope| {
        let fly = || {
            let scenario = make::parse(SCENARIO);
            let answer = predict(&scenario, Settings::default()).unwrap();
            json::report(&scenario, &answer).to_string()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(fly)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for answer in &answers[1..] {
        assert!(answer == &answers[0]);
    }
}

#[test]
fn the_full_run_and_the_folded_one_print_the_same_report() {
    let folder = Folder::new("full");
    folder.write("a.toml", SCENARIO);
    let [folded, full] =
        [&["run", "a.toml"][..], &["run", "a.toml", "--full"]].map(|args| folder.windtunnel(args).stdout);
    assert_eq!(String::from_utf8(folded).unwrap(), String::from_utf8(full).unwrap());
}
