//! What a device holds: the allocator's peak, and what lies outside it.

use rayon::prelude::*;

use super::doubt::{self, Doubt, Takes};
use super::host::{Host, Verdict};
use crate::memory::{self, MemoryReport};
use crate::plan::Parts;
use crate::program::Program;
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
    /// The least that the step runs in, where that is near what the device has; else what it would like to have.
    pub needs: Bytes,
    /// How far that may be off (half-width of an 80 % interval): a plan with less to spare fits only perhaps.
    pub doubt: Bytes,
    /// The share of such steps that do not take what is predicted at all.
    #[doc(hidden)]
    pub surprises: f64,
    /// What that is about, in words.
    pub doubtful: String,
    /// Whether the plan runs in the device's memory.
    pub on_device: bool,
    /// What of the host's memory its node's ranks take, if any.
    pub host: Option<Host>,
    /// Changes that would make it fit, if it does not: one at a time, or together where none does alone.
    pub remedies: Vec<Remedy>,
    /// All that was tried together, where not even that makes it fit.
    pub nearest: Option<Remedy>,
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

    /// The chance that the device has enough, 0 to 1.
    pub fn chance(&self) -> f64 {
        doubt::chance(self.needs, self.capacity, (self.doubt, self.surprises))
    }

    /// Whether that is nobody's to say: the device has about as much as the step needs.
    pub fn is_open(&self) -> bool {
        (0.1..=0.9).contains(&self.chance())
    }

    /// Whether it runs, in a word.
    pub fn verdict(&self) -> Verdict {
        let room = !self.is_open();
        match self.host {
            _ if self.host_lacks() => Verdict::No,
            _ if !self.on_device && self.is_open() => Verdict::Hardly,
            _ if !self.on_device => Verdict::No,
            Some(host) if host.lacks().is_none() => Verdict::Unknown,
            Some(host) if !host.suffices_beyond_doubt() => Verdict::Perhaps,
            _ if room => Verdict::Yes,
            _ => Verdict::Perhaps,
        }
    }

    /// What device and host lack together \[B\]; less than none where there is room.
    pub(super) fn lacks(&self) -> i128 {
        let device = i128::from(self.wanted.0) - i128::from(self.capacity.0);
        let host = self.host.map_or(0, |host| i128::from(host.shortfall().0));
        host + if self.on_device { device.min(0) } else { device }
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
    devices_unless(scenario, flight, || false)
}

/// The same, or nothing where nobody wants to know any more.
pub(super) fn devices_unless(
    scenario: &Scenario,
    flight: &Flight,
    unwanted: impl Fn() -> bool + Sync,
) -> (Vec<DeviceMemory>, usize) {
    let classes = &flight.classes;
    let alike = |class: usize| (0..class).find(|&earlier| asks_alike(&classes[earlier], &classes[class]));
    let first: Vec<usize> = (0..classes.len()).into_par_iter().map(|class| alike(class).unwrap_or(class)).collect();
    let wanted = |class: usize| first[class] == class && !unwanted();
    let replay = |class: usize| wanted(class).then(|| device(scenario, &classes[class]));
    // Each is a task of its own: handed out in bunches, the last bunch would be left to one thread.
    let replayed: Vec<Option<DeviceMemory>> = (0..classes.len()).into_par_iter().with_max_len(1).map(replay).collect();
    let devices: Option<Vec<DeviceMemory>> = first.iter().map(|&class| replayed[class].clone()).collect();
    let devices = devices.unwrap_or_default();
    let tightest = tightest(&devices);
    (devices, tightest)
}

/// The least that a class's device needs, found where it decides.
pub(super) fn settle(scenario: &Scenario, program: &Program, device: &mut DeviceMemory) {
    let DeviceMemory { wanted, outside, on_device, .. } = *device;
    let takes = Takes { allocated: device.report.peak_allocated, wanted, outside, runs: on_device };
    let has = (device.capacity, device.doubt);
    device.needs = doubt::needs(program, takes, has, scenario.expandable_segments);
}

