//! Every number of a machine's file counts, or the report's first screen says that it does not, or it is refused.

use rayon::prelude::*;
use windtunnel::hardware::{Size, Topology};
use windtunnel::report;
use windtunnel::scenario::predict::{Settings, predict};
use windtunnel::scenario::{Prediction, Scenario};

use crate::command::Folder;
use crate::make;

/// A plan of two layers on `own.toml`.
fn plan(runtime: &str, size: &str, mesh: &str, rest: &str) -> String {
    format!(
        "runtime = {runtime:?}\n[topology]\nname = \"own.toml\"\n{size}\n[model]\nname = \"llama-3.2-1b\"\nlayers = 2\n[mesh]\n\
         {mesh}\n[batch]\nsequence = 2048\n{rest}\n"
    )
}

fn on_gpus() -> Vec<String> {
    let fsdp = |size: &str, rest: &str| plan("fsdp2", size, "", rest);
    let nvme = "[zero]\nstage = 3\nstage3_param_persistence_threshold = 0\n[zero.offload_optimizer]\ndevice = \"nvme\"\n\
                nvme_path = \"/nvme\"\n[zero.offload_param]\ndevice = \"nvme\"\nnvme_path = \"/nvme\"\n";
    vec![
        fsdp("nodes = 1", ""),
        fsdp("nodes = 2", ""),
        fsdp("nodes = 2\nnic_bandwidth = \"20 GB/s\"", ""),
        fsdp("nodes = 1", "[precision]\nparam = \"fp32\""),
        fsdp("nodes = 1", "[precision]\nparam = \"fp32\"\ntf32 = true"),
        fsdp("nodes = 1", "[fsdp]\ncpu_offload = true"),
        fsdp("nodes = 1", "[attention]\nbackend = \"flash2\""),
        plan("single_device", "chips = 1", "", ""),
        plan("megatron", "nodes = 2", "tp = 2", "[megatron]\nfp8 = \"delayed\""),
        plan("megatron", "nodes = 2", "tp = 2\npp = 2", "accumulation = 4\n[megatron]\nimplementation = \"local\""),
        plan("deepspeed-zero", "nodes = 1", "", nvme),
    ]
}

fn on_tpus() -> Vec<String> {
    let size = |slice: &str, more: &str| format!("slice = {slice:?}\n{more}");
    vec![
        plan("xla", &size("2x2", ""), "fsdp = 4", ""),
        plan("xla", &size("4x4", ""), "fsdp = 16", ""),
        plan("xla", &size("4x4", ""), "fsdp = 4\ntensor = 4", ""),
        plan("xla", &size("2x2", "slices = 2"), "fsdp = 4", ""),
    ]
}

/// What the report says of a plan on a machine, but the machine's size, and what it lists for a person to check.
fn said(folder: &Folder, plan: &str, machine: &str) -> Option<(String, Prediction)> {
    let name = format!("{:x}.toml", fxhash(machine) ^ fxhash(plan).rotate_left(7));
    folder.write(&name, machine);
    let file = folder.path.join("plan.toml").display().to_string();
    let scenario = Scenario::parse(&file, &plan.replace("own.toml", &name)).ok()?;
    let answer = predict(&scenario, Settings::default()).ok()?;
    let mut said = report::json::report(&scenario, &answer);
    for key in ["assumptions", "questions", "topology", "topology_without_effect"] {
        said.as_object_mut()?.remove(key)?;
    }
    Some((said.to_string(), answer))
}

/// A number for a text, the same in every run.
fn fxhash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// A machine's file, and what is wrong with each of its numbers in each plan.
fn wrong(test: &str, shipped: &str, size: &Size, plans: &[String]) -> Vec<String> {
    let folder = Folder::new(test);
    let topology = Topology::parse("own.toml", shipped, size).expect("it ships");
    let of = |plan: &String| {
        let (before, answer) = said(&folder, plan, shipped).unwrap_or_else(|| panic!("no plan: {plan}"));
        assert!(answer.unread.is_empty(), "{:?} of a machine that ships", answer.unread);
        let of = |name: &String, machine: String| {
            let (after, answer) = said(&folder, plan, &machine)?;
            let named = answer.unread.iter().any(|idle| idle.key == *name);
            match (after == before, named) {
                (true, false) => Some(format!("{name} changes nothing in silence:\n{plan}")),
                (false, true) => Some(format!("{name} is said to change nothing, and does:\n{plan}")),
                _ => None,
            }
        };
        let numbers = topology.facts.iter().map(|fact| &fact.name);
        numbers
            .flat_map(|name| topology.changed(shipped, name, None).into_iter().map(move |machine| (name, machine)))
            .filter_map(|(name, machine)| of(name, machine))
            .collect::<Vec<String>>()
    };
    plans.par_iter().flat_map(of).collect()
}

