//! What `--help` ends with: examples of each command, and its exit codes.
//!
//! `docs/exit-codes.md` explains the codes. To add a command: its examples here, which a test parses, and the codes that it alone has.

/// Examples, then codes: those of the command's own, those that every command has, and what an interrupt leaves.
macro_rules! help {
    ($examples:literal) => {
        help!(
            $examples,
            "    0  it went well
    2  a wrong argument or file, or an output that cannot be written",
            "files are as they were"
        )
    };
    ($examples:literal, $codes:literal, $interrupted:literal) => {
        concat!(
            "Examples:\n",
            $examples,
            "\n\nExit codes:\n",
            $codes,
            "\n  101  a bug of windtunnel",
            "\n  130  interrupted; ",
            $interrupted,
            "\n  141  the reader of standard output has gone away"
        )
    };
}

pub const CALIBRATE: &str = help!(
    "  windtunnel-calibrate cuda --list
  windtunnel-calibrate plan --json --limit 500 > plan.jsonl
  windtunnel-calibrate fit points.jsonl --base h100-sxm-80gb --out my-h100.toml",
    "    0  it went well
    2  a wrong argument or file, or an output that cannot be written
    3  a driver, a plugin or a device is missing
    4  the driver is too old
    5  the device, or the file of points, is in use
    6  a device, a driver or a plugin failed, or computed something else
    7  a library is missing
    8  something does not fit into device memory
    9  a prediction is further from the compiler than it may be",
    "what was measured is kept"
);

pub const IMPORT: &str = help!(
    "  windtunnel-calibrate import nccl-tests nccl.log --out points.jsonl
  windtunnel-calibrate import csv collectives.csv --out points.jsonl"
);

pub const IMPORT_PUBLISHED: &str =
    help!("  windtunnel-calibrate import published --from tables --out sim/cost/profiles");

pub const IMPORT_NCCL_TESTS: &str = help!(
    "  windtunnel-calibrate import nccl-tests all_reduce.log all_gather.log --out points.jsonl
  windtunnel-calibrate import nccl-tests alltoall.log --collective all_to_all --ranks 16 --nodes 2"
);

pub const IMPORT_CSV: &str = help!(
    "  windtunnel-calibrate import csv collectives.csv --out points.jsonl
  windtunnel-calibrate import csv gemm.csv.gz --chip H200"
);

pub const FIT: &str = help!(
    "  windtunnel-calibrate fit points.jsonl --base h100-sxm-80gb --out my-h100.toml
  windtunnel-calibrate fit rank0.pt.trace.json.gz rank1.pt.trace.json.gz --base h100-sxm-80gb --out my-h100.toml"
);

pub const PLAN: &str = help!(
    "  windtunnel-calibrate plan --limit 20
  windtunnel-calibrate plan my.toml --json > plan.jsonl"
);

pub const RESIDUALS: &str = help!("  windtunnel-calibrate residuals h200-sxm-141gb");

pub const PLUGINS: &str = help!(
    "  windtunnel-calibrate plugins list
  windtunnel-calibrate plugins fetch tpu"
);

pub const CUDA: &str = help!(
    "  windtunnel-calibrate cuda --list
  windtunnel-calibrate cuda --minutes 30 --out points.jsonl
  windtunnel-calibrate cuda --plan plan.jsonl --sweeps matmul,attention",
    "    0  everything planned was measured, or the time budget ran out
    2  a wrong argument, a plan that cannot be read, or a file of points of another machine
    3  no CUDA driver or no device here
    4  the driver is too old for a library that is loaded
    5  the GPU is busy with other work (see --busy-ok)
    6  the device or its driver failed while measuring, or results are wrong
    7  a library is missing for a sweep that was named
    8  not even the smallest buffers fit into device memory",
    "what was measured is kept, and the same command goes on"
);

pub const XLA: &str = help!(
    "  windtunnel-calibrate xla --minutes 30
  windtunnel-calibrate xla --topology v6e:4x4 --kernels matmul
  windtunnel-calibrate xla compile step.mlir --topology v6e:4x4 --json",
    "    0  it went well, or the time budget ran out
    2  a wrong argument or file, or a program that the compiler refuses
    3  the plugin is missing, too old, or cannot be used; or there is no device
    5  another calibration writes to the file of points
    6  the plugin died or took too long, or a device failed or computed something else
    8  it compiles, and does not fit into a device's memory",
    "what was measured is kept, and the same command goes on"
);

pub const COMPILE_CHECK: &str = help!(
    "  windtunnel-calibrate compile-check scenarios/llama3.1-8b-maxtext-8xv6e.toml
  windtunnel-calibrate compile-check my.toml --memory-only --json -
  windtunnel-calibrate compile-check --program step.mlir --topology v6e:4x4 --html step.html",
    "    0  it compiles and fits, and the prediction agrees with the compiler
    2  a wrong argument or file, or a program that cannot be written or that the compiler refuses
    3  the plugin is missing, too old, or cannot be used
    6  the plugin died or did not answer in time
    8  it does not fit into a device's memory, as predicted
    9  the prediction is off: arguments by more than 0.2 %, the peak by more than 10 %, or whether
       it fits",
    "files are as they were"
);

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use crate::Cli;

    fn commands(command: &clap::Command, all: &mut Vec<clap::Command>) {
        all.push(command.clone());
        let own = command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help");
        own.for_each(|sub| commands(sub, all));
    }

    #[test]
    fn every_command_has_one_to_three_examples_that_can_be_parsed_and_its_exit_codes() {
        let mut whole = Cli::command();
        whole.build();
        let mut all = vec![];
        commands(&whole, &mut all);
        assert!(all.len() > 10, "{}", all.len());
        for command in all {
            let name = command.get_bin_name().unwrap_or_default().to_owned();
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines = text.lines().filter_map(|line| line.strip_prefix("  "));
            let examples: Vec<&str> = lines.filter(|line| line.starts_with("windtunnel-calibrate ")).collect();
            assert!((1..=3).contains(&examples.len()), "{name}: {} examples", examples.len());
            assert!(text.contains("\n\nExit codes:\n    0  "), "{name} says no exit codes");
            for example in examples {
                if let Err(why) = Cli::try_parse_from(example.split(' ').take_while(|word| *word != ">")) {
                    panic!("{name}: {example}: {why}");
                }
            }
        }
    }
}
