//! Meshes on slices, against JAX's `mesh_utils` and by hand.

use super::*;
use crate::hardware::Size;

fn slice(name: &str) -> Topology {
    Topology::load("tpu-v6e", &Size::Slice(name.to_owned())).expect("shipped")
}

fn grid(axes: &[Axis]) -> Grid<'_> {
    Grid { axes, devices: 1 }
}

/// Members, whether they wrap, and who shares, of each axis that the group extends along.
fn lines(name: &str, size: u32, stride: u32, mesh: &[u32]) -> Vec<(u32, bool, u32)> {
    let on = slice(name).on_torus(size, stride, mesh).expect("a torus");
    let used = on.lines.into_iter().filter(|line| line.members > 1);
    used.map(|line| (line.members, line.wraps, line.sharing)).collect()
}

#[test]
fn meshes_lie_as_jax_lays_them() {
    let cases = oracle().cases;
    assert!(cases.len() > 100);
    for case in cases {
        let axes: Vec<Axis> = case.slice.iter().map(|&size| Axis { size, wraps: false }).collect();
        let whole = whole_axes(&axes, &case.mesh, None);
        assert_eq!(whole.is_none(), case.split, "{:?} on {:?}", case.mesh, case.slice);
        let ours = whole.or_else(|| split_axes(&axes, &case.mesh));
        assert_eq!(ours, Some(case.sizes), "{:?} on {:?}", case.mesh, case.slice);
    }
}

#[test]
fn devices_of_tpu7x_are_an_axis_that_the_last_logical_one_chooses_first() {
    let cases = oracle().of_7x;
    assert!(cases.len() > 50);
    for case in cases {
        let axes: Vec<Axis> = case.slice.iter().map(|&size| Axis { size, wraps: false }).collect();
        let ours = assign(Grid { axes: &axes, devices: 2 }, &case.mesh).expect("it has as many devices");
        assert_eq!((ours.sizes, ours.split), (case.sizes, case.split), "{:?} on {:?}", case.mesh, case.slice);
    }
}

#[test]
fn in_planes_of_tpu7x_devices_of_a_chip_are_side_by_side_on_a_ring_of_four_chips() {
    let planes = oracle().in_planes;
    assert_eq!(planes.len(), 3);
    for plane in planes {
        let axes: Vec<Axis> = plane.slice.iter().map(|&size| Axis { size, wraps: false }).collect();
        let laid = assign(Grid { axes: &axes, devices: 2 }, &[plane.order.len() as u32]).expect("all of them");
        let sizes: Vec<u32> = laid.axes.iter().map(|axis| axis.size).collect();
        assert_eq!(sizes, [plane.slice[2], 4, 2]);
        for (at, ring) in plane.order.chunks(8).enumerate() {
            for chip in 0..4 {
                let ([x, y, z, first], next) = (ring[2 * chip], ring[(2 * chip + 2) % 8]);
                assert_eq!((ring[2 * chip + 1], z), ([x, y, z, 1 - first], at as u32), "both devices, in their plane");
                assert_eq!(x.abs_diff(next[0]) + y.abs_diff(next[1]), 1, "one link to the next chip");
            }
        }
    }
}

#[test]
fn a_group_has_one_device_of_each_chip_or_both() {
    let slice = Topology::load("tpu-v7x", &Size::Slice("4x4x4".to_owned())).expect("shipped");
    assert_eq!((slice.chips(), slice.ranks(), slice.ranks_per_node()), (64, 128, 8));
    // 94.74 GiB, by libtpu 0.0.51.
    assert!(slice.chip.memory.0.abs_diff(101_726_300_405) < 2);
    let all = slice.on_torus(128, 1, &[128]).expect("a torus");
    assert_eq!((all.chips(), all.on_chip, all.beside), (64, 2, 1));
    // MaxText's data of 2 outside of fsdp of 64: shards lie on whole axes of chips, and replicas on the devices of a chip.
    let shards = slice.on_torus(64, 1, &[2, 64]).expect("a torus");
    assert_eq!((shards.chips(), shards.on_chip, shards.beside), (64, 1, 2));
    let replicas = slice.on_torus(2, 64, &[2, 64]).expect("a torus");
    assert_eq!((replicas.chips(), replicas.on_chip, replicas.beside), (1, 2, 1));
}

/// What JAX says, written by jax_mesh.py.
#[derive(serde::Deserialize)]
struct Oracle {
    cases: Vec<Case>,
    of_7x: Vec<Case>,
    in_planes: Vec<Plane>,
}

#[derive(serde::Deserialize)]
struct Case {
    slice: Vec<u32>,
    mesh: Vec<u32>,
    sizes: Vec<Vec<u32>>,
    split: bool,
}

#[derive(serde::Deserialize)]
struct Plane {
    slice: Vec<u32>,
    order: Vec<[u32; 4]>,
}

