//! A fat tree of two levels against closed forms, and what latencies add.

use super::*;
use crate::cost::{CommCost, CostModel, OnNodes, Profile, Regime};
use crate::hardware::uplink::crossing;
use crate::hardware::{Size, Topology};
use crate::program::{Comm, DType, Group, GroupId};
use crate::units::Bytes;

/// Bytes of a buffer so large that latencies do not count.
const LARGE: u64 = 1 << 40;
/// Share of the line rate that rings reach, in the profile.
const EFFICIENCY: f64 = 0.9806;
/// A card, one direction [B/s].
const CARD: f64 = 50e9;

/// H100 nodes below leaves of two nodes, which a spine joins.
fn fat_tree(kind: &str, oversubscription: f64, spine: &str, rail_us: &str, spine_us: &str) -> Topology {
    let text = include_str!("../../../topologies/h100-sxm-80gb.toml");
    let unbounded = "value = \"unbounded\", source = \"assumed: a non-blocking network as large as the job\"";
    let text = text.replace(unbounded, "value = 2, source = \"node\"");
    let text = text.replace("kind = \"rails\"", &format!("kind = \"{kind}\"")).replace("2.7 us", rail_us);
    let text = format!(
        "{text}[[fabric]]\nname = \"spine\"\nkind = \"switch\"\nsize = {{ value = \"unbounded\", source = \"node\" }}\nbandwidth = {{ value = \
         \"{spine}\", source = \"node\" }}\nlatency = {{ value = \"{spine_us}\", source = \"node\" }}\noversubscription = {{ value = \
         {oversubscription:?}, source = \"node\" }}\n"
    );
    Topology::parse("my.toml", &text, &Size::Nodes(8)).expect("a sound file")
}

fn cost(kind: Collective, bytes: u64, (size, stride): (u32, u32), topology: &Topology) -> CommCost {
    let profile = Profile::find("h100-sxm-80gb").expect("it ships");
    let group = Group::new("group", size, stride);
    let ranks = topology.chips();
    let lowest = |rank: &u32| group.place(*rank).is_some_and(|(_, member)| member == 0);
    let copies = || (0..ranks).filter(lowest).map(|rank| group.members(rank));
    let uplinks = topology.uplinks();
    let route = Route {
        crossings: uplinks.iter().filter_map(|uplink| crossing(*uplink, ranks, copies())).collect(),
        hops: topology.hops(size, stride),
    };
    let OnNodes { nodes, ranks_per_node } = topology.on_nodes(size, stride);
    let comm = Comm { kind, group: GroupId(0), bytes: Bytes(bytes), dtype: DType::Bf16 };
    CostModel::new(&profile, Regime::Sustained).collective_by(&comm, OnNodes { nodes, ranks_per_node }, &route)
}

fn seconds(kind: Collective, group: (u32, u32), topology: &Topology) -> f64 {
    cost(kind, LARGE, group, topology).time.seconds()
}

/// Whether a time is a closed form's but for latencies.
fn is(found: f64, expected: f64) -> bool {
    let share = found / expected;
    let close = (0.999_999..1.000_2).contains(&share);
    if !close {
        println!("{found} s instead of {expected} s");
    }
    close
}

/// What passes each of 64 ranks in an all-gather [B].
fn passes() -> f64 {
    LARGE as f64 * 63.0 / 64.0
}

#[test]
fn a_fat_tree_that_is_not_oversubscribed_is_as_fast_as_its_cards() {
    for kind in ["switch", "rails"] {
        let tree = fat_tree(kind, 1.0, "50 GB/s", "2.7 us", "2.7 us");
        // What a ring keeps of the bus bandwidth of a node of eight: 512 MiB in 1,400 us, in the profile.
        let node = 0.9636 * (1_u64 << 29) as f64 * 7.0 / 8.0 / 1400e-6;
        for group in [(64, 1), (8, 8), (4, 16)] {
            let (n, g) = (f64::from(group.0), if group.1 == 1 { 8.0 } else { 1.0 });
            let x = LARGE as f64 * (n - 1.0) / n;
            // A ring leaves a node by as many cards as the node has members.
            let rate = (g * CARD * EFFICIENCY).min(node);
            let gather = seconds(Collective::AllGather, group, &tree);
            assert!(is(gather, x / rate), "{kind} {group:?}");
        }
    }
}

