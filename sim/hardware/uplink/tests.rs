//! What crosses uplinks, counted against pictures and closed forms.

use super::*;
use crate::hardware::Size;

/// A machine of H100 nodes whose network has more levels.
pub fn levels(rest: &str, nodes: u32) -> Topology {
    let (_, text) = crate::hardware::shipped::find("h100-sxm-80gb").expect("it ships");
    let unbounded = "value = \"unbounded\", source = \"assumed: a non-blocking network as large as the job\"";
    let text = text.replace(unbounded, "value = 2, source = \"node\"") + rest;
    Topology::parse("my.toml", &text, &Size::Nodes(nodes)).expect("a sound file")
}

/// A level in the words of a topology file.
fn level(name: &str, kind: &str, size: &str, gigabytes: u32, oversubscription: f64) -> String {
    format!(
        "[[fabric]]\nname = \"{name}\"\nkind = \"{kind}\"\nsize = {{ value = {size}, source = \"node\" }}\nbandwidth = {{ value = \
         \"{gigabytes} GB/s\", source = \"node\" }}\nlatency = {{ value = \"5 us\", source = \"node\" }}\noversubscription = {{ value = \
         {oversubscription:?}, source = \"node\" }}\n"
    )
}

/// Copies of a group that covers all ranks.
fn copies(size: u32, stride: u32, ranks: u32) -> impl Iterator<Item = std::iter::StepBy<std::ops::Range<u32>>> {
    let span = size * stride;
    (0..ranks).filter(move |rank| rank % span < stride).map(move |low| (low..low + span).step_by(stride as usize))
}

#[test]
fn an_uplink_carries_what_the_chips_below_send_over_the_oversubscription() {
    let rails = levels(&level("spine", "switch", "\"unbounded\"", 50, 4.0), 8).uplinks();
    // Rails of two nodes each: eight uplinks of two chips.
    assert_eq!(rails, [Uplink { level: 2, chips: 16, positions: 8, capacity: Bandwidth(2.0 * 50e9 / 4.0) }]);
    let shared =
        levels(&(level("pod", "rails", "4", 50, 1.0) + &level("core", "switch", "\"unbounded\"", 20, 2.0)), 64);
    let [pod, core] = shared.uplinks()[..] else { panic!("two levels are crossed") };
    assert_eq!((pod.chips, core.chips, core.capacity), (16, 64, Bandwidth(8.0 * 20e9 / 2.0)));
    // What one instance holds crosses nothing.
    assert!(levels(&level("spine", "switch", "\"unbounded\"", 50, 4.0), 2).uplinks().is_empty());
}

#[test]
fn rings_leave_an_instance_once_and_all_to_alls_with_all_that_goes_elsewhere() {
    let shared = Uplink { level: 2, chips: 16, positions: 1, capacity: Bandwidth(1.0) };
    let of = |uplink, size, stride| crossing(uplink, 64, copies(size, stride, 64));
    let all = of(shared, 64, 1).expect("it crosses");
    assert_eq!((all.copies, all.ring, all.all), (1, 1.0, 16.0 * 48.0 / 63.0));
    // Sixteen copies of one member in each leaf.
    let strided = of(shared, 4, 16).expect("it crosses");
    assert_eq!((strided.copies, strided.ring, strided.all), (16, 1.0, 1.0));
    // Eight copies of two members in each leaf.
    let halves = of(shared, 8, 8).expect("it crosses");
    assert_eq!((halves.copies, halves.ring, halves.all), (8, 1.0, 2.0 * 6.0 / 7.0));
    // Inside a leaf nothing crosses.
    assert_eq!(of(shared, 16, 1), None);
    // With rails each position has an eighth of a ring, or the whole of the copies that lie on it.
    let rails = Uplink { positions: 8, ..shared };
    let all = of(rails, 64, 1).expect("it crosses");
    assert_eq!((all.copies, all.ring, all.all), (1, 0.125, 2.0 * 48.0 / 63.0));
    assert_eq!(of(rails, 8, 8).map(|crossing| (crossing.copies, crossing.ring)), Some((1, 1.0)));
}

#[test]
fn messages_are_counted_where_most_leave_or_arrive() {
    let shared = Uplink { level: 2, chips: 16, positions: 1, capacity: Bandwidth(1.0) };
    // A stage of 24 ranks sends to the next one: 16 leave the first leaf, and 8 of the second stay in it.
    let messages = || (0..24).map(|rank| (rank, rank + 24));
    let crossed = crossing_messages(shared, 48, messages()).expect("some leave");
    assert_eq!(crossed.copies, 16);
    assert_eq!(crossing_messages(shared, 48, (0..4).map(|rank| (rank, rank + 4))), None);
}

#[test]
fn a_ring_and_a_tree_cross_each_level_as_often_as_their_members_lie_in_other_instances() {
    let topology = levels(&level("spine", "switch", "\"unbounded\"", 50, 1.0), 32);
    let of = |size, stride| {
        let hops = topology.hops(size, stride);
        hops.iter().map(|hops| (hops.level, hops.ring, hops.doublings)).collect::<Vec<_>>()
    };
    // 256 ranks on 32 nodes in 16 leaves: 255 edges.
    assert_eq!(of(256, 1), [(0, 223, 0.0), (1, 16, 1.0), (2, 16, 4.0)]);
    assert_eq!(of(32, 8), [(1, 15, 1.0), (2, 16, 4.0)]);
    assert_eq!(of(8, 1), [(0, 7, 0.0)]);
    assert_eq!(of(16, 16), [(2, 15, 4.0)]);
    assert_eq!(of(1, 1), []);
}
