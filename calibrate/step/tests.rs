//! Steps as text, and what they compute.

use windtunnel::model::routing::Load;
use windtunnel::model::{FeedForward, Layers};
use windtunnel::runtime::Parts;
use windtunnel::scenario::Scenario;
use windtunnel::units::Finite;

use super::*;

mod numbers;

/// A job of the scenario's tables that matter here: 2 blocks of width 64, on `slice`, in this mesh.
fn job(slice: &str, mesh: &str, xla: &str) -> XlaPlan {
    let text = format!(
        "runtime = \"xla\"\n[topology]\nname = \"tpu-v6e\"\nslice = \"{slice}\"\n[model]\nname = \"llama-3.1-8b\"\nlayers = 2\n\
         hidden = 64\nheads = 4\nkv_heads = 2\nffn = 96\nvocab = 128\n[mesh]\n{mesh}\n[batch]\nsequence = 32\nmicro = 2\n\
         [xla]\nactivation_embed = false\nflags = []\n{xla}\n"
    );
    let scenario = Scenario::parse("tiny.toml", &text).unwrap_or_else(|why| panic!("{why}"));
    match scenario.job.parts() {
        Parts::Compiled(job) => {
            let mut job = job.clone();
            // Several blocks of the few tokens there are; a scenario's have 128 or more.
            if let Attention::Splash { block, .. } = &mut job.attention {
                *block = 16;
            }
            job
        }
        _ => panic!("runtime is xla"),
    }
}

fn written(slice: &str, mesh: &str, xla: &str) -> Step {
    write(&job(slice, mesh, xla), Options { kernels: true }).unwrap_or_else(|why| panic!("{why}"))
}

/// The same job with experts of width 48 in the feed-forward's place, each token's weight that of the `top_k` it meets.
fn mixture(job: XlaPlan, (count, top_k): (u64, u64), capacity_factor: Option<f64>) -> XlaPlan {
    let router = Router {
        score: Score::SoftmaxOfChosen,
        normalises: false,
        scales: false,
        bias: false,
        correction: false,
        groups: None,
    };
    let experts = Experts {
        count,
        top_k,
        width: 48,
        latent: None,
        shared: 0,
        shared_gate: false,
        gating: job.model.gating(),
        router,
        bias: false,
        clamped: false,
        auxiliary_loss: false,
        load: Load::Balanced,
    };
    let mut model = job.model;
    model.layers.edit(|layer| layer.feed_forward = FeedForward::Experts(experts.clone()));
    XlaPlan { model, capacity_factor: capacity_factor.map(Finite::nearest), ..job }
}

/// Bytes on one device of a step's arguments.
fn bytes(step: &Step, mesh: Mesh) -> u64 {
    let mesh = Layout::of(mesh).mesh;
    step.arguments.iter().map(|argument| argument.spec.piece(&argument.of, &mesh).bytes()).sum()
}

#[test]
fn parameters_and_moments_take_twelve_bytes_for_each_number_and_are_given_back_in_place() {
    let step = written("1x1", "", "");
    // Four heads of 16, two of keys and of values; three matrices of the feed-forward; two norms.
    let block = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64;
    let numbers = 2 * block + 2 * 128 * 64 + 64;
    let batch = 2 * (2 * 32) * 4;
    assert_eq!(bytes(&step, Mesh::ONE), 12 * numbers + 4 + batch);
    assert_eq!(step.text.matches("tf.aliasing_output").count(), 3 * step.parameters + 1);
}

#[test]
fn each_chip_has_the_share_that_the_simulator_gives_it() {
    let axes = ["fsdp = 4", "fsdp = 2\ntensor = 2", "fsdp = 2\nfsdp_transpose = 2", "data = 2\nfsdp = 2"];
    for (mesh, xla) in axes.map(|axes| (axes, "")).into_iter().chain([
        ("fsdp = 2\ncontext = 2", ""),
        ("fsdp = 4", "mu_dtype = \"bfloat16\""),
        ("fsdp = 4", "scan_layers = false"),
    ]) {
        let job = job("2x2", mesh, xla);
        let step = write(&job, Options { kernels: true }).unwrap_or_else(|why| panic!("{why}"));
        let program =
            windtunnel::runtime::Framework::compile(&job, &windtunnel::program::Budget::unlimited()).classes.remove(0);
        let simulated: u64 = program.buffers.iter().take(3).map(|buffer| buffer.bytes.0).sum();
        // The count of steps is four bytes that the simulator leaves out.
        assert_eq!(bytes(&step, job.mesh), simulated + 4, "{mesh} {xla}");
    }
}

#[test]
fn experts_lie_as_the_simulator_has_them() {
    for (mesh, send_tokens) in
        [("fsdp = 2\nexpert = 2", false), ("fsdp = 2\nexpert = 2", true), ("fsdp = 2\ntensor = 2", false)]
    {
        let dense = job("2x2", &mesh.replace("expert", "fsdp_transpose"), "");
        let mesh = job("2x2", &mesh.replace("expert", "context"), "").mesh;
        let mesh = Mesh { expert: mesh.context, context: 1, ..mesh };
        let job = XlaPlan { mesh, send_tokens, ..mixture(dense, (4, 2), Some(1.0)) };
        let step = write(&job, Options { kernels: true }).unwrap_or_else(|why| panic!("{why}"));
        let program =
            windtunnel::runtime::Framework::compile(&job, &windtunnel::program::Budget::unlimited()).classes.remove(0);
        let simulated: u64 = program.buffers.iter().take(3).map(|buffer| buffer.bytes.0).sum();
        assert_eq!(bytes(&step, job.mesh), simulated + 4, "{mesh:?}");
        let places = if send_tokens {
            "[{\"expert\"}, {\"data\", \"fsdp\", \"fsdp_transpose\"}, {}, {\"tensor\"}]"
        } else {
            "[{}, {\"data\", \"fsdp\", \"fsdp_transpose\", \"expert\"}, {}, {\"tensor\"}]"
        };
        assert!(step.text.contains(places), "{places}");
    }
}