fn oracle() -> Oracle {
    serde_json::from_str(include_str!("../../../tests/oracles/jax-mesh.json")).expect("written by jax_mesh.py")
}

#[test]
fn a_group_of_the_whole_slice_has_all_of_its_axes() {
    assert_eq!(lines("2x4", 8, 1, &[8]), [(8, true, 1)]);
    assert_eq!(lines("4x4", 16, 1, &[16]), [(16, true, 1)]);
    assert_eq!(lines("4x8", 32, 1, &[32]), [(4, false, 1), (8, false, 1)]);
    assert_eq!(lines("8x16", 128, 1, &[1, 128]), [(8, false, 1), (16, true, 1)]);
    assert_eq!(lines("16x16", 256, 1, &[256]), [(16, true, 1), (16, true, 1)]);
}

#[test]
fn the_picture_above_is_what_is_computed() {
    assert_eq!(lines("4x4", 4, 1, &[4, 4]), [(4, false, 1)]);
    assert_eq!(lines("4x4", 4, 4, &[4, 4]), [(4, false, 1)]);
    assert_eq!(lines("4x4", 2, 4, &[2, 2, 4]), [(2, false, 1)]);
    assert_eq!(lines("4x4", 2, 8, &[2, 2, 4]), [(2, false, 2)]);
}

#[test]
fn part_of_a_ring_is_none_and_every_second_chip_of_one_is() {
    // 16x16 as 32 x 8: eight neighbours of one axis, and every eighth chip of that with all of the other.
    assert_eq!(lines("16x16", 8, 1, &[32, 8]), [(8, false, 1)]);
    assert_eq!(lines("16x16", 32, 8, &[32, 8]), [(2, false, 8), (16, true, 1)]);
    // 2x4 is one ring: its halves are chains, and pairs across it share its links.
    assert_eq!(lines("2x4", 4, 1, &[2, 4]), [(4, false, 1)]);
    assert_eq!(lines("2x4", 4, 2, &[4, 2]), [(4, true, 2)]);
}

#[test]
fn two_logical_axes_together_have_what_each_has() {
    assert_eq!(lines("16x16", 256, 1, &[16, 16]), [(16, true, 1), (16, true, 1)]);
    assert_eq!(lines("8x8", 16, 4, &[4, 4, 4]), [(2, false, 4), (8, false, 1)]);
}

#[test]
fn without_a_mesh_the_group_stands_between_two_others() {
    assert_eq!(lines("16x16", 16, 16, &[]), lines("16x16", 16, 16, &[16, 16]));
    assert_eq!(lines("8x16", 128, 1, &[]), lines("8x16", 128, 1, &[128]));
    assert_eq!(lines("1x1", 1, 1, &[]), []);
}

#[test]
fn more_ranks_than_a_slice_has_are_on_several() {
    let two = slice("4x4").on_torus(32, 1, &[]).expect("a torus");
    assert_eq!((two.slices, two.members()), (2, 16));
    let pair = slice("4x4").on_torus(2, 16, &[]).expect("a torus");
    assert_eq!((pair.slices, pair.members()), (2, 1));
    let some = slice("4x4").on_torus(8, 4, &[]).expect("a torus");
    assert_eq!((some.slices, some.members()), (2, 4));
}

#[test]
fn whole_cubes_of_v5p_have_rings_on_three_axes_and_parts_of_one_have_none() {
    let links = |name: &str, chips: u32| {
        let slice = Topology::load("tpu-v5p", &Size::Slice(name.to_owned())).expect("shipped");
        assert_eq!(slice.chips(), chips);
        let on = slice.on_torus(chips, 1, &[chips]).expect("a torus");
        on.lines.map(|line| (line.members, line.wraps))
    };
    assert_eq!(links("4x4x8", 128), [(4, true), (4, true), (8, true)]);
    assert_eq!(links("2x4x4", 32), [(2, false), (4, false), (4, false)]);
    assert_eq!(links("2x2x2", 8), [(8, true), (1, false), (1, false)]);
}

#[test]
fn nodes_on_a_switch_are_no_torus() {
    let gpus = Topology::load("h200-sxm-141gb", &Size::Nodes(2)).expect("shipped");
    assert_eq!(gpus.on_torus(8, 1, &[]), None);
}

#[test]
fn a_mesh_of_another_size_is_no_assignment() {
    let axes = [Axis { size: 4, wraps: false }, Axis { size: 8, wraps: false }];
    assert_eq!(assign(grid(&axes), &[4, 4]), None);
    assert!(assign(grid(&axes), &[16, 2]).is_some_and(|assignment| assignment.split));
    assert!(assign(grid(&axes), &[8, 4]).is_some_and(|assignment| !assignment.split));
}
