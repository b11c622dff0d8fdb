//! What a device holds: the allocator's peak, and what lies outside it.

use rayon::prelude::*;

use super::host::{Host, Verdict};
use crate::memory::{self, MemoryReport};
use crate::plan::Parts;
use crate::program::{Discipline, Program};
use crate::runtime::Flight;
use crate::scenario::Scenario;
use crate::scenario::remedy::Remedy;
use crate::units::Bytes;

/// Memory of one device at the peak of a step.
///
/// Three answers must not be confused. *Allocated* is what tensors occupy in blocks of the allocator. *Reserved* is what the allocator
/// took from the device. *Device total* adds what lives outside the allocator, such as the CUDA context.
///
/// ```
/// use windtunnel::{Category, Scenario};
///
/// let scenario = Scenario::builder("two layers on a node")
///     .runtime("fsdp2")
///     .topology("h100-sxm-80gb")
///     .nodes(1)
///     .model("llama-3.1-8b")
///     .set("model.layers", 2)
///     .sequence(2048)
///     .build()?;
/// let memory = scenario.predict()?.memory;
/// assert!(memory.fits());
/// println!("{} of {}", memory.device_total(), memory.capacity);
/// for (category, bytes) in memory.report.breakdown.sorted() {
///     println!("{:24} {bytes}", category.label());
/// }
/// let activations = memory.report.breakdown.bytes(Category::Activation);
/// assert!(activations < memory.report.peak_allocated);
/// # Ok::<(), windtunnel::ScenarioError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DeviceMemory {
    /// Allocated and reserved, with breakdowns.
    pub report: MemoryReport,
    /// Outside the allocator: CUDA context and communicators.
    pub outside: Bytes,
    /// What the device has.
    pub capacity: Bytes,
    /// Reserved without any limit, plus what is outside: what the plan would like to have.
    pub wanted: Bytes,
    /// How far the total may be off: a plan with less to spare fits only perhaps.
    pub doubt: Bytes,
    /// What that is about, in words.
    pub doubtful: String,
    /// Whether the plan runs in the device's memory.
    pub on_device: bool,
    /// What of the host's memory its node's ranks take, if any.
    pub host: Option<Host>,
    /// Changes that would make it fit, if it does not.
    pub remedies: Vec<Remedy>,
}

impl DeviceMemory {
    /// Reserved plus what is outside the allocator.
    pub fn device_total(&self) -> Bytes {
        self.report.peak_reserved + self.outside
    }

    /// Whether device or host are known to have too little.
    pub fn refused(&self) -> bool {
        !self.on_device || self.host_lacks()
    }

    fn host_lacks(&self) -> bool {
        self.host.is_some_and(|host| host.lacks() == Some(true))
    }

    /// Whether the plan runs, as far as is known of device and host.
    pub fn fits(&self) -> bool {
        matches!(self.verdict(), Verdict::Yes | Verdict::Perhaps)
    }

    /// Whether the plan runs however far the total is off.
    pub fn fits_beyond_doubt(&self) -> bool {
        self.verdict() == Verdict::Yes
    }

    /// Whether the plan may run though it is said not to.
    pub fn may_fit(&self) -> bool {
        self.verdict() == Verdict::Hardly
    }

    /// Whether it runs, in a word.
    pub fn verdict(&self) -> Verdict {
        let room = self.capacity.saturating_sub(self.device_total()) > self.doubt;
        match self.host {
            _ if self.host_lacks() => Verdict::No,
            _ if !self.on_device && self.shortfall() <= self.doubt => Verdict::Hardly,
            _ if !self.on_device => Verdict::No,
            Some(host) if host.lacks().is_none() => Verdict::Unknown,
            Some(host) if !host.suffices_beyond_doubt() => Verdict::Perhaps,
            _ if room => Verdict::Yes,
            _ => Verdict::Perhaps,
        }
    }

    /// How much is missing.
    pub fn shortfall(&self) -> Bytes {
        self.wanted.saturating_sub(self.capacity)
    }
}

