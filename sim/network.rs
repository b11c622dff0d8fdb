//! How concurrent collectives and messages share the fabric: max-min fair, per level of the fabric and per rank.
//!
//! A collective that runs alone uses a fraction `u[l]` of the bandwidth its ranks have at level `l` (0: NVLink or ICI,
//! then outwards). Collectives that cross the same rank may together ask for more than all of it. Then they are slowed:
//! collective `i` runs at speed `s_i ≤ 1` and uses `s_i · u_i[l]`. The speeds are max-min fair in the share that a
//! collective takes of the level it uses most (its *dominant* level, `d_i = max_l u_i[l]`): no collective's share
//! `s_i · d_i` can be raised without lowering one that is no larger. On one level this is max-min fairness of bandwidth
//! (Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2); on several it is dominant-resource fairness
//! (Ghodsi et al., NSDI 2011).
//!
//! Worked example, one level. A uses 0.9 alone, B and C use 0.3 each: 1.5 is asked of 1. Raise a common water level λ
//! from zero. At λ = 0.3 all use 0.3 (0.9 in sum) and B and C have all they want: they freeze at speed 1. A rises alone
//! until 0.3 + 0.3 + λ = 1, that is λ = 0.4: A runs at 0.4 / 0.9 = 0.444 of its speed, B and C do not notice.
//!
//! Two levels. A uses (0.8, 0.2), B uses (0.4, 0.0), C uses (0.0, 0.9). Per unit of λ, level 0 fills by
//! 0.8/0.8 + 0.4/0.4 = 2 and level 1 by 0.2/0.8 + 0.9/0.9 = 1.25. At λ = 0.4, B is at full speed and frozen; level 0
//! then holds 0.4 + λ, level 1 holds 1.25 λ. Level 0 is full at λ = 0.6: A freezes at speed 0.75. Level 1 then holds
//! 0.15 + λ, full at 0.85: C runs at 0.85 / 0.9 = 0.944.
//!
//! Links carry both ways at once. A collective uses both ways of its ranks alike; a message uses the way out of its sender
//! and the way into its receiver. So a rank is one place, and two where messages cross it: out and in.
//!
//! Uplinks beyond the cards are shared by all ranks below them ([`crate::hardware::uplink`]), so each is a place of its own, of one
//! level. There flows count with a weight: in a folded run one flow stands for several copies of a group, which all move alike.
//! Sums over an uplink are in integers, so that a weight of three is three flows to the last bit.
//!
//! The result is the same bits on every platform: only `+ - * /` and comparisons, in a fixed order.

use crate::hardware::OUTER;

/// Levels of a fabric at which each rank has links of its own, from the innermost (NVLink, ICI) outwards.
pub const LEVELS: usize = 4;
/// What an uplink carries, in the integers of its sums.
const WHOLE: f64 = (1_u64 << 40) as f64;

/// The solver and its working memory, which is kept between calls so that a steady run allocates nothing.
///
/// Add the flows, then the places (ranks, one way or both) with the flows that cross each, then solve.
#[derive(Debug, Default)]
pub struct Sharing {
    /// Bandwidth a flow uses of each level when alone, as a fraction.
    flows: Vec<[f64; LEVELS]>,
    /// The same of one uplink into each outer level.
    outer: Vec<[f64; OUTER]>,
    /// Largest of the flow's fractions.
    dominant: Vec<f64>,
    /// Speed of each flow once frozen; negative before.
    speeds: Vec<f64>,
    /// Flow indices, place after place.
    crossing: Vec<u32>,
    /// End of each place in `crossing`.
    place_end: Vec<u32>,
    /// The places and levels found full in one round.
    full: Vec<(std::ops::Range<usize>, usize)>,
    /// Flows and their weights, uplink after uplink; the end of each, and its outer level.
    crossing_uplinks: Vec<(u32, u32)>,
    uplinks: Vec<(u32, usize)>,
    /// The uplinks found full in one round.
    full_uplinks: Vec<(std::ops::Range<usize>, usize)>,
}

/// Marks a flow that still rises with the water.
const RISING: f64 = -1.0;

impl Sharing {
    /// Forgets flows and places, keeps the memory.
    pub fn clear(&mut self) {
        self.flows.clear();
        self.outer.clear();
        self.crossing_uplinks.clear();
        self.uplinks.clear();
        self.dominant.clear();
        self.speeds.clear();
        self.crossing.clear();
        self.place_end.clear();
    }

