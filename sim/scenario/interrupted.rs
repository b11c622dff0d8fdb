//! What is decided about interruptions and checkpoints of a training: what the file says, and defaults for the rest.
//!
//! Without `--for` nothing reads these tables: their keys are checked, and named among those without effect. Defaults are therefore
//! taken when the question is asked ([`Scenario::interruptions`]), and are listed with its answer.

use std::sync::Arc;

use super::assumption::{Assumption, Taken, Written};
use super::interruptions::{Every, Spares};
use super::understood::Scenario;
use crate::failures::Rates;
use crate::hardware::Vendor;
use crate::runtime::Parts;

/// What storage takes from each chip's part of the job \[B/s\]: 2 TB/s for 16,384 chips.
const STORAGE_PER_CHIP: f64 = 2e12 / 16_384.0;
const STORAGE_SOURCE: &str =
    "122 MB/s for each chip: Llama 3's storage sustains 2 TB/s for 16,384 GPUs (arXiv 2407.21783, section 3.3.1)";
/// MegaScale's time to detect and diagnose, and to start up \[s\].
const DETECTION: f64 = 600.0;
const DETECTION_SOURCE: &str =
    "MegaScale detects and diagnoses in less than 10 min on average (arXiv 2402.15627, section 6.3)";
const RESTART: f64 = 30.0;
const RESTART_SOURCE: &str = "MegaScale starts up in under 30 s on over 10,000 GPUs (arXiv 2402.15627, section 3.5); clusters of Meta's take 5 to 20 min \
     (arXiv 2410.21680)";
/// How many trainings are drawn.
const DRAWS: u64 = 400;

/// Everything that is decided about interruptions and checkpoints of a training.
#[derive(Clone, Debug)]
pub struct Interruptions {
    /// What interrupts the job.
    pub rates: Arc<Rates>,
    /// Whether it is also interrupted by plan.
    pub planned: bool,
    /// From an interruption until it is known what has failed \[s\].
    pub detection: f64,
    /// From there until processes are up and connected \[s\].
    pub restart: f64,
    /// What compiling takes after a restart \[s\].
    pub recompile: f64,
    /// Nodes that wait to take the place of others.
    pub spares: Spares,
    /// How long it takes until a spare node is part of the job \[s\].
    pub replacement: f64,
    /// How long a node is away \[s\]; without a number of spares it does not matter.
    pub repair: f64,
    /// Whether the job goes on with fewer replicas.
    pub elastic: bool,
    /// How many trainings are drawn.
    pub draws: u64,
    /// Which.
    pub seed: u64,
    /// How often a checkpoint is saved.
    pub every: Every,
    /// What storage takes \[B/s\].
    pub storage: f64,
    /// What storage gives \[B/s\].
    pub load: f64,
    /// Whether training goes on once the state is in host memory.
    pub asynchronous: bool,
    /// The keys that the file leaves out, with what was taken for each.
    pub taken: Vec<Assumption>,
}

/// Collects what is taken for keys that the file leaves out.
#[derive(Default)]
struct Defaults(Vec<Assumption>);

impl Defaults {
    fn take<T>(&mut self, key: &str, asked: Option<T>, value: T, written: impl Into<Written>, why: &str) -> T {
        asked.unwrap_or_else(|| {
            let why = (!why.is_empty()).then(|| why.to_owned());
            self.0.push(Assumption::Taken(Taken { key: key.to_owned(), value: written.into(), why }));
            value
        })
    }
}