#[test]
fn every_number_of_a_gpu_machine_counts_or_is_named_or_is_refused() {
    let disks = "disk_read = { value = \"20 GB/s\", source = \"assumed: a test\" }\ndisk_write = { value = \"10 GB/s\", source = \
                 \"assumed: a test\" }\n";
    let shipped = include_str!("../topologies/h100-sxm-80gb.toml");
    let wrong = wrong("machines-gpu", shipped, &Size::Nodes(1), &on_gpus()[..10]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let own = make::replaced(shipped, &[("[node]\n", &format!("[node]\n{disks}"))]);
    let folder = Folder::new("machines-disks");
    let (_, answer) = said(&folder, &on_gpus()[10], &own).expect("a plan with disks");
    assert!(answer.unread.is_empty(), "a plan on disks reads their rates: {:?}", answer.unread);
    let (_, answer) = said(&folder, &on_gpus()[0], &own).expect("a plan without disks");
    let named: Vec<&str> = answer.unread.iter().map(|idle| idle.key.as_str()).collect();
    assert_eq!(named, ["node.disk_read", "node.disk_write"]);
}

#[test]
fn every_number_of_a_tpu_machine_counts_or_is_named_or_is_refused() {
    let shipped = include_str!("../topologies/tpu-v6e.toml");
    let wrong = wrong("machines-tpu", shipped, &Size::Slice("4x4".to_owned()), &on_tpus());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn numbers_that_change_nothing_are_named_on_a_machine_whose_profile_no_shipped_machine_bears() {
    let own = make::replaced(
        include_str!("../topologies/b200-sxm.toml"),
        &[("profile = \"b200-sxm\"", "profile = \"b200-sxm-throttled\""), ("\"2.7 us\"", "\"99 us\"")],
    );
    let (_, answer) = said(&Folder::new("machines-throttled"), &on_gpus()[0], &own).expect("a plan that runs");
    assert!(answer.unread.iter().any(|idle| idle.key == "fabric.rail.latency"), "{:?}", answer.unread);
}

#[test]
fn two_limits_on_the_network_are_not_both_said_to_change_nothing() {
    let own = make::replaced(
        include_str!("../topologies/h100-sxm-80gb.toml"),
        &[
            ("\"400 Gbit/s\"", "\"200 Gbit/s\""),
            ("bandwidth = { value = \"50 GB/s\"", "bandwidth = { value = \"25 GB/s\""),
        ],
    );
    let (_, answer) = said(&Folder::new("machines-limits"), &on_gpus()[1], &own).expect("a plan that runs");
    assert_eq!(answer.unread.len(), 1, "{:?}", answer.unread);
}

/// The shipped machine with leaves of so many nodes below a spine.
fn with_a_spine(nodes: u32) -> String {
    let shipped = include_str!("../topologies/h100-sxm-80gb.toml");
    let rails = "size = { value = \"unbounded\", source = \"assumed: a non-blocking network as large as the job\" }";
    let few = make::replaced(shipped, &[(rails, &format!("size = {{ value = {nodes}, source = \"node\" }}"))]);
    format!(
        "{few}\n[[fabric]]\nname = \"spine\"\nkind = \"switch\"\nsize = {{ value = \"unbounded\", source = \"node\" }}\nbandwidth = \
         {{ value = \"50 GB/s\", source = \"node\" }}\nlatency = {{ value = \"9 us\", source = \"node\" }}\noversubscription = {{ value = \
         4.0, source = \"node\" }}\n"
    )
}

#[test]
fn nodes_that_are_not_what_their_switch_joins_are_refused() {
    let shipped = include_str!("../topologies/h100-sxm-80gb.toml");
    let small = make::replaced(shipped, &[("size = { value = 8", "size = { value = 4")]);
    let wide = make::replaced(shipped, &[("size = { value = 8", "size = { value = 16")]);
    let folder = Folder::new("machines-links");
    for (name, machine, nodes, expected) in [
        ("small", &small, 1, "fabric.nvswitch.size is 4 and node.chips is 8"),
        ("wide", &wide, 2, "fabric.nvswitch.size is 16 and node.chips is 8"),
    ] {
        folder.write(&format!("{name}.toml"), machine);
        folder.write(
            "my.toml",
            &on_gpus()[0]
                .replace("own.toml", &format!("{name}.toml"))
                .replace("nodes = 1", &format!("nodes = {nodes}")),
        );
        let said = folder.refuses(&["run", "my.toml"]);
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn every_number_of_a_spine_counts_or_is_named() {
    let folder = Folder::new("machines-spine");
    // Inside a leaf nothing crosses what lies beyond it, and the report says so.
    let (_, answer) = said(&folder, &on_gpus()[1], &with_a_spine(4)).expect("16 chips of 32");
    let named: Vec<&str> = answer.unread.iter().map(|idle| idle.key.as_str()).collect();
    assert_eq!(
        named,
        ["fabric.rail.size", "fabric.spine.oversubscription", "fabric.spine.bandwidth", "fabric.spine.latency"]
    );
    // Each number of leaves of one node changes the answer of a plan on two.
    let machine = with_a_spine(1);
    let (before, answer) = said(&folder, &on_gpus()[1], &machine).expect("16 chips in two leaves");
    let topology = Topology::parse("own.toml", &machine, &Size::Nodes(2)).expect("a sound file");
    for name in ["oversubscription", "bandwidth", "latency"].map(|key| format!("fabric.spine.{key}")) {
        assert!(answer.unread.iter().all(|idle| idle.key != name), "{name} is said to change nothing");
        let others = topology.changed(&machine, &name, None);
        let moved =
            others.iter().filter_map(|other| said(&folder, &on_gpus()[1], other)).any(|(after, _)| after != before);
        assert!(moved, "{name} changes nothing");
    }
}
