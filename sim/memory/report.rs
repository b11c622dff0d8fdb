//! What a replay of a step's memory says: peaks, what they are made of, and what lives at the highest.

use super::caching::OutOfMemory;
use super::calls::DeviceCalls;
use super::granted::Granted;
use crate::program::{Buffer, BufferId, Category, Instr, Owner, Program, Rename};
use crate::units::Bytes;

/// Bytes by category.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Breakdown {
    pub(super) totals: [u64; Category::COUNT],
}

impl Breakdown {
    /// Of totals by category, in declaration order.
    pub(super) fn of(totals: &[u64]) -> Breakdown {
        let mut breakdown = Breakdown::default();
        breakdown.totals.iter_mut().zip(totals).for_each(|(slot, total)| *slot = *total);
        breakdown
    }

    /// Bytes of one category.
    pub fn bytes(&self, category: Category) -> Bytes {
        Bytes(self.totals[category as usize])
    }

    /// All categories with anything in them, largest first.
    pub fn sorted(&self) -> Vec<(Category, Bytes)> {
        let mut list: Vec<_> = Category::ALL.iter().copied().map(|category| (category, self.bytes(category))).collect();
        list.retain(|(_, bytes)| bytes.0 > 0);
        list.sort_by_key(|&(category, bytes)| (std::cmp::Reverse(bytes), category));
        list
    }

    /// The sum.
    pub fn total(&self) -> Bytes {
        Bytes(self.totals.iter().sum())
    }
}

/// One phase of the reported step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// `fwd`, `bwd`, `clip`, `opt`, `zero`, numbered where there are several micro-batches.
    pub name: String,
    /// Most bytes in blocks handed out.
    pub peak_allocated: Bytes,
    /// Bytes in blocks handed out at its end.
    pub end_allocated: Bytes,
    /// Most bytes asked for.
    pub peak_requested: Bytes,
    /// Bytes asked for by category, at the moment of the most.
    pub breakdown: Breakdown,
}

/// A hook of a parameter group, as it passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookSample {
    /// The hook.
    pub hook: &'static str,
    /// The group's module.
    pub group: String,
    /// Bytes allocated now.
    pub now: Bytes,
    /// Most bytes allocated since the previous sample.
    pub peak: Bytes,
}

/// A tensor live at the peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// Operator or parameter.
    pub name: &'static str,
    /// Category.
    pub category: Category,
    /// Number of such blocks.
    pub count: u64,
    /// Bytes of their blocks, all together.
    pub bytes: Bytes,
}

/// The memory of a step.
#[derive(Clone, Debug)]
pub struct MemoryReport {
    /// Most bytes in blocks handed out, over the reported step (`max_memory_allocated`).
    pub peak_allocated: Bytes,
    /// Most bytes taken from the device (`max_memory_reserved`).
    pub peak_reserved: Bytes,
    /// The phase of the peak.
    pub peak_phase: String,
    /// Bytes of the blocks handed out at the peak, by category: they sum to it.
    pub breakdown: Breakdown,
    /// How many of the step's instructions have run when most bytes are allocated; none where a request failed in the step itself.
    #[doc(hidden)]
    pub peak_at: Option<usize>,
    /// How large each buffer's block is at the peak.
    #[doc(hidden)]
    pub granted: Granted,
    /// How many like it lie beside a buffer then, from rounds that are not written.
    #[doc(hidden)]
    pub beside: Vec<(BufferId, u64)>,
    /// Phases of the reported step.
    pub phases: Vec<Phase>,
    /// Hooks of the reported step, with phase ends in between (`phase_end`).
    #[doc(hidden)]
    pub hooks: Vec<HookSample>,
    /// Bytes taken from the device, by stream.
    #[doc(hidden)]
    pub reserved_by_stream: Vec<Bytes>,
    /// How often cached segments had to be given back in the reported step.
    pub retries: u32,
    /// Whether the device ever had too little for a request, in any step: without that, its size changed nothing.
    #[doc(hidden)]
    pub met_limit: bool,
    /// Calls to the device for memory in the reported step.
    #[doc(hidden)]
    pub calls: DeviceCalls,
    /// Whether the step has rounds that are neither written nor like one that is: then this is the memory of those that are.
    #[doc(hidden)]
    pub rounds_missing: bool,
    /// Whether a compiler gave memory out before the program ran: what does not fit is refused then.
    pub compiled: bool,
    /// The request that failed, if one did, with the step it failed in.
    #[doc(hidden)]
    pub out_of_memory: Option<(OutOfMemory, u32)>,
}

