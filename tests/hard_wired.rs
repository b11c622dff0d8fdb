//! Settings that Megatron-Core and nanotron have and that once had no key: each is stated, or refused with what to write.

use windtunnel::program::{Instr, Program};
use windtunnel::scenario::Scenario;

use crate::make::{FILE, MEGATRON, parse, replaced};

/// Bytes that are asked for under a name before the second step, by the first stage's ranks.
fn bytes(text: &str, name: &str) -> u64 {
    let program: Program = parse(text).job.compile().programs().remove(0);
    let of = |instr: &Instr| match *instr {
        Instr::Alloc { buffer } if program.buffer(buffer).name == name => program.buffer(buffer).bytes.0,
        _ => 0,
    };
    program.before_second().map(of).sum()
}

fn refused(text: &str) -> String {
    Scenario::parse(FILE, text).err().unwrap_or_else(|| panic!("{text}")).to_string()
}

fn states(text: &str, line: &str) -> bool {
    parse(text).assumption_lines().iter().any(|said| said.starts_with(line))
}

#[test]
fn cublas_workspaces_are_stated_under_every_runtime_that_runs_megatrons_modules() {
    for runtime in ["megatron", "nanotron"] {
        let text = replaced(MEGATRON, &[("\"megatron\"", &format!("{runtime:?}"))]);
        assert!(states(&text, "framework.persistent_cublas_workspace = true (PyTorch before 2.15"));
        let given_back = format!("{text}\n[framework]\npersistent_cublas_workspace = false\n");
        assert!(!states(&given_back, "framework.persistent_cublas_workspace"));
    }
}

#[test]
fn narrow_moments_keep_half_of_each_master_unless_fp8_or_the_file_says_otherwise() {
    let with = |keys: &str| format!("{MEGATRON}\n[megatron]\ndistributed_optimizer = true\n{keys}\n");
    let key = "megatron.store_param_remainders = true";
    assert!(states(&with("exp_avg_dtype = \"bf16\""), key));
    assert!(!states(&with(""), key));
    assert!(!states(&with("exp_avg_dtype = \"bf16\"\nmain_params_dtype = \"fp16\""), key));
    assert!(!states(&with("exp_avg_dtype = \"bf16\"\nfp8 = \"tensorwise\""), key));
    let said = refused(&with("fp8 = \"tensorwise\"\nstore_param_remainders = true"));
    assert!(said.contains("in fp32") && said.contains("megatron.fp8 = \"delayed\""), "{said}");
    let said = refused(&format!("{MEGATRON}\n[megatron]\nstore_param_remainders = true\n"));
    assert!(said.contains("megatron.distributed_optimizer = true"), "{said}");
}

#[test]
fn what_is_not_simulated_is_refused_with_what_is() {
    let nanotron = replaced(MEGATRON, &[("\"megatron\"", "\"nanotron\"")]);
    assert!(states(&nanotron, "nanotron.tp_mode = \"REDUCE_SCATTER\" (nanotron's own default, ALL_REDUCE"));
    let said = refused(&format!("{nanotron}\n[nanotron]\ntp_mode = \"ALL_REDUCE\"\n"));
    assert!(said.contains("write nanotron.tp_mode = \"REDUCE_SCATTER\""), "{said}");
}

#[test]
fn experts_are_multiplied_together_unless_the_file_says_otherwise() {
    let experts = replaced(
        MEGATRON,
        &[("huggingface = \"config.json\"", "name = \"mixtral-8x7b\""), ("tp = 2\npp = 2", "ep = 8")],
    );
    assert!(states(&experts, "megatron.moe_grouped_gemm = true (Megatron-Core's own default is false"));
    let apart = parse(&format!("{experts}\n[megatron]\nmoe_grouped_gemm = false\nfp8 = \"tensorwise\"\n"));
    let said = apart.simulable().expect_err("in fp8 they are not").to_string();
    assert!(said.contains("one after the other") && said.contains("moe_grouped_gemm"), "{said}");
}

#[test]
fn remainders_are_two_bytes_of_a_master_and_a_moment_in_fp32_is_twice_that() {
    let with = |keys: &str| format!("{MEGATRON}\n[megatron]\ndistributed_optimizer = true\n{keys}\n");
    for keys in ["store_param_remainders = true", "exp_avg_sq_dtype = \"bf16\""] {
        let text = with(keys);
        assert_eq!(2 * bytes(&text, "main_param"), bytes(&text, "exp_avg"), "{keys}");
    }
    let whole = with("exp_avg_sq_dtype = \"bf16\"\nstore_param_remainders = false");
    assert_eq!(bytes(&whole, "main_param"), bytes(&whole, "exp_avg"));
}

#[test]
fn workspaces_that_stay_taken_are_taken_once_by_forward_and_once_by_backward() {
    // Transformer Engine's matmuls bring their own: PyTorch's are those of local modules.
    let with = |keeps: bool| {
        let text = format!("{MEGATRON}\n[megatron]\nimplementation = \"local\"\n[framework]\n");
        bytes(&format!("{text}persistent_cublas_workspace = {keeps}\n"), "cublas workspace")
    };
    // 32 MiB on Hopper (`CublasHandlePool.cpp`, `parseChosenWorkspaceSize`), for each of two threads.
    assert!((2 * (32 << 20)..2 * (33 << 20)).contains(&with(true)), "{}", with(true));
    assert!(with(false) > with(true), "given back, they are asked for by every matmul");
}
