//! Whatever happens to an output, the old file stays or the new one is whole, the exit code is not 0, and somebody is told.

use std::process::{Command, Output};

use crate::command::Folder;
use crate::make::TINY;
use crate::writers::Bench;

/// A request of the planner, on the tiny model.
const PLAN: &str = "model = \"config.json\"\nsequence = 64\nglobal_batch = 8\nframeworks = [\"fsdp2\"]\ntop = 1\n[[machine]]\n\
                    name = \"h100-sxm-80gb\"\nsize = 1\n[vary]\n\"batch.micro\" = [1]\n\"mesh.tp\" = [1]\n";

/// A folder with the tiny scenario.
fn folder(name: &str) -> Folder {
    let folder = Folder::new(name);
    folder.write("config.json", include_str!("tiny/config.json"));
    folder.write("scenario.toml", TINY);
    folder
}

/// A shell's command line, with the binary as `$0`.
fn shell(folder: &Folder, line: &str) -> Output {
    let mut command = Command::new("bash");
    command.args(["-c", line, env!("CARGO_BIN_EXE_windtunnel")]).current_dir(&folder.path);
    command.output().expect("bash runs")
}

#[test]
fn a_report_that_a_full_disk_does_not_take_is_no_success() {
    let folder = folder("a_report_that_a_full_disk_does_not_take_is_no_success");
    for arguments in
        ["run scenario.toml", "run scenario.toml --json -", "show plan scenario.toml", "topology list", "--help"]
    {
        for (line, why) in
            [("\"$0\" {} > /dev/full", "No space left"), ("ulimit -f 0; \"$0\" {} > out", "File too large")]
        {
            let output = shell(&folder, &line.replace("{}", arguments));
            assert_eq!(output.status.code(), Some(2), "{arguments}");
            let said = String::from_utf8_lossy(&output.stderr);
            let expected = format!("cannot write to standard output: {why}");
            assert!(said.contains(&expected), "{arguments}: {said}");
        }
    }
}

#[test]
fn a_reader_that_goes_away_is_told_nothing_and_is_no_success() {
    let folder = folder("a_reader_that_goes_away_is_told_nothing_and_is_no_success");
    let output = shell(&folder, "set -o pipefail; { sleep 1; \"$0\" topology list; } | true");
    assert_eq!(output.status.code(), Some(141));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn names_in_a_file_cannot_drive_the_terminal() {
    let folder = folder("names_in_a_file_cannot_drive_the_terminal");
    folder.write("scenario.toml", &format!("description = \"a\\u001b[2Jb\\u202ec\"\n{TINY}"));
    for arguments in [&["run", "scenario.toml"][..], &["run", "scenario.toml", "--json", "-"]] {
        let output = folder.windtunnel(arguments);
        assert!(output.status.success());
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(!said.contains('\u{1b}') && !said.contains('\u{202e}'), "{said}");
        assert!(said.contains("u{1b}[2J") || said.contains("u001b[2J"), "{said}");
    }
    let said = folder.refuses(&["run", "\u{1b}[31mred.toml"]);
    assert!(said.contains("\\u{1b}[31mred.toml"), "{said}");
}

#[test]
fn a_file_without_end_is_refused() {
    let folder = folder("a_file_without_end_is_refused");
    let endless = "runtime = \"fsdp2\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 1\n[model]\nhuggingface = \"/dev/zero\"\n[mesh]\n[batch]\nsequence = 128\n";
    folder.write("endless.toml", endless);
    assert!(folder.refuses(&["run", "endless.toml"]).contains("longer than 256 MiB"));
    assert!(folder.refuses(&["run", "/dev/zero", "--mfu-all"]).contains("longer than 256 MiB"));
    assert!(folder.refuses(&["check", "/dev/zero"]).contains("longer than 256 MiB"));
}

#[test]
fn a_dash_is_standard_output_and_stands_in_the_reports_stead() {
    let bench = bench();
    for line in [
        "run scenario.toml --json",
        "run scenario.toml --trace",
        "run scenario.toml --html",
        "why scenario.toml --json",
        "ceiling scenario.toml --max 256 --html",
        "sweep scenario.toml --vary batch.micro=1,2 --csv",
        "plan request.toml --html",
        "compare scenario.toml measured.toml --html",
        "check measured.toml --json",
        "check measured.toml --html",
        "check measured.toml --row measured.toml --trace",
        "import trace trace.json --json",
    ] {
        let whole = bench.written(&format!("{line} {{}}"));
        let done = bench.shell(&format!("\"$0\" {line} -"));
        assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&whole), "{line}");
        assert!(!bench.path("-").exists(), "{line}");
    }
    let done = bench.shell("\"$0\" run scenario.toml --json - --html -");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(2) && said.contains("this command writes it already, as -"), "{said}");
}

