//! Compiled layers: whatever backward reads, forward has made and kept, or the caller gives.

use std::collections::BTreeSet;

use windtunnel::model::block;
use windtunnel::model::fuse::float8::Recipe;
use windtunnel::model::fuse::{self, Compiled, Float8, Kernel, Options, Policy};
use windtunnel::model::style::Style;
use windtunnel::model::tensor::TensorParallel;
use windtunnel::program::DType;

use crate::make::{self, TINY};

/// Tensors that kernels read before anybody makes them; parameters are the caller's.
fn unmade(compiled: &Compiled, kernels: &[Kernel], given: BTreeSet<usize>) -> Vec<(&'static str, usize)> {
    let mut made = given;
    let mut missing = vec![];
    for kernel in kernels {
        for &read in &kernel.reads {
            let base = compiled.tensors[read].base;
            if !made.contains(&base) && compiled.tensors[base].name != "weight" {
                missing.push((kernel.name, base));
            }
        }
        made.extend(&kernel.writes);
    }
    missing
}

#[test]
fn backward_reads_nothing_that_nobody_made_however_layers_are_compiled() {
    let model = make::parse(TINY).job.model().clone();
    let recipes = [None, Some(Recipe::Tensorwise), Some(Recipe::Rowwise)];
    let policies = [Policy::MinCut, Policy::Input, Policy::ComputeIntensive];
    for (ranks, pipelined) in [(1, false), (2, false), (2, true)] {
        for (recipe, policy, batch, ahead) in recipes.iter().flat_map(|&recipe| {
            let policies = policies.iter().flat_map(move |&policy| [1, 2, 3].map(|batch| (policy, batch)));
            policies.flat_map(move |(policy, batch)| [false, true].map(|ahead| (recipe, policy, batch, ahead)))
        }) {
            let tensor = match ranks {
                1 => TensorParallel::NONE,
                ranks => TensorParallel { ranks, sequence: true, loss: true, asynchronous: pipelined },
            };
            let dims = block::dims(&model, batch, 128, tensor);
            let style = Style { repeat_kv: true, ..Style::default() };
            let graph = block::block(&model, dims, DType::Bf16, model.layers.at(0), style);
            // Weights with a scale a row are not gathered in fp8: the reader refuses that.
            let ahead = ahead && recipe != Some(Recipe::Rowwise);
            let float8 = recipe.map(|recipe| Float8 { recipe, all_gather: ahead, precompute_scale: ahead });
            let compiled = fuse::compile(&graph, policy, Options { float8, pipelined });
            let case = format!("{recipe:?} {policy:?} batch {batch} tp {ranks} in parts {pipelined}");
            assert_eq!(unmade(&compiled, &compiled.forward, BTreeSet::from([0])), [], "forward, {case}");
            let written: BTreeSet<usize> = compiled.forward.iter().flat_map(|kernel| kernel.writes.clone()).collect();
            let lost: Vec<_> = compiled.saved.iter().filter(|&&kept| kept != 0 && !written.contains(&kept)).collect();
            assert!(lost.is_empty(), "saved but never made: {lost:?}, {case}");
            let given = compiled.saved.iter().copied().chain([compiled.seed]).collect();
            assert_eq!(unmade(&compiled, &compiled.backward, given), [], "backward, {case}");
        }
    }
}

#[test]
fn the_shipped_float8_scenario_is_predicted_whatever_is_checkpointed() {
    let shipped = include_str!("../scenarios/llama3.1-70b-float8-async-tp8-256xh100.toml");
    let shorter = shipped.replace("name = \"llama-3.1-70b\"", "name = \"llama-3.1-70b\"\nlayers = 2");
    for policy in ["none", "selective_op", "full"] {
        for micro in [1, 2, 8] {
            let text = shorter.replace("policy = \"full\"", &format!("policy = {policy:?}"));
            let text = text.replace("micro = 8", &format!("micro = {micro}"));
            assert!(!make::program(&text).step.is_empty(), "{policy} {micro}");
        }
    }
}
