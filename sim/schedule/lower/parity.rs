//! DeepSpeed's sends and receives (`deepspeed/runtime/pipe/schedule.py`, `TrainSchedule.steps`, 0.5.10 to 0.8.2).
//!
//! All stages count the same 2·(m+p−1) steps. Even stages go forward in even steps and odd stages in odd ones, and back in
//! the others, so of two neighbours one goes forward while the other goes back:
//!
//! ```text
//! forward of micro-batch (step − stage)/2             before it: receive its input, then send the gradient made last
//! backward of micro-batch (step + stage + 1)/2 − p    before it: send the output made last, then receive its gradient
//! ```
//!
//! Where a stage receives, its neighbour sends, in the same order: calls one by one never wait for each other in a circle.

use super::super::{Action, Kind, Lists, Schedule};

/// The lists with sends and receives.
pub fn lower(schedule: &Schedule) -> Lists {
    let (stages, micro_batches) = (schedule.stages as i64, i64::from(schedule.shape().microbatches));
    let mut lists = Lists::with_capacity(schedule.ranks(), 3 * schedule.lists.all().len());
    for rank in 0..schedule.ranks() {
        let stage = rank as i64;
        let out = lists.open();
        let mut made = None;
        for step in 0..2 * (micro_batches + stages - 1) {
            let forward = (step + stage) % 2 == 0;
            let at = if forward { (step - stage) / 2 } else { (step + stage + 1) / 2 - stages };
            // Before its first micro-batch and after its last a stage has nothing to compute.
            let inside = (0..micro_batches).contains(&at) && (!forward || step >= stage);
            let now = inside.then(|| u32::try_from(at).expect("micro-batches are counted in 32 bits"));
            let mut add = |kind, micro_batch: Option<u32>| {
                out.extend(micro_batch.map(|micro_batch| Action::new(rank as u16, kind, micro_batch)));
            };
            let neighbour = if forward { stage > 0 } else { stage + 1 < stages };
            let [receives, sends] = if neighbour { [now, made] } else { [None; 2] };
            if forward {
                add(Kind::RecvForward, receives);
                add(Kind::SendBackward, sends);
                add(Kind::Forward, now);
            } else {
                add(Kind::SendForward, sends);
                add(Kind::RecvBackward, receives);
                add(Kind::Backward, now);
            }
            made = now;
        }
        lists.close();
    }
    lists
}
