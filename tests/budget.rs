//! Whatever a file is said to be, reading it takes ten times its bytes and 64 MiB at most: what is denser is refused.

mod binary;

use std::fmt::Write as _;

use crate::command::Folder;
use crate::peak::{self, MOST};

/// Bytes of a file: those of which what is free beside them is most, and those of which they are.
const SIZES: [usize; 2] = [1 << 20, 8 << 20];

const SCENARIO: &str = include_str!("../scenarios/llama3.1-8b-fsdp2-8xh100.toml");
const SCRIPT: &str =
    "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128";

/// Repeats what `each` writes until the text is so long, between a beginning and an end.
fn long(size: usize, begin: &str, each: impl Fn(&mut String, usize), end: &str) -> String {
    let mut text = begin.to_owned();
    for at in 0.. {
        if text.len() >= size {
            break;
        }
        each(&mut text, at);
    }
    text + end
}

fn same<'a>(what: &'a str) -> impl Fn(&mut String, usize) + 'a {
    move |text, _| text.push_str(what)
}

/// Files that hold as many values as they can, by the command that reads them.
fn dense(size: usize) -> Vec<(&'static str, Vec<&'static str>, String)> {
    let config = include_str!("tiny/config.json").trim_end().trim_end_matches('}');
    let event = |text: &mut String, at: usize| {
        let _ = write!(
            text,
            "{{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"a{at}\",\"pid\":0,\"tid\":7,\"ts\":{},\"dur\":1}},",
            2 * at
        );
    };
    let last = "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k\",\"pid\":0,\"tid\":7,\"ts\":0,\"dur\":1}]}";
    let numbered =
        |what: &'static str| move |text: &mut String, at: usize| text.push_str(&what.replace('#', &at.to_string()));
    let full = include_str!("receipts/public.jsonl").lines().next().unwrap().split_once(",\"lane\"").unwrap().1;
    let row = |text: &mut String, at: usize| {
        let _ = writeln!(text, "{{\"id\":\"r{at}\",\"lane\"{full}");
    };
    let plan = vec!["plan", "--model", "llama-3.1-8b", "--on", "h100-sxm-80gb:1", "--global-batch", "64"];
    let priced = [plan, vec!["--sequence", "4096", "--top", "1", "--prices"]].concat();
    vec![
        ("keys.toml", vec!["run"], long(size, &format!("{SCENARIO}\n[junk]\n"), numbered("k# = 1\n"), "")),
        ("tables.toml", vec!["run"], long(size, SCENARIO, same("[[junk]]\n"), "")),
        ("array.toml", vec!["run"], long(size, &format!("{SCENARIO}\n[junk]\nx = ["), same("1,"), "1]\n")),
        ("dots.toml", vec!["run"], long(size, SCENARIO, numbered("a#.b.c.d.e.f.g.h = 1\n"), "")),
        ("comment.toml", vec!["run"], long(size, SCENARIO, same("# nothing is said here, at some length\n"), "")),
        ("machine.toml", vec!["topology", "show"], long(size, "name = \"a\"\n", same("[[levels]]\n"), "")),
        (
            "prices.toml",
            priced,
            long(
                size,
                "",
                numbered(
                    "[[price]]\nmachine = \"m#\"\nper_chip_hour = 2.5\ncurrency = \"USD\"\ndate = \"2026-11-01\"\nsource = \"x\"\n",
                ),
                "",
            ),
        ),
        (
            "request.toml",
            vec!["plan"],
            long(
                size,
                "model = \"llama-3.1-8b\"\nsequence = 4096\nglobal_batch = 64\n",
                numbered("[[machine]]\nname = \"h100-sxm-80gb\"\nsize = #\n"),
                "",
            ),
        ),
        ("list.json", vec!["show", "model"], long(size, &format!("{config},\"junk\":["), same("1,"), "0]}")),
        (
            "nested.json",
            vec!["show", "model"],
            long(size, &format!("{config},\"junk\":["), same("{\"a\":[{}]},"), "0]}"),
        ),
        ("words.sh", vec!["run"], long(size, SCRIPT, numbered(" --x# #"), "\n")),
        ("variables.sh", vec!["run"], long(size, "", numbered("A#=\"x\"\n"), &format!("{SCRIPT} $A0\n"))),
        ("list.yaml", vec!["run"], long(size, "model_name: llama3.1-8b\njunk:\n", numbered("- #\n"), "")),
        ("junk.jsonl", vec!["check"], long(size, "", same("{\"a\":[1,2,{}]}\n"), "")),
        ("rows.jsonl", vec!["receipt", "to-scenario", "nobody", "--from"], long(size, "", row, "")),
        ("steps.log", vec!["import", "log"], long(size, "", numbered("completed step: #, seconds: 1.5\n"), "")),
        ("schedule.csv", vec!["show", "schedule"], long(size, "", same("0F0,0F1,0F2,0B0,0B1,0B2\n"), "")),
        (
            "viewer.trace.json",
            vec!["import", "trace"],
            long(
                size,
                concat!(
                    r#"{"traceEvents":[{"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"/device:GPU:0"}},"#,
                    r#"{"ph":"M","pid":1,"tid":7,"name":"thread_name","args":{"name":"Stream #7(Compute)"}},"#
                ),
                numbered(r##"{"ph":"X","pid":1,"tid":7,"ts":#,"dur":1,"name":"a"},"##),
                r#"{"ph":"X","pid":1,"tid":7,"ts":0,"dur":1,"name":"a"}]}"#,
            ),
        ),
        (
            "kineto.json",
            vec!["import", "trace"],
            long(size, "{\"schemaVersion\":1,\"deviceProperties\":[],\"traceEvents\":[", event, last),
        ),
    ]
}

#[test]
fn no_file_takes_more_than_ten_times_its_bytes() {
    let folder = Folder::new("no_file_takes_more_than_ten_times_its_bytes");
    let mut over = vec![];
    for size in SIZES {
        let text = dense(size).into_iter().map(|(name, command, text)| (name, command, text.into_bytes()));
        let binary = binary::PLANES.into_iter().chain(binary::EXPORTS);
        let binary = binary.map(|(name, write)| (name, vec!["import", "trace"], write(size)));
        for (name, arguments, bytes) in text.chain(binary) {
            let command = || {
                let mut command = folder.command();
                command.args(&arguments).arg(name);
                command
            };
            over.extend(peak::over(command, &folder.path.join(name), &bytes));
        }
    }
    assert!(over.is_empty(), "{}", over.join("\n"));
}

/// A kilobyte of a script that doubles a variable again and again is refused before it is a gigabyte.
#[test]
fn a_small_file_that_grows_is_refused_while_it_is_small() {
    let folder = Folder::new("a_small_file_that_grows_is_refused_while_it_is_small");
    let doubled = format!("A=xxxxxxxxxxxxxxxx\n{}", "A=$A$A\n".repeat(15));
    let script = format!("{doubled}{SCRIPT}{}\n", " --x $A$A".repeat(400));
    folder.write("grows.sh", &script);
    assert!(script.len() < 5_000);
    let mut command = folder.command();
    command.args(["run", "grows.sh"]);
    assert!(peak::peak(command) < MOST.1);
    assert!(folder.refuses(&["run", "grows.sh"]).contains("the script becomes longer than"));
}

/// What a profiler writes a lot of and nobody reads does not count against what is read.
#[test]
fn a_profile_of_jax_is_read_with_all_its_calls_of_python_and_the_text_of_its_program() {
    let folder = Folder::new("a_profile_of_jax_is_read");
    let bytes = binary::of_jax();
    std::fs::write(folder.path.join("jax.xplane.pb"), &bytes).unwrap();
    let output = folder.windtunnel(&["import", "trace", "jax.xplane.pb"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut command = folder.command();
    command.args(["import", "trace", "jax.xplane.pb"]);
    assert!(peak::peak(command) < 2 * bytes.len() as u64 + MOST.1);
}
