//! Reduces a stage's gradients after its last backward (`_add_reduce_grad`).

use super::super::{Action, Kind, Schedule};

/// Adds one rank's list to `out`, with `REDUCE_GRAD` and the wait for it: at once, or before the next one.
pub fn add(list: &[Action], schedule: &Schedule, late: bool, out: &mut Vec<Action>) {
    let mut left = vec![schedule.microbatches; schedule.stages];
    let mut pending: Option<u16> = None;
    let wait = |stage: u16| Action::of_stage(stage, Kind::WaitReduceGrad);
    for portion in list.chunk_by(|action, _| action.joined) {
        out.extend_from_slice(portion);
        for action in portion.iter().filter(|action| matches!(action.kind, Kind::Weight | Kind::Backward)) {
            let left = &mut left[action.stage as usize];
            *left -= 1;
            if *left > 0 {
                continue;
            }
            out.extend(pending.take().map(wait));
            out.push(Action::of_stage(action.stage, Kind::ReduceGrad));
            if late {
                pending = Some(action.stage);
            } else {
                out.push(wait(action.stage));
            }
        }
    }
    out.extend(pending.map(wait));
}
