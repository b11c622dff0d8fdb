//! Where a window of a device's time went, in parts that add up to it exactly.
//!
//! At each moment the device computes, communicates, both, copies, or is idle. Idle time before a kernel is the host's as long as
//! the launch had not begun; from there on, something else kept the kernel waiting: its launch, another stream, a full queue.

use std::collections::BTreeMap;

use super::id::Id;
use super::parts::{Kernel, Kind, Trace};

/// Where time went \[ns\].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Kernels computed, and no collective ran.
    pub compute: u64,
    /// Kernels computed beside a collective.
    pub overlapped: u64,
    /// Collectives ran, and nothing computed.
    pub exposed: u64,
    /// Nothing but copies and sets ran.
    pub copies: u64,
    /// Nothing ran, and the host had not launched the next kernel yet.
    pub host: u64,
    /// Nothing ran although the next kernel was launched.
    pub waiting: u64,
    /// Nothing ran, and the file does not tell when the next kernel was launched.
    pub unknown: u64,
}

impl Spent {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.busy().saturating_add(self.idle())
    }

    /// While something ran.
    pub fn busy(&self) -> u64 {
        [self.compute, self.overlapped, self.exposed, self.copies].into_iter().fold(0, u64::saturating_add)
    }

    /// While nothing ran.
    pub fn idle(&self) -> u64 {
        [self.host, self.waiting, self.unknown].into_iter().fold(0, u64::saturating_add)
    }
}

impl std::ops::AddAssign for Spent {
    fn add_assign(&mut self, other: Spent) {
        let add = |to: &mut u64, more: u64| *to = to.saturating_add(more);
        add(&mut self.compute, other.compute);
        add(&mut self.overlapped, other.overlapped);
        add(&mut self.exposed, other.exposed);
        add(&mut self.copies, other.copies);
        add(&mut self.host, other.host);
        add(&mut self.waiting, other.waiting);
        add(&mut self.unknown, other.unknown);
    }
}

/// A time in which a device had nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// When it began \[ns\].
    pub start: u64,
    /// When it ended \[ns\].
    pub end: u64,
    /// Until when the host had not launched what comes next \[ns\]; none where the file does not tell.
    pub launched: Option<u64>,
    /// What came next; none at the end of the trace.
    pub next: Option<Id<Kernel>>,
}

/// Kernels of each device, for windows that are asked for one after the other.
pub struct Timeline<'a> {
    trace: &'a Trace,
    devices: BTreeMap<u32, Device>,
}

/// Kernels of a device.
#[derive(Default)]
struct Device {
    /// By start.
    kernels: Vec<Id<Kernel>>,
    /// For each, when it and all before it had ended \[ns\].
    ended: Vec<u64>,
}

impl<'a> Timeline<'a> {
    /// Of a trace.
    pub fn new(trace: &'a Trace) -> Timeline<'a> {
        let mut devices: BTreeMap<u32, Device> = BTreeMap::new();
        for (at, kernel) in trace.kernels.iter().enumerate() {
            let device = devices.entry(kernel.device).or_default();
            let before = device.ended.last().copied().unwrap_or(0);
            device.kernels.push(Id::new(at));
            device.ended.push(before.max(kernel.end()));
        }
        Timeline { trace, devices }
    }

    /// Devices that ran something.
    pub fn devices(&self) -> impl Iterator<Item = u32> {
        self.devices.keys().copied()
    }

    /// Where a device's time from `start` to `end` went, and its gaps.
    pub fn spent(&self, device: u32, start: u64, end: u64) -> (Spent, Vec<Gap>) {
        let nothing = Device::default();
        let of = self.devices.get(&device).unwrap_or(&nothing);
        let mut gaps = vec![];
        let mut spent = Spent::default();
        let mut running = [0usize; 3];
        let mut now = start;
        for (time, begins, kind) in self.edges(of, start, end).into_iter().chain(std::iter::once((end, true, COPY))) {
            let passed = time.saturating_sub(now);
            if passed > 0 {
                match running {
                    [0, 0, 0] => gaps.push(self.gap(of, now, time)),
                    [0, 0, _] => spent.copies += passed,
                    [0, ..] => spent.exposed += passed,
                    [_, 0, _] => spent.compute += passed,
                    _ => spent.overlapped += passed,
                }
            }
            running[kind] = if begins { running[kind] + 1 } else { running[kind].saturating_sub(1) };
            now = time;
        }
        for gap in &gaps {
            match gap.launched {
                Some(launched) => {
                    spent.host += launched - gap.start;
                    spent.waiting += gap.end - launched;
                }
                None => spent.unknown += gap.end - gap.start,
            }
        }
        (spent, gaps)
    }

    /// Begins and ends of kernels inside a window, by what runs.
    fn edges(&self, of: &Device, start: u64, end: u64) -> Vec<(u64, bool, usize)> {
        let kernels = &self.trace.kernels;
        let first = of.ended.partition_point(|&ended| ended <= start);
        let mut edges = vec![];
        for kernel in of.kernels[first..].iter().map(|id| &kernels[id.at()]).take_while(|kernel| kernel.start < end) {
            let (from, to) = (kernel.start.max(start), kernel.end().min(end));
            if from < to {
                let kind = match kernel.kind {
                    Kind::Compute => 0,
                    Kind::Collective => 1,
                    Kind::Copy | Kind::Set => COPY,
                };
                edges.extend([(from, true, kind), (to, false, kind)]);
            }
        }
        // Where one ends and another begins, the end comes first.
        edges.sort_unstable();
        edges
    }

    /// A gap, with the kernel that ended it: of those that begin there, the first to be launched.
    fn gap(&self, of: &Device, start: u64, end: u64) -> Gap {
        let kernel = |id: &Id<Kernel>| &self.trace.kernels[id.at()];
        let launch = |id: &Id<Kernel>| kernel(id).launch.map(|id| self.trace.calls[id.at()].start);
        let first = of.kernels.partition_point(|id| kernel(id).start < end);
        let at_end = of.kernels[first..].iter().take_while(|id| kernel(id).start == end);
        let next = at_end.min_by_key(|id| launch(id).unwrap_or(u64::MAX));
        let launched = next.and_then(launch).map(|launched| launched.clamp(start, end));
        Gap { start, end, launched, next: next.copied() }
    }
}

/// Where copies and sets are counted.
const COPY: usize = 2;

#[cfg(test)]
mod tests {
    use super::super::parts::{Call, CallKind};
    use super::*;
    use proptest::prelude::*;

