//! What a step computes, on the CPU plugin: its loss, and its gradients against differences of its loss.
//!
//! The first moment after one step from zero is a tenth of the gradient. Compute is in bf16, so a difference is taken along the
//! gradient itself, far enough for the loss to move by more than rounding does.

use std::collections::BTreeMap;

use windtunnel::model::FeedForward;

use super::{job, mixture};
use crate::pjrt::ffi::{self, Client};
use crate::pjrt::options::Options;
use crate::pjrt::plugins::Plugin;
use crate::stablehlo::Element;
use crate::step::{self, Step, XlaPlan};

/// A step on one device, with numbers for its arguments.
struct Loaded<'c> {
    client: &'c Client,
    loaded: ffi::Loaded<'c>,
    step: Step,
    numbers: Vec<Vec<f32>>,
}

/// A job of one device that a processor can run.
fn plain(xla: &str) -> XlaPlan {
    job("1x1", "", &format!("attention = \"dot_product\"\ngradient_clipping = false\n{xla}"))
}

/// Numbers between -1 and 1 that follow no rule but are the same each time.
fn scattered(seed: &mut u64) -> f32 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
}

fn client() -> Client {
    let cache = crate::pjrt::cache::folder().expect("a folder for plugins");
    let plugin = Plugin::named("cpu", &cache).expect("the cpu plugin, fetched");
    let api = ffi::Plugin::load(&plugin.path).expect("a plugin");
    Client::create(api, &plugin.client_settings(1)).expect("a device")
}

impl<'c> Loaded<'c> {
    fn new(client: &'c Client, job: &XlaPlan) -> Self {
        let step = step::write(job, step::Options { kernels: false }).unwrap_or_else(|why| panic!("{why}"));
        let flags = BTreeMap::new();
        let options = Options { devices: vec![0], shardy: true, results_left: false, flags: &flags };
        let loaded =
            client.compile((step.text.as_bytes(), crate::pjrt::source::MLIR), &options.encode()).expect("it compiles");
        let (mut seed, count) = (1, step.parameters);
        let mut number = |at: usize, argument: &super::Argument| -> Vec<f32> {
            let length = argument.of.dims.iter().product::<u64>();
            // All that a product sums over, or more.
            let fan = argument.of.dims.iter().rev().skip(1).take(2).product::<u64>();
            let scale = 1.7 / (fan as f32).sqrt();
            let one = |seed: &mut u64| match () {
                () if at >= count => 0.0,
                () if argument.name.contains("norm") => 1.0 + 0.1 * scattered(seed),
                () => scale * scattered(seed),
            };
            (0..length).map(|_| one(&mut seed)).collect()
        };
        let numbers = step.arguments.iter().enumerate().map(|(at, argument)| number(at, argument)).collect();
        Self { client, loaded, step, numbers }
    }

    /// The loss, and the gradient of each parameter.
    fn run(&self) -> (f64, Vec<Vec<f32>>) {
        let mut seed = 7;
        let buffers: Vec<_> = self
            .step
            .arguments
            .iter()
            .zip(&self.numbers)
            .map(|(argument, numbers)| {
                let dims: Vec<i64> = argument.of.dims.iter().map(|length| length.cast_signed()).collect();
                let (bytes, element): (Vec<u8>, _) = match argument.of.element {
                    Element::I32 => {
                        let token = |_: usize| (scattered(&mut seed).abs() * 127.0) as i32;
                        let length = argument.of.dims.iter().product::<u64>() as usize;
                        ((0..length).map(token).flat_map(i32::to_le_bytes).collect(), ffi::Element::S32)
                    }
                    Element::Bf16 => (numbers.iter().flat_map(|_| [0, 0]).collect(), ffi::Element::Bf16),
                    _ => (numbers.iter().flat_map(|number| number.to_le_bytes()).collect(), ffi::Element::F32),
                };
                self.client.buffer(&bytes, element, &dims, 0).expect("an array")
            })
            .collect();
        let results = self.loaded.execute(&[buffers.iter().collect()]).expect("it runs");
        let read = |at: usize| -> Vec<f32> {
            let bytes = results[0][at].read().expect("a result");
            // One in bf16 has the upper half of its bits.
            let bytes = match self.step.arguments.get(at).map(|argument| argument.of.element) {
                Some(Element::Bf16) => bytes.chunks_exact(2).flat_map(|two| [0, 0, two[0], two[1]]).collect(),
                _ => bytes,
            };
            bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
        };
        let count = self.step.parameters;
        let gradients = (count..2 * count).map(|at| read(at).iter().map(|number| 10.0 * number).collect()).collect();
        (f64::from(read(3 * count + 1)[0]), gradients)
    }
}