    /// Adds a flow by the fraction it uses when alone of each level, and of one uplink into each outer level; returns its index.
    pub fn add_flow(&mut self, use_of: [f64; LEVELS], outer: [f64; OUTER]) -> u32 {
        let mut parts = use_of.iter().chain(&outer);
        assert!(parts.all(|part| (0.0..=1.0).contains(part)), "a flow uses {use_of:?} and {outer:?} of the fabric");
        self.flows.push(use_of);
        self.outer.push(outer);
        let parts = use_of.iter().chain(&outer);
        self.dominant.push(parts.fold(0.0, |most, &part| if part > most { part } else { most }));
        self.flows.len() as u32 - 1
    }

    /// Says that `flow` crosses the place that is being described.
    pub fn cross(&mut self, flow: u32) {
        self.crossing.push(flow);
    }

    /// Closes the place being described: the flows named since the last one share its bandwidth.
    pub fn end_place(&mut self) {
        self.place_end.push(self.crossing.len() as u32);
    }

    /// Says that so many flows like `flow` cross the uplink that is being described.
    pub fn cross_uplink(&mut self, flow: u32, weight: u32) {
        self.crossing_uplinks.push((flow, weight));
    }

    /// Closes the uplink being described, which leads into an outer level.
    pub fn end_uplink(&mut self, level: usize) {
        self.uplinks.push((self.crossing_uplinks.len() as u32, level));
    }

    /// Number of flows.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Whether there is no flow.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// The speed of each flow, in (0, 1], by water filling.
    pub fn solve(&mut self) -> &[f64] {
        self.speeds.resize(self.flows.len(), RISING);
        let mut rising = self.flows.len();
        for flow in 0..self.flows.len() {
            if self.dominant[flow] <= 0.0 {
                self.speeds[flow] = 1.0;
                rising -= 1;
            }
        }
        let mut water = 0.0;
        while rising > 0 {
            let (contented, full) = (self.next_contented(), self.next_full());
            // Rounding may leave a full level slightly over-full; the water never falls.
            let next = if full < contented { full } else { contented };
            water = if next > water { next } else { water };
            rising -=
                if full < contented { self.freeze_at_full(full, water) } else { self.freeze_contented(contented) };
        }
        &self.speeds
    }

    /// The water level at which the next flow has all it wants.
    fn next_contented(&self) -> f64 {
        let wants = self.dominant.iter().zip(&self.speeds).filter(|&(_, &speed)| speed == RISING);
        wants.fold(f64::INFINITY, |least, (&want, _)| if want < least { want } else { least })
    }

    /// The water level at which the next level of a place is full.
    fn next_full(&self) -> f64 {
        let mut least = f64::INFINITY;
        self.each_level(|_, _, full_at| least = if full_at < least { full_at } else { least });
        self.each_uplink(|_, _, full_at| least = if full_at < least { full_at } else { least });
        least
    }

    /// Calls `visit` with every (place, level) that a rising flow uses and the water level at which it is full.
    fn each_level(&self, mut visit: impl FnMut(std::ops::Range<usize>, usize, f64)) {
        let mut first = 0;
        for &end in &self.place_end {
            let flows = first..end as usize;
            first = end as usize;
            // One flow alone never fills a level: its use is at most 1.
            if flows.len() < 2 {
                continue;
            }
            for level in 0..LEVELS {
                let (mut held, mut rate) = (0.0, 0.0);
                for &flow in &self.crossing[flows.clone()] {
                    let (part, speed) = (self.flows[flow as usize][level], self.speeds[flow as usize]);
                    if speed == RISING {
                        rate += part / self.dominant[flow as usize];
                    } else {
                        held += part * speed;
                    }
                }
                if rate > 0.0 {
                    visit(flows.clone(), level, (1.0 - held) / rate);
                }
            }
        }
    }

    /// Calls `visit` with every uplink that a rising flow uses, its outer level, and the water level at which it is full.
    fn each_uplink(&self, mut visit: impl FnMut(std::ops::Range<usize>, usize, f64)) {
        let mut first = 0;
        for &(end, level) in &self.uplinks {
            let flows = first..end as usize;
            first = end as usize;
            let (mut held, mut rate) = (0_u128, 0_u128);
            for &(flow, weight) in &self.crossing_uplinks[flows.clone()] {
                let (part, speed) = (self.outer[flow as usize][level], self.speeds[flow as usize]);
                let rises = speed == RISING;
                let one = if rises { part / self.dominant[flow as usize] } else { part * speed };
                let sum = if rises { &mut rate } else { &mut held };
                *sum += u128::from((one * WHOLE) as u64) * u128::from(weight);
            }
            if rate > 0 {
                visit(flows, level, (WHOLE - held as f64) / rate as f64);
            }
        }
    }