    fn traced(kernels: &[(Kind, u64, u64, Option<u64>)]) -> Trace {
        let mut trace = Trace::default();
        for &(kind, start, duration, launched) in kernels {
            let launch = launched.map(|start| {
                let call = Call { name: Id::new(0), kind: CallKind::Launch, thread: Id::new(0), start, duration: 1 };
                trace.calls.push(call);
                Id::new(trace.calls.len() - 1)
            });
            trace.kernels.push(Kernel {
                name: Id::new(0),
                kind,
                in_graph: false,
                device: 0,
                stream: 0,
                start,
                duration,
                grid: [0; 3],
                block: [0; 3],
                bytes: None,
                launch,
                op: None,
                range: None,
                step: None,
                collective: None,
                instruction: None,
            });
        }
        trace.kernels.sort_by_key(|kernel| kernel.start);
        trace
    }

    #[test]
    fn a_gap_is_the_hosts_until_the_launch() {
        let kernels = [
            (Kind::Compute, 10, 10, Some(0)),
            (Kind::Compute, 50, 10, Some(35)),
            (Kind::Collective, 55, 20, Some(30)),
            (Kind::Copy, 80, 5, None),
        ];
        let (spent, gaps) = Timeline::new(&traced(&kernels)).spent(0, 10, 90);
        let expected = Spent { compute: 15, overlapped: 5, exposed: 15, copies: 5, host: 15, waiting: 15, unknown: 10 };
        assert_eq!(spent, expected);
        assert_eq!(spent.total(), 80);
        assert_eq!(gaps.len(), 3);
    }

    /// The same, one nanosecond at a time.
    fn slowly(trace: &Trace, start: u64, end: u64) -> Spent {
        let mut spent = Spent::default();
        for now in start..end {
            let runs = |kinds: &[Kind]| {
                trace.kernels.iter().any(|k| kinds.contains(&k.kind) && k.start <= now && now < k.end())
            };
            match (runs(&[Kind::Compute]), runs(&[Kind::Collective]), runs(&[Kind::Copy, Kind::Set])) {
                (true, false, _) => spent.compute += 1,
                (true, true, _) => spent.overlapped += 1,
                (false, true, _) => spent.exposed += 1,
                (false, false, true) => spent.copies += 1,
                (false, false, false) => {
                    let is_next = |k: &&Kernel| k.start > now && (k.duration > 0 && k.start < end || k.start == end);
                    let begin = trace.kernels.iter().filter(is_next).map(|k| k.start).min();
                    let launches = trace.kernels.iter().filter(|k| Some(k.start) == begin);
                    match launches.filter_map(|k| k.launch.map(|id| trace.calls[id.at()].start)).min() {
                        Some(launch) if now < launch => spent.host += 1,
                        Some(_) => spent.waiting += 1,
                        None => spent.unknown += 1,
                    }
                }
            }
        }
        spent
    }

    proptest! {
        #[test]
        fn parts_of_any_window_add_up_to_it(
            kernels in prop::collection::vec(
                (
                    prop_oneof![Just(Kind::Compute), Just(Kind::Collective), Just(Kind::Copy), Just(Kind::Set)],
                    0..200u64,
                    0..30u64,
                    prop::option::of(0..200u64),
                ),
                0..20,
            ),
            window in (0..100u64, 0..150u64),
        ) {
            let trace = traced(&kernels);
            let (start, end) = (window.0, window.0 + window.1);
            let (spent, gaps) = Timeline::new(&trace).spent(0, start, end);
            prop_assert_eq!(spent.total(), end - start);
            prop_assert_eq!(gaps.iter().map(|gap| gap.end - gap.start).sum::<u64>(), spent.idle());
            prop_assert_eq!(spent, slowly(&trace, start, end));
        }
    }
}
