//! What runs on one row of the timeline, and how spans that are too short to be seen are shown as one.
//!
//! Spans shorter than a resolution are merged with those of their kind that follow, so long as all of them lie within one resolution;
//! of several kinds, so long as they lie within an eighth of it, for what alternates must not look like one kind. So the number of marks
//! in a row has a bound whatever runs there, and marks never overlap. The resolution is the finest at which all rows together stay
//! within a budget ([`resolution`]).

use crate::engine::Span;
use crate::units::Time;

/// Kinds of work, in the order of the legend: the passes of kernels, and what communicates. The class on the page is `k` and the
/// place here.
pub(super) const KINDS: [&str; 9] =
    ["forward", "backward", "recompute", "communication", "optimizer", "collective", "message", "phase", "step before"];

/// What part of a resolution different kinds may share.
const MIXED: u64 = 8;

/// Something that runs from a beginning to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    pub(super) start: Time,
    pub(super) end: Time,
    /// A place in [`KINDS`].
    pub(super) kind: usize,
    pub(super) what: What<'a>,
}

/// What a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What<'a> {
    Span(&'a Span),
    Phase(&'a str),
}

impl Piece<'_> {
    fn length(&self) -> Time {
        self.end - self.start
    }
}

/// One piece, or several that are shown as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) start: Time,
    pub(super) end: Time,
    /// Time in which any of them runs.
    pub(super) busy: Time,
    pub(super) count: usize,
    /// The longest piece, an index into the row.
    pub(super) longest: usize,
    /// The kind that most time goes to.
    pub(super) kind: usize,
}

/// A mark in the making.
struct Heap {
    mark: Mark,
    by_kind: [u64; KINDS.len()],
}

/// The marks of a row, at a resolution; pieces come in order and do not overlap.
pub(super) fn marks(pieces: &[Piece<'_>], resolution: Time) -> Vec<Mark> {
    let mut marks = vec![];
    let mut open: Option<Heap> = None;
    for (index, piece) in pieces.iter().enumerate() {
        let small = piece.length() < resolution;
        let joins = |heap: &Heap| {
            let pure = heap.by_kind[piece.kind] == heap.mark.busy.0;
            small && piece.end - heap.mark.start <= if pure { resolution } else { Time(resolution.0 / MIXED) }
        };
        match &mut open {
            Some(heap) if joins(heap) => {
                heap.by_kind[piece.kind] += piece.length().0;
                let most = (0..KINDS.len()).max_by_key(|&kind| (heap.by_kind[kind], kind == heap.mark.kind));
                let mark = &mut heap.mark;
                mark.end = piece.end;
                mark.busy += piece.length();
                mark.count += 1;
                mark.kind = most.unwrap_or(mark.kind);
                if piece.length() > pieces[mark.longest].length() {
                    mark.longest = index;
                }
            }
            _ => {
                marks.extend(open.take().map(|heap| heap.mark));
                let (start, end) = (piece.start, piece.end);
                let mark = Mark { start, end, busy: piece.length(), count: 1, longest: index, kind: piece.kind };
                let mut by_kind = [0; KINDS.len()];
                by_kind[piece.kind] = piece.length().0;
                if small { open = Some(Heap { mark, by_kind }) } else { marks.push(mark) }
            }
        }
    }
    marks.extend(open.map(|heap| heap.mark));
    marks
}

/// The finest resolution at which rows have no more marks than a budget.
pub(super) fn resolution(rows: &[&[Piece<'_>]], length: Time, budget: usize) -> Time {
    let mut resolution = Time::ZERO;
    loop {
        let all: usize = rows.iter().map(|row| marks(row, resolution).len()).sum();
        if all <= budget || resolution.0 >= length.0.saturating_mul(MIXED) {
            return resolution;
        }
        resolution =
            if resolution == Time::ZERO { Time((length.0 >> 17).max(1)) } else { Time(resolution.0 * 3 / 2 + 1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(spans: &[(u64, u64, usize)]) -> Vec<Piece<'static>> {
        let piece = |&(start, end, kind)| Piece { start: Time(start), end: Time(end), kind, what: What::Phase("") };
        spans.iter().map(piece).collect()
    }

    #[test]
    fn what_is_too_short_is_merged_and_nothing_else() {
        let row = row(&[(0, 50, 0), (50, 52, 1), (53, 56, 1), (56, 57, 0), (57, 90, 0), (95, 96, 2), (97, 103, 0)]);
        let marks = marks(&row, Time(10));
        let shown: Vec<_> = marks.iter().map(|mark| (mark.start.0, mark.end.0, mark.count, mark.kind)).collect();
        assert_eq!(
            shown,
            [(0, 50, 1, 0), (50, 56, 2, 1), (56, 57, 1, 0), (57, 90, 1, 0), (95, 96, 1, 2), (97, 103, 1, 0)]
        );
        assert_eq!((marks[1].busy, marks[1].longest), (Time(5), 2));
    }

    #[test]
    fn any_number_of_spans_fits_a_budget_and_loses_no_time() {
        let many: Vec<_> = (0..20_000).map(|at| (10 * at, 10 * at + 1 + at % 9, (at % 5) as usize)).collect();
        let row = row(&many);
        let length = Time(200_000);
        for budget in [10, 300, 20_000] {
            let marks = marks(&row, resolution(&[&row], length, budget));
            assert!(marks.len() <= budget);
            assert!(marks.windows(2).all(|pair| pair[0].end <= pair[1].start));
            assert_eq!(marks.iter().map(|mark| mark.count).sum::<usize>(), row.len());
            let busy = |times: &mut dyn Iterator<Item = Time>| times.map(|time| time.0).sum::<u64>();
            assert_eq!(busy(&mut marks.iter().map(|mark| mark.busy)), busy(&mut row.iter().map(Piece::length)));
        }
    }
}