/// A folder with the inputs of every command that writes a file.
fn bench() -> Bench {
    let receipts = include_str!("receipts/public.jsonl");
    let files = [
        ("config.json", include_str!("tiny/config.json").to_owned()),
        ("scenario.toml", TINY.to_owned()),
        ("request.toml", PLAN.to_owned()),
        ("trace.json", include_str!("traces/small/kineto-2023.json").to_owned()),
        (
            "run.log",
            "completed step: 1, seconds: 9.000, loss: 10.1\ncompleted step: 2, seconds: 2.000, loss: 10.0\n".to_owned(),
        ),
        ("titan.toml", "[model]\nname = \"llama3\"\nflavor = \"8B\"\n\n[training]\nseq_len = 2048\n".to_owned()),
        ("measured.toml", format!("{TINY}\n[measured]\nstep_time = \"1 s\"\n")),
        ("receipts.jsonl", receipts.lines().next().unwrap().to_owned() + "\n"),
        ("base.toml", include_str!("../sim/cost/profiles/h100-sxm-80gb.toml").to_owned()),
    ];
    Bench::new("windtunnel", env!("CARGO_BIN_EXE_windtunnel"), env!("CARGO_TARGET_TMPDIR"), &files)
}

#[test]
fn every_writer_is_in_the_table() {
    bench().every_writer_is_in_the_table();
}

#[test]
fn a_place_that_cannot_be_written_is_refused_first() {
    bench().a_place_that_cannot_be_written_is_refused_first();
}

#[test]
fn a_full_disk_leaves_the_old_file() {
    bench().a_full_disk_leaves_the_old_file();
}

#[test]
fn a_report_that_nobody_takes_costs_no_file() {
    bench().a_report_that_nobody_takes_costs_no_file();
}

#[test]
fn an_interrupt_leaves_the_old_file() {
    bench().an_interrupt_leaves_the_old_file();
}

#[test]
fn what_is_read_is_not_written() {
    bench().what_is_read_is_not_written();
}

#[test]
fn one_file_is_not_written_twice() {
    let bench = bench();
    std::os::unix::fs::symlink("both.json", bench.path("link.json")).unwrap();
    for (first, second) in [("both.json", "both.json"), ("both.json", "./both.json"), ("both.json", "link.json")] {
        let (code, said) = bench.run(&format!("run scenario.toml --json {first} --trace {second}"));
        assert!(code == Some(2) && said.contains("writes it already, as both.json"), "{said}");
        assert!(!bench.path("both.json").exists());
    }
    // A device takes all that comes.
    assert_eq!(bench.run("run scenario.toml --json /dev/null --trace /dev/null > /dev/null").0, Some(0));
}

#[test]
fn a_pipe_whose_reader_is_gone_is_no_success() {
    let (code, said) = bench().run("run scenario.toml --json >(exec true) > /dev/null");
    assert!(code == Some(2) && said.contains("cannot write /dev/fd/"), "{said}");
}

#[test]
fn a_description_cannot_forge_a_line_of_the_report() {
    let folder = folder("a_description_cannot_forge_a_line_of_the_report");
    let forged = "x\\n  fits          yes: forged\\u2028y\\u200bz\\ufeff\\u001b[2J\\u202e";
    folder.write("scenario.toml", &format!("description = \"{forged}\"\n{TINY}"));
    for arguments in [&["run", "scenario.toml"][..], &["ceiling", "scenario.toml", "--max", "256"]] {
        let said = String::from_utf8(folder.windtunnel(arguments).stdout).unwrap();
        let head = said.lines().next().unwrap();
        assert!(head.starts_with("x   fits          yes: forged y\\u{200b}z"), "{said}");
        assert_eq!(said.matches("forged").count(), 1, "{said}");
    }
    assert!(folder.windtunnel(&["ceiling", "scenario.toml", "--max", "256", "--html", "a.html"]).status.success());
    let page = String::from_utf8(folder.read("a.html")).unwrap();
    assert!(!page.contains(['\u{1b}', '\u{202e}', '\u{200b}', '\u{feff}']), "{page}");
    assert!(page.contains("forged"));
    assert!(folder.windtunnel(&["run", "scenario.toml", "--html", "b.html"]).status.success());
    let page = String::from_utf8(folder.read("b.html")).unwrap();
    assert!(!page.contains(['\u{1b}', '\u{202e}', '\u{200b}', '\u{feff}']), "{page}");
}

#[test]
fn an_error_in_a_line_without_end_shows_what_is_around_it() {
    let folder = folder("an_error_in_a_line_without_end_shows_what_is_around_it");
    let long = "a".repeat(10 << 20);
    for text in [
        format!("description = \"{long}\" oops = 1\n"),
        format!("{TINY}\n[optimizer]\nname = \"{long}\"\n"),
        format!("{TINY}\n[optimizer]\n{long} = 1\n"),
    ] {
        folder.write("long.toml", &text);
        let output = folder.windtunnel(&["run", "long.toml"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(said.len() < 20_000 && said.contains("long.toml:"), "{} bytes: {}", said.len(), &said[..200]);
    }
    folder.write("profile.toml", &format!("name = \"{long}\" oops = 1\n"));
    let said = folder.refuses(&["profile", "show", "profile.toml"]);
    assert!(said.len() < 20_000 && said.contains("profile.toml:1:"), "{} bytes", said.len());
}
