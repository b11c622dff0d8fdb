//! The figures of a trace: of the file, of each step, and of the steps that were asked for together.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::kernels::{self, ClassRow, GapRow, KernelRow};
use crate::trace::{Classes, Format, Id, Kernel, Kind, Spent, Step, Timeline, Trace, Window};

/// Everything that is reported of a trace. Times are nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The file.
    pub file: String,
    /// Which program wrote it.
    pub format: &'static str,
    /// The rank of the process in its job.
    pub rank: Option<u32>,
    /// Ranks of the job.
    pub world: Option<u32>,
    /// From the first event to the end of the last.
    pub duration_ns: u64,
    /// GPUs or TPU cores that the file describes or that ran something.
    pub devices: Vec<DeviceRow>,
    /// Versions of software.
    pub versions: BTreeMap<String, String>,
    /// Process groups.
    pub groups: Vec<GroupRow>,
    /// How much there is of everything.
    pub counts: Counts,
    /// Steps on each device.
    pub steps: Vec<StepRow>,
    /// Which of them the rest is about.
    pub chosen: Chosen,
    /// Where the time of the chosen steps went, summed over them: the parts add up to their windows.
    pub spent: SpentRow,
    /// Kernels of the chosen steps by what they are for, the most time first.
    pub classes: Vec<ClassRow>,
    /// Kernels of the chosen steps by operator, shapes and name, the most time first.
    pub kernels: Vec<KernelRow>,
    /// What the host did while devices of the chosen steps waited for it, the most time first.
    pub host_gaps: Vec<GapRow>,
    /// What cannot be known from the file.
    pub unknown: Vec<String>,
}

/// A GPU or a TPU core.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceRow {
    /// Its number in the file.
    pub number: u32,
    /// Its name.
    pub name: Option<String>,
    /// Streaming multiprocessors.
    pub sms: Option<u32>,
    /// Memory \[B\].
    pub memory_bytes: Option<u64>,
    /// Whether the file has kernels or copies of it.
    pub ran: bool,
}

/// A process group.
#[derive(Clone, Debug, Serialize)]
pub struct GroupRow {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub purpose: Option<String>,
    /// Its size.
    pub size: Option<u32>,
    /// Its ranks, where all are listed.
    pub ranks: Vec<u32>,
}

/// How much there is of everything in a file.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Counts {
    /// Kernels that compute.
    pub compute: usize,
    /// Kernels that communicate.
    pub collectives: usize,
    /// Copies and sets.
    pub copies: usize,
    /// Kernels whose launch is in the file.
    pub launched: usize,
    /// Kernels with an operator, or an instruction of XLA's.
    pub with_operator: usize,
    /// Kernels whose operator or instruction has shapes.
    pub with_shapes: usize,
    /// Operators and ranges of the host.
    pub operators: usize,
}

/// A step on a device.
#[derive(Clone, Debug, Serialize)]
pub struct StepRow {
    /// What its mark says.
    pub name: Option<String>,
    /// The number by which it is asked for.
    pub number: u64,
    /// The device.
    pub device: u32,
    /// How long the host took.
    pub host_ns: u64,
    /// The window on the device.
    pub start_ns: u64,
    /// Its end.
    pub end_ns: u64,
    /// Whether it ends where the next step begins; else it ends with its last kernel.
    pub is_whole: bool,
    /// Where its time went.
    pub spent: SpentRow,
}

/// Where time went; the parts add up to the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SpentRow {
    /// All of it.
    pub total_ns: u64,
    /// Kernels computed, and no collective ran.
    pub compute_ns: u64,
    /// Kernels computed beside a collective.
    pub overlapped_ns: u64,
    /// Collectives ran, and nothing computed.
    pub exposed_ns: u64,
    /// Nothing but copies and sets ran.
    pub copies_ns: u64,
    /// Nothing ran, and the host had not launched the next kernel.
    pub host_late_ns: u64,
    /// Nothing ran although the next kernel was launched.
    pub waiting_ns: u64,
    /// Nothing ran, and the file does not tell when the next kernel was launched.
    pub unknown_ns: u64,
}

impl From<Spent> for SpentRow {
    fn from(spent: Spent) -> SpentRow {
        SpentRow {
            total_ns: spent.total(),
            compute_ns: spent.compute,
            overlapped_ns: spent.overlapped,
            exposed_ns: spent.exposed,
            copies_ns: spent.copies,
            host_late_ns: spent.host,
            waiting_ns: spent.waiting,
            unknown_ns: spent.unknown,
        }
    }
}

/// Which steps a report is about.
#[derive(Clone, Debug, Serialize)]
pub struct Chosen {
    /// Their numbers.
    pub steps: Vec<u64>,
    /// Windows of devices among them: means are over these.
    pub windows: usize,
    /// Whether each ends where the next step begins.
    pub are_whole: bool,
}

/// Which steps are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// All that end where the next one begins, or all, where none does.
    Whole,
    /// The one with this number.
    Number(u64),
}

/// A step that was asked for is not in the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file} has no step {number}: its steps are {known}")]
pub struct NoStep {
    file: String,
    number: u64,
    known: String,
}

impl Format {
    /// Its name for users.
    pub fn label(self) -> &'static str {
        match self {
            Format::Kineto => "PyTorch profiler (Kineto)",
            Format::Nsight => "Nsight Systems (SQLite)",
            Format::Xplane => "XLA profiler (xplane)",
            Format::XlaViewer => "XLA profiler (trace viewer)",
        }
    }
}