impl MemoryReport {
    /// What of the program is live at the peak, largest first.
    #[doc(hidden)]
    pub fn live(&self, program: &Program) -> Vec<Live> {
        live(self.at_peak(program).into_iter())
    }

    /// Bytes that are live at the peak by category and by the part of the model that asked for them, each in declaration order.
    #[doc(hidden)]
    pub fn by_owner(&self, program: &Program) -> [[u64; Owner::COUNT]; Category::COUNT] {
        let mut sums = [[0; Owner::COUNT]; Category::COUNT];
        for (category, buffer, bytes) in self.at_peak(program) {
            sums[category as usize][buffer.scope.part()] += bytes.0;
        }
        sums
    }

    /// Buffers that are live at the peak, with their categories and the bytes of their blocks.
    fn at_peak<'p>(&self, program: &'p Program) -> Vec<(Category, &'p Buffer, Bytes)> {
        let Some(at) = self.peak_at else { return vec![] };
        let sizes = self.granted.sizes();
        let block = |at: usize, buffer: &Buffer| sizes.get(at).map_or(buffer.bytes, |&size| Bytes(size));
        let live = blocks_at(program, at).into_iter().zip(program.buffers.iter()).enumerate();
        let live =
            live.filter_map(|(at, (category, buffer))| category.map(|category| (category, buffer, block(at, buffer))));
        let beside = self.beside.iter().flat_map(|&(id, count)| {
            let buffer = program.buffer(id);
            (0..count).map(move |_| (buffer.category, buffer, block(id.0 as usize, buffer)))
        });
        live.chain(beside).collect()
    }
}

/// The category of each buffer that is live once so many instructions of the steady step have run.
fn blocks_at(program: &Program, instructions: usize) -> Vec<Option<Category>> {
    let mut live: Vec<Option<Category>> = vec![None; program.buffers.len()];
    let last = &program.step[..program.step.len().min(instructions)];
    for instr in program.before_second().chain(last) {
        match *instr {
            Instr::Alloc { buffer } => live[buffer.0 as usize] = Some(program.buffer(buffer).category),
            Instr::Free { buffer } => live[buffer.0 as usize] = None,
            Instr::Rename { rename } => {
                let Rename { from, to } = program.rename(rename);
                live[to.0 as usize] = live[from.0 as usize].take();
            }
            Instr::Recategorize { buffer, category } => {
                if let Some(known) = &mut live[buffer.0 as usize] {
                    *known = category;
                }
            }
            _ => {}
        }
    }
    live
}

/// What is live, by operator and category, largest first.
fn live<'p>(buffers: impl Iterator<Item = (Category, &'p Buffer, Bytes)>) -> Vec<Live> {
    // A few dozen kinds; neighbours mostly are of one kind, so the last one found is tried first.
    let mut list: Vec<Live> = vec![];
    let mut last = 0;
    for (category, buffer, bytes) in buffers {
        let same = |entry: &Live| entry.category == category && entry.name == buffer.name;
        if !list.get(last).is_some_and(same) {
            last = list.iter().position(same).unwrap_or_else(|| {
                list.push(Live { name: buffer.name, category, count: 0, bytes: Bytes(0) });
                list.len() - 1
            });
        }
        list[last].count += 1;
        list[last].bytes += bytes;
    }
    list.sort_by_key(|live| (std::cmp::Reverse(live.bytes), live.category, live.name));
    list
}
