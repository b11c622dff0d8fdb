//! Sends and receives (`_add_send_recv`): a send right after what it sends, and at that moment the receive on the peer.
//!
//! All ranks step together, one portion a turn, if what it needs has arrived; so receives stand in each list as early as
//! their senders allow, in an order that cannot hang.

use super::super::{Action, Kind, Lists, Schedule, ScheduleError};

/// What has been computed, and what has been received, by stage and micro-batch.
struct Done<'s> {
    schedule: &'s Schedule,
    cells: Vec<u8>,
}

const FORWARD: u8 = 1;
const BACKWARD: u8 = 2;
const RECEIVED_FORWARD: u8 = 4;
const RECEIVED_BACKWARD: u8 = 8;

impl Done<'_> {
    fn cell(&mut self, stage: usize, microbatch: u32) -> &mut u8 {
        &mut self.cells[stage * self.schedule.microbatches + microbatch as usize]
    }

    /// Whether an action's input has arrived, from another rank or from a stage of its own.
    fn is_ready(&mut self, action: Action) -> bool {
        let stage = action.stage as usize;
        let (received, computed, neighbour, border) = match action.kind {
            Kind::Forward if stage > 0 => (RECEIVED_FORWARD, FORWARD, stage - 1, stage - 1),
            Kind::Backward | Kind::Input if stage + 1 < self.schedule.stages => {
                (RECEIVED_BACKWARD, BACKWARD, stage + 1, stage)
            }
            _ => return true,
        };
        let near = !self.schedule.crosses(border);
        *self.cell(stage, action.microbatch) & received != 0
            || near && *self.cell(neighbour, action.microbatch) & computed != 0
    }
}

/// The lists with sends and receives.
pub fn add(schedule: &Schedule, lists: &Lists) -> Result<Lists, ScheduleError> {
    let mut done = Done { schedule, cells: vec![0; schedule.stages * schedule.microbatches] };
    let mut out: Vec<Vec<Action>> =
        (0..lists.ranks()).map(|rank| Vec::with_capacity(2 * lists.rank(rank).len())).collect();
    let mut left: Vec<&[Action]> = (0..lists.ranks()).map(|rank| lists.rank(rank)).collect();
    loop {
        let (mut progress, mut over) = (false, true);
        for rank in 0..left.len() {
            let list = left[rank];
            if list.is_empty() {
                continue;
            }
            over = false;
            let size = 1 + list.iter().take_while(|action| action.joined).count();
            let portion = &list[..size.min(list.len())];
            if !portion.iter().all(|&action| done.is_ready(action)) {
                continue;
            }
            progress = true;
            left[rank] = &list[portion.len()..];
            out[rank].extend_from_slice(portion);
            for &action in portion {
                let Some((send, receive)) = sends(&mut done, action) else { continue };
                out[rank].push(send);
                out[schedule.rank_of[receive.stage as usize] as usize].push(receive);
            }
        }
        if over {
            return Ok(Lists::from_ranks(&out));
        }
        if !progress {
            return Err(deadlock(lists, &left));
        }
    }
}

/// Who waits for what, where all that is `left` of the lists waits.
fn deadlock(lists: &Lists, left: &[&[Action]]) -> ScheduleError {
    let stuck = left.iter().enumerate().filter_map(|(rank, list)| Some((rank, list.first()?)));
    let waits = stuck.take(4).map(|(rank, action)| format!("rank {rank} waits to run {action}"));
    let waits = waits.collect::<Vec<_>>().join(", ");
    let computes = |list: &[Action]| list.iter().filter(|action| action.kind.computes()).count();
    let rank = left.iter().position(|list| !list.is_empty()).unwrap_or(0);
    ScheduleError::Deadlock { waits, rank, entry: computes(lists.rank(rank)) - computes(left[rank]) + 1 }
}

/// Notes what an action has done; the send of its result and the peer's receive, if that is another rank.
fn sends(done: &mut Done, action: Action) -> Option<(Action, Action)> {
    let (stage, microbatch) = (action.stage as usize, action.microbatch);
    let forward = match action.kind {
        Kind::Forward => true,
        Kind::Backward | Kind::Input => false,
        _ => return None,
    };
    *done.cell(stage, microbatch) |= if forward { FORWARD } else { BACKWARD };
    let border = if forward { stage } else { stage.checked_sub(1)? };
    if !done.schedule.crosses(border) {
        return None;
    }
    let (to, send, receive, received) = if forward {
        (action.stage + 1, Kind::SendForward, Kind::RecvForward, RECEIVED_FORWARD)
    } else {
        (action.stage - 1, Kind::SendBackward, Kind::RecvBackward, RECEIVED_BACKWARD)
    };
    *done.cell(to as usize, microbatch) |= received;
    Some((Action::new(action.stage, send, microbatch), Action::new(to, receive, microbatch)))
}