    /// Gives full speed to the flows that want exactly `want`; returns how many.
    fn freeze_contented(&mut self, want: f64) -> usize {
        let mut frozen = 0;
        for (speed, &dominant) in self.speeds.iter_mut().zip(&self.dominant) {
            if *speed == RISING && dominant == want {
                *speed = 1.0;
                frozen += 1;
            }
        }
        frozen
    }

    /// Stops the flows that use a level which is full at `full`; returns how many.
    fn freeze_at_full(&mut self, full: f64, water: f64) -> usize {
        let mut stopped = std::mem::take(&mut self.full);
        self.each_level(|flows, level, full_at| {
            if full_at == full {
                stopped.push((flows, level));
            }
        });
        let mut frozen = 0;
        for (flows, level) in stopped.drain(..) {
            for index in flows {
                let flow = self.crossing[index] as usize;
                if self.speeds[flow] == RISING && self.flows[flow][level] > 0.0 {
                    self.speeds[flow] = water / self.dominant[flow];
                    frozen += 1;
                }
            }
        }
        self.full = stopped;
        let mut stopped = std::mem::take(&mut self.full_uplinks);
        self.each_uplink(|flows, level, full_at| {
            if full_at == full {
                stopped.push((flows, level));
            }
        });
        for (flows, level) in stopped.drain(..) {
            for index in flows {
                let flow = self.crossing_uplinks[index].0 as usize;
                if self.speeds[flow] == RISING && self.outer[flow][level] > 0.0 {
                    self.speeds[flow] = water / self.dominant[flow];
                    frozen += 1;
                }
            }
        }
        self.full_uplinks = stopped;
        frozen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Speeds of flows at one place.
    fn at_one_place(flows: &[[f64; LEVELS]]) -> Vec<f64> {
        solve(flows, &[(0..flows.len() as u32).collect()])
    }

    fn solve(flows: &[[f64; LEVELS]], places: &[Vec<u32>]) -> Vec<f64> {
        let mut sharing = Sharing::default();
        for &flow in flows {
            sharing.add_flow(flow, [0.0; OUTER]);
        }
        for place in places {
            for &flow in place {
                sharing.cross(flow);
            }
            sharing.end_place();
        }
        sharing.solve().to_vec()
    }

    /// The obvious slow solver: raise every flow's dominant share by a little, as long as its places have room.
    fn by_drops(flows: &[[f64; LEVELS]], places: &[Vec<u32>], drop: f64) -> Vec<f64> {
        let dominant: Vec<f64> = flows.iter().map(|flow| flow.iter().copied().fold(0.0, f64::max)).collect();
        let mut speeds: Vec<f64> = dominant.iter().map(|&most| if most > 0.0 { 0.0 } else { 1.0 }).collect();
        let mut rising: Vec<bool> = dominant.iter().map(|&most| most > 0.0).collect();
        while rising.iter().any(|&up| up) {
            for flow in 0..flows.len() {
                let more = speeds[flow] + drop / dominant[flow];
                let fits = |place: &Vec<u32>| {
                    (0..LEVELS).all(|level| {
                        let held = |&other: &u32| {
                            let speed = if other as usize == flow { more } else { speeds[other as usize] };
                            speed * flows[other as usize][level]
                        };
                        flows[flow][level] == 0.0 || place.iter().map(held).sum::<f64>() <= 1.0
                    })
                };
                rising[flow] = rising[flow]
                    && more <= 1.0
                    && places.iter().filter(|place| place.contains(&(flow as u32))).all(fits);
                if rising[flow] {
                    speeds[flow] = more;
                }
            }
        }
        speeds
    }

    fn close(found: &[f64], expected: &[f64], tolerance: f64) -> bool {
        found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= tolerance)
    }

    #[test]
    fn the_worked_examples_come_out() {
        let one = |part| [part, 0.0, 0.0, 0.0];
        assert!(close(&at_one_place(&[one(0.9), one(0.3), one(0.3)]), &[0.4 / 0.9, 1.0, 1.0], 1e-12));
        let two = [[0.8, 0.2, 0.0, 0.0], [0.4, 0.0, 0.0, 0.0], [0.0, 0.9, 0.0, 0.0]];
        assert!(close(&at_one_place(&two), &[0.75, 1.0, 0.85 / 0.9], 1e-12));
    }

