//! A run by name: models and samples that ship in the program, a bare `config.json`, keys behind any configuration.

use crate::command::Folder;

/// The tokens of a step of what `windtunnel run` is asked for, and its notes.
#[track_caller]
fn tokens(folder: &Folder, words: &[&str]) -> (u64, String) {
    // What stands behind `--` is the framework's.
    let at = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    let asked = [&["run"], &words[..at], &["--changes", "none", "--json", "-"], &words[at..]].concat();
    let output = folder.windtunnel(&asked);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{words:?}: {said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    (report["tokens_per_step"].as_u64().unwrap(), said)
}

fn stdout(folder: &Folder, words: &[&str]) -> String {
    let output = folder.windtunnel(words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_program_needs_no_checkout() {
    let folder = Folder::new("no-checkout");
    let models = stdout(&folder, &["models"]);
    let mixtral = models.lines().find(|line| line.contains("mixtral-8x7b")).unwrap();
    // Jiang et al., "Mixtral of Experts", 2024: 47B parameters, 13B of them active.
    assert!(mixtral.contains("46.70 B") && mixtral.contains("12.88 B") && mixtral.contains("experts"), "{mixtral}");
    assert!(stdout(&folder, &["new", "--list"]).contains("qwen3-30b-a3b-64xh100"));
    stdout(&folder, &["new", "--sample", "llama3.1-8b-fsdp2-8xh100", "--out", "own.toml"]);
    assert_eq!(tokens(&folder, &["own.toml"]).0, 8 * 8192);
    assert_eq!(tokens(&folder, &["llama3.1-8b-fsdp2-8xh100"]).0, 8 * 8192, "a sample by name");
    assert!(stdout(&folder, &["show", "model", "config.json"]).contains("parameters"));
}

#[test]
fn a_shipped_model_is_run_by_name_and_what_is_assumed_is_said() {
    let folder = Folder::new("model-by-name");
    let model = ["llama-3.1-8b", "--framework", "fsdp2", "--on", "h100-sxm-80gb:1"];
    let (count, said) = tokens(&folder, &model);
    assert_eq!(count, 8 * 4096);
    assert!(said.contains("one sequence of 4096 tokens per micro-batch is assumed"), "{said}");
    assert_eq!(tokens(&folder, &[&model[..], &["batch.sequence=8192", "batch.micro=2"]].concat()).0, 8 * 2 * 8192);
    let (count, said) = tokens(&folder, &["llama-3.1-8b", "--on", "tpu-v6e:4x4"]);
    assert_eq!(count, 16 * 4096);
    assert!(said.contains("--framework xla is assumed"), "{said}");
    // A table of 1,024 learned positions takes no longer sequence.
    assert_eq!(tokens(&folder, &["gpt2", "--on", "a100-sxm-80gb:1"]).0, 8 * 1024);
    let own = ["config.json", "--framework", "megatron", "--on", "h100-sxm-80gb:1", "batch.sequence=256"];
    assert_eq!(tokens(&folder, &own).0, 8 * 256);
}

/// A configuration, its machine, a key that changes it, and by which ratio its step then has more tokens.
type Case<'c> = (&'c str, &'c [&'c str], &'c [&'c str], (u64, u64));

#[test]
fn keys_behind_a_configuration_change_it_in_every_framework() {
    let folder = Folder::new("keys-behind");
    let configs = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/import/configs/");
    let at = |file: &str| format!("{configs}{file}");
    let cases: [Case; 9] = [
        ("torchtitan/v0_1_llama3_8b.toml", &["--on", "h200-sxm-141gb:1"], &["training.batch_size=2"], (2, 1)),
        ("torchtitan/v0_3_llama3_8b.args", &["--on", "h200-sxm-141gb:1"], &["training.seq_len=4096"], (1, 2)),
        ("megatron/llama3_8b_h100_fp8.sh", &["--on", "h200-sxm-141gb:1"], &["global-batch-size=256"], (2, 1)),
        (
            "megatron/llama3_8b_h100_fp8.sh",
            &["--on", "h200-sxm-141gb:1"],
            &["--", "--global-batch-size", "256"],
            (2, 1),
        ),
        (
            "deepspeed/axolotl_zero3_bf16.json",
            &["--on", "h200-sxm-141gb:1", "--model", "llama-3.1-8b", "sequence_length=1024"],
            &["sequence_length=2048"],
            (2, 1),
        ),
        (
            "accelerate/fsdp1_slurm.yaml",
            &["--on", "h200-sxm-141gb:1", "--model", "llama-3.1-8b", "sequence_length=1024"],
            &["sequence_length=2048"],
            (2, 1),
        ),
        ("axolotl/llama3_fft_8b_liger_fsdp.yaml", &["--on", "h200-sxm-141gb:1"], &["micro_batch_size=4"], (2, 1)),
        ("nanotron/tiny_llama.yaml", &["--on", "h200-sxm-141gb:1"], &["tokens.micro_batch_size=4"], (2, 1)),
        ("maxtext/tpu_v5p_llama2_7b.sh", &["--on", "tpu-v5p:4x4x4"], &["per_device_batch_size=2"], (1, 2)),
    ];
    for (file, machine, key, (more, less)) in cases {
        let file = at(file);
        let before = tokens(&folder, &[&[file.as_str()], machine].concat()).0;
        let after = tokens(&folder, &[&[file.as_str()], machine, key].concat()).0;
        assert_eq!(after * less, before * more, "{file} {key:?}");
    }
    // A scenario's keys, and a key left to its default.
    stdout(&folder, &["new", "--sample", "llama3.1-8b-fsdp2-8xh100", "--out", "own.toml"]);
    assert_eq!(tokens(&folder, &["own.toml", "batch.micro=2"]).0, 2 * 8 * 8192);
    assert_eq!(tokens(&folder, &["own.toml", "activation_checkpointing.policy=unset"]).0, 8 * 8192);
}

#[test]
fn a_name_that_is_no_file_says_what_could_have_been_meant() {
    let folder = Folder::new("meant");
    for (words, said) in [
        (&["run", "llama3.1-8b"][..], "the model \"llama-3.1-8b\""),
        (&["ceiling", "scenarios/qwen3-30b-a3b-64xh100.toml"], "did you mean the sample \"qwen3-30b-a3b-64xh100\""),
        (&["run", "h100-sxm-80gb"], "h100-sxm-80gb is a machine"),
        (&["run", "llama-3.1-8b"], "name its machine, such as --on h100-sxm-80gb:1"),
        (&["why", "llama-3.1-8b", "--on", "tpu-v6e"], "--on tpu-v6e:4x4"),
        (&["new", "--sample", "qwen3-30b-a3b"], "did you mean \"qwen3-30b-a3b-64xh100\"?"),
        (&["models", "chinchilla"], "no shipped model's name contains \"chinchilla\""),
        (&["run", "gpt2", "--on", "a100-sxm-80gb:1", "batch.sequense=2"], "did you mean \"batch.sequence\"?"),
        (&["run", "gpt2", "--on", "a100-sxm-80gb:1", "batch.micro"], "write KEY=VALUE"),
        (&["run", "config.json", "--on", "a100-sxm-80gb:1", "--nodes", "2"], "says how many already"),
    ] {
        let answer = folder.refuses(words);
        assert!(answer.contains(said), "{words:?}: {answer}");
    }
}
