//! What holds for every schedule of every shape.

use proptest::prelude::*;
use windtunnel::schedule::{self, Action, Costs, Kind, Lowering, Schedule, Shape, order};
use windtunnel::units::Time;

/// Any schedule of any shape that it is made for, and Megatron's with settings of their own.
fn any_schedule() -> impl Strategy<Value = Schedule> {
    let shape = (1_u32..7, 1_u32..4, 1_u32..20).prop_map(|(ranks, virtual_stages, microbatches)| Shape {
        ranks,
        virtual_stages,
        microbatches,
    });
    let named = (0..order::ENTRIES.len(), shape.clone())
        .prop_filter_map("a shape it is made for", |(entry, shape)| order::ENTRIES[entry].build(shape).ok());
    let settings = (1_u32..9, any::<bool>(), any::<bool>()).prop_map(|(group, overlap_experts, fill_first)| {
        order::megatron::Settings { group, overlap_experts, fill_first }
    });
    let megatron = (shape, settings)
        .prop_filter_map("a shape and settings that Megatron takes", |(shape, settings)| {
            order::megatron::interleaved(shape, settings).ok()
        });
    prop_oneof![4 => named, 1 => megatron]
}

/// Costs, different at every stage.
fn any_costs(stages: usize) -> impl Strategy<Value = Costs> {
    let times = move |least: u64| prop::collection::vec((least..50).prop_map(Time), stages);
    (times(1), times(1), times(1), times(0)).prop_map(|(forward, input, weight, hop)| {
        let backward = input.iter().zip(&weight).map(|(&input, &weight)| input + weight).collect();
        Costs { forward, backward, input, weight, hop }
    })
}

fn with_costs() -> impl Strategy<Value = (Schedule, Costs)> {
    any_schedule().prop_flat_map(|schedule| {
        let costs = any_costs(schedule.stages);
        (Just(schedule), costs)
    })
}

