//! What `--help` ends with: examples of each command, and its exit codes.
//!
//! `docs/exit-codes.md` explains the codes. To add a command: its examples here, which a test parses, and the codes that it alone has.

/// Examples, then codes: those of the command's own before 2 and after it, and those that every command has.
macro_rules! help {
    ($examples:literal) => {
        help!($examples, "    0  it went well")
    };
    ($examples:literal, $codes:literal) => {
        help!($examples, $codes, "")
    };
    ($examples:literal, $codes:literal, $more:literal) => {
        help!($examples, $codes, $more, "interrupted; files are as they were")
    };
    ($examples:literal, $codes:literal, $more:literal, $interrupted:literal) => {
        concat!(
            "Examples:\n",
            $examples,
            "\n\nExit codes:\n",
            $codes,
            "\n    2  a wrong argument or file, or an output that cannot be written\n",
            $more,
            "  101  a bug of windtunnel",
            "\n  130  ",
            $interrupted,
            "\n  141  the reader of standard output has gone away"
        )
    };
}

pub const WINDTUNNEL: &str = help!(
    "  windtunnel run scenarios/llama3.1-8b-fsdp2-8xh100.toml       does it fit, and how fast is it?
  windtunnel ceiling scenarios/llama3.1-8b-fsdp2-8xh100.toml   how long may a sequence be?
  windtunnel explain batch                                     which keys does a scenario have?",
    "    0  it went well
    1  the answer is no, where that was asked for: --fail-if-oom, --fail-above",
    "    3  a program, a compiler or a device is missing
"
);

pub const RUN: &str = help!(
    "  windtunnel run scenarios/llama3.1-8b-fsdp2-8xh100.toml
  windtunnel run llama-3.1-8b --framework fsdp2 --on h100-sxm-80gb:1
  windtunnel run my.toml batch.micro=2 --fail-if-oom --json report.json",
    "    0  the prediction was made
    1  with --fail-if-oom: the plan does not fit, or whether it fits is unknown"
);

pub const WHY: &str = help!(
    "  windtunnel why scenarios/llama3.1-8b-maxtext-8xv6e.toml
  windtunnel why my.toml --json causes.json",
    "    0  the causes were told"
);

pub const IMPORT: &str = help!(
    "  windtunnel import torchtitan llama3_8b.toml --on h100-sxm-80gb --nodes 8 --out my.toml
  windtunnel import torchtitan llama3_8b.toml training.local_batch_size=2 --on h200-sxm-141gb --nodes 1
  windtunnel import megatron pretrain.sh --on h100-sxm-80gb --nodes 8 -- --micro-batch-size 2",
    "    0  the scenario was written; a note says what of it cannot be simulated yet"
);

pub const IMPORT_LOG: &str = help!(
    "  windtunnel import log slurm-1234.out
  windtunnel import log train.log --scenario my.toml --out runs/2026-11-26.toml",
    "    0  what the run measured was written"
);

pub const NEW: &str = help!(
    "  windtunnel new --model llama-3.1-8b --on h100-sxm-80gb --framework fsdp2
  windtunnel new --model qwen3-32b --on h200-sxm-141gb --nodes 4 --framework megatron --out my.toml
  windtunnel new --sample qwen3-30b-a3b-64xh100 --out my.toml",
    "    0  the scenario was written, and can be run"
);

pub const MODELS: &str = help!(
    "  windtunnel models
  windtunnel models qwen3"
);

pub const IMPORT_TRACE: &str = help!(
    "  windtunnel import trace rank0.pt.trace.json.gz
  windtunnel import trace report.sqlite --step 12
  windtunnel import trace host.xplane.pb --json trace.json",
    "    0  the trace was read"
);

pub const CEILING: &str = help!(
    "  windtunnel ceiling scenarios/llama3.1-8b-long-context-8xh200.toml
  windtunnel ceiling my.toml --compare cp=1,2,4
  windtunnel ceiling my.toml --max 65536 --html ceiling.html",
    "    0  the answer was found",
    "    3  with --compile-check: windtunnel-calibrate or its compiler is missing
"
);

pub const PLAN: &str = help!(
    "  windtunnel plan --model llama-3.1-70b --on h200-sxm-141gb:16 --global-batch 4Mtok --sequence 8192 --tokens 2T
  windtunnel plan request.toml --html plan.html --out plans
  windtunnel plan --model llama-3.1-8b --on h100-sxm-80gb:2 --global-batch 256 --sequence 8192 --set mesh.tp=2",
    "    0  a plan was found
    1  no plan keeps to the limits of days and money",
    "",
    "interrupted: the plans so far are told, and what is not decided; a second interrupt leaves files as they were"
);

pub const SWEEP: &str = help!(
    "  windtunnel sweep my.toml --vary batch.micro=1,2,4 --vary activation_checkpointing.policy=none,full
  windtunnel sweep my.toml --vary mesh.tp=1,2,4,8 --vary mesh.pp=unset,2,4 --out rows.jsonl --csv rows.csv",
    "    0  every run has its row, whatever the rows say",
    "",
    "interrupted; finished rows stay in the file of --out, and the same command goes on"
);

