//! Gathers a stage's parameters ahead of its computations and lets go of them when others are needed
//! (`_add_unshard_reshard`).

use super::super::{Action, Kind, ScheduleError};

/// Adds one rank's list to `out`, with `UNSHARD` and `RESHARD`: at most `most` stages are gathered, of which the `ahead`
/// next ones are asked for.
pub fn add(list: &[Action], most: usize, ahead: usize, out: &mut Vec<Action>) -> Result<(), ScheduleError> {
    let mut active: Vec<u16> = vec![];
    let (mut resident, mut current) = (vec![], vec![]);
    let left = distinct_from(list);
    let mut at = 0;
    for portion in list.chunk_by(|action, _| action.joined) {
        current.clear();
        for action in portion.iter().filter(|action| action.kind.computes()) {
            if !current.contains(&action.stage) {
                current.push(action.stage);
            }
        }
        if current.len() > most {
            let problem = format!(
                "{} computes on {} stages at once, more than max_active_stages = {most}",
                super::super::lists::notation(portion),
                current.len()
            );
            return Err(ScheduleError::Lowering { problem });
        }
        let asked = upcoming(&list[at..], most.min(left[at]), ahead, &mut resident);
        active.retain(|stage| {
            let stays = resident.contains(stage);
            if !stays {
                out.push(Action::of_stage(*stage, Kind::Reshard));
            }
            stays
        });
        for &stage in &resident[..asked] {
            if !active.contains(&stage) {
                active.push(stage);
                out.push(Action::of_stage(stage, Kind::Unshard));
            }
        }
        out.extend_from_slice(portion);
        at += portion.len();
    }
    out.extend(active.into_iter().map(|stage| Action::of_stage(stage, Kind::Reshard)));
    Ok(())
}

/// How many distinct stages come from each entry on: where no more than these are looked for, the search ends early.
fn distinct_from(list: &[Action]) -> Vec<usize> {
    let mut seen = vec![];
    let mut left = vec![0; list.len()];
    for (at, action) in list.iter().enumerate().rev() {
        if !seen.contains(&action.stage) {
            seen.push(action.stage);
        }
        left[at] = seen.len();
    }
    left
}

/// The next `most` distinct stages of a list, into `resident`, and how many of them the next `ahead` ones are. What is
/// joined is not cut apart, so that both may be exceeded.
fn upcoming(list: &[Action], most: usize, ahead: usize, resident: &mut Vec<u16>) -> usize {
    resident.clear();
    let mut asked = None;
    for action in list {
        if !resident.contains(&action.stage) {
            resident.push(action.stage);
        }
        if !action.joined {
            if resident.len() >= ahead && asked.is_none() {
                asked = Some(resident.len());
            }
            if resident.len() >= most {
                break;
            }
        }
    }
    asked.unwrap_or(resident.len())
}