#[test]
fn an_oversubscribed_spine_slows_each_collective_by_its_closed_form() {
    for kind in ["switch", "rails"] {
        for over in [4.0, 16.0] {
            let tree = fat_tree(kind, over, "50 GB/s", "2.7 us", "2.7 us");
            // A leaf of 16 chips.
            let leaf = 16.0 * CARD / over * EFFICIENCY;
            let of = |kind, group| seconds(kind, group, &tree);
            // One ring through all: it leaves each leaf once.
            assert!(is(of(Collective::AllGather, (64, 1)), passes() / leaf));
            assert!(is(of(Collective::ReduceScatter, (64, 1)), passes() / leaf));
            assert!(is(of(Collective::AllReduce, (64, 1)), 2.0 * passes() / leaf));
            // Each of 16 members of a leaf sends to 48 elsewhere.
            let leaves = 16.0 * 48.0 * LARGE as f64 / 64.0;
            assert!(is(of(Collective::AllToAll, (64, 1)), leaves / leaf));
            // Eight rings of eight members, all of which leave all leaves.
            assert!(is(of(Collective::AllGather, (8, 8)), 8.0 * LARGE as f64 * 7.0 / 8.0 / leaf));
            assert!(is(of(Collective::AllReduce, (8, 8)), 8.0 * 2.0 * LARGE as f64 * 7.0 / 8.0 / leaf));
            // Sixteen rings of one member in each leaf.
            assert!(is(of(Collective::AllGather, (4, 16)), 16.0 * LARGE as f64 * 3.0 / 4.0 / leaf));
            assert!(is(of(Collective::AllToAll, (4, 16)), 16.0 * 3.0 * LARGE as f64 / 4.0 / leaf));
        }
    }
}

#[test]
fn all_copies_together_use_no_more_of_an_uplink_than_there_is() {
    let tree = fat_tree("switch", 8.0, "50 GB/s", "2.7 us", "2.7 us");
    for (kind, group, copies) in [
        (Collective::AllGather, (64, 1), 1.0),
        (Collective::AllGather, (8, 8), 8.0),
        (Collective::AllToAll, (4, 16), 16.0),
    ] {
        let used = copies * cost(kind, LARGE, group, &tree).outer[0];
        assert!((EFFICIENCY - 0.001..=1.0).contains(&used), "{used}");
    }
}

#[test]
fn other_latencies_count_once_for_each_step_that_crosses_their_level() {
    let as_measured = fat_tree("rails", 1.0, "50 GB/s", "2.7 us", "2.7 us");
    let slow_rail = fat_tree("rails", 1.0, "50 GB/s", "500 us", "2.7 us");
    let slow_spine = fat_tree("rails", 1.0, "50 GB/s", "2.7 us", "12.7 us");
    let of = |kind, topology: &Topology| cost(kind, 1 << 20, (64, 1), topology).time.micros();
    let more = |kind, topology: &Topology| of(kind, topology) - of(kind, &as_measured);
    // Eight nodes in four leaves: four edges within leaves and four between them.
    assert!((more(Collective::AllGather, &slow_rail) - 4.0 * 497.3).abs() < 0.01);
    assert!((more(Collective::AllGather, &slow_spine) - 4.0 * 10.0).abs() < 0.01);
    // Three doublings, one within leaves; up and down.
    assert!((more(Collective::AllReduce, &slow_rail) - 2.0 * 497.3).abs() < 0.01);
    assert!((more(Collective::AllReduce, &slow_spine) - 2.0 * 2.0 * 10.0).abs() < 0.01);
    assert!((more(Collective::AllToAll, &slow_spine) - 10.0).abs() < 0.01);
}

#[test]
fn lower_latencies_are_never_slower_and_leave_time_above_zero() {
    let kinds = [Collective::AllGather, Collective::AllReduce, Collective::AllToAll, Collective::SendRecv];
    for kind in kinds {
        for bytes in [1, 1 << 10, 1 << 20, 1 << 30] {
            let mut last = f64::INFINITY;
            for rail in ["9 us", "3 us", "2.7 us", "2 us", "0.1 us", "0 us"] {
                let tree = fat_tree("rails", 1.0, "50 GB/s", rail, rail);
                let seconds = cost(kind, bytes, (64, 1), &tree).time.seconds();
                assert!(seconds > 0.0 && seconds <= last, "{kind:?} of {bytes} B at {rail}: {seconds} after {last}");
                last = seconds;
            }
        }
    }
}