/// Whether two runs need the same memory, class by class.
pub(super) fn agree(one: &[DeviceMemory], other: &[DeviceMemory]) -> bool {
    let needs = |devices: &[DeviceMemory]| -> Vec<[Bytes; 3]> {
        let need = |device: &DeviceMemory| [device.report.peak_allocated, device.report.peak_reserved, device.wanted];
        devices.iter().map(need).collect()
    };
    needs(one) == needs(other)
}

/// Memory of each class's devices, and which class has the least to spare. Ranks of one program are replayed once.
pub(super) fn devices(scenario: &Scenario, flight: &Flight) -> (Vec<DeviceMemory>, usize) {
    let classes = &flight.classes;
    let alike = |class: usize| (0..class).find(|&earlier| asks_alike(&classes[earlier], &classes[class]));
    let first: Vec<usize> = (0..classes.len()).into_par_iter().map(|class| alike(class).unwrap_or(class)).collect();
    let replay = |class: usize| (first[class] == class).then(|| device(scenario, &classes[class]));
    // Each is a task of its own: handed out in bunches, the last bunch would be left to one thread.
    let replayed: Vec<Option<DeviceMemory>> = (0..classes.len()).into_par_iter().with_max_len(1).map(replay).collect();
    let devices: Vec<DeviceMemory> = first.iter().filter_map(|&class| replayed[class].clone()).collect();
    let tightest = tightest(&devices);
    (devices, tightest)
}

/// Whether two programs ask the allocator for the same, and need the same communicators.
fn asks_alike(one: &Program, other: &Program) -> bool {
    one.buffers == other.buffers
        && (&one.setup, &one.first, one.first_at) == (&other.setup, &other.first, other.first_at)
        && (&one.step, &one.renames) == (&other.step, &other.renames)
        && (&one.comms, &one.transfers) == (&other.comms, &other.transfers)
        && (&one.marks, &one.scopes, one.host) == (&other.marks, &other.scopes, other.host)
}

/// The class that misses most, or else has the least to spare; the first of several.
fn tightest(devices: &[DeviceMemory]) -> usize {
    let need = |device: &DeviceMemory| if device.on_device { device.device_total() } else { device.wanted };
    let order = |class: &usize| (devices[*class].refused(), need(&devices[*class]), std::cmp::Reverse(*class));
    (0..devices.len()).max_by_key(order).unwrap_or(0)
}

/// Whether every class of a flight runs in its device's and its host's memory.
pub(super) fn fit(scenario: &Scenario, flight: &Flight) -> bool {
    let classes = &flight.classes;
    // In turn, for most that do not fit miss it on the first ranks of a pipeline.
    classes.iter().enumerate().all(|(class, program)| {
        let known = classes[..class].iter().any(|earlier| asks_alike(earlier, program));
        known || fits_device(scenario, program)
    })
}

/// Whether a program runs in the memory of its device and its host.
fn fits_device(scenario: &Scenario, program: &Program) -> bool {
    let limit = scenario.topology.chip.memory.saturating_sub(outside(scenario, program));
    let settings = memory::Settings { expandable_segments: scenario.expandable_segments, capacity: limit };
    let host = Host::of(program.host, &scenario.topology);
    host.is_none_or(|host| host.lacks() != Some(true)) && memory::replay(program, settings).out_of_memory.is_none()
}

/// What the tightest device of a flight would hold, if all fit.
pub(in crate::scenario) fn total_if_fits(scenario: &Scenario, flight: &Flight) -> Option<Bytes> {
    let (devices, tightest) = devices(scenario, flight);
    let device = devices.get(tightest)?;
    device.fits().then(|| device.device_total())
}

