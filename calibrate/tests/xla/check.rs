//! `compile-check`: what it refuses, what it says of a compiler's no, and, where plugins have been fetched, real answers.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{folder, on_a_full_disk, run, said, stub};

/// A scenario of 2 narrow blocks on 2x2, in a file of its own.
fn scenario(folder: &Path, model: &str, xla: &str) -> PathBuf {
    let text = format!(
        "# Two narrow blocks on four chips.\nruntime = \"xla\"\n[topology]\nname = \"tpu-v6e\"\nslice = \"2x2\"\n[model]\n\
         name = \"llama-3.1-8b\"\n{model}\n[mesh]\nfsdp = 4\n[batch]\nsequence = 256\nmicro = 2\n[xla]\n{xla}\n"
    );
    let file = folder.join("scenario.toml");
    std::fs::write(&file, text).unwrap();
    file
}

const NARROW: &str = "layers = 2\nhidden = 256\nheads = 2\nkv_heads = 2\nffn = 512\nvocab = 1024";

/// What `compile-check` of a scenario says: the exit code, standard error, and standard output.
fn checked(name: &str, (model, xla): (&str, &str), more: &[&str]) -> (Option<i32>, String, String) {
    let folder = folder(name);
    let file = scenario(&folder, model, xla);
    let arguments = [&["compile-check", file.to_str().unwrap()], more].concat();
    let output = run(&folder.join("cache"), &arguments);
    let (code, said) = said(&output);
    (code, said, String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The same with a stub that fails in a way of its own.
fn by_stub(name: &str, how: &str, model: &str) -> (Option<i32>, String, String) {
    let plugin = stub(&folder(&format!("{name}-stub")), how);
    checked(name, (model, ""), &["--plugin", plugin.to_str().unwrap()])
}

#[test]
fn what_xla_does_not_compile_is_refused() {
    let folder = folder("check-runtime");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../scenarios/llama3.1-8b-fsdp2-8xh100.toml");
    let (code, said) = said(&run(&folder, &["compile-check", file]));
    assert_eq!(code, Some(2));
    assert!(said.contains("runtime is \"fsdp2\": compile-check asks XLA's compiler"), "{said}");
}

#[test]
fn a_compiler_that_is_not_here_is_asked_for_by_the_command_that_fetches_it() {
    let (code, said, _) = checked("check-missing", (NARROW, ""), &[]);
    assert_eq!(code, Some(3));
    assert!(said.contains("windtunnel calibrate plugins fetch tpu`"), "{said}");
}

#[test]
fn the_splash_kernel_is_not_asked_of_a_cpu() {
    let (code, said, _) = checked("check-cpu", (NARROW, "attention = \"flash\""), &["--plugin", "cpu"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("write xla.attention = \"dot_product\""), "{said}");
}

#[test]
fn what_no_program_is_written_for_may_be_exported() {
    let (code, said, _) = checked("check-unwritten", (NARROW, "quantization = \"int8\""), &[]);
    assert_eq!(code, Some(2));
    assert!(said.contains("quantized linears") && said.contains("--program"), "{said}");
}

#[test]
fn a_program_for_other_devices_is_refused_with_both_numbers() {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/xla/matmul.mlir");
    let (code, said, _) = checked("check-devices", (NARROW, ""), &["--program", program]);
    assert_eq!(code, Some(2));
    assert!(said.contains("partitioned over 16 devices, and the scenario's mesh has 4"), "{said}");
}

#[test]
fn a_step_that_the_compiler_finds_too_large_and_we_do_not_is_a_disagreement() {
    let (code, said, out) = by_stub("check-full", "full", NARROW);
    assert_eq!(code, Some(9), "{said}");
    assert!(out.contains("it does not fit, and is predicted to"), "{out}");
    // 40.5 GiB and 31.25 GiB, as the compiler writes them.
    assert!(out.contains("43,486,543,872") && out.contains("33,554,432,000"), "{out}");
}

#[test]
fn a_step_that_both_find_too_large_has_an_exit_code_of_its_own() {
    let large = "layers = 1000\nhidden = 256\nheads = 2\nkv_heads = 2\nffn = 262144\nvocab = 1024";
    let (code, said, out) = by_stub("check-large", "full", large);
    assert_eq!(code, Some(8), "{said}{out}");
    assert!(out.contains("The prediction agrees with the compiler."), "{out}");
}

const LAYERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/xla/layers.mlir");

/// What `compile-check` says of a program without a scenario: the exit code, standard error and output.
fn alone(name: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = run(&folder(name).join("cache"), &[&["compile-check"], arguments].concat());
    let (code, said) = said(&output);
    (code, said, String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_program_needs_no_scenario_but_a_slice_of_as_many_devices() {
    let (code, said, _) = alone("alone-slice", &["--program", LAYERS]);
    assert!(code == Some(2) && said.contains("SCENARIO"), "{said}");
    let (code, said, _) = alone("alone-few", &["--program", LAYERS, "--topology", "v6e:2x2"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("partitioned over 16 devices, and v6e:2x2 has 4"), "{said}");
    let (code, said, _) = alone("alone-two", &["--program", LAYERS, "--topology", "v6e:4x4", "--slices", "2"]);
    assert!(code == Some(2) && said.contains("2 x v6e:4x4 has 32"), "{said}");
    let (code, said, _) = alone("alone-cpu", &["--program", LAYERS, "--topology", "v6e:4x4", "--plugin", "cpu"]);
    assert!(code == Some(2) && said.contains("says nothing of a slice"), "{said}");
}

#[test]
fn a_program_that_does_not_fit_says_what_it_needs_and_has_a_page() {
    let folder = folder("alone-full");
    let plugin = stub(&folder, "full");
    let (page, json) = (folder.join("answer.html"), folder.join("answer.json"));
    let [plugin, html, file] = [&plugin, &page, &json].map(|path| path.to_str().unwrap());
    let arguments = ["--program", LAYERS, "--topology", "v6e:4x4", "--plugin", plugin, "--html", html, "--json", file];
    let (code, said, out) = alone("alone-full-run", &arguments);
    assert_eq!(code, Some(8), "{said}");
    assert!(out.contains("It does not fit: it needs 40.50 GiB of 31.25 GiB."), "{out}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("it needs 40.50 GiB of 31.25 GiB"));
    let answer: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!((&answer["fits"], answer["memory"]["needed"].as_u64()), (&Value::Bool(false), Some(81 << 29)));
}

#[test]
fn a_full_disk_leaves_the_old_answer() {
    let folder = folder("check-disk");
    let file = scenario(&folder, NARROW, "");
    let plugin = stub(&folder, "full");
    for option in ["--json", "--emit"] {
        let full = |path: &Path| {
            let (file, plugin) = (file.display(), plugin.display());
            let line = format!("compile-check {file} --plugin {plugin} {option} {}", path.display());
            said(&on_a_full_disk(&folder.join("cache"), &line))
        };
        for old in [Some("old"), None] {
            let path = folder.join("answer.json");
            let _ = std::fs::remove_file(&path);
            old.iter().for_each(|old| std::fs::write(&path, old).unwrap());
            let (code, said) = full(&path);
            assert!(code == Some(2) && said.contains("answer.json") && said.contains("File too large"), "{said}");
            assert_eq!(std::fs::read_to_string(path).ok().as_deref(), old);
        }
        let (code, said) = full(Path::new("/dev/full"));
        assert!(code == Some(2) && said.contains("/dev/full") && said.contains("No space left"), "{said}");
    }
    assert!(super::files(&folder).iter().all(|file| file.extension().is_none_or(|ending| ending != "part")));
}

#[test]
fn a_compiler_that_says_no_or_dies_is_no_verdict() {
    let (code, said, _) = by_stub("check-refuses", "refuses", NARROW);
    assert_eq!(code, Some(2));
    assert!(said.contains("the stub says no"), "{said}");
    let (code, said, _) = by_stub("check-crashes", "crashes", NARROW);
    assert_eq!(code, Some(6));
    assert!(said.contains("the plugin died"), "{said}");
}

#[test]
fn a_processor_s_memory_is_not_asked_about() {
    let (code, said, _) = checked("check-memory-cpu", (NARROW, ""), &["--plugin", "cpu", "--memory-only"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("says nothing of a chip's"), "{said}");
}

#[test]
fn a_compiler_that_refuses_a_step_gives_no_account_of_its_buffers() {
    let plugin = stub(&folder("check-memory-stub"), "refuses");
    let (code, said, _) =
        checked("check-memory", (NARROW, ""), &["--plugin", plugin.to_str().unwrap(), "--memory-only"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("the stub says no"), "{said}");
}

/// As JSON, with the cache that plugins were fetched into.
fn real(name: &str, (model, xla): (&str, &str), plugin: &str, more: &[&str]) -> (Option<i32>, Value) {
    let folder = folder(name);
    let file = scenario(&folder, model, xla);
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_windtunnel-calibrate"))
        .args(["compile-check", file.to_str().unwrap(), "--plugin", plugin, "--json", "-"])
        .args(more)
        .env("TMPDIR", &folder)
        .output()
        .unwrap();
    let left = std::fs::read_dir(&folder).unwrap().flatten();
    let mut names = left.map(|entry| entry.file_name().to_string_lossy().into_owned());
    assert!(!names.any(|name| name.starts_with("windtunnel-buffers-")), "its folder is left");
    let (code, said) = said(&output);
    (code, serde_json::from_slice(&output.stdout).unwrap_or_else(|why| panic!("{why}: {said}")))
}

#[test]
#[ignore = "needs: windtunnel calibrate plugins fetch cpu"]
fn a_cpu_s_compiler_takes_the_step_and_holds_the_same_arguments() {
    let (code, answer) = real("check-real-cpu", (NARROW, "attention = \"dot_product\""), "cpu", &[]);
    assert_eq!(code, Some(0), "{answer:#}");
    let argument = &answer["memory"]["argument"];
    // Twelve bytes for each number: two tables, and blocks of four square matrices and three of the feed-forward, over 4
    // chips; norms whole; tokens, targets, and the count of steps.
    let sharded = 2 * 1024 * 256 + 2 * (4 * 256 * 256 + 3 * 256 * 512);
    let expected = 12 * (sharded / 4 + 5 * 256) + 2 * (2 * 256 * 4) + 4;
    assert_eq!(argument["compiler"], expected);
}

#[test]
#[ignore = "needs: windtunnel calibrate plugins fetch tpu"]
fn the_tpu_s_compiler_takes_the_step_with_the_kernel_s_stand_in() {
    let (_, answer) = real("check-real-tpu", (NARROW, "remat_policy = \"full\"\ntargets = \"indexed\""), "tpu", &[]);
    assert_eq!(answer["fits"]["compiler"], true);
    // Two blocks: forward, forward again, and two kernels backward.
    assert_eq!(answer["flops"]["unseen"]["tpu_custom_call"], 8);
    // Three products of every weight, and one again of all but the last of a block; of 512 tokens on a chip.
    let (block, last): (u64, u64) = (4 * 256 * 256 + 3 * 256 * 512, 256 * 512);
    let products = 2 * 512 * (3 * 1024 * 256 + 2 * (4 * block - last));
    assert_eq!(answer["flops"]["matmul"]["compiler"], products);
    let off = answer["memory"]["argument"]["difference"].as_f64().unwrap();
    assert!(off.abs() < 0.002, "{off}");
}

#[test]
#[ignore = "needs: windtunnel calibrate plugins fetch tpu"]
fn the_compilers_account_of_its_buffers_is_the_compiled_steps() {
    let xla = "remat_policy = \"full\"\ntargets = \"indexed\"";
    let (_, whole) = real("check-real-whole", (NARROW, xla), "tpu", &[]);
    let (_, account) = real("check-real-account", (NARROW, xla), "tpu", &["--memory-only", "--no-cache"]);
    let [whole, account] = [whole, account].map(|answer| answer["memory"].clone());
    assert_eq!(account["argument"]["compiler"], whole["argument"]["compiler"]);
    let figure = |of: &Value| of.as_u64().unwrap();
    let (peak, total) = (figure(&account["peak"]["compiler"]), figure(&account["total"]));
    // Of so small a step much lies in fast memory, which the runtime's figure counts and the account has apart.
    assert!(figure(&account["argument"]["compiler"]) < peak && peak <= figure(&whole["peak"]["compiler"]));
    assert!(peak <= total && !account["live"].as_array().unwrap().is_empty());
}

#[test]
fn a_step_too_large_for_the_compiler_is_too_large_by_its_buffers_alone() {
    let plugin = stub(&folder("check-memory-full"), "full");
    let asked = ["--plugin", plugin.to_str().unwrap(), "--memory-only"];
    // Twice: the answer is kept.
    for _ in 0..2 {
        let (code, said, text) = checked("check-full", (NARROW, ""), &asked);
        assert_eq!(code, Some(9), "{said}");
        assert!(text.contains("does not fit") && text.contains("43,486,543,872"), "{text}");
    }
}
