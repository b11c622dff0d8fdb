//! One stage a rank: each receive before its computation, each send after it.
//!
//! 1F1B issues a send and the receive of the other direction that follows it as one batch (`batch_isend_irecv`), so that
//! neighbours that both want to send do not wait for each other.

use super::super::{Action, Batching, Kind, Lists, Schedule};

/// The lists with sends and receives.
pub fn lower(schedule: &Schedule) -> Lists {
    let mut lists = Lists::with_capacity(schedule.ranks(), 3 * schedule.lists.all().len());
    for rank in 0..schedule.ranks() {
        let mut held: Option<Action> = None;
        let (list, out) = (schedule.lists.rank(rank), lists.open());
        for (at, &action) in list.iter().enumerate() {
            let forward = action.kind == Kind::Forward;
            let (stage, last) = (action.stage as usize, action.stage as usize + 1 == schedule.stages);
            let (receive, send) =
                if forward { (Kind::RecvForward, Kind::SendForward) } else { (Kind::RecvBackward, Kind::SendBackward) };
            let receives = if forward { stage > 0 } else { !last };
            let sends = if forward { !last } else { stage > 0 };
            let receive = receives.then(|| Action::new(action.stage, receive, action.microbatch));
            out.extend(held.take().map(|send| if receive.is_some() { send.join() } else { send }));
            out.extend(receive);
            out.push(action);
            let send = sends.then(|| Action::new(action.stage, send, action.microbatch));
            let turns = list.get(at + 1).is_some_and(|next| (next.kind == Kind::Forward) != forward);
            if schedule.batching == Batching::Paired && turns {
                held = send;
            } else {
                out.extend(send);
            }
        }
        lists.close();
    }
    lists
}