impl Scenario {
    /// What is decided about interruptions and checkpoints, for `run --for`.
    pub fn interruptions(&self) -> Interruptions {
        let (asked, chips) = (&self.interruptions, self.topology.chips());
        let mut left = Defaults::default();
        let rates = match &asked.rates {
            Some(rates) => Arc::clone(rates),
            None => match asked.mean_time_between {
                Some(seconds) => Arc::new(Rates::every(seconds, chips)),
                None => {
                    let (name, why) = self.default_rates();
                    let rates = Rates::load(name).unwrap_or_else(|error| panic!("shipped rates do not load: {error}"));
                    left.take("failures.rates", None, Arc::new(rates), name, why)
                }
            },
        };
        let planned = match asked.mean_time_between {
            Some(_) => asked.planned.unwrap_or(false),
            None => left.take("failures.planned", asked.planned, true, true, ""),
        };
        let detection = left.take("failures.detection", asked.detection, DETECTION, "10 min", DETECTION_SOURCE);
        let restart = left.take("failures.restart", asked.restart, RESTART, "30 s", RESTART_SOURCE);
        let (compiling, why) = self.recompile();
        let recompile = asked.recompile;
        let recompile = left.take("failures.recompile", recompile, compiling, &*format!("{compiling} s"), why);
        let enough = "assumed: a larger cluster has one at hand";
        let spares = left.take("failures.spares", asked.spares, Spares::Enough, "enough", enough);
        let ready = "assumed: a spare is on and tested";
        let replacement = left.take("failures.replacement", asked.replacement, 0.0, "0 s", ready);
        let elastic = left.take("failures.elastic", asked.elastic, false, false, "");
        let draws = left.take("failures.draws", asked.draws, DRAWS, DRAWS, "");
        let seed = left.take("failures.seed", asked.seed, 0, 0, "");
        let every = left.take("checkpoint.every", asked.every, Every::Best, "best", "");
        // Written with as many digits as are computed with.
        let megabytes = (STORAGE_PER_CHIP * f64::from(chips) / 1e6).round().max(1.0);
        let (own, written) = (megabytes * 1e6, format!("{megabytes} MB/s"));
        let storage = left.take("checkpoint.storage_bandwidth", asked.storage, own, &*written, STORAGE_SOURCE);
        let written = format!("{} MB/s", storage / 1e6);
        let as_storage = "as checkpoint.storage_bandwidth";
        let load = left.take("checkpoint.load_bandwidth", asked.load, storage, &*written, as_storage);
        let blocking = "the default of PyTorch's and Megatron's checkpoints";
        let asynchronous = left.take("checkpoint.asynchronous", asked.asynchronous, false, false, blocking);
        Interruptions {
            rates,
            planned,
            detection,
            restart,
            recompile,
            spares,
            replacement,
            repair: asked.repair.unwrap_or(0.0),
            elastic,
            draws,
            seed,
            every,
            storage,
            load,
            asynchronous,
            taken: left.0,
        }
    }

    /// The study whose chips are nearest to the machine's.
    fn default_rates(&self) -> (&'static str, &'static str) {
        let chip = &self.topology.chip;
        match chip.vendor {
            Vendor::Google => ("tpu-v4", "the only published rates of TPUs, and of hardware alone"),
            Vendor::Nvidia if chip.name.contains("A100") => ("rsc1-a100", "Meta's larger cluster of the same chip"),
            Vendor::Nvidia if chip.name.contains("H100") => ("llama3-h100", "the largest published run on this chip"),
            Vendor::Nvidia => ("llama3-h100", "no rates of this chip are published; these are of H100"),
        }
    }

    /// What compiling takes after a restart \[s\], and whence that is known.
    fn recompile(&self) -> (f64, &'static str) {
        match self.job.parts() {
            Parts::Compiled(job) if job.run.cached => {
                (0.0, "what loading from the persistent cache takes is not known")
            }
            Parts::Compiled(job) => {
                let (least, most) = job.run.compiling();
                let middle = (0.5 * (least.seconds() + most.seconds())).round();
                (middle, "the middle of what is known, see \"Cold against steady state\"")
            }
            Parts::Whole(job) if job.compile => (0.0, "what torch.compile takes is not known"),
            Parts::Whole(_) | Parts::Split(_) => (0.0, "nothing is compiled"),
        }
    }

    /// Leaves `[failures]` and `[checkpoint]` out of the keys without effect: `run --for` reads them.
    pub fn read_interruptions(&mut self) {
        let tables = ["failures.", "checkpoint."];
        self.idle.retain(|idle| !tables.iter().any(|table| idle.key.starts_with(table)));
        let alone = self.interruptions.idle();
        self.idle.extend(alone);
    }
}