impl Summary {
    /// Counts what a file's trace has.
    pub fn new(file: &str, trace: &Trace, choice: Choice) -> Result<Summary, NoStep> {
        let timeline = Timeline::new(trace);
        let numbers = numbers(&trace.steps);
        let windows: Vec<(usize, Window)> = trace
            .steps
            .iter()
            .enumerate()
            .flat_map(|(at, step)| step.windows.iter().map(move |&window| (at, window)))
            .collect();
        let any_whole = windows.iter().any(|(_, window)| window.is_whole);
        let is_chosen = |at: usize, window: &Window| match choice {
            Choice::Whole => window.is_whole || !any_whole,
            Choice::Number(number) => numbers[at] == number,
        };
        let chosen: Vec<(usize, Window)> =
            windows.iter().filter(|(at, window)| is_chosen(*at, window)).copied().collect();
        if let (Choice::Number(number), true) = (choice, chosen.is_empty()) {
            let known: Vec<String> = numbers.iter().take(20).map(u64::to_string).collect();
            let more = if numbers.len() > known.len() { ", …" } else { "" };
            return Err(NoStep { file: file.to_owned(), number, known: known.join(", ") + more });
        }
        let (mut all, mut gaps, mut steps) = (Spent::default(), vec![], vec![]);
        for &(at, window) in &windows {
            let (spent, of_window) = timeline.spent(window.device, window.start, window.end);
            let step = &trace.steps[at];
            steps.push(StepRow {
                name: step.name.map(|name| trace.name(name).to_owned()),
                number: numbers[at],
                device: window.device,
                host_ns: step.duration,
                start_ns: window.start,
                end_ns: window.end,
                is_whole: window.is_whole,
                spent: spent.into(),
            });
            if is_chosen(at, &window) {
                all += spent;
                gaps.extend(of_window);
            }
        }
        let classes = Classes::new(trace);
        let is_in = |kernel: &&Kernel| {
            kernel.step.is_some_and(|step| {
                chosen.binary_search_by_key(&(step.at(), kernel.device), |(at, window)| (*at, window.device)).is_ok()
            })
        };
        let kernels: Vec<&Kernel> = trace.kernels.iter().filter(is_in).collect();
        let mut of_chosen: Vec<u64> = chosen.iter().map(|&(at, _)| numbers[at]).collect();
        of_chosen.dedup();
        Ok(Summary {
            file: file.to_owned(),
            format: trace.format.label(),
            rank: trace.rank,
            world: trace.world,
            duration_ns: trace.duration,
            devices: devices(trace, &timeline),
            versions: trace.machine.versions.iter().cloned().collect(),
            groups: groups(trace),
            counts: counts(trace),
            steps,
            chosen: Chosen {
                steps: of_chosen,
                windows: chosen.len(),
                are_whole: chosen.iter().all(|(_, window)| window.is_whole),
            },
            spent: all.into(),
            classes: kernels::classes(&classes, &kernels),
            kernels: kernels::kernels(trace, &classes, &kernels),
            host_gaps: kernels::host_gaps(trace, &gaps),
            unknown: trace.notes.clone(),
        })
    }

    /// The summary for a program.
    pub fn json(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// The numbers by which steps are asked for: their own, or their places where they have none or one thread has one twice.
fn numbers(steps: &[Step]) -> Vec<u64> {
    let mut seen = BTreeSet::new();
    let own = steps.iter().map(|step| step.number.filter(|&number| seen.insert((step.thread, number))));
    own.collect::<Option<Vec<u64>>>().unwrap_or_else(|| (0..steps.len() as u64).collect())
}

fn devices(trace: &Trace, timeline: &Timeline<'_>) -> Vec<DeviceRow> {
    let ran: Vec<u32> = timeline.devices().collect();
    let mut rows: Vec<DeviceRow> = trace
        .machine
        .devices
        .iter()
        .map(|device| DeviceRow {
            number: device.number,
            name: device.name.clone(),
            sms: device.sms,
            memory_bytes: device.memory,
            ran: ran.contains(&device.number),
        })
        .collect();
    for &number in &ran {
        if !rows.iter().any(|row| row.number == number) {
            rows.push(DeviceRow { number, name: None, sms: None, memory_bytes: None, ran: true });
        }
    }
    rows
}

fn groups(trace: &Trace) -> Vec<GroupRow> {
    let row = |group: &crate::trace::Group| GroupRow {
        name: group.name.clone(),
        purpose: group.purpose.clone(),
        size: group.size,
        ranks: group.ranks.clone(),
    };
    trace.groups.iter().map(row).collect()
}

fn counts(trace: &Trace) -> Counts {
    let of = |kind: Kind| trace.kernels.iter().filter(|kernel| kernel.kind == kind).count();
    let is_kernel = |kernel: &&Kernel| matches!(kernel.kind, Kind::Compute | Kind::Collective);
    let count =
        |is: &dyn Fn(&Kernel) -> bool| trace.kernels.iter().filter(is_kernel).filter(|kernel| is(kernel)).count();
    let has_shapes = |kernel: &Kernel| {
        let of_op = kernel.op.and_then(|id| trace.ops[id.at()].signature);
        of_op.or(kernel.instruction.and_then(|id: Id<_>| trace.instructions[id.at()].operands)).is_some()
    };
    Counts {
        compute: of(Kind::Compute),
        collectives: of(Kind::Collective),
        copies: of(Kind::Copy) + of(Kind::Set),
        launched: count(&|kernel| kernel.launch.is_some()),
        with_operator: count(&|kernel| kernel.op.is_some() || kernel.instruction.is_some()),
        with_shapes: count(&has_shapes),
        operators: trace.ops.len(),
    }
}
