//! Collectives on a torus against the closed forms of "How to Scale Your Model" and against what was measured.

use crate::cost::{CommCost, CostModel, Profile, Regime};
use crate::hardware::{Line, OnTorus};
use crate::program::{Collective, Comm, DType, GroupId};
use crate::units::Bytes;

const RING: Line = Line { members: 16, wraps: true, sharing: 1 };
const NONE: Line = Line { members: 1, wraps: false, sharing: 1 };
/// One link of v6e, one direction [B/s].
const LINK: f64 = 90e9;
/// The share of it that collectives reach.
const REACHED: f64 = 178.7714158 / 200.0;

fn on(lines: &[Line], slices: u32) -> OnTorus {
    let mut all = [NONE; 3];
    all[..lines.len()].copy_from_slice(lines);
    OnTorus { lines: all, on_chip: 1, beside: 1, slices }
}

fn open(members: u32) -> Line {
    Line { members, wraps: false, sharing: 1 }
}

fn cost(kind: Collective, bytes: u64, on: OnTorus) -> CommCost {
    let profile = Profile::find("tpu-v6e").expect("shipped");
    let comm = Comm { kind, group: GroupId(0), bytes: Bytes(bytes), dtype: DType::Bf16 };
    CostModel::new(&profile, Regime::Sustained).collective(&comm, on)
}

fn seconds(kind: Collective, bytes: u64, on: OnTorus) -> f64 {
    cost(kind, bytes, on).time.seconds()
}

/// Whether two times of a large transfer are the same but for hops and floors.
fn close(one: f64, other: f64) -> bool {
    (one / other - 1.0).abs() < 0.01
}

const LARGE: u64 = 16 << 30;

#[test]
fn an_all_gather_takes_the_buffer_over_both_directions_of_each_axis() {
    // T = V / (W · axes), W both directions of a link (sharding.md), less the part that is there already.
    let (v, both) = (LARGE as f64, 2.0 * LINK * REACHED);
    assert!(close(seconds(Collective::AllGather, LARGE, on(&[RING], 1)), v * 15.0 / 16.0 / both));
    assert!(close(seconds(Collective::AllGather, LARGE, on(&[RING; 2], 1)), v * 255.0 / 256.0 / (2.0 * both)));
    // An open axis of four: all that its last chip lacks comes over one link.
    assert!(close(seconds(Collective::AllGather, LARGE, on(&[open(4)], 1)), v * 0.75 / (both / 2.0)));
}

#[test]
fn two_groups_on_one_ring_have_half_of_it_each() {
    let alone = seconds(Collective::AllGather, LARGE, on(&[Line { members: 8, ..RING }], 1));
    let shared = seconds(Collective::AllGather, LARGE, on(&[Line { members: 8, wraps: true, sharing: 2 }], 1));
    assert!(close(shared, 2.0 * alone));
}

#[test]
fn an_all_to_all_on_a_ring_is_a_quarter_of_an_all_gather_of_the_same_array() {
    // V·N/(4·N·W) against V/W (sharding.md): V all members' buffers together.
    let ring = on(&[Line { members: 1024, ..RING }], 1);
    let gather = seconds(Collective::AllGather, LARGE * 1024, ring);
    let exchange = seconds(Collective::AllToAll, LARGE, ring);
    assert!(close(exchange * 4.0, gather), "{exchange} {gather}");
}

#[test]
fn an_all_to_all_of_two_sends_half_of_the_buffer_over_their_link() {
    let expected = LARGE as f64 / 2.0 / (LINK * REACHED);
    assert!(close(seconds(Collective::AllToAll, LARGE, on(&[open(2)], 1)), expected));
}

#[test]
fn a_reduction_is_no_faster_than_a_chip_adds() {
    let pod = on(&[RING; 2], 1);
    assert!(seconds(Collective::ReduceScatter, LARGE, pod) > 1.2 * seconds(Collective::AllGather, LARGE, pod));
    let host = on(&[open(2), open(4)], 1);
    assert!(close(seconds(Collective::ReduceScatter, LARGE, host), seconds(Collective::AllGather, LARGE, host)));
}

