//! The network that a user writes is the one that is simulated: levels, leaves, latencies and oversubscription move the answer as
//! they must, and files that are written in ten lines say the same as whole ones.

use rayon::prelude::*;
use windtunnel::hardware::{Size, Topology};
use windtunnel::scenario::predict::{Settings, predict};
use windtunnel::scenario::{Prediction, Scenario};

use crate::command::Folder;

/// A fat tree of two levels on H100 nodes.
#[derive(Clone, Copy)]
struct Tree {
    kind: &'static str,
    leaf: u32,
    rail: &'static str,
    rail_latency: &'static str,
    spine: &'static str,
    spine_latency: &'static str,
    oversubscription: f64,
}

const TREE: Tree = Tree {
    kind: "rails",
    leaf: 2,
    rail: "50 GB/s",
    rail_latency: "2.7 us",
    spine: "50 GB/s",
    spine_latency: "2.7 us",
    oversubscription: 1.0,
};

impl Tree {
    /// The file: a base and what differs.
    fn file(self) -> String {
        let Tree { kind, leaf, rail, rail_latency, spine, spine_latency, oversubscription } = self;
        let number = |value: &str| format!("{{ value = {value}, source = \"us\" }}");
        let text = |value: &str| number(&format!("\"{value}\""));
        format!(
            "name = \"tree\"\nbase = \"h100-sxm-80gb\"\n[sources]\nus = \"a test\"\n[[fabric]]\nname = \"rail\"\nkind = \"{kind}\"\n\
             size = {}\nbandwidth = {}\nlatency = {}\n[[fabric]]\nname = \"spine\"\nkind = \"switch\"\nsize = {}\nbandwidth = {}\n\
             latency = {}\noversubscription = {}\n",
            number(&leaf.to_string()),
            text(rail),
            text(rail_latency),
            text("unbounded"),
            text(spine),
            text(spine_latency),
            number(&format!("{oversubscription:?}")),
        )
    }
}

/// A plan of a few layers of a 70B model.
fn plan(runtime: &str, nodes: u32, rest: &str) -> String {
    format!(
        "runtime = \"{runtime}\"\n[topology]\nname = \"tree.toml\"\nnodes = {nodes}\n[model]\nname = \"llama-3.1-70b\"\nlayers = 8\n\
         [batch]\nsequence = 4096\n{rest}"
    )
}

/// What a plan comes to on a machine.
fn on(folder: &Folder, name: &str, machine: &str, plan: &str, fold: bool) -> Prediction {
    folder.write(&format!("{name}.toml"), machine);
    let file = folder.path.join("plan.toml").display().to_string();
    let scenario = Scenario::parse(&file, &plan.replace("tree.toml", &format!("{name}.toml"))).expect("a sound plan");
    predict(&scenario, Settings { fold, ..Settings::default() }).expect("it runs")
}

#[test]
fn on_512_gpus_the_spine_the_leaf_and_the_latency_of_a_rail_move_the_answer() {
    let folder = Folder::new("fabric-512");
    let plan = plan("fsdp2", 64, "micro = 1\n[mesh]\n");
    let step = |name: &str, tree: Tree| on(&folder, name, &tree.file(), &plan, true).step;
    let plain = step("plain", TREE);
    let slow_spine = step("spine", Tree { spine: "1 GB/s", ..TREE });
    let slow_rail = step("rail", Tree { rail_latency: "500 us", ..TREE });
    let over = step("over", Tree { oversubscription: 4.0, ..TREE });
    // A ring leaves a larger leaf by more uplinks.
    let large_leaf = step("leaf", Tree { leaf: 16, oversubscription: 4.0, ..TREE });
    assert!(slow_spine.seconds() > 5.0 * plain.seconds(), "{slow_spine} on a spine of 1 GB/s, {plain} on one of 50");
    assert!(slow_rail.seconds() > 1.2 * plain.seconds(), "{slow_rail} with rails of 500 us, {plain} of 2.7");
    assert!(
        over > plain && large_leaf < over,
        "{over} oversubscribed in leaves of 2, {large_leaf} of 16, {plain} plain"
    );
}

/// Plans of several runtimes whose ranks all find their leaves alike.
fn plans() -> Vec<String> {
    vec![
        plan("fsdp2", 8, "[mesh]\n"),
        plan("fsdp2", 8, "[mesh]\ndp_shard = 8\n"),
        plan("megatron", 8, "accumulation = 4\n[mesh]\ntp = 8\npp = 2\n"),
        plan("megatron", 8, "accumulation = 4\n[mesh]\ntp = 2\npp = 4\n"),
        plan("deepspeed-zero", 8, "[mesh]\n[zero]\nstage = 2\n"),
    ]
}

