//! The predicted step of a rank, as a side.

use std::collections::BTreeMap;

use super::side::{Class, Item, Shape, Side};
use crate::engine::{Span, What};
use crate::program::{Collective, Comm, Instr, Kernel, Pass, Program, StreamId, Work};
use crate::scenario::Prediction;
use crate::units::{Bytes, Time};

/// The last step that a rank runs, of a prediction made with [`Settings::record`](crate::scenario::predict::Settings::record); `None`
/// if there is no such rank.
pub fn predicted(prediction: &Prediction, rank: u32) -> Option<Side> {
    let class = *prediction.class_of.get(rank as usize)?;
    let timeline = &prediction.timeline;
    let simulated = timeline.ranks.iter().find(|simulated| simulated.rank == rank);
    let simulated = simulated.or_else(|| timeline.ranks.iter().find(|simulated| simulated.class == class))?;
    let program = &*prediction.classes[class as usize].program;
    let last = timeline.ends.len().checked_sub(1)?;
    let spans = || timeline.spans.iter().filter(|span| span.rank == simulated.rank);
    let (own, other): (Vec<&Span>, Vec<&Span>) = spans().partition(|span| span.step as usize == last);
    let hosts = timeline.host_times.get(class as usize).map_or(&[][..], Vec::as_slice);
    let mut items = in_launch_order(program, &own, hosts);
    // As a profiler sees it: from the step's first kernel to that of the next.
    let first = items.iter().map(|item| item.start).min();
    let begin = first.unwrap_or(timeline.ends[last].saturating_sub(timeline.step));
    let end = begin + timeline.step;
    let left_over = other.into_iter().filter(|span| span.end > begin && span.reached < end);
    items.extend(left_over.map(|span| Item { own: false, ..item(program, span, None) }));
    Some(Side { begin, end, items, host: vec![] })
}

/// What ran in the step, in the order in which the host launched it: a stream runs what it is given in that order.
fn in_launch_order(program: &Program, spans: &[&Span], hosts: &[Time]) -> Vec<Item> {
    let mut streams: BTreeMap<StreamId, Vec<&Span>> = BTreeMap::new();
    for span in spans {
        streams.entry(span.stream).or_default().push(span);
    }
    let mut streams: BTreeMap<StreamId, std::vec::IntoIter<&Span>> = streams
        .into_iter()
        .map(|(stream, mut spans)| {
            spans.sort_by_key(|span| (span.reached, span.start));
            (stream, spans.into_iter())
        })
        .collect();
    let mut items = Vec::with_capacity(spans.len());
    for (at, instr) in program.step.iter().enumerate() {
        let (Instr::Launch { stream, .. } | Instr::Collective { stream, .. } | Instr::Exchange { stream, .. }) = instr
        else {
            continue;
        };
        let next = streams.get_mut(stream).and_then(Iterator::next);
        items.extend(next.map(|span| item(program, span, hosts.get(at).copied())));
    }
    // Micro-batches that repeat are not written in the program: nobody says when the host launched them.
    let rest = streams.into_values().flatten();
    items.extend(rest.map(|span| item(program, span, None)));
    items
}

fn item(program: &Program, span: &Span, launched: Option<Time>) -> Item {
    let scope = program.scope(span.scope).into();
    let stream = u32::from(span.stream.0);
    let waited = Some(span.start - span.reached);
    let (class, name, shape, pass, bytes): (Class, &str, Shape, Option<Pass>, Bytes) = match span.what {
        What::Kernel(id) => {
            let kernel = program.kernel(id);
            (class(kernel), operator(kernel.name), shape(kernel), Some(kernel.pass), moved(&kernel.work))
        }
        What::Comm(id) => {
            let comm = program.comm(id);
            (exchange(comm), comm.kind.name(), Shape::Bytes(comm.bytes.0), None, comm.bytes)
        }
        What::Exchange(id) => {
            let bytes = program.exchange(id).map(|end| end.bytes).sum();
            (Class::SendRecv, Collective::SendRecv.name(), Shape::None, None, bytes)
        }
    };
    Item {
        class,
        name: name.into(),
        head: None,
        shape,
        stream,
        start: span.reached,
        end: span.end,
        waited: waited.filter(|_| class.is_exchange()),
        behind: None,
        launched,
        scope,
        pass,
        group: "".into(),
        thread: 0,
        bytes,
        own: true,
    }
}

/// A kernel's name without what tells its variants apart.
fn operator(name: &'static str) -> &'static str {
    name.split_once(" (").map_or(name, |(operator, _)| operator)
}

fn class(kernel: &Kernel) -> Class {
    match kernel.work {
        // Whatever the optimizer computes is its own, as a profiler tells it by the range around its step.
        Work::Matmul { .. } | Work::Memory { .. } | Work::HostMemory { .. } if kernel.pass == Pass::Optimizer => {
            Class::Optimizer
        }
        Work::Matmul { .. } => Class::Matmul,
        // Batches of matmuls of one shape are no groups of unlike ones.
        Work::GroupedMatmul { .. } if kernel.name.contains("bmm") => Class::Matmul,
        Work::GroupedMatmul { .. } => Class::GroupedMatmul,
        Work::Attention { .. } => Class::Attention,
        Work::HostCopy { .. } | Work::Disk { .. } => Class::Copy,
        Work::Memory { .. } | Work::HostMemory { .. } => Class::Memory,
    }
}

fn shape(kernel: &Kernel) -> Shape {
    match kernel.work {
        // Batches of matmuls are counted in several ways: their name has to do.
        Work::Matmul { .. } if kernel.name.contains("bmm") => Shape::None,
        Work::Matmul { m, n, k, .. } => Shape::matmul(m, n, k),
        Work::Attention { shape, backward, .. } => {
            Shape::attention([shape.batch, shape.queries, shape.heads, shape.head_dim], backward)
        }
        _ => Shape::None,
    }
}

fn moved(work: &Work) -> Bytes {
    match *work {
        Work::HostCopy { bytes, .. } | Work::Disk { bytes, .. } => bytes,
        _ => Bytes(0),
    }
}

fn exchange(comm: &Comm) -> Class {
    match comm.kind {
        Collective::AllGather => Class::AllGather,
        Collective::ReduceScatter => Class::ReduceScatter,
        Collective::AllReduce => Class::AllReduce,
        Collective::AllToAll | Collective::Rows(_) => Class::AllToAll,
        Collective::Broadcast => Class::Broadcast,
        Collective::SendRecv => Class::SendRecv,
    }
}
