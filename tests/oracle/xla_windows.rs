//! When XLA's partitioner exchanges a matmul's weight in windows (`oracles/xla-windows.json`, by `oracles/xla_windows.py`).

use serde::Deserialize;
use windtunnel::runtime::Parts;
use windtunnel::scenario::Scenario;

#[derive(Deserialize)]
struct Asked {
    matmuls: Vec<Matmul>,
}

/// A matmul of a chip's rows by a weight: rows are spread over data and fsdp, the weight over fsdp and tensor.
#[derive(Debug, Deserialize)]
struct Matmul {
    slice: String,
    data: u32,
    fsdp: u32,
    tensor: u32,
    rows: u64,
    windows: bool,
}

impl Matmul {
    /// A scenario on such a mesh.
    fn scenario(&self) -> Scenario {
        let text = format!(
            "runtime = \"xla\"\n[topology]\nname = \"tpu-v6e\"\nslice = \"{}\"\n[model]\nname = \"llama-3.1-8b\"\n\
             heads = 32\nkv_heads = 32\n[mesh]\ndata = {}\nfsdp = {}\ntensor = {}\n[batch]\nsequence = 2048\nmicro = 1\n[xla]\n",
            self.slice, self.data, self.fsdp, self.tensor
        );
        Scenario::parse("windows.toml", &text).unwrap()
    }
}

#[test]
fn a_weight_is_exchanged_in_windows_when_the_compiler_does_it() {
    let asked: Asked = serde_json::from_str(include_str!("../oracles/xla-windows.json")).unwrap();
    for matmul in &asked.matmuls {
        let scenario = matmul.scenario();
        let Parts::Compiled(job) = scenario.job.parts() else { panic!("{matmul:?}") };
        assert_eq!(job.windows.pay(matmul.rows, matmul.fsdp), matmul.windows, "{matmul:?}");
    }
    assert!(asked.matmuls.iter().any(|one| one.windows) && asked.matmuls.iter().any(|one| !one.windows));
}