#[test]
fn one_rank_for_each_class_says_what_all_ranks_would_on_shared_uplinks() {
    let folder = Folder::new("fabric-folds");
    let cases: Vec<(usize, String)> = plans().into_iter().enumerate().collect();
    cases.par_iter().for_each(|(index, plan)| {
        for (kind, over) in [("rails", 8.0), ("switch", 8.0)] {
            let machine = Tree { kind, oversubscription: over, ..TREE }.file();
            let name = format!("folds-{index}-{kind}");
            let fly = |fold| on(&folder, &name, &machine, plan, fold);
            let (folded, full) = (fly(true), fly(false));
            assert_eq!(folded.step, full.step, "{kind}: {plan}");
            assert_eq!(folded.breakdown.total(), full.breakdown.total(), "{kind}: {plan}");
        }
    });
}

#[test]
fn a_better_fabric_is_never_slower() {
    let folder = Folder::new("fabric-laws");
    let worse_to_better: [(&str, Vec<Tree>); 5] = [
        ("spine", ["1 GB/s", "10 GB/s", "50 GB/s", "100 GB/s"].map(|spine| Tree { spine, ..TREE }).to_vec()),
        ("rail", ["10 GB/s", "25 GB/s", "50 GB/s"].map(|rail| Tree { rail, ..TREE }).to_vec()),
        ("rail-latency", ["500 us", "9 us", "2.7 us", "0 us"].map(|at| Tree { rail_latency: at, ..TREE }).to_vec()),
        ("spine-latency", ["500 us", "9 us", "2.7 us", "0 us"].map(|at| Tree { spine_latency: at, ..TREE }).to_vec()),
        ("over", [64.0, 8.0, 2.0, 1.0].map(|ratio| Tree { oversubscription: ratio, ..TREE }).to_vec()),
    ];
    let cases: Vec<(usize, String)> = plans().into_iter().enumerate().collect();
    cases.par_iter().for_each(|(index, plan)| {
        for (what, trees) in &worse_to_better {
            let steps: Vec<_> = (0..)
                .zip(trees)
                .map(|(at, tree)| on(&folder, &format!("{what}-{index}-{at}"), &tree.file(), plan, true).step)
                .collect();
            // Kernels slow down beside collectives: one that ends sooner may have met a longer kernel. The step moves by less than that.
            let held = steps.windows(2).all(|pair| pair[1].0 <= pair[0].0 + pair[0].0 / 200);
            assert!(held, "{what}: {steps:?} of\n{plan}");
        }
    });
}

#[test]
fn a_file_with_a_base_is_the_whole_file_with_what_differs() {
    let folder = Folder::new("fabric-base");
    folder.write("tree.toml", &TREE.file());
    let path = folder.path.join("tree.toml").display().to_string();
    let tree = Topology::load(&path, &Size::Nodes(4)).expect("a sound file");
    let base = Topology::load("h100-sxm-80gb", &Size::Nodes(4)).expect("it ships");
    assert_eq!((&tree.chip, &tree.node, &tree.profile), (&base.chip, &base.node, &base.profile));
    assert_eq!(tree.fabric.len(), 3);
    assert_eq!((tree.name.as_str(), tree.base.as_deref()), ("tree", Some("h100-sxm-80gb")));
    // What the file comes to is a whole file of its own.
    let whole = Topology::parse("whole.toml", &tree.text, &Size::Nodes(4)).expect("a whole file");
    assert_eq!(Topology { base: tree.base.clone(), text: tree.text.clone(), ..whole }, tree);
    for (from, to, said) in [
        ("name = \"spine\"", "name = \"spine\"\nwidth = 3", "unknown field `width`"),
        ("value = \"50 GB/s\"", "value = \"50 GB\"", "expected one of"),
        ("name = \"tree\"", "name = \"tree\"\nbass = 1", "unknown field `bass`"),
        ("source = \"us\" }", "source = \"them\" }", "\"them\" of fabric.rail.size is not listed under [sources]"),
        ("base = \"h100-sxm-80gb\"", "base = \"h100\"", "no topology is named \"h100\""),
        ("name = \"tree\"", "description = \"no name\"", "missing field"),
        ("oversubscription = { value = 1.0", "oversubscription = { value = 0.5", "from 1 (none)"),
    ] {
        let wrong = TREE.file().replacen(from, to, 1);
        let error = Topology::parse("wrong.toml", &wrong, &Size::Nodes(4)).expect_err(to).to_string();
        assert!(error.contains(said), "{error}");
        assert!(error.contains("wrong.toml:"), "{error}");
    }
    // What is wrong in the base is placed there.
    let own = include_str!("../topologies/h100-sxm-80gb.toml").replace("cores = { value = 132", "cores = { value = 0");
    folder.write("own.toml", &own);
    folder.write("tree.toml", &TREE.file().replace("h100-sxm-80gb", "own.toml"));
    let error = Topology::load(&path, &Size::Nodes(4)).expect_err("no cores").to_string();
    let line = own.lines().position(|line| line.starts_with("cores")).expect("there") + 1;
    assert!(error.contains(&format!("own.toml:{line}:")), "{error}");
    folder.write("twice.toml", &TREE.file().replace("h100-sxm-80gb", "tree.toml"));
    folder.write("tree.toml", &TREE.file());
    let error = Topology::load(&folder.path.join("twice.toml").display().to_string(), &Size::Nodes(4));
    assert!(error.expect_err("two bases").to_string().contains("has a base itself"));
}