proptest! {
    #[test]
    fn every_micro_batch_goes_forward_and_back_once_through_every_stage(schedule in any_schedule()) {
        for stage in 0..schedule.stages {
            for microbatch in 0..schedule.microbatches {
                let of = |kind: Kind| {
                    let wanted = |action: &&Action| {
                        action.kind == kind && action.stage as usize == stage && action.microbatch as usize == microbatch
                    };
                    schedule.lists.all().iter().filter(wanted).count()
                };
                prop_assert_eq!(of(Kind::Forward), 1);
                prop_assert_eq!(of(Kind::Backward) + of(Kind::Input), 1);
                prop_assert_eq!(of(Kind::Input), of(Kind::Weight));
            }
        }
    }

    #[test]
    fn nothing_starts_before_what_it_needs_has_arrived((schedule, costs) in with_costs()) {
        let timeline = schedule::replay(&schedule, &costs).unwrap();
        let end_of = |backward: bool, stage: usize, microbatch: u32| {
            let wanted = |action: &Action| {
                let right = if backward { action.kind.is_backward() } else { action.kind == Kind::Forward };
                right && action.stage as usize == stage && action.microbatch == microbatch
            };
            timeline.end[schedule.lists.all().iter().position(wanted).unwrap()]
        };
        let hop = |border: usize| if schedule.crosses(border) { costs.hop[border] } else { Time(0) };
        for (at, action) in schedule.lists.all().iter().enumerate() {
            let (stage, start) = (action.stage as usize, timeline.start[at]);
            match action.kind {
                Kind::Forward if stage > 0 => {
                    prop_assert!(start >= end_of(false, stage - 1, action.microbatch) + hop(stage - 1));
                }
                Kind::Forward => {}
                Kind::Weight => prop_assert!(start >= end_of(true, stage, action.microbatch)),
                _ => {
                    prop_assert!(start >= end_of(false, stage, action.microbatch));
                    if stage + 1 < schedule.stages {
                        prop_assert!(start >= end_of(true, stage + 1, action.microbatch) + hop(stage));
                    }
                }
            }
        }
        for rank in 0..schedule.ranks() {
            let range = schedule.lists.range(rank);
            for at in range.start + 1..range.end {
                prop_assert!(timeline.start[at] >= timeline.end[at - 1], "a rank does one thing at a time");
            }
        }
    }

    #[test]
    fn dearer_work_never_ends_earlier((schedule, costs) in with_costs(), stage in 0_usize..18, more in 1_u64..9) {
        let before = schedule::replay(&schedule, &costs).unwrap().makespan();
        let mut dearer = costs;
        let stage = stage % schedule.stages;
        for cost in [&mut dearer.forward, &mut dearer.backward, &mut dearer.hop] {
            cost[stage] += Time(more);
        }
        prop_assert!(schedule::replay(&schedule, &dearer).unwrap().makespan() >= before);
    }

    #[test]
    fn every_send_has_its_receive_and_its_wait_and_nothing_else_is_lost(schedule in any_schedule(), late: bool, overlap: bool) {
        let options = Lowering {
            defer_pp_recv: late,
            defer_reduce_grad_wait: late,
            overlap_p2p_comm: overlap,
            ..Lowering::default()
        };
        let lists = schedule::lower(&schedule, &options).unwrap();
        let eager = schedule.batching == schedule::Batching::Eager;
        for rank in 0..schedule.ranks() {
            let plain = |action: &Action| Action { joined: false, ..*action };
            let computes: Vec<Action> =
                lists.rank(rank).iter().filter(|action| action.kind.computes()).map(plain).collect();
            prop_assert_eq!(computes, schedule.lists.rank(rank).iter().map(plain).collect::<Vec<_>>());
        }
        let of = |kind: Kind| {
            let mut found: Vec<(u16, u32)> = lists.all().iter().filter(|action| action.kind == kind)
                .map(|action| (action.stage, action.microbatch)).collect();
            found.sort_unstable();
            found
        };
        let moved = |cells: Vec<(u16, u32)>, by: i32| -> Vec<(u16, u32)> {
            cells.into_iter().map(|(stage, microbatch)| ((i32::from(stage) + by) as u16, microbatch)).collect()
        };
        prop_assert_eq!(moved(of(Kind::SendForward), 1), of(Kind::RecvForward));
        prop_assert_eq!(moved(of(Kind::SendBackward), -1), of(Kind::RecvBackward));
        for rank in 0..schedule.ranks() {
            let list = lists.rank(rank);
            let at = |wanted: Action| list.iter().position(|action| Action { joined: false, ..*action } == wanted);
            for (place, action) in list.iter().enumerate() {
                let consumer = match action.kind {
                    Kind::RecvForward => at(Action::new(action.stage, Kind::Forward, action.microbatch)),
                    Kind::RecvBackward => at(Action::new(action.stage, Kind::Backward, action.microbatch))
                        .or(at(Action::new(action.stage, Kind::Input, action.microbatch))),
                    _ => continue,
                };
                prop_assert!(consumer.is_some_and(|consumer| place < consumer), "{} on rank {}", action, rank);
            }
        }
        if eager {
            prop_assert_eq!(of(Kind::SendForward), of(Kind::WaitSendForward));
            prop_assert_eq!(of(Kind::SendBackward), of(Kind::WaitSendBackward));
            prop_assert_eq!(of(Kind::ReduceGrad).len(), schedule.stages);
            prop_assert_eq!(of(Kind::Unshard), of(Kind::Reshard));
        }
    }

    #[test]
    fn what_is_sent_first_is_received_first(schedule in any_schedule(), overlap: bool) {
        let lists = schedule::lower(&schedule, &Lowering { overlap_p2p_comm: overlap, ..Lowering::default() }).unwrap();
        let rank_of = |stage: u16| schedule.rank_of[stage as usize] as usize;
        for from in 0..schedule.ranks() {
            for to in 0..schedule.ranks() {
                let sent: Vec<(u16, u32, bool)> = lists.rank(from).iter().filter_map(|action| match action.kind {
                    Kind::SendForward if rank_of(action.stage + 1) == to => Some((action.stage + 1, action.microbatch, true)),
                    Kind::SendBackward if rank_of(action.stage - 1) == to => Some((action.stage - 1, action.microbatch, false)),
                    _ => None,
                }).collect();
                let received: Vec<(u16, u32, bool)> = lists.rank(to).iter().filter_map(|action| match action.kind {
                    Kind::RecvForward if rank_of(action.stage - 1) == from => Some((action.stage, action.microbatch, true)),
                    Kind::RecvBackward if rank_of(action.stage + 1) == from => Some((action.stage, action.microbatch, false)),
                    _ => None,
                }).collect();
                // In two ranks that run in a ring, both directions share the pair.
                let of = |list: &[(u16, u32, bool)], forward: bool| -> Vec<(u16, u32, bool)> {
                    list.iter().copied().filter(|one| one.2 == forward).collect()
                };
                prop_assert_eq!(of(&sent, true), of(&received, true), "forward, {} to {}", from, to);
                prop_assert_eq!(of(&sent, false), of(&received, false), "backward, {} to {}", from, to);
            }
        }
    }

    #[test]
    fn no_rank_waits_forever_even_if_every_exchange_blocks(schedule in any_schedule(), overlap: bool) {
        // Eager lists are issued without waiting; the others may block the host until every peer has come to the same.
        prop_assume!(schedule.batching != schedule::Batching::Eager);
        let lists = schedule::lower(&schedule, &Lowering { overlap_p2p_comm: overlap, ..Lowering::default() }).unwrap();
        let ranks = schedule.ranks();
        let mut left: Vec<Vec<Vec<Action>>> = (0..ranks)
            .map(|rank| lists.portions(rank).map(|portion| portion.iter().map(|one| Action { joined: false, ..*one }).collect()).collect())
            .collect();
        for list in &mut left {
            list.reverse();
        }
        let peer = |action: &Action| match action.kind {
            Kind::SendForward => Action { kind: Kind::RecvForward, stage: action.stage + 1, ..*action },
            Kind::RecvForward => Action { kind: Kind::SendForward, stage: action.stage - 1, ..*action },
            Kind::SendBackward => Action { kind: Kind::RecvBackward, stage: action.stage - 1, ..*action },
            _ => Action { kind: Kind::SendBackward, stage: action.stage + 1, ..*action },
        };
        loop {
            let before: usize = left.iter().map(Vec::len).sum();
            if before == 0 {
                break;
            }
            // Computations run; of what stands at the head of a list, matched pairs go.
            for list in &mut left {
                while list.last().is_some_and(|portion| portion.is_empty() || !portion[0].kind.is_message()) {
                    list.pop();
                }
            }
            let heads: Vec<Action> = left.iter().filter_map(|list| list.last()).flatten().copied().collect();
            let mut moved = false;
            for list in &mut left {
                if let Some(head) = list.last_mut() {
                    let size = head.len();
                    head.retain(|one| !heads.contains(&peer(one)));
                    moved |= head.len() < size;
                }
            }
            let after: usize = left.iter().map(Vec::len).sum();
            prop_assert!(moved || after < before, "{} ranks of {} hang at {:?}", ranks, schedule.name, left.iter().map(|list| list.last().map(|p| p.iter().map(ToString::to_string).collect::<Vec<_>>())).collect::<Vec<_>>());
        }
    }
}