    #[test]
    fn a_flow_alone_or_on_its_own_level_runs_at_full_speed() {
        assert_eq!(at_one_place(&[[1.0, 0.5, 0.0, 0.0]]), [1.0]);
        assert_eq!(at_one_place(&[[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]), [1.0, 1.0]);
        assert_eq!(at_one_place(&[[0.0; LEVELS], [1.0, 0.0, 0.0, 0.0]]), [1.0, 1.0]);
    }

    #[test]
    fn a_flow_is_held_back_by_its_fullest_place_and_leaves_room_elsewhere() {
        // B shares place 0 with A and place 1 with C and D; it is held to a third there, so A gets two thirds.
        let flow = [1.0, 0.0, 0.0, 0.0];
        let speeds = solve(&[flow; 4], &[vec![0, 1], vec![1, 2, 3]]);
        assert!(close(&speeds, &[2.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0], 1e-12));
    }

    #[test]
    fn a_flow_that_stands_for_three_is_three_flows_to_the_last_bit() {
        let (mine, other) = ([0.3, 0.0, 0.0, 0.0], [0.7 / 3.0, 0.0, 0.0, 0.0]);
        let at_an_uplink = |flows: &[([f64; OUTER], u32)]| {
            let mut sharing = Sharing::default();
            for &(outer, weight) in flows {
                let flow = sharing.add_flow([0.9, 0.0, 0.0, 0.0], outer);
                sharing.cross_uplink(flow, weight);
            }
            sharing.end_uplink(0);
            sharing.solve().to_vec()
        };
        let folded = at_an_uplink(&[(mine, 3), (other, 2)]);
        let full = at_an_uplink(&[(mine, 1), (other, 1), (mine, 1), (other, 1), (mine, 1)]);
        assert_eq!([folded[0], folded[1]], [full[0], full[1]]);
        // 3 · 0.3 + 2 · 0.233 is asked of 1, and dominant shares are alike: all rise together.
        assert!(close(&folded, &[1.0 / (0.9 + 1.4 / 3.0); 2], 1e-9), "{folded:?}");
        assert_eq!(at_an_uplink(&[(mine, 3)]), [1.0]);
    }

    /// Flows with a few levels in use, and places that a few flows cross.
    fn fabric() -> impl Strategy<Value = (Vec<[f64; LEVELS]>, Vec<Vec<u32>>)> {
        let part = prop_oneof![Just(0.0), (1u32..=8).prop_map(|eighths| f64::from(eighths) / 8.0)];
        let flows = prop::collection::vec(prop::array::uniform4(part), 1..6);
        let places = prop::collection::vec(prop::collection::btree_set(0u32..6, 1..5), 1..5);
        (flows, places).prop_map(|(flows, places)| {
            let n = flows.len() as u32;
            let here = |place: std::collections::BTreeSet<u32>| place.into_iter().filter(|&flow| flow < n).collect();
            let places = places.into_iter().map(here).collect();
            (flows, places)
        })
    }

    proptest! {
        #[test]
        fn water_filling_agrees_with_filling_by_drops((flows, places) in fabric()) {
            let (fast, slow) = (solve(&flows, &places), by_drops(&flows, &places, 1e-4));
            prop_assert!(close(&fast, &slow, 2e-2), "{:?} instead of {:?}", fast, slow);
        }

        #[test]
        fn no_level_is_over_full_and_every_slowed_flow_has_a_full_one((flows, places) in fabric()) {
            let speeds = solve(&flows, &places);
            let held = |place: &[u32], level: usize| -> f64 {
                place.iter().map(|&flow| speeds[flow as usize] * flows[flow as usize][level]).sum()
            };
            for place in &places {
                prop_assert!((0..LEVELS).all(|level| held(place, level) <= 1.0 + 1e-9));
            }
            for (flow, &speed) in speeds.iter().enumerate() {
                prop_assert!(speed > 0.0 && speed <= 1.0);
                let stopped = places.iter().any(|place| {
                    place.contains(&(flow as u32))
                        && (0..LEVELS).any(|level| flows[flow][level] > 0.0 && held(place, level) >= 1.0 - 1e-9)
                });
                prop_assert!(speed == 1.0 || stopped, "flow {} runs at {} for no reason", flow, speed);
            }
        }
    }
}