pub const COMPARE: &str = help!(
    "  windtunnel compare a.toml b.toml
  windtunnel compare a.toml b.toml --all
  windtunnel compare tests/receipts/public.jsonl#tt-llama31-8b-h100x8-fsdp my.toml --json -",
    "    0  the answer was found
    1  a receipt maps to no scenario"
);

pub const CHECK: &str = help!(
    "  windtunnel check tests/receipts/public.jsonl --lane cuda-fsdp2 --hardware H100
  windtunnel check my.toml --fail-above step_time.median=8%,reserved.median=5% --cache answers.jsonl
  windtunnel check my.toml --trace-in trace.json.gz --fail-above matmul=5%",
    "    0  every file was read, and every threshold holds
    1  a threshold is broken, or the row of --row maps to no scenario"
);

pub const RECEIPT: &str = help!(
    "  windtunnel receipt to-scenario tt-llama31-8b-h100x8-fsdp --to my.toml
  windtunnel receipt defaults torchtitan",
    "    0  it went well
    1  the receipt maps to no scenario"
);

pub const TO_SCENARIO: &str = help!(
    "  windtunnel receipt to-scenario tt-llama31-8b-h100x8-fsdp
  windtunnel receipt to-scenario run-17 --from our-runs.jsonl --to run-17.toml",
    "    0  it went well
    1  the receipt maps to no scenario, or to one that is refused"
);

pub const DEFAULTS: &str = help!(
    "  windtunnel receipt defaults
  windtunnel receipt defaults torchtitan"
);

pub const SHOW: &str = help!(
    "  windtunnel show model scenarios/llama3.1-8b-fsdp2-8xh100.toml
  windtunnel show schedule Interleaved1F1B --stages 4 --virtual 2 --microbatches 8
  windtunnel show schema scenario"
);

pub const SHOW_MODEL: &str = help!(
    "  windtunnel show model scenarios/llama3.1-8b-fsdp2-8xh100.toml
  windtunnel show model config.json
  windtunnel show model qwen3-30b-a3b"
);

pub const SHOW_STAGE: &str = help!(
    "  windtunnel show plan scenarios/llama3.1-70b-fsdp2-256xh100.toml
  windtunnel show memory scenarios/llama3.1-8b-fsdp2-8xh100.toml
  windtunnel show program scenarios/gpt3-175b-megatron-1024xa100.toml --stage 0"
);

pub const SHOW_SCHEDULE: &str = help!(
    "  windtunnel show schedule
  windtunnel show schedule 1F1B --stages 4 --microbatches 8
  windtunnel show schedule ZBVZeroBubble --stages 4 --virtual 2 --microbatches 8 --csv"
);

pub const SHOW_SCHEMA: &str = help!(
    "  windtunnel show schema scenario
  windtunnel show schema report"
);

pub const TOPOLOGY: &str = help!(
    "  windtunnel topology list
  windtunnel topology show tpu-v6e --slice 4x4
  windtunnel topology show h100-sxm-80gb --nodes 16 --picture"
);

pub const PROFILE: &str = help!(
    "  windtunnel profile list
  windtunnel profile show h100-sxm-80gb
  windtunnel profile compare h100-sxm-80gb h200-sxm-141gb"
);

pub const PROFILE_MERGE: &str = help!("  windtunnel profile merge h100-sxm-80gb measured.toml --out my-h100.toml");

pub const EXPLAIN: &str = help!(
    "  windtunnel explain zero                         the keys of a table
  windtunnel explain fsdp.reshard_after_forward   a key
  windtunnel explain experts-fp8-width            a refusal"
);

pub const COMPLETIONS: &str = help!(
    "  windtunnel completions bash > ~/.local/share/bash-completion/completions/windtunnel
  windtunnel completions fish > ~/.config/fish/completions/windtunnel.fish"
);

pub const MAN: &str = help!(
    "  windtunnel man show memory | man -l -
  windtunnel man --out ~/.local/share/man/man1"
);

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::super::Cli;

    /// Every command with subcommands within it, but those that another binary answers.
    fn commands(command: &clap::Command, all: &mut Vec<clap::Command>) {
        all.push(command.clone());
        let own = command.get_subcommands().filter(|sub| !sub.is_disable_help_flag_set() && sub.get_name() != "help");
        own.for_each(|sub| commands(sub, all));
    }

    #[test]
    fn every_command_has_one_to_three_examples_that_can_be_parsed_and_its_exit_codes() {
        let mut whole = Cli::command();
        whole.build();
        let mut all = vec![];
        commands(&whole, &mut all);
        assert!(all.len() > 20, "{}", all.len());
        for command in all {
            let name = command.get_bin_name().unwrap_or_default().to_owned();
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let examples: Vec<&str> = text
                .lines()
                .filter_map(|line| line.strip_prefix("  "))
                .filter(|l| l.starts_with("windtunnel "))
                .collect();
            assert!((1..=3).contains(&examples.len()), "{name}: {} examples", examples.len());
            assert!(text.contains("\n\nExit codes:\n    0  "), "{name} says no exit codes");
            for example in examples {
                // What stands behind several spaces explains the line.
                let line = example.split("   ").next().unwrap_or_default().split([' ']);
                let words: Vec<&str> = line.take_while(|word| !matches!(*word, "|" | ">")).collect();
                if let Err(why) = Cli::try_parse_from(&words) {
                    panic!("{name}: {example}: {why}");
                }
            }
        }
    }
}
