//! Times something on the device: warm-up, batches, and as many of them as the confidence that is asked for takes.
//!
//! A sample is a batch of launches, so long that the clock's grain does not matter. CUDA events bracket it, and a kernel
//! that only waits stands before it, so that the host has issued the whole batch when the device starts on it: what is
//! timed is the device, not the host. At burst clocks the device rests after each batch for twice as long as it took; at
//! sustained clocks it never rests, and the thing itself has run for a second before the first sample.

use std::time::{Duration, Instant};

use cudarc::driver::CudaEvent;

use super::device::Device;
use super::error::CudaError;
use super::nvml::{self, Monitor};
use super::sweep::{Prepared, Watch};
use crate::interrupt::Stop;
use crate::points::{Board, Regime};
use crate::statistics::{Summary, summary};

/// How well to time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Care {
    /// Half the width of the median's 95 % confidence interval, over the median, that is good enough.
    pub uncertainty: f64,
    /// Samples at least.
    pub least: usize,
    /// Samples at most.
    pub most: usize,
    /// How long a sample should take \[µs\].
    pub sample_us: f64,
    /// How long one point may take.
    pub limit: Duration,
}

impl Care {
    /// As good as a clock regime needs.
    pub fn of(regime: Regime, uncertainty: f64) -> Self {
        match regime {
            Regime::Burst => Self { uncertainty, least: 12, most: 80, sample_us: 400.0, limit: Duration::from_secs(4) },
            Regime::Sustained => {
                Self { uncertainty, least: 20, most: 200, sample_us: 20_000.0, limit: Duration::from_secs(6) }
            }
        }
    }
}

/// A timing.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// Microseconds for one of the thing.
    pub summary: Summary,
    /// Samples.
    pub samples: u32,
    /// The board meanwhile.
    pub board: Option<Board>,
}

/// Why there is no timing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Untimed {
    /// Asked to stop.
    Stopped,
    /// It does not run.
    Failed(CudaError),
}

impl From<CudaError> for Untimed {
    fn from(error: CudaError) -> Self {
        Self::Failed(error)
    }
}

/// Launches of a batch at most: a driver's queue holds about a thousand before it makes the host wait.
const BATCH: usize = 256;

/// How long a thing runs at sustained clocks before it is timed.
const SETTLE: Duration = Duration::from_secs(1);

/// Times `thing`.
pub fn time(
    device: &Device,
    thing: &mut dyn Prepared,
    regime: Regime,
    care: Care,
    monitor: Option<&Monitor>,
    stop: &Stop,
) -> Result<Timing, Untimed> {
    let mut timer =
        Timer { device, start: device.event()?, end: device.event()?, turn: 0, host_us: 0.0, batch: 1, one_us: 50.0 };
    timer.warm_up(thing, care)?;
    if regime == Regime::Sustained {
        let began = Instant::now();
        while began.elapsed() < SETTLE && !stop.asked() {
            timer.sample(thing)?;
        }
    }
    let (began, mut samples, mut boards) = (Instant::now(), Vec::new(), Vec::new());
    let mut read = Instant::now();
    loop {
        if stop.asked() {
            return Err(Untimed::Stopped);
        }
        let sample = timer.sample(thing)?;
        samples.push(sample);
        if regime == Regime::Burst {
            rest(sample * timer.batch as f64 * f64::from(thing.per_launch()));
        } else if read.elapsed() > Duration::from_millis(100) {
            boards.extend(monitor.and_then(Monitor::read));
            read = Instant::now();
        }
        let Some(summary) = summary(&samples) else { continue };
        let enough = samples.len() >= care.least && summary.uncertainty <= care.uncertainty;
        if enough || samples.len() >= care.most || began.elapsed() > care.limit {
            timer.watch_once(thing, monitor, &mut boards)?;
            return Ok(Timing { summary, samples: samples.len() as u32, board: nvml::mean(&boards) });
        }
    }
}

