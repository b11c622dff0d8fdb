//! How much a kernel slows while another holds processors, or processors and a share of the memory's bandwidth, as a
//! collective does.
//!
//! The other kernel has one block for each processor that it holds, with so much shared memory that nothing else fits beside
//! it. It is let go before the slowed kernel starts and stopped when that has finished; a limit on its time sees to it that
//! nothing can lock up.

use std::cell::OnceCell;
use std::time::{Duration, Instant};

use super::device::{Device, Fill, Kernel, Pinned, Ring};
use super::error::CudaError;
use super::library::Library;
use super::sweep::{Prepared, Skip, Sweep};
use crate::plan::Job;
use crate::points::{Machine, What};

/// Kernels under load. Attention is a sweep of its own, because it needs a library that the others do not.
pub struct Overlap {
    attention: bool,
    /// Those that measure what is slowed.
    others: OnceCell<Vec<Box<dyn Sweep>>>,
}

impl Default for Overlap {
    fn default() -> Self {
        Self { attention: false, others: OnceCell::new() }
    }
}

impl Overlap {
    /// Attention under load.
    pub fn attention() -> Self {
        Self { attention: true, ..Self::default() }
    }

    /// The sweep that measures what is slowed, if it needs no library that this one does not: others may not be here.
    fn other(&self, slowed: &What) -> Option<&dyn Sweep> {
        let others = self.others.get_or_init(super::sweeps).iter().map(Box::as_ref);
        let allowed = |sweep: &&dyn Sweep| sweep.needs().iter().all(|library| self.needs().contains(library));
        others.filter(allowed).find(|sweep| sweep.measures(slowed))
    }

    /// What is slowed.
    fn slowed(&self, machine: &Machine) -> Vec<What> {
        let matmul = |m, n, k| What::Matmul { m, n, k, dtype: "bf16".to_owned(), layout: "forward".to_owned() };
        let add = |bytes: u64| What::Memory {
            family: "elementwise".to_owned(),
            kernel: "add_2r1w".to_owned(),
            read: 2 * bytes,
            written: bytes,
        };
        if !self.attention {
            return vec![
                matmul(8192, 4096, 4096),
                matmul(8192, 14_336, 4096),
                matmul(8192, 8192, 8192),
                add(128 << 20),
            ];
        }
        // The most valuable of each direction.
        let planned = || self.others.get_or_init(super::sweeps).iter().filter(|sweep| sweep.name() == "attention");
        let best = |wanted: bool| {
            let jobs = planned().flat_map(|sweep| sweep.plan(machine));
            let jobs = jobs.filter(|job| matches!(job.what, What::Attention { backward, .. } if backward == wanted));
            jobs.max_by(|a, b| a.value.total_cmp(&b.value)).map(|job| job.what)
        };
        [best(false), best(true)].into_iter().flatten().collect()
    }
}

/// Their share of a step, assumed; it orders the measuring.
const SHARE: f64 = 0.05;

const SOURCE: &str = include_str!("overlap/beside.cu");

/// Processors that collectives hold: NCCL's usual numbers of blocks, and none, for comparison.
const HELD: [u32; 6] = [0, 4, 8, 16, 24, 32];

/// Shares of the memory's bandwidth that collectives move: each byte on a link is read and written once.
const MOVED: [f64; 3] = [0.05, 0.1, 0.2];

impl Sweep for Overlap {
    fn name(&self) -> &'static str {
        if self.attention { "overlap_attn" } else { "overlap" }
    }

    fn needs(&self) -> &'static [Library] {
        if self.attention {
            return &[Library::Driver, Library::Cudnn, Library::Nvrtc];
        }
        &[Library::Driver, Library::CublasLt, Library::Nvrtc]
    }

    fn plan(&self, machine: &Machine) -> Vec<Job> {
        let mut jobs = vec![];
        for slowed in self.slowed(machine) {
            for processors in HELD.into_iter().filter(|held| *held < machine.processors) {
                jobs.push(job(&slowed, "spin", processors, 0));
                for share in MOVED {
                    // Whole GB/s, so that the same point is the same next time.
                    let bandwidth = (machine.memory_bandwidth * share / 1e9).round() as u64 * 1_000_000_000;
                    if bandwidth > u64::from(processors) * REACH {
                        continue;
                    }
                    jobs.push(job(&slowed, "copy", processors, bandwidth));
                }
            }
        }
        let value = SHARE / 2.0 / jobs.len().max(1) as f64;
        jobs.into_iter().map(|what| Job { what, value }).collect()
    }

    fn measures(&self, what: &What) -> bool {
        let attention = |slowed: &What| matches!(slowed, What::Attention { .. });
        matches!(what, What::Overlap { slowed, .. } if attention(slowed) == self.attention)
    }

    fn prepare<'d>(&self, device: &'d Device, what: &What) -> Result<Box<dyn Prepared + 'd>, Skip> {
        let What::Overlap { slowed, beside, processors, bandwidth } = what else {
            return Err(Skip::because("nothing beside it"));
        };
        let other = self.other(slowed).filter(|_| !matches!(slowed.as_ref(), What::Overlap { .. }));
        let slowed = other.ok_or_else(|| Skip::because("no sweep measures what is slowed"))?.prepare(device, slowed)?;
        let facts = device.facts();
        if *processors >= facts.processors {
            return Err(Skip::because(format!("{processors} of {} processors are to be held", facts.processors)));
        }
        let name = match beside.as_str() {
            "spin" => "spin",
            "copy" => "move",
            _ => return Err(Skip::because(format!("nothing called {beside:?} runs beside"))),
        };
        let kernel = device.kernel(SOURCE, name, &[])?;
        let shared = facts.shared_per_block.saturating_sub(OWN);
        device.allow_shared(&kernel, shared)?;
        let words = device.pinned(8 * WORDS as u64)?;
        let (from, to) = (device.ring(1, MOVED_BYTES, Fill::Bf16)?, device.ring(1, MOVED_BYTES, Fill::Bf16)?);
        let (processors, bandwidth) = (*processors, *bandwidth);
        let reached = vec![];
        Ok(Box::new(Ready { device, slowed, kernel, shared, processors, bandwidth, words, from, to, reached }))
    }
}

