//! The interlaced pipeline: every exchange over the vocabulary is waited for (sail-sg/VocabularyParallelism@6191c3bf,
//! `interlaced_schedule.py`, after Lin et al. 2024, nnScaler).
//!
//! All ranks run their parts of the head at the same time, forward and backward in one. Of two neighbours one goes forward
//! and then back between two heads (F B S), the other back and then forward (B F S).

use super::super::Kind::{self, *};
use super::writer::Writer;

/// All that one rank issues.
pub(super) fn write(mut w: Writer<'_>) {
    let (ranks, all, rank) = (w.shape.ranks, w.shape.microbatches, w.rank);
    let warmup = ranks * 3 / 2 - rank;
    let cooldown = ranks - rank;
    let waiting = warmup - cooldown - (ranks - rank - 1) / 2;
    let forward_first = rank.is_multiple_of(2);

    (0..=rank).for_each(|_| embed(&mut w));
    for forward in 1..=warmup {
        w.call([RecvForward]);
        embed(&mut w);
        w.add(Forward);
        if forward < warmup {
            w.call([SendForward]);
        }
    }
    for _ in 0..cooldown {
        head(&mut w);
        if w.done(Output) >= ranks && w.left(Embed) {
            embed(&mut w);
        }
    }
    for step in 1..=waiting {
        w.call([RecvBackward]);
        if step == waiting && forward_first {
            w.call([SendForward]);
        }
        w.add(Backward);
        head(&mut w);
        words(&mut w);
        if step < waiting {
            w.call([SendBackward]);
        }
    }
    for _ in warmup..all {
        if forward_first {
            w.call([RecvBackward]);
            w.call([SendBackward, RecvForward]);
            w.add(Forward);
            w.call([SendForward]);
            w.add(Backward);
            if !w.last() {
                wait_send(&mut w);
            }
        } else {
            w.call([SendBackward]);
            w.call([SendForward, RecvBackward]);
            w.add(Backward);
            w.call([RecvForward]);
            w.add(Forward);
        }
        head(&mut w);
        words(&mut w);
    }
    while w.left(Backward) {
        if forward_first {
            w.call([RecvBackward]);
            w.call([SendBackward]);
        } else {
            w.call([SendBackward]);
            if w.left(SendForward) { w.call([SendForward, RecvBackward]) } else { w.call([RecvBackward]) }
        }
        w.add(Backward);
        if w.left(Output) {
            head(&mut w);
        }
        gradient(&mut w);
    }
    w.call([SendBackward]);
    while w.left(EmbedBackward) {
        gradient(&mut w);
    }
}

/// The last rank's result goes to all, each of which runs its part of the head.
fn head(w: &mut Writer<'_>) {
    w.add(ShareHidden);
    w.add(Output);
}

fn embed(w: &mut Writer<'_>) {
    w.embed();
    w.add(WaitSumEmbed);
}

fn gradient(w: &mut Writer<'_>) {
    if w.left(EmbedBackward) {
        w.add(ShareGradient);
        w.add(EmbedBackward);
    }
}

/// After a head: the next words, and the gradient of those whose first stage has gone back; both at once while there are
/// both.
fn words(w: &mut Writer<'_>) {
    let heads = w.done(Output);
    let (forward, backward) = (heads >= w.shape.ranks && w.left(Embed), heads >= w.shape.ranks + 2);
    match (forward, backward) {
        (true, true) => {
            [ShareGradient, Embed, SumEmbed, EmbedBackward, WaitSumEmbed].into_iter().for_each(|kind| w.add(kind))
        }
        (true, false) => embed(w),
        (false, true) => gradient(w),
        (false, false) => {}
    }
}

/// The send that stood beside the backward is waited for.
fn wait_send(w: &mut Writer<'_>) {
    w.add_as(Kind::WaitSendForward, w.done(SendForward) - 1);
}
