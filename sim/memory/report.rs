//! What a replay of a step's memory says: peaks, what they are made of, and what lives at the highest.

use super::caching::OutOfMemory;
use super::calls::DeviceCalls;
use crate::program::{Buffer, Category, Instr, Owner, Program, Rename};
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
    /// Bytes asked for, all together.
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
    /// Bytes by category at the peak.
    pub breakdown: Breakdown,
    /// Where among the step's instructions most bytes are asked for; none where a request failed in the step itself.
    #[doc(hidden)]
    pub peak_at: Option<usize>,
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
    /// Calls to the device for memory in the reported step.
    #[doc(hidden)]
    pub calls: DeviceCalls,
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
        self.peak_at.map_or(vec![], |at| live_at(program, at))
    }

    /// Bytes that are live at the peak by category and by the part of the model that asked for them, each in declaration order.
    #[doc(hidden)]
    pub fn by_owner(&self, program: &Program) -> [[u64; Owner::COUNT]; Category::COUNT] {
        let mut sums = [[0; Owner::COUNT]; Category::COUNT];
        let at = self.peak_at.map(|at| blocks_at(program, at));
        for (category, buffer) in at.iter().flat_map(|live| named(program, live)) {
            sums[category as usize][buffer.scope.part()] += buffer.bytes.0;
        }
        sums
    }
}

/// The category of each buffer that is live at a position of the steady step.
fn blocks_at(program: &Program, position: usize) -> Vec<Option<Category>> {
    let mut live: Vec<Option<Category>> = vec![None; program.buffers.len()];
    let last = &program.step[..program.step.len().min(position + 1)];
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

/// Live buffers, with their categories.
fn named<'p>(program: &'p Program, live: &[Option<Category>]) -> impl Iterator<Item = (Category, &'p Buffer)> {
    live.iter().zip(program.buffers.iter()).filter_map(|(category, buffer)| category.map(|category| (category, buffer)))
}

/// What is live at a position of the steady step, by operator and category, largest first.
fn live_at(program: &Program, position: usize) -> Vec<Live> {
    let live = blocks_at(program, position);
    // A few dozen kinds; neighbours mostly are of one kind, so the last one found is tried first.
    let mut list: Vec<Live> = vec![];
    let mut last = 0;
    for (category, buffer) in named(program, &live) {
        let same = |entry: &Live| entry.category == category && entry.name == buffer.name;
        if !list.get(last).is_some_and(same) {
            last = list.iter().position(same).unwrap_or_else(|| {
                list.push(Live { name: buffer.name, category, count: 0, bytes: Bytes(0) });
                list.len() - 1
            });
        }
        list[last].count += 1;
        list[last].bytes += buffer.bytes;
    }
    list.sort_by_key(|live| (std::cmp::Reverse(live.bytes), live.category, live.name));
    list
}
