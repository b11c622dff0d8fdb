//! What ranks issue that share the vocabulary (sail-sg/VocabularyParallelism@6191c3bf, `vocab_parallel_schedule.py`; the
//! interlaced pipeline is in [`interlaced`]).
//!
//! Beside the blocks' F and B a rank runs, for each micro-batch, E and D, its part of the word embedding forward and back,
//! and S, its part of the head: the backward of the micro-batch before and the forward of this one. The last rank takes
//! the loss (L).
//!
//! ```text
//! E ─ SUM_E ─► first rank's F ─ … ─ last rank's F ─ CAST_F ─► S ─ SUM_S ─► last rank's L, B ─ … ─ first rank's B ─ CAST_B ─► D
//! ```
//!
//! All of these meet on one communicator, so every rank issues them in one order, at the places in its list that leave
//! the least waiting if a backward of blocks takes two forwards (the fork takes that until it has measured).

use super::super::batching::VocabularySplit;
use super::super::{Action, Kind, Lists, Schedule, Shape};
use super::interlaced;
use super::writer::Writer;

/// The lists with all that is issued.
pub fn lower(schedule: &Schedule, split: VocabularySplit) -> Lists {
    let shape = schedule.shape();
    let mut lists = Lists::with_capacity(schedule.ranks(), 8 * schedule.lists.all().len());
    for rank in 0..shape.ranks {
        write(split, shape, rank, lists.open());
        lists.close();
    }
    lists
}

/// All that one rank issues.
pub fn write(split: VocabularySplit, shape: Shape, rank: u32, out: &mut Vec<Action>) {
    let writer = Writer::new(split, shape, rank, out);
    match split {
        VocabularySplit::Interlaced => interlaced::write(writer),
        VocabularySplit::TwoBarriers | VocabularySplit::OneBarrier => beside(writer),
    }
}

/// Where a rank puts its part of the head: between backward and forward, or between forward and backward, and whether
/// the reduction that follows comes before the next computation or after it.
///
/// From the last rank up, a forward is as late as the one below it less a forward's time f = 1, unless that is earlier than
/// a backward's time b = 2 before the last rank's: then the two change places and it moves down by b − f.
struct Place {
    /// By rank: whether the head comes after the backward.
    after_backward: Vec<bool>,
    /// By rank: how much earlier than on the last rank.
    offset: Vec<i32>,
    /// By rank: heads before the first backward, beyond the first.
    early: Vec<u32>,
}

impl Place {
    fn of(ranks: usize) -> Place {
        const FORWARD: i32 = 1;
        const BACKWARD: i32 = 2;
        let (mut after_backward, mut offset, mut at) = (vec![true], vec![0], 0);
        while after_backward.len() < ranks {
            if at - FORWARD < -BACKWARD {
                after_backward.push(false);
                offset.push(at);
                at += BACKWARD;
            }
            at -= FORWARD;
            after_backward.push(true);
            offset.push(at);
        }
        after_backward.truncate(ranks);
        offset.truncate(ranks);
        let mut early = vec![0];
        for rank in 1..ranks {
            let together = !after_backward[rank - 1] && after_backward[rank];
            early.push(early[rank - 1] + u32::from(!together));
        }
        after_backward.reverse();
        offset.reverse();
        early.reverse();
        Place { after_backward, offset, early }
    }
}

