//! What a topology file may say, what it becomes, and what a user reads when it is wrong.

use proptest::prelude::*;

use super::*;
use crate::units::Bytes;

fn load(name: &str, size: Size) -> Topology {
    Topology::load(name, &size).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn refused(name: &str, size: Size) -> String {
    Topology::load(name, &size).expect_err("it should be refused").to_string()
}

/// A shipped file with one piece of text replaced by another, read as one node or the smallest slice.
fn altered(name: &str, from: &str, to: &str) -> String {
    let (_, text) = shipped::find(name).expect("it ships");
    assert!(text.contains(from), "{name} does not say {from:?}");
    let altered = text.replacen(from, to, 1);
    Topology::parse("my.toml", &altered, &Size::Smallest).expect_err("it should be refused").to_string()
}

#[test]
fn every_shipped_topology_reads_and_every_number_has_a_source() {
    for listed in registry() {
        let topology = load(listed.name, Size::Smallest);
        assert_eq!(topology.name, listed.name);
        assert!(!listed.description.is_empty() && !topology.profile.is_empty());
        assert!(topology.facts.len() >= 18, "{} has {} numbers", listed.name, topology.facts.len());
        for fact in &topology.facts {
            assert!(fact.source.len() > 8, "{}: {} has the source {:?}", listed.name, fact.name, fact.source);
        }
        for alias in listed.aliases {
            assert_eq!(load(alias, Size::Smallest), topology);
        }
    }
}

#[test]
fn every_shipped_file_opens_with_what_it_is_and_uses_every_source_it_lists() {
    for listed in registry() {
        let (_, text) = shipped::find(listed.name).expect("it ships");
        assert!(text.starts_with("# "), "{} opens without saying what it is", listed.name);
        // A file that names a base holds only what differs.
        let written: toml::Table = text.parse().expect("it reads");
        for key in written["sources"].as_table().expect("a table").keys() {
            assert!(text.contains(&format!("source = \"{key}\"")), "{} lists {key:?} and never uses it", listed.name);
        }
    }
}

#[test]
fn a_file_in_the_folder_is_a_line_in_the_registry() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("topologies");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .expect("the folder is there")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok()?.strip_suffix(".toml").map(str::to_owned))
        .collect();
    let mut names: Vec<&str> = registry().iter().map(|listed| listed.name).collect();
    files.sort();
    names.sort_unstable();
    assert_eq!(files, names);
}

#[test]
fn a_gpu_machine_is_sized_in_nodes() {
    let two = load("h200-sxm", Size::Nodes(2));
    assert_eq!((two.chips(), two.nodes, two.node.chips), (16, 2, 8));
    assert_eq!(two.chip.memory, Bytes(143_156 << 20));
    assert_eq!(two.fabric[0].reach, Reach::Chips(8));
    assert_eq!(two.fabric[1].reach, Reach::Unbounded);
    // A rail is one card per chip.
    assert_eq!(
        two.fabric[1].bandwidth.0 * f64::from(two.node.chips),
        two.node.nic_bandwidth.0 * f64::from(two.node.nics)
    );
    assert_eq!((two.level_of(8, 1), two.level_of(16, 1), two.level_of(2, 8)), (0, 1, 1));
    assert_eq!(two.on_nodes(16, 1), OnNodes { nodes: 2, ranks_per_node: 8 });
}

#[test]
fn a_tpu_is_sized_by_slice_and_its_long_axes_are_rings() {
    let hosts = [("1x1", 1, 1), ("2x2", 1, 4), ("2x4", 1, 8), ("4x4", 2, 8), ("8x16", 16, 8), ("16x16", 32, 8)];
    for (name, nodes, chips_per_node) in hosts {
        let slice = load("tpu-v6e", Size::Slice(name.to_owned()));
        assert_eq!((slice.nodes, slice.node.chips), (nodes, chips_per_node), "{name}");
        let axes = slice.axes().expect("it is a torus");
        assert!(axes.iter().all(|axis| axis.wraps == (axis.size == 16)), "{name}");
        assert_eq!(axes.iter().map(|axis| axis.size).product::<u32>(), slice.chips());
        assert_eq!(slice.level_of(slice.chips(), 1), 0);
    }
    assert_eq!(load("tpu-v6e", Size::Smallest).chips(), 1);
}

#[test]
fn googles_names_of_slices_count_cores() {
    for (machine, name, chips) in [
        ("tpu-v4", "v4-128", 64),
        ("tpu-v5p", "v5p-128", 64),
        ("tpu-v5e", "v5litepod-16", 16),
        ("tpu-v6e", "v6e-256", 256),
        // MaxText 0.2.5, `accelerator_to_spec_map.py`: tpu7x-8 is 2x2x1.
        ("tpu-v7x", "tpu7x-8", 4),
    ] {
        assert_eq!(load(machine, Size::Slice(name.to_owned())).chips(), chips, "{name}");
    }
    for other in ["v5p-127", "v6e-128", "v5p-", "v5p-128x"] {
        assert!(refused("tpu-v5p", Size::Slice(other.to_owned())).contains("no slice"), "{other}");
    }
}

#[test]
fn a_name_that_does_not_ship_is_answered_with_the_nearest() {
    let error = refused("h200", Size::Nodes(1));
    assert!(
        error.starts_with("no topology is named \"h200\" (did you mean \"h200-sxm-141gb\"?): name one of a100"),
        "{error}"
    );
    assert!(refused("H100_SXM_80GB ", Size::Nodes(1)).contains("did you mean \"h100-sxm-80gb\"?"));
    assert!(!refused("mi300x-oam-192gb-of-amd", Size::Nodes(1)).contains("did you mean"));
    assert!(refused("no/such.toml", Size::Nodes(1)).starts_with("cannot read the topology file no/such.toml: "));
}