#[test]
fn the_published_runs_come_out() {
    // psum of 606 MB over 16x16: 2·V·255/256 over the time, 235.76 GB/s (tpu_collectives.csv).
    let v = 606_076_928.0;
    let psum = 2.0 * v * 255.0 / 256.0 / seconds(Collective::AllReduce, v as u64, on(&[RING; 2], 1));
    assert!((psum / 235.76e9 - 1.0).abs() < 0.03, "{psum}");
    // ppermute to a neighbour on v6e-8: 17.45 us for 1 MiB, 776 us for 64 MiB (marin-community/marin#6736).
    let pair = on(&[open(2)], 1);
    for (bytes, us) in [(1 << 20, 17.45), (64 << 20, 776.34)] {
        let ours = 1e6 * seconds(Collective::SendRecv, bytes, pair);
        assert!((ours / us - 1.0).abs() < 0.15, "{bytes}: {ours} against {us}");
    }
    // psum of 303 MB a chip between two pods: 4.11 GB/s a chip.
    let chip = 303_038_464.0;
    let between = chip / seconds(Collective::AllReduce, chip as u64, on(&[NONE], 2));
    assert!((between / 4.113e9 - 1.0).abs() < 0.02, "{between}");
}

#[test]
fn a_pod_sends_to_another_only_each_chips_part() {
    let (pod, pods) = (on(&[RING; 2], 1), on(&[RING; 2], 2));
    let (inside, all) = (seconds(Collective::AllGather, LARGE, pod), seconds(Collective::AllGather, LARGE, pods));
    let part = LARGE as f64 / 256.0 / 2.0;
    assert!(close(all - inside, 50e-6 + part / (12.5e9 * 4.1130934137 / 12.5)), "{all} {inside}");
    let busy = cost(Collective::AllGather, LARGE, pods);
    assert!(busy.across > 0.0 && busy.inside > 0.0 && busy.across < 1.0);
}

#[test]
fn nothing_to_send_takes_nothing_and_nobody_to_send_to_almost_nothing() {
    assert_eq!(seconds(Collective::AllReduce, 0, on(&[RING], 1)), 0.0);
    assert!(seconds(Collective::AllReduce, LARGE, on(&[NONE], 1)) < 1e-8);
}

#[test]
fn both_devices_of_a_chip_of_tpu7x_share_its_links() {
    let profile = Profile::find("tpu-v7x").expect("shipped");
    let model = CostModel::new(&profile, Regime::Sustained);
    let time = |bytes: u64, on: OnTorus| {
        let comm = Comm { kind: Collective::AllGather, group: GroupId(0), bytes: Bytes(bytes), dtype: DType::Fp32 };
        model.collective(&comm, on).time.seconds()
    };
    let ring = Line { members: 4, wraps: true, sharing: 1 };
    let one_of_each = OnTorus { beside: 2, ..on(&[ring], 1) };
    // tpu_collectives.csv: of four members on 2x2x1 with 64 MiB each, a group for each device of a chip.
    let measured = 2252.34e-6;
    let ours = time(4 * (64 << 20), one_of_each);
    assert!((ours / measured - 1.0).abs() < 0.01, "{ours}");
    // A group with both devices takes each byte over the links once.
    let both = OnTorus { on_chip: 2, ..on(&[ring], 1) };
    assert!(close(2.0 * time(LARGE, both), time(LARGE, one_of_each)));
    // Between the two of a chip goes half of the buffer, at six links.
    let pair = OnTorus { on_chip: 2, ..on(&[], 1) };
    assert!(close(time(LARGE, pair), LARGE as f64 / 2.0 / (6.0 * 100e9 * REACHED)));
}
