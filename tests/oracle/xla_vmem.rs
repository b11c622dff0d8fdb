//! VMEM of the splash kernel, by what XLA's compiler says when it refuses one for want of it (`oracles/xla-vmem.json`, by
//! `oracles/xla_vmem.py`).

use std::path::Path;

use serde::Deserialize;
use windtunnel::runtime::spmd::vmem::{Kernel, Vmem};
use windtunnel::scenario::Scenario;

#[derive(Deserialize)]
struct Refused {
    chip: String,
    kernel: String,
    block_q: u64,
    block_kv: u64,
    block_kv_compute: u64,
    head_dim: u64,
    mib: f64,
}

#[test]
fn a_kernel_takes_what_the_compiler_says_or_lies_within_what_is_said_of_it() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracles/xla-vmem.json");
    let rows: Vec<Refused> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut seen = 0;
    for row in rows.iter().filter(|row| row.block_q == row.block_kv && row.block_kv == row.block_kv_compute) {
        let kernel = match row.kernel.as_str() {
            "forward" => Kernel::Forward,
            "backward" => Kernel::Backward,
            "fused" => Kernel::FusedBackward,
            // That of queries is never the largest.
            _ => continue,
        };
        let taken = Vmem::of(&row.chip).unwrap().splash(kernel, row.block_q, row.head_dim);
        let [least, most] = [taken.least, taken.most].map(|bytes| bytes.0 as f64 / f64::from(1 << 20));
        let what = format!("{} {} {}: {} MiB, and said {least} to {most}", row.chip, row.kernel, row.block_q, row.mib);
        assert!((least..=most).contains(&row.mib), "{what}");
        seen += 1;
    }
    assert!(seen >= 20, "{seen}");
}

fn scenario(xla: &str) -> Result<Scenario, String> {
    let text = format!(
        "runtime = \"xla\"\n[topology]\nname = \"tpu-v6e\"\nslice = \"2x4\"\n[model]\nname = \"llama-3.1-8b\"\n[mesh]\nfsdp = 8\n\
         [batch]\nsequence = 8192\n[xla]\nsa_block_size = 2048\n{xla}\n"
    );
    Scenario::parse("tests/oracles/vmem.toml", &text).map_err(|why| why.to_string())
}

#[test]
fn blocks_that_the_compiler_refuses_are_refused_unless_a_flag_raises_the_limit() {
    let fused = "sa_use_fused_bwd_kernel = true";
    let said = scenario(fused).expect_err("34.8 MiB of 32");
    assert!(said.contains("CompileTimeScopedVmemOom") && said.contains("DENSE_VMEM_LIMIT_FLAG"), "{said}");
    assert!(said.contains("sa_block_size = 1024"), "{said}");
    assert!(scenario(&format!("{fused}\nflags = [\"DENSE_VMEM_LIMIT_FLAG\"]")).is_ok());
    assert!(scenario(&format!("{fused}\nflags = [\"xla_tpu_scoped_vmem_limit_kib=40960\"]")).is_ok());
    // Two kernels take 31.2 MiB.
    assert!(scenario("sa_use_fused_bwd_kernel = false").is_ok());
}
