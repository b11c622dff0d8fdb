//! Axes of XLA's mesh: over slices, by rules of one's own, and what JAX itself refuses.

use windtunnel::program::{Category, Instr};
use windtunnel::runtime::Plan;
use windtunnel::runtime::spmd::XlaPlan;
use windtunnel::scenario::Scenario;

/// A small mixture of experts with these lines in place of its slice and mesh.
fn scenario(slice: &str, mesh: &str, more: &str) -> Result<Scenario, String> {
    let text = format!(
        "runtime = \"xla\"\n[topology]\nname = \"tpu-v6e\"\n{slice}\n[model]\nname = \"mixtral-8x7b\"\nlayers = 2\nvocab = 32000\n[mesh]\n{mesh}\n\
         [batch]\nsequence = 2048\nmicro = 1\n[xla]\ncapacity_factor = 1.0\nactivation_embed = false\n{more}"
    );
    Scenario::parse("x.toml", &text).map_err(|error| error.to_string())
}

fn plan(slice: &str, mesh: &str) -> XlaPlan {
    match scenario(slice, mesh, "").unwrap_or_else(|error| panic!("{error}")).job {
        Plan::Xla(plan) => plan,
        _ => unreachable!("it is of XLA"),
    }
}

/// Bytes of what a chip keeps of parameters.
fn parameters(scenario: &Scenario) -> u64 {
    let program = scenario.job.compile().classes.remove(0);
    let of = |instr: &Instr| match instr {
        Instr::Alloc { buffer } if program.buffer(*buffer).category == Category::Parameter => {
            program.buffer(*buffer).bytes.0
        }
        _ => 0,
    };
    program.setup.iter().map(of).sum()
}

#[test]
fn fsdp_over_two_slices_shares_weights_over_all_chips_of_both() {
    let slices = "slice = \"2x4\"\nslices = 2";
    let (one, two) = (plan(slices, "dcn_data = 2"), plan(slices, "dcn_fsdp = 2"));
    assert_eq!((one.mesh.shards(), one.mesh.replicas()), (8, 2));
    assert_eq!((two.mesh.shards(), two.mesh.replicas()), (16, 1));
    assert_eq!(two.mesh.laid(), [1, 1, 8, 1, 1, 1, 1], "within a slice the axis has eight chips");
    let kept = |mesh: &str| parameters(&scenario(slices, mesh, "").unwrap());
    let (one, two) = (kept("dcn_data = 2"), kept("dcn_fsdp = 2"));
    // Norms are whole on each chip.
    assert!(two * 2 > one && two * 2 < one + one / 100, "{one} {two}");
}

#[test]
fn axes_over_slices_must_fill_the_slices() {
    let slices = "slice = \"2x4\"\nslices = 2";
    let error = scenario(slices, "dcn_fsdp = 3", "").unwrap_err();
    assert!(error.contains("2 slices are rented") && error.contains("mesh.dcn_fsdp = 3"), "{error}");
    let error = scenario(slices, "dcn_fsdp = 2\ndata = 2", "").unwrap_err();
    assert!(error.contains("mesh.dcn_fsdp together with mesh.data is not simulated"), "{error}");
}

#[test]
fn t5x_rules_name_what_maxtext_names() {
    let rules = r#"logical_axis_rules = [["batch", ["data", "fsdp"]], ["embed", "fsdp"], ["heads", "tensor"], ["mlp", "tensor"], ["vocab", "tensor"]]"#;
    let (own, maxtext) = (
        plan("slice = \"2x4\"", &format!("fsdp = 4\ntensor = 2\n{rules}")),
        plan("slice = \"2x4\"", "fsdp = 4\ntensor = 2"),
    );
    assert_eq!(own, maxtext);
}

#[test]
fn an_axis_of_experts_alone_has_all_other_weights_whole_and_the_same_tokens() {
    let rules = r#"logical_axis_rules = [["activation_batch", ["data"]], ["embed", []], ["exp", ["expert"]]]"#;
    let alone = format!("data = 2\nfsdp = 1\nexpert = 4\n{rules}");
    let plan = plan("slice = \"2x4\"", &alone);
    assert!(plan.mesh.experts_only);
    assert_eq!((plan.mesh.data_ranks(), plan.mesh.ranks()), (2, 8));
    assert_eq!(plan.tokens(), 2 * 2048, "two chips have tokens of their own");
    // Mixtral's layer: attention and router whole, two of eight experts; table, head and norms whole.
    let (d, ffn, kv, vocab) = (4096, 14336, 1024, 32000);
    let layer = 2 * d * d + 2 * d * kv + 8 * d + 2 * (3 * d * ffn) + 2 * d;
    assert_eq!(parameters(&scenario("slice = \"2x4\"", &alone, "").unwrap()), 4 * (2 * layer + 2 * vocab * d + d));
}

#[test]
fn rules_that_leave_an_axis_without_work_are_refused() {
    let nothing = r#"fsdp = 4
tensor = 2
logical_axis_rules = [["heads", []], ["mlp", []], ["vocab", []]]"#;
    let error = scenario("slice = \"2x4\"", nothing, "").unwrap_err();
    assert!(error.contains("mesh.tensor = 2") && error.contains("nothing lies on it"), "{error}");
    let unknown = "logical_axis_rules = [[\"embed\", [\"model\"]]]";
    let error = scenario("slice = \"2x4\"", unknown, "").unwrap_err();
    assert!(error.contains("there is no mesh axis \"model\"") && error.contains("tensor"), "{error}");
}

#[test]
fn a_mesh_that_jax_does_not_lay_is_noted_and_refused_where_axes_may_not_be_split() {
    let mesh = "data = 2\nfsdp = 4\ntensor = 2";
    let with = |slice: &str, key: &str| scenario(slice, &format!("{mesh}{key}"), "");
    let notes = |scenario: Scenario| {
        scenario.assumptions.iter().filter(|one| one.to_string().contains("2 x 4 x 2 on a slice")).count()
    };
    assert_eq!(notes(with("slice = \"4x4\"", "").unwrap()), 1);
    assert_eq!(notes(with("slice = \"4x4\"", "\nallow_split_physical_axes = true").unwrap()), 0);
    let error = with("slice = \"4x4\"", "\nallow_split_physical_axes = false").err().unwrap();
    assert!(error.contains("2 x 4 x 2 on a slice of 4 x 4"), "{error}");
    // Eight chips are one ring, which JAX walks.
    assert!(
        scenario("slice = \"2x4\"", "data = 2\nfsdp = 2\ntensor = 2\nallow_split_physical_axes = false", "").is_ok()
    );
}

#[test]
fn adafactor_keeps_a_row_and_a_column_and_sgd_nothing() {
    let states = |name: &str| {
        let text = format!("[optimizer]\nname = \"{name}\"\n");
        let scenario = scenario("slice = \"2x4\"", "fsdp = 8", &text).unwrap();
        let program = scenario.job.compile().classes.remove(0);
        let of = |instr: &Instr| match instr {
            Instr::Alloc { buffer } if program.buffer(*buffer).category == Category::OptimizerState => {
                program.buffer(*buffer).bytes.0
            }
            _ => 0,
        };
        program.setup.iter().map(of).sum::<u64>()
    };
    let (adamw, adafactor, sgd) = (states("adamw"), states("adafactor"), states("sgd"));
    assert_eq!(sgd, 0);
    // A thousandth of the moments, but none of it is cut over the eight chips.
    assert!(adafactor > 0 && adafactor < adamw / 50, "{adafactor} of {adamw}");
}