#[test]
fn levels_that_mean_nothing_are_refused() {
    let more = |name: &str, kind: &str, size: &str| {
        format!(
            "[[fabric]]\nname = \"{name}\"\nkind = \"{kind}\"\nsize = {{ value = {size}, source = \"us\" }}\nbandwidth = {{ value = \
             \"50 GB/s\", source = \"us\" }}\nlatency = {{ value = \"3 us\", source = \"us\" }}\n"
        )
    };
    let tree = Tree { kind: "switch", ..TREE }.file().replace("\"unbounded\"", "2");
    let deep: String = ["a", "b", "c", "d"].map(|name| more(name, "switch", "2")).concat();
    for (machine, said) in [
        (format!("{tree}{}", more("core", "rails", "2")), "has rails, but fabric.spine below it is one switch"),
        (format!("{tree}{}", more("spine", "switch", "2")), "unknown"),
        (format!("{tree}{deep}"), "fabric.d is level 7 of the fabric: expected 6 at most"),
    ] {
        match Topology::parse("wrong.toml", &machine, &Size::Nodes(4)) {
            Err(error) => assert!(error.to_string().contains(said), "{error}"),
            // A level of a known name is laid over it.
            Ok(topology) => assert_eq!((said, topology.fabric.len()), ("unknown", 3)),
        }
    }
}

#[test]
fn a_picture_shows_levels_counts_and_links() {
    let folder = Folder::new("fabric-picture");
    folder.write("tree.toml", &Tree { leaf: 4, oversubscription: 2.0, ..TREE }.file());
    let shown = folder.windtunnel(&["topology", "show", "tree.toml", "--nodes", "64", "--picture"]);
    let shown = String::from_utf8(shown.stdout).expect("text");
    for part in [
        "tree: 64 nodes of 8 chips = 512 chips",
        "spine",
        "joins 16 × rail",
        "an uplink for each rail of 100 GB/s, for 4 chips, oversubscribed 2 to 1, 2.70 us",
        "16 × 8 rails, each 4 nodes",
        "64 × 8 chips",
    ] {
        assert!(shown.contains(part), "no {part:?} in\n{shown}");
    }
}

/// Variants of a measured machine: what differs, with figures of NVIDIA's data sheets.
fn variant(name: &str, rest: &str) -> String {
    format!(
        "name = \"{name}\"\nbase = \"h100-sxm-80gb\"\n[sources]\nnvidia = \"NVIDIA's data sheet of {name}\"\n{rest}"
    )
}

#[test]
fn variants_of_a_measured_machine_run_as_extrapolated_with_a_wider_interval() {
    let folder = Folder::new("fabric-variants");
    let nvlink = "[[fabric]]\nname = \"nvswitch\"\nbandwidth = { value = \"200 GB/s\", source = \"nvidia\" }\n";
    let h800 = variant("h800-sxm", nvlink);
    let pcie = variant(
        "h100-pcie",
        "[chip]\nmemory_bandwidth = { value = \"2000 GB/s\", source = \"nvidia\" }\ncores = { value = 114, source = \"nvidia\" }\n\
         power = { value = \"350 W\", source = \"nvidia\" }\npeak.bf16 = { value = \"756 TFLOP/s\", source = \"nvidia\" }\n",
    );
    let plan = plan("fsdp2", 2, "[mesh]\n");
    let of = |name: &str, machine: &str| on(&folder, name, machine, &plan, true);
    let (measured, h800, pcie) = (of("h100", &variant("own", "")), of("h800", &h800), of("pcie", &pcie));
    let wide = |answer: &Prediction| answer.reasons.residual;
    assert!(h800.step >= measured.step && wide(&h800) > wide(&measured), "{} {}", h800.step, measured.step);
    let slower = pcie.step.seconds() / measured.step.seconds();
    // Between its peaks' ratio, 1.31, and twice that: its bandwidth is 0.6 of the other's, its power half.
    assert!((1.2..2.6).contains(&slower) && wide(&pcie) > wide(&measured), "{slower}");
    let extrapolated = |answer: &Prediction| {
        let known = |(basis, share): &(windtunnel::cost::Basis, f64)| (*basis, *share);
        let shares = answer.shares.iter().map(known);
        shares.filter(|(basis, _)| *basis >= windtunnel::cost::Basis::Extrapolated).map(|(_, share)| share).sum::<f64>()
    };
    assert!(extrapolated(&pcie) > 0.9, "{:?}", pcie.shares);
    // A chip that is further from the profile's than a factor of two needs one of its own.
    folder.write(
        "far.toml",
        &variant("far", "[chip]\nmemory_bandwidth = { value = \"900 GB/s\", source = \"nvidia\" }\n"),
    );
    folder.write("my.toml", &plan.replace("tree.toml", "far.toml"));
    let said = folder.refuses(&["run", "my.toml"]);
    assert!(said.contains("the memory bandwidth of far is 900 GB/s, but its costs come from the profile"), "{said}");
}