/// The reductions run beside the computation.
fn beside(mut w: Writer<'_>) {
    use Kind::*;
    let separate = w.split == VocabularySplit::TwoBarriers;
    let extra = u32::from(separate);
    let (ranks, all, rank) = (w.shape.ranks, w.shape.microbatches, w.rank as usize);
    let place = Place::of(ranks as usize);
    let (head_after_backward, offset) = (place.after_backward[rank], place.offset[rank]);
    let reduces_early = head_after_backward && offset >= -1;
    let before_last = w.rank + 2 == ranks;
    let most_early = place.early[0];
    let warmup = ranks - w.rank;
    let steady = all - warmup - 1 - extra;

    (0..=w.rank).for_each(|_| w.embed());
    for forward in 1..=warmup {
        w.call([RecvForward]);
        w.embed();
        w.add(Forward);
        if forward < warmup {
            w.call([SendForward]);
        }
    }
    w.add(ShareHidden);
    w.add(Output);
    w.add(SumOutput);
    if separate {
        w.embed();
    }
    w.call([SendForward]);
    w.call([RecvForward]);
    w.add(Forward);
    if separate {
        share_after_loss(&mut w);
        w.add(Output);
        w.add(SumOutput);
        w.call([SendForward]);
        w.call([RecvForward]);
        w.add(Forward);
    }
    for early in 1..=place.early[rank] {
        w.add(ShareHidden);
        w.add(Output);
        let embeds = early >= most_early && w.left(Embed);
        if embeds {
            w.add(Embed);
        }
        let at_once = before_last || !place.after_backward[rank + 1];
        if at_once {
            sums(&mut w, embeds);
        }
        if early == place.early[rank] {
            w.call([SendForward, RecvBackward]);
        }
        if !at_once {
            sums(&mut w, embeds);
        }
    }
    for backward in 0..all {
        let in_steady = backward < steady;
        let heads = w.done(Output);
        let head = heads < all + extra;
        // The first gradient of words is there when the first rank has gone back, and is shared as the head's input is.
        let words = heads >= most_early + 2 + extra && (in_steady || w.done(ShareGradient) < all);
        let embeds = in_steady && heads >= most_early + extra && w.left(Embed);
        let share = |w: &mut Writer<'_>| {
            if words {
                w.add(ShareGradient);
            }
            if head && !w.last() {
                w.add(ShareHidden);
            }
        };
        let part = |w: &mut Writer<'_>| {
            if head {
                w.add(Output);
            }
            if embeds {
                w.add(Embed);
            }
            if words {
                w.add(EmbedBackward);
            }
        };
        let sum = |w: &mut Writer<'_>| {
            if head {
                sums(w, embeds);
            }
        };
        if head_after_backward {
            share(&mut w);
        }
        if w.last() && w.left(Loss) {
            w.add(Loss);
            if separate || backward + 1 < all {
                w.add(ShareHidden);
            }
        }
        w.add(Backward);
        if head_after_backward {
            part(&mut w);
        }
        if w.last() && reduces_early {
            sum(&mut w);
        }
        if in_steady {
            w.call([SendBackward, RecvForward])
        } else {
            w.call([SendBackward])
        }
        if !w.last() && reduces_early {
            sum(&mut w);
        }
        if !head_after_backward {
            share(&mut w);
        }
        if in_steady {
            w.add(Forward);
        }
        if !head_after_backward {
            part(&mut w);
        }
        let next = |w: &mut Writer<'_>| {
            if in_steady {
                w.call([SendForward, RecvBackward]);
            } else if backward + 1 < all {
                w.call([RecvBackward]);
            }
        };
        if !before_last {
            next(&mut w);
        }
        if !reduces_early {
            sum(&mut w);
        }
        if before_last {
            next(&mut w);
        }
    }
    while w.left(EmbedBackward) {
        w.add(ShareGradient);
        w.add(EmbedBackward);
    }
    if !separate {
        w.add(ShareHidden);
        w.add(Output);
    }
}

/// The last rank takes the loss before it shares its gradient.
fn share_after_loss(w: &mut Writer<'_>) {
    if w.last() {
        w.add(Kind::Loss);
    }
    w.add(Kind::ShareHidden);
}

/// The reductions of the embedding, if there is one, and of the head.
fn sums(w: &mut Writer<'_>, embeds: bool) {
    if embeds {
        w.add(Kind::SumEmbed);
    }
    w.add(Kind::SumOutput);
}
