//! Waits for sends (`_add_wait_send`): for what went forward, after its micro-batch has come back, which proves that it
//! arrived; for the rest, at the end.

use super::super::{Action, Kind, Lists, Schedule};

/// The lists with one wait for each send.
pub fn add(schedule: &Schedule, lists: &Lists) -> Lists {
    let mut out = Lists::with_capacity(lists.ranks(), lists.all().len() + lists.all().len() / 3);
    // A stage is on one rank, so that one table serves them all.
    let mut pending = vec![false; schedule.stages * schedule.microbatches];
    let mut sent = vec![];
    let cell = |action: &Action| action.stage as usize * schedule.microbatches + action.microbatch as usize;
    for rank in 0..lists.ranks() {
        sent.clear();
        let list = out.open();
        for portion in lists.portions(rank) {
            list.extend_from_slice(portion);
            for &action in portion {
                match action.kind {
                    Kind::SendForward | Kind::SendBackward => {
                        if action.kind == Kind::SendForward {
                            pending[cell(&action)] = true;
                        }
                        sent.push(action);
                    }
                    Kind::Backward | Kind::Input if pending[cell(&action)] => {
                        pending[cell(&action)] = false;
                        list.push(Action { kind: Kind::WaitSendForward, joined: false, ..action });
                    }
                    _ => {}
                }
            }
        }
        for &action in &sent {
            if action.kind == Kind::SendBackward {
                list.push(Action { kind: Kind::WaitSendBackward, ..action });
            } else if std::mem::take(&mut pending[cell(&action)]) {
                list.push(Action { kind: Kind::WaitSendForward, ..action });
            }
        }
        out.close();
    }
    out
}
