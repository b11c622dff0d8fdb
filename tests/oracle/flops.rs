//! FLOPs and parameter counts against PyTorch's FlopCounterMode.

use super::cases::{self, Config, Dims};
use windtunnel::runtime::train;

#[test]
fn oracle_flops_of_every_dense_case_equal_pytorchs_flop_counter_exactly() {
    let Some(file) = cases::read("flops.json") else { return };
    let mut checked = 0;
    for case in file["cases"].as_array().unwrap() {
        let dims: Dims = serde_json::from_value(case["model_dims"].clone()).unwrap();
        if dims.n_experts > 0 {
            continue;
        }
        let config = Config {
            seq: case["seq"].as_u64().unwrap(),
            bs: case["bs"].as_u64().unwrap(),
            ac: case["ac"].as_str().unwrap().to_owned(),
            ..plain()
        };
        let job = cases::job(&dims, &config).unwrap();
        let expected = u128::from(case["total_flops"].as_u64().unwrap());
        let program = train::compile(&job);
        let counted = match case["mode"].as_str().unwrap() {
            "fwd" => program.flops_of(windtunnel::program::Pass::Forward),
            _ => program.flops,
        };
        assert_eq!(counted.0, expected, "{}", case["id"]);
        let params = job.model.params();
        assert_eq!(params.total, case["params"]["total"].as_u64().unwrap(), "{}", case["id"]);
        assert_eq!(params.block, case["params"]["block"].as_u64().unwrap(), "{}", case["id"]);
        checked += 1;
    }
    assert!(checked >= 13 || cases::elsewhere(), "only {checked} dense cases found");
}

fn plain() -> Config {
    serde_json::from_str(
        r#"{"seq": 1, "bs": 1, "world": 1, "wrap": "block", "reshard": "default", "root_reshard": "default",
            "mp": "bf16", "ac": "none", "opt": "sgd", "ga": 1, "ga_sync": "last", "fwd_prefetch": 0, "bwd_prefetch": 0,
            "tp": 1, "hsdp": 1, "early_stop": false, "unshard_in_backward": true, "clip": 0, "rs_max_input_buffers": 1,
            "cpu_offload": false}"#,
    )
    .unwrap()
}