/// Whether two programs ask the allocator for the same, and need the same communicators.
pub(super) fn asks_alike(one: &Program, other: &Program) -> bool {
    one.buffers == other.buffers
        && (&one.setup, &one.first, one.first_at) == (&other.setup, &other.first, other.first_at)
        && (&one.step, &one.renames) == (&other.step, &other.renames)
        && (&one.comms, &one.transfers) == (&other.comms, &other.transfers)
        && (&one.marks, &one.scopes, one.host) == (&other.marks, &other.scopes, other.host)
}

/// The class that misses most, or else has the least to spare; the first of several.
pub(super) fn tightest(devices: &[DeviceMemory]) -> usize {
    let need = |device: &DeviceMemory| if device.on_device { device.device_total() } else { device.wanted };
    let order = |class: &usize| (devices[*class].refused(), need(&devices[*class]), std::cmp::Reverse(*class));
    (0..devices.len()).max_by_key(order).unwrap_or(0)
}

/// Memory of each class's devices and the tightest class if all run in their devices' and hosts' memory, with so much besides on the
/// device; none if one does not.
pub(super) fn if_it_fits(
    scenario: &Scenario,
    (flight, beside): (&Flight, Bytes),
) -> Option<(Vec<DeviceMemory>, usize)> {
    let classes = &flight.classes;
    let mut devices: Vec<DeviceMemory> = vec![];
    // In turn, for most that do not fit miss it on the first ranks of a pipeline.
    for (class, program) in classes.iter().enumerate() {
        let known = classes[..class].iter().position(|earlier| asks_alike(earlier, program));
        let device = match known {
            Some(known) => devices[known].clone(),
            None => device_if_it_fits(scenario, (program, beside))?,
        };
        devices.push(device);
    }
    let tightest = tightest(&devices);
    Some((devices, tightest))
}

/// Memory of a program on a scenario's device, if device and host have it.
fn device_if_it_fits(scenario: &Scenario, (program, beside): (&Program, Bytes)) -> Option<DeviceMemory> {
    let outside = outside(scenario, program);
    let limit = scenario.topology.chip.memory.saturating_sub(outside + beside);
    if Host::of(program.host, &scenario.topology).is_some_and(|host| host.lacks() == Some(true)) {
        return None;
    }
    let tight = replay(scenario, program, limit);
    let fits = tight.out_of_memory.is_none();
    fits.then(|| of_replay(scenario, program, (outside, scenario.topology.chip.memory), tight))
}

/// A program's memory in so much.
fn replay(scenario: &Scenario, program: &Program, capacity: Bytes) -> MemoryReport {
    memory::replay(program, memory::Settings { expandable_segments: scenario.expandable_segments, capacity })
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

/// Memory of a program on a scenario's device.
pub(super) fn device(scenario: &Scenario, program: &Program) -> DeviceMemory {
    let outside = outside(scenario, program);
    let memory = scenario.topology.chip.memory;
    // What a compiler may give out, where that is less: JAX takes a share of a GPU's memory.
    let capacity = match scenario.job.parts() {
        Parts::Compiled(job) => memory.min(job.hbm + outside),
        _ => memory,
    };
    let limit = capacity.saturating_sub(outside);
    of_replay(scenario, program, (outside, capacity), replay(scenario, program, limit))
}

/// Memory of a program of which a replay in what the device has is there.
fn of_replay(
    scenario: &Scenario,
    program: &Program,
    (outside, capacity): (Bytes, Bytes),
    tight: MemoryReport,
) -> DeviceMemory {
    // A limit that was not met is none. A plan whose cache would outgrow the device gives cached segments back first, and may still run.
    let free = tight.met_limit.then(|| replay(scenario, program, Bytes(u64::MAX / 4)));
    let wanted = free.as_ref().unwrap_or(&tight).peak_reserved + outside;
    let report = match free {
        Some(free) if tight.out_of_memory.is_some() => {
            MemoryReport { out_of_memory: tight.out_of_memory, retries: tight.retries, met_limit: true, ..free }
        }
        _ => tight,
    };
    let on_device = report.out_of_memory.is_none();
    let host = Host::of(program.host, &scenario.topology);
    let Doubt { bytes: doubt, surprises, about: doubtful } = Doubt::of(scenario, program, (outside, wanted));
    DeviceMemory {
        report,
        outside,
        needs: wanted,
        doubt,
        surprises,
        doubtful,
        capacity,
        wanted,
        on_device,
        host,
        remedies: vec![],
        nearest: None,
    }
}