/// Memory outside the allocator: the context, NCCL's buffers for each communicator that the program uses, and user buffers.
pub(super) fn outside(scenario: &Scenario, program: &Program) -> Bytes {
    let overheads = &scenario.profile.overheads;
    let comms = program.comms.iter().map(|comm| comm.group);
    let mut used: Vec<_> = comms.chain(program.transfers.iter().map(|transfer| transfer.group)).collect();
    used.sort_unstable();
    used.dedup();
    let groups = || used.iter().map(|&group| program.group(group)).filter(|group| group.size > 1);
    let communicators = groups().filter(|group| group.user_buffers.is_none()).count() as u64;
    let user_buffers: u64 = groups().filter_map(|group| group.user_buffers).map(|bytes| bytes.0).sum();
    let nccl = match communicators {
        0 => 0,
        count => overheads.nccl_first.0 + (count - 1) * overheads.nccl_each.0,
    };
    overheads.context + Bytes(nccl + user_buffers)
}

/// How far the compiler's peak may be from the predicted one in MaxText's layout with full remat: no step compiled for v6e that
/// `tests/oracles/xla_steps.json` holds is further off, and of `xla-edge.json` two of 98.
pub const COMPILED: f64 = 0.055;

/// The same of a step that is written out block by block, has another loss, or a policy that keeps more than blocks' inputs: no step of
/// `tests/oracles/xla-unseen.json` is further off. Of all 164 in plain JAX, those of `xla-plain.json` with them, ten need more than their
/// doubt, and so do two of 55 in `xla-edge.json`.
pub const COMPILED_OTHERWISE: f64 = 0.12;

/// The same on GPUs, where the compiler's heap takes more than what is live at once: of seven steps compiled for H100 the furthest
/// off takes that much (`tests/oracles/xla-gpu.json`).
pub const COMPILED_ON_GPUS: f64 = 0.18;

/// How far the total may be off, and why: what lives outside an allocator that is replayed to the byte (half-width of an 80 %
/// interval), or what a compiler makes of the step.
fn doubt(scenario: &Scenario, program: &Program, (outside, wanted): (Bytes, Bytes)) -> (Bytes, String) {
    let part = |whole: Bytes, spread: f64| Bytes((whole.0 as f64 * spread).round() as u64);
    let gib = |bytes: Bytes| format!("{:.2} GiB", bytes.gib());
    if program.memory == Discipline::Static {
        let share = match scenario.job.parts() {
            Parts::Compiled(job) if job.gpu().is_some() => COMPILED_ON_GPUS,
            Parts::Compiled(job) if job.is_laid_out_otherwise() => COMPILED_OTHERWISE,
            _ => COMPILED,
        };
        let doubt = part(wanted, share).max(program.unsettled);
        return (doubt, format!("the compiler's peak is known to ± {}", gib(doubt)));
    }
    let doubt = part(outside, scenario.profile.overheads.evidence.spread());
    (doubt, format!("what lives outside the allocator, {}, is known to ± {}", gib(outside), gib(doubt)))
}

/// Memory of a program on a scenario's device.
fn device(scenario: &Scenario, program: &Program) -> DeviceMemory {
    let outside = outside(scenario, program);
    let memory = scenario.topology.chip.memory;
    // What a compiler may give out, where that is less: JAX takes a share of a GPU's memory.
    let capacity = match scenario.job.parts() {
        Parts::Compiled(job) => memory.min(job.hbm + outside),
        _ => memory,
    };
    let limit = capacity.saturating_sub(outside);
    let unlimited =
        memory::Settings { expandable_segments: scenario.expandable_segments, capacity: Bytes(u64::MAX / 4) };
    let free = memory::replay(program, unlimited);
    let wanted = free.peak_reserved + outside;
    // A plan whose cache would outgrow the device gives cached segments back first, and may still run.
    let report = if free.peak_reserved <= limit {
        free
    } else {
        let tight = memory::replay(program, memory::Settings { capacity: limit, ..unlimited });
        if tight.out_of_memory.is_some() {
            MemoryReport { out_of_memory: tight.out_of_memory, retries: tight.retries, ..free }
        } else {
            tight
        }
    };
    let on_device = report.out_of_memory.is_none();
    let host = Host::of(program.host, &scenario.topology);
    let (doubt, doubtful) = doubt(scenario, program, (outside, wanted));
    DeviceMemory { report, outside, doubt, doubtful, capacity, wanted, on_device, host, remedies: vec![] }
}
