//! Megatron-Core's sends and receives with virtual stages (`forward_backward_pipelining_with_interleaving`).
//!
//! All ranks step through one table of virtual micro-batches, and after each step exchange both directions of what moves:
//! a rank sends what it has just computed and receives what its next step needs. The leading rank (the first in forward,
//! the last in backward) is p−1 steps ahead of the rank that feeds it, so it receives what that rank computed then.
//!
//! Without `overlap_p2p_comm` a steady step is forward, backward, then one batch of four; with it, forwards and backwards
//! exchange each for themselves, and the other's computation hides that. With `overlap_moe_expert_parallel_comm` both of a
//! step are computed together, and then exchange.

use super::super::batching::Settings;
use super::super::{Action, Kind, Lists, Schedule};

/// A rank's table: its forwards and backwards in order.
struct Table {
    forwards: Vec<Action>,
    backwards: Vec<Action>,
}

impl Table {
    fn of(list: &[Action]) -> Table {
        let (forwards, backwards) = list.iter().partition(|action| action.kind == Kind::Forward);
        Table { forwards, backwards }
    }
}

/// What one rank exchanges after its steps.
struct Exchange<'s> {
    schedule: &'s Schedule,
    own: &'s Table,
    /// The table of the rank that feeds this one in forward, if this is the first.
    feeds_forward: Option<&'s Table>,
    /// The table of the rank that feeds this one in backward, if this is the last.
    feeds_backward: Option<&'s Table>,
}

impl Exchange<'_> {
    fn send(&self, action: Action) -> Option<Action> {
        let stage = action.stage as usize;
        let (kind, moves) = match action.kind {
            Kind::Forward => (Kind::SendForward, self.schedule.crosses(stage)),
            _ => (Kind::SendBackward, stage > 0 && self.schedule.crosses(stage - 1)),
        };
        moves.then_some(Action { kind, ..action })
    }

    /// What step `step` of the forwards receives for a later one.
    fn receive_forward(&self, step: usize) -> Option<Action> {
        if step + 1 == self.own.forwards.len() {
            return None;
        }
        match self.feeds_forward {
            None => Some(Action { kind: Kind::RecvForward, ..self.own.forwards[step + 1] }),
            Some(last) => {
                let from = last.forwards[(step + 1).checked_sub(self.schedule.ranks())?];
                let more = usize::from(from.stage) + 1 < self.schedule.stages;
                more.then(|| Action { kind: Kind::RecvForward, stage: from.stage + 1, ..from })
            }
        }
    }

    /// What step `step` of the backwards receives for a later one.
    fn receive_backward(&self, step: usize) -> Option<Action> {
        if step + 1 == self.own.backwards.len() {
            return None;
        }
        match self.feeds_backward {
            None => Some(Action { kind: Kind::RecvBackward, ..self.own.backwards[step + 1] }),
            Some(first) => {
                let from = first.backwards[(step + 1).checked_sub(self.schedule.ranks())?];
                (from.stage > 0).then(|| Action { kind: Kind::RecvBackward, stage: from.stage - 1, ..from })
            }
        }
    }
}

/// The lists with sends and receives.
pub fn lower(schedule: &Schedule, settings: Settings, overlap: bool) -> Lists {
    let ranks = schedule.ranks();
    if ranks == 1 {
        return alone(schedule, settings);
    }
    let shape = schedule.shape();
    let tables: Vec<Table> = (0..ranks).map(|rank| Table::of(schedule.lists.rank(rank))).collect();
    let mut lists = Lists::with_capacity(ranks, 3 * schedule.lists.all().len());
    for (rank, own) in tables.iter().enumerate() {
        let exchange = Exchange {
            schedule,
            own,
            feeds_forward: (rank == 0).then(|| &tables[ranks - 1]),
            feeds_backward: (rank + 1 == ranks).then(|| &tables[0]),
        };
        let warmup = settings.warmup(shape, u32::try_from(rank).expect("at most 65,536 ranks"));
        write(&exchange, warmup as usize, (overlap, settings.overlap_experts), lists.open());
        lists.close();
    }
    lists
}

/// The lists of a rank without a pipeline: nothing is sent, and what runs at once is joined.
fn alone(schedule: &Schedule, settings: Settings) -> Lists {
    if !settings.overlap_experts {
        return schedule.lists.clone();
    }
    let list = schedule.lists.rank(0);
    let mut lists = Lists::with_capacity(1, list.len());
    let out = lists.open();
    for (at, &action) in list.iter().enumerate() {
        // A backward of its own micro-batch is the only one's, and has nothing to run beside it.
        let beside = |next: &Action| next.kind.is_backward() && next.microbatch != action.microbatch;
        let with = action.kind == Kind::Forward && list.get(at + 1).is_some_and(beside);
        out.push(if with { action.join() } else { action });
    }
    lists.close();
    lists
}

fn write(exchange: &Exchange<'_>, warmup: usize, (overlap, together): (bool, bool), out: &mut Vec<Action>) {
    let Table { forwards, backwards } = exchange.own;
    let total = forwards.len();
    let first_input = exchange.feeds_forward.is_none().then(|| Action { kind: Kind::RecvForward, ..forwards[0] });
    let first_gradient = exchange.feeds_backward.is_none().then(|| Action { kind: Kind::RecvBackward, ..backwards[0] });
    out.extend(first_input);
    for (step, &forward) in forwards[..warmup].iter().enumerate() {
        out.push(forward);
        let moves = [exchange.receive_forward(step), exchange.send(forward)];
        let turn = step + 1 == warmup && warmup < total;
        if turn && !overlap {
            batch(out, [moves[0], moves[1], first_gradient]);
        } else {
            batch(out, moves);
            out.extend(first_gradient.filter(|_| turn));
        }
    }
    for step in 0..total - warmup {
        let (forward, backward) = (forwards[warmup + step], backwards[step]);
        let there = [exchange.receive_forward(warmup + step), exchange.send(forward)];
        let back = [exchange.send(backward), exchange.receive_backward(step)];
        if overlap && together {
            out.extend([forward.join(), backward]);
            batch(out, there);
            batch(out, back);
            continue;
        }
        out.push(if together { forward.join() } else { forward });
        if overlap {
            batch(out, there);
            out.push(backward);
            batch(out, back);
        } else {
            out.push(backward);
            batch(out, [back[0], there[0], there[1], back[1]]);
        }
    }
    if warmup == total {
        out.extend(first_gradient);
    }
    for (step, &backward) in backwards.iter().enumerate().skip(total - warmup) {
        out.push(backward);
        batch(out, [exchange.send(backward), exchange.receive_backward(step)]);
    }
}

/// Adds what is not nothing as one portion.
fn batch<const N: usize>(out: &mut Vec<Action>, moves: [Option<Action>; N]) {
    let from = out.len();
    out.extend(moves.into_iter().flatten().map(Action::join));
    if let Some(last) = out[from..].last_mut() {
        last.joined = false;
    }
}