struct Timer<'d> {
    device: &'d Device,
    start: CudaEvent,
    end: CudaEvent,
    turn: usize,
    /// What the host needs to issue a batch.
    host_us: f64,
    batch: usize,
    /// What one launch takes, as far as is known.
    one_us: f64,
}

impl Timer<'_> {
    /// Runs it until lazily loaded code is loaded and its time is roughly known, then settles the size of a batch.
    fn warm_up(&mut self, thing: &mut dyn Prepared, care: Care) -> Result<(), CudaError> {
        self.sample(thing)?;
        let began = Instant::now();
        let mut one = self.sample(thing)?;
        while began.elapsed() < Duration::from_millis(5) {
            one = one.min(self.sample(thing)?);
        }
        let one = (one * f64::from(thing.per_launch())).max(0.1);
        self.one_us = one;
        self.batch = ((care.sample_us / one).ceil() as usize).clamp(1, BATCH);
        self.sample(thing)?;
        Ok(())
    }

    /// Microseconds for one of the thing, from one batch.
    fn sample(&mut self, thing: &mut dyn Prepared) -> Result<f64, CudaError> {
        let total = match thing.watch() {
            Watch::Device => self.on_device(thing)?,
            watch => self.on_host(thing, watch)?,
        };
        Ok(total / self.batch as f64 / f64::from(thing.per_launch()))
    }

    fn on_device(&mut self, thing: &mut dyn Prepared) -> Result<f64, CudaError> {
        for _ in 0..4 {
            let head_start = self.host_us * 1.5 + 10.0;
            thing.begin(head_start + self.batch as f64 * self.one_us)?;
            self.device.delay(head_start)?;
            self.start.record(self.device.stream())?;
            let issued = Instant::now();
            self.issue(thing)?;
            let host_us = micros(issued.elapsed());
            self.end.record(self.device.stream())?;
            self.end.synchronize()?;
            thing.end()?;
            let late = host_us > head_start;
            // Down by halves, up at once: a batch that waited for the host says nothing.
            self.host_us = if late { host_us } else { host_us.max(self.host_us / 2.0) };
            let total = f64::from(self.start.elapsed_ms(&self.end)?) * 1e3;
            // A device that is still at work when the host has issued everything never waited, except at the very start.
            if !late || total > 4.0 * host_us {
                return Ok(total);
            }
        }
        // The host is too uneven for its head start: what the device took then is an upper bound, and an outlier.
        Ok(f64::from(self.start.elapsed_ms(&self.end)?) * 1e3)
    }

    fn on_host(&mut self, thing: &mut dyn Prepared, watch: Watch) -> Result<f64, CudaError> {
        self.device.synchronize()?;
        thing.begin(self.batch as f64 * self.one_us)?;
        let began = Instant::now();
        self.issue(thing)?;
        let returned = began.elapsed();
        self.device.synchronize()?;
        let finished = began.elapsed();
        thing.end()?;
        Ok(micros(if watch == Watch::Host { returned } else { finished }))
    }

    fn issue(&mut self, thing: &mut dyn Prepared) -> Result<(), CudaError> {
        for _ in 0..self.batch {
            thing.launch(self.turn)?;
            self.turn += 1;
        }
        Ok(())
    }

    /// One more batch, untimed, so that the board is read while it works.
    fn watch_once(
        &mut self,
        thing: &mut dyn Prepared,
        monitor: Option<&Monitor>,
        boards: &mut Vec<Board>,
    ) -> Result<(), CudaError> {
        let Some(monitor) = monitor else { return Ok(()) };
        thing.begin(self.batch as f64 * self.one_us)?;
        self.issue(thing)?;
        boards.extend(monitor.read());
        self.device.stream().synchronize()?;
        thing.end()
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Lets the board rest for twice as long as it worked, at most 50 ms.
fn rest(worked_us: f64) {
    std::thread::sleep(Duration::from_secs_f64((2e-6 * worked_us).clamp(0.0, 0.05)));
}