fn job(slowed: &What, beside: &str, processors: u32, bandwidth: u64) -> What {
    What::Overlap { slowed: Box::new(slowed.clone()), beside: beside.to_owned(), processors, bandwidth }
}

/// Threads of the other kernel's blocks; its copies are written for so many.
const THREADS: u32 = 1024;

/// What one processor can read and write, about: 64 bytes a cycle each way, half of it reached \[B/s\].
const REACH: u64 = 100_000_000_000;

/// What the other kernel copies from and to, much larger than the second-level cache \[B\].
const MOVED_BYTES: u64 = 512 << 20;

/// Shared memory left for the other kernel's own variables \[B\].
const OWN: u32 = 1024;

/// Words that host and device share: stop, blocks begun, bytes moved, nanoseconds run.
const WORDS: usize = 4;
const STOP: usize = 0;
const BEGUN: usize = 1;
const BYTES: usize = 2;
const NANOS: usize = 3;

struct Ready<'d> {
    device: &'d Device,
    slowed: Box<dyn Prepared + 'd>,
    kernel: Kernel,
    shared: u32,
    processors: u32,
    bandwidth: u64,
    words: Pinned,
    from: Ring,
    to: Ring,
    /// Bandwidth that the other kernel reached, batch by batch \[B/s\].
    reached: Vec<f64>,
}

impl Prepared for Ready<'_> {
    fn launch(&mut self, turn: usize) -> Result<(), CudaError> {
        self.slowed.launch(turn)
    }

    fn algorithm(&self) -> Option<String> {
        let slowed = self.slowed.algorithm().unwrap_or_default();
        let mut reached = self.reached.clone();
        reached.sort_by(f64::total_cmp);
        match reached.get(reached.len() / 2) {
            Some(bandwidth) if self.bandwidth > 0 => Some(format!("{slowed} beside={:.0}GB/s", bandwidth / 1e9)),
            _ => Some(slowed).filter(|slowed| !slowed.is_empty()),
        }
    }

    fn begin(&mut self, expected_us: f64) -> Result<(), CudaError> {
        if self.processors == 0 {
            return Ok(());
        }
        (0..WORDS).for_each(|word| self.words.store(word, 0));
        // Slowed things take longer than expected; a limit ten times as long ends what nobody stops.
        let limit_ns = (expected_us * 1e4 + 1e7).min(2e9) as u64;
        // Bytes read and written by one block in a microsecond, in 2^-10.
        let pace = self.bandwidth * 1024 / 1_000_000 / u64::from(self.processors);
        let arguments = [self.words.pointer(), limit_ns, self.from.at(0), self.to.at(0), MOVED_BYTES / 16, pace];
        let beside = self.device.beside();
        self.device.launch(beside, &self.kernel, self.processors, THREADS, self.shared, &arguments)?;
        let began = Instant::now();
        while self.words.load(BEGUN) < u64::from(self.processors) {
            if began.elapsed() > Duration::from_millis(200) {
                self.words.store(STOP, 1);
                return Err(CudaError::library(Library::Driver, "what runs beside did not get its processors in time"));
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), CudaError> {
        if self.processors == 0 {
            return Ok(());
        }
        self.words.store(STOP, 1);
        self.device.beside().synchronize()?;
        let (bytes, nanos) = (self.words.load(BYTES) as f64, self.words.load(NANOS) as f64);
        if nanos > 0.0 {
            self.reached.push(bytes / nanos * 1e9);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::SOURCE;
    use crate::cuda::device::compile;
    use crate::cuda::library::{Libraries, Library};

    #[test]
    fn what_runs_beside_compiles_where_nvrtc_is_here() {
        match Libraries::look(&[]) {
            Ok(libraries) if libraries.has(Library::Nvrtc) => {}
            _ => return eprintln!("skipped: NVRTC is not here"),
        }
        for capability in [(8, 0), (9, 0), (10, 0)] {
            compile(SOURCE, capability, &[]).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}