#[test]
#[ignore = "needs: windtunnel calibrate plugins fetch cpu"]
fn a_head_that_says_nothing_loses_the_logarithm_of_the_words() {
    let client = client();
    for targets in ["targets = \"indexed\"", "targets = \"one_hot\""] {
        let mut step = Loaded::new(&client, &plain(targets));
        let head = step.step.arguments.iter().position(|argument| argument.name == "head").expect("a head");
        step.numbers[head].iter_mut().for_each(|number| *number = 0.0);
        let (loss, _) = step.run();
        assert!((loss - 128_f64.ln()).abs() < 1e-5, "{targets}: {loss}");
    }
}

/// Holds every parameter's gradient against what the loss changes by along it.
fn gradients_are_slopes(what: &str, job: &XlaPlan) {
    let client = client();
    let mut step = Loaded::new(&client, job);
    let (_, gradients) = step.run();
    for (at, gradient) in gradients.iter().enumerate() {
        let square: f64 = gradient.iter().map(|number| f64::from(*number).powi(2)).sum();
        // So far that the loss moves by a twenty-fifth.
        let far = (0.02 / square) as f32;
        let before = step.numbers[at].clone();
        let mut moved = |sign: f32| {
            step.numbers[at] = before.iter().zip(gradient).map(|(x, g)| x + sign * far * g).collect();
            step.run().0
        };
        let (up, down) = (moved(1.0), moved(-1.0));
        step.numbers[at] = before;
        let (found, expected) = (up - down, 2.0 * f64::from(far) * square);
        let name = &step.step.arguments[at].name;
        assert!((found / expected - 1.0).abs() < 0.1, "{what}: {name}: {found} and not {expected}");
    }
}

#[test]
#[ignore = "needs: windtunnel calibrate plugins fetch cpu"]
fn gradients_are_what_the_loss_changes_by() {
    for xla in [
        "remat_policy = \"full\"\ntargets = \"indexed\"",
        "remat_policy = \"none\"\ntargets = \"one_hot\"\nuse_iota_embed = true",
        "remat_policy = \"save_qkv_proj\"",
        "num_vocab_tiling = 4",
        "scan_layers = false",
        "mu_dtype = \"bfloat16\"",
        "num_vocab_tiling = 2\ntargets = \"indexed\"",
    ] {
        gradients_are_slopes(xla, &plain(xla));
    }
}

#[test]
#[ignore = "needs: windtunnel calibrate plugins fetch cpu"]
fn gradients_of_experts_are_what_the_loss_changes_by() {
    // All places there are, and three quarters of them: then the first tokens of a sequence find one. Each token meets all
    // experts, so that no choice changes on the way. Then sorted, and shared ones beside them.
    let mixed = |xla: &str, chosen, factor| mixture(plain(xla), chosen, factor);
    gradients_are_slopes("all places", &mixed("remat_policy = \"none\"", (4, 4), Some(1.0)));
    gradients_are_slopes("three quarters", &mixed("remat_policy = \"full\"", (4, 4), Some(0.75)));
    gradients_are_slopes("two of four", &mixed("remat_policy = \"full\"", (4, 2), Some(1.0)));
    gradients_are_slopes("sorted", &mixed("remat_policy = \"full\"", (4, 4), None));
    let mut shared = mixed("remat_policy = \"none\"", (4, 4), None);
    shared.model.layers.edit(|layer| {
        if let FeedForward::Experts(experts) = &mut layer.feed_forward {
            experts.shared = 32;
        }
    });
    gradients_are_slopes("shared", &shared);
}