#[test]
fn every_axis_is_declared_with_its_own_size() {
    let step = written("2x2", "fsdp = 2\ntensor = 2", "");
    let mesh = "<[\"data\"=1, \"fsdp\"=2, \"fsdp_transpose\"=1, \"context\"=1, \"expert\"=1, \"tensor\"=2]>";
    assert!(step.text.contains(mesh), "{}", step.text.lines().take(3).collect::<Vec<_>>().join("\n"));
}

#[test]
fn slices_are_replicas_before_those_of_a_slice() {
    let mut two = job("2x2", "data = 2\nfsdp = 2", "");
    two.mesh.dcn_data = 2;
    let step = write(&two, Options { kernels: true }).unwrap_or_else(|why| panic!("{why}"));
    assert!(step.text.contains("<[\"data\"=4, \"fsdp\"=2, "));
    // Two sequences on each of eight chips.
    assert_eq!(step.arguments.last().map(|targets| targets.of.dims[0]), Some(16));
}

#[test]
fn forward_stacks_what_the_policy_keeps_and_nothing_else() {
    let stack = |step: &Step, of: &str| {
        let first = step.text.lines().find(|line| line.contains("stablehlo.while")).unwrap_or_default().to_owned();
        first.matches(of).count()
    };
    let (hidden, query, key) = ("tensor<2x2x32x64xbf16>", "tensor<2x2x32x4x16xbf16>", "tensor<2x2x32x2x16xbf16>");
    let full = written("1x1", "", "remat_policy = \"full\"");
    assert_eq!([hidden, query, key].map(|of| stack(&full, of)), [1, 0, 0]);
    let qkv = written("1x1", "", "remat_policy = \"save_qkv_proj\"");
    assert_eq!([hidden, query, key].map(|of| stack(&qkv, of)), [1, 1, 2]);
    // Products' inputs and results: the query's, and the gate's input which the two of the feed-forward share.
    let none = written("1x1", "", "remat_policy = \"none\"\nattention = \"dot_product\"");
    assert!(stack(&none, "tensor<2x2x32x96xbf16>") >= 3, "gate, up and the product");
}

#[test]
fn keys_and_values_of_shared_sequences_are_whole_and_their_gradients_summed() {
    let step = written("2x2", "fsdp = 2\ncontext = 2", "");
    let (queries, keys) = (
        "[{\"data\", \"fsdp\", \"fsdp_transpose\", \"expert\"}, {\"tensor\"}, {\"context\"}, {}]",
        "\"expert\"}, {\"tensor\"}, {}, {}]",
    );
    let kernel = step.text.lines().find(|line| line.contains("sdy.manual_computation")).unwrap_or_default();
    assert!(kernel.contains(&format!("<@mesh, {queries}>")) && kernel.contains(keys), "{kernel}");
    assert_eq!(step.text.matches("\"stablehlo.all_reduce\"").count(), 2);
    assert!(step.text.contains("dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>"));
}

#[test]
fn blocks_written_out_have_parameters_of_their_own_and_a_barrier_before_each_backward() {
    let step = written("1x1", "", "scan_layers = false");
    assert_eq!(step.text.matches("stablehlo.while").count(), 0);
    assert_eq!(step.text.matches("stablehlo.optimization_barrier").count(), 2);
    assert!(step.arguments.iter().any(|argument| argument.name == "layers_1.query"));
    let none = written("1x1", "", "scan_layers = false\nremat_policy = \"none\"");
    assert_eq!(none.text.matches("stablehlo.optimization_barrier").count(), 0);
}

#[test]
fn what_is_offloaded_goes_to_the_host_and_comes_back() {
    let step = written("1x1", "", "remat_policy = \"qkv_proj_offloaded\"");
    let count = |kind: &str| step.text.matches(&format!("_xla_buffer_placement = {kind:?}")).count();
    assert_eq!((count("pinned_host"), count("device")), (3, 3));
}

#[test]
fn the_kernel_runs_once_forward_and_backward_runs_it_again_before_its_own_two() {
    let calls = |xla: &str| written("1x1", "", xla).text.matches("@tpu_custom_call").count();
    assert_eq!(calls("remat_policy = \"full\""), 4);
    assert_eq!(calls("remat_policy = \"full\"\nsa_use_fused_bwd_kernel = true"), 3);
    assert_eq!(calls("remat_policy = \"full\"\nattention = \"dot_product\""), 0);
}

#[test]
fn what_is_not_written_is_named() {
    let why = |job: XlaPlan| write(&job, Options { kernels: true }).err().unwrap_or_default();
    let mut shared = mixture(job("1x1", "", ""), (4, 2), Some(1.0));
    shared.mesh.context = 2;
    assert!(why(shared).contains("experts of shared sequences"));
    let mut apart = mixture(job("1x1", "", ""), (4, 2), Some(1.0));
    let layers = [apart.model.layers.at(0).clone(), job("1x1", "", "").model.layers.at(0).clone()];
    apart.model.layers = Layers::new(apart.model.layers.count(), 0, 2, |place| layers[place as usize % 2].clone());
    assert!(why(apart).contains("blocks with experts beside blocks without"));
}