#[test]
fn a_size_that_is_not_sold_is_refused_with_those_that_are() {
    assert_eq!(
        refused("b200-sxm", Size::Nodes(0)),
        "nodes = 0 on b200-sxm, which rents nothing: write nodes = 1 or more"
    );
    assert!(refused("b200-sxm", Size::Nodes(u32::MAX)).contains("rent fewer nodes"));
    let four = || Size::Slice("4x5".to_owned());
    assert_eq!(
        refused("tpu-v6e", four()),
        "tpu-v6e has no slice \"4x5\": its slices are 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16"
    );
    assert!(refused("tpu-v6e", Size::Nodes(2)).starts_with("tpu-v6e is sold in slices, not in nodes"));
    assert!(refused("b200-sxm", four()).starts_with("b200-sxm is sold in nodes of 8 chips, not in slices"));
    let unlimited = "value = \"unbounded\", source = \"assumed: a non-blocking network as large as the job\"";
    let (_, text) = shipped::find("b200-sxm").expect("it ships");
    let small = text.replace(unlimited, "value = 4, source = \"node\"");
    let error = Topology::parse("my.toml", &small, &Size::Nodes(5)).expect_err("it joins only 32 chips").to_string();
    assert!(error.starts_with("5 nodes of 8 chips are more than the 32 chips"), "{error}");
}

#[test]
fn a_wrong_file_is_answered_with_the_place() {
    assert_eq!(
        altered("a100-sxm-80gb", "nics = { value = 8, source = \"selene\" }", "nics = { value = 8 }"),
        "missing field `source`\n  --> my.toml:41:8\n41 | nics = { value = 8 }\n   |        ^"
    );
    assert!(altered("a100-sxm-80gb", "cores = {", "kores = {").starts_with("unknown field `kores`, expected one of"));
    assert!(
        altered("a100-sxm-80gb", "\"40 MiB\"", "\"40 W\"")
            .starts_with("\"40 W\" has the unit \"W\": expected one of B,")
    );
    assert!(altered("a100-sxm-80gb", "\"40 MiB\"", "\"0 B\"").starts_with("chip.l2 is 0 B: it must be"));
    let error = altered("a100-sxm-80gb", "value = 108, source = \"device-query\"", "value = 108, source = \"blog\"");
    assert!(
        error.starts_with(
            "the source \"blog\" of chip.cores is not listed under [sources] (aic, capability, device-query,"
        ),
        "{error}"
    );
    assert!(error.contains("\n  --> my.toml:"), "{error}");
    assert!(altered("a100-sxm-80gb", "size = { value = 8,", "size = { value = \"all\",").contains("or \"unbounded\""));
    assert!(
        altered("a100-sxm-80gb", "size = { value = 8,", "size = { value = \"unbounded\",")
            .contains("joins all chips already")
    );
    assert!(altered("tpu-v6e", "shape = [4, 4]", "shape = [4, 4, 4]").starts_with("shape has 3 axes but wraps has 2"));
    assert!(
        altered("tpu-v6e", "shape = [4, 4]", "shape = [3, 4]").starts_with("the slice 3x4 has 12 chips, which are not")
    );
    assert!(altered("tpu-v6e", "shape = [16, 16]", "shape = [16, 32]").contains("must hold from 1 to 256 chips"));
}

#[test]
fn a_topology_prints_its_size_and_its_numbers_with_their_sources() {
    let slice = load("tpu-v6e", Size::Slice("8x16".to_owned()));
    assert_eq!(slice.size_in_words(), "slice 8x16 = 128 chips on 16 hosts, rings of 16");
    let shown = load("h100-sxm-80gb", Size::Nodes(2)).describe();
    assert!(shown.contains("2 nodes of 8 chips = 16 chips; costs from profile h100-sxm-80gb\n"), "{shown}");
    let power = shown.lines().find(|line| line.trim_start().starts_with("chip.power")).expect("it has one");
    assert_eq!(power.split_whitespace().take(3).collect::<Vec<_>>(), ["chip.power", "700", "W"]);
}

/// A shipped file with a few edits: bytes replaced by arbitrary text, at character boundaries.
fn mutated() -> impl Strategy<Value = String> {
    let token = prop_oneof![
        Just(String::new()),
        any::<char>().prop_map(String::from),
        any::<i64>().prop_map(|number| number.to_string()),
        prop::sample::select(vec![
            "\"unbounded\"",
            "4294967295",
            "1e308",
            "0",
            "\"1e300 GB/s\"",
            "[[slice]]\n",
            "[",
            "\"",
            "}",
            "\n"
        ])
        .prop_map(String::from),
    ];
    let edit = (any::<prop::sample::Index>(), 0..40_usize, token);
    let names: Vec<&'static str> = registry().iter().map(|listed| listed.name).collect();
    (prop::sample::select(names), prop::collection::vec(edit, 1..6)).prop_map(|(name, edits)| {
        let (_, mut text) = shipped::find(name).expect("it ships");
        for (at, length, token) in edits {
            let boundaries: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
            let start = at.index(boundaries.len());
            let end = (start + length).min(boundaries.len() - 1);
            text.replace_range(boundaries[start]..boundaries[end], &token);
        }
        text
    })
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in mutated(), nodes: u32, slice in "[0-9x]{0,8}") {
        for size in [Size::Smallest, Size::Nodes(nodes), Size::Slice(slice)] {
            match Topology::parse("my.toml", &text, &size) {
                Ok(topology) => {
                    prop_assert!(topology.chips() >= 1);
                    prop_assert!(topology.level_of(topology.chips().min(64), 1) < topology.fabric.len());
                    prop_assert!(!topology.describe().is_empty());
                }
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }
}
