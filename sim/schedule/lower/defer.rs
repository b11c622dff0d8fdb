//! Posts receives as late as possible (`_defer_recv_ops`, `defer_pp_recv`): before the computation that needs them, and on
//! the lower rank of a pair before a send to that peer, so that the two never both wait to be received from.

use super::super::{Action, Kind, Lists, Schedule};

/// The lists with receives moved back.
pub fn receives(schedule: &Schedule, lists: &Lists) -> Lists {
    let mut out = Lists::with_capacity(lists.ranks(), lists.all().len());
    let rank_of = |stage: u16| schedule.rank_of[stage as usize] as usize;
    for rank in 0..lists.ranks() {
        let mut deferred: Vec<Action> = vec![];
        let list = out.open();
        for portion in lists.portions(rank) {
            let first = portion[0];
            match first.kind {
                Kind::RecvForward | Kind::RecvBackward => {
                    deferred.push(first);
                    continue;
                }
                Kind::SendForward | Kind::SendBackward => {
                    let peer = rank_of(if first.kind == Kind::SendForward { first.stage + 1 } else { first.stage - 1 });
                    if rank < peer {
                        take(&mut deferred, list, |receive| {
                            let forward = receive.kind == Kind::RecvForward;
                            rank_of(if forward { receive.stage - 1 } else { receive.stage + 1 }) == peer
                        });
                    }
                }
                _ => {}
            }
            for action in portion {
                let kind = match action.kind {
                    Kind::Forward => Kind::RecvForward,
                    Kind::Backward | Kind::Input => Kind::RecvBackward,
                    _ => continue,
                };
                let needed = Action { kind, joined: false, ..*action };
                take(&mut deferred, list, |&receive| receive == needed);
            }
            list.extend_from_slice(portion);
        }
        out.close();
    }
    out
}

/// Moves what `which` picks to the end of `list`, in order.
fn take(deferred: &mut Vec<Action>, list: &mut Vec<Action>, which: impl Fn(&Action) -> bool) {
    deferred.retain(|receive| {
        let taken = which(receive);
        if taken {
            list.push(*receive);
        }
        !taken
    });
}
