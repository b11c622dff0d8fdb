//! On a device: loads a program, runs it, and times it by the host's clock.
//!
//! A sample is a batch of runs, issued one after the other and waited for at the end, so long that a call's own time and the
//! clock's grain matter little; what a call costs is in the time of small programs, as it is in a training step.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::interrupt::Stop;
use crate::pjrt::error::PjrtError;
use crate::pjrt::ffi::{self, Buffer, Client};
use crate::pjrt::options::Options;
use crate::pjrt::source::MLIR;
use crate::points::{Machine, Point, Regime, What};
use crate::stablehlo::{Element, Type};
use crate::stamp;
use crate::statistics::{Summary, summary};

use super::programs::Program;

/// How long a sample should take.
const SAMPLE: Duration = Duration::from_millis(5);
/// Samples, at least and at most.
const SAMPLES: (usize, usize) = (12, 80);
/// Half the width of the median's 95 % confidence interval, over the median, that is good enough.
const UNCERTAINTY: f64 = 0.01;
/// How long one point may take.
const LIMIT: Duration = Duration::from_secs(4);
/// Runs of a batch at most.
const BATCH: usize = 256;

/// The machine line.
pub fn machine(client: &Client, plugin: &str) -> Result<Machine, PjrtError> {
    let (platform, compiler) = client.platform()?;
    let devices = client.devices()?;
    let compiler = compiler.lines().next().unwrap_or_default().to_owned();
    let versions = [("plugin".to_owned(), plugin.to_owned()), ("compiler".to_owned(), compiler)].into();
    let chip = devices.first().cloned().unwrap_or(platform);
    Ok(Machine {
        date: stamp::now(),
        tool: stamp::program(),
        ..Machine::published(&chip, devices.len() as u64, versions, "xla", "measured")
    })
}

/// A program on devices, with its arguments.
pub struct Ready<'c> {
    loaded: ffi::Loaded<'c>,
    arguments: Vec<Vec<Buffer<'c>>>,
}

impl<'c> Ready<'c> {
    /// Compiles and loads a program, and fills its arguments: `number` gives the value at a place of an argument.
    pub fn load(
        client: &'c Client,
        program: &Program,
        number: impl Fn(usize, usize, usize) -> f64,
    ) -> Result<Self, PjrtError> {
        let flags = BTreeMap::new();
        let options = Options {
            devices: (0..i64::from(program.devices)).collect(),
            shardy: program.devices > 1,
            results_left: false,
            flags: &flags,
        };
        let loaded = client.compile((program.text.as_bytes(), MLIR), &options.encode())?;
        let argument = |device: usize, at: usize, of: &Type| {
            let count = of.dims.iter().product::<u64>() as usize;
            let bytes: Vec<u8> = (0..count).flat_map(|place| encoded(of.element, number(device, at, place))).collect();
            let dims: Vec<i64> = of.dims.iter().map(|length| length.cast_signed()).collect();
            client.buffer(&bytes, element(of.element), &dims, device)
        };
        let of_device = |device: usize| -> Result<Vec<Buffer<'c>>, PjrtError> {
            program.arguments.iter().enumerate().map(|(at, of)| argument(device, at, of)).collect()
        };
        let arguments = (0..program.devices as usize).map(of_device).collect::<Result<_, _>>()?;
        Ok(Self { loaded, arguments })
    }

    /// Runs it once; results of each device.
    pub fn run(&self) -> Result<Vec<Vec<Buffer<'c>>>, PjrtError> {
        let arguments: Vec<Vec<&Buffer<'c>>> = self.arguments.iter().map(|one| one.iter().collect()).collect();
        self.loaded.execute(&arguments)
    }

    /// Microseconds of one run, from a batch.
    fn sample(&self, batch: usize) -> Result<f64, PjrtError> {
        let began = Instant::now();
        let results = (0..batch).map(|_| self.run()).collect::<Result<Vec<_>, _>>()?;
        for buffer in results.iter().flatten().flatten() {
            buffer.ready()?;
        }
        Ok(began.elapsed().as_secs_f64() * 1e6 / batch as f64)
    }

    /// Times it; none if somebody asked to stop.
    pub fn time(&self, stop: &Stop) -> Result<Option<(Summary, usize)>, PjrtError> {
        self.sample(1)?;
        let one = self.sample(1)?.min(self.sample(1)?);
        let batch = ((SAMPLE.as_secs_f64() * 1e6 / one.max(0.1)).ceil() as usize).clamp(1, BATCH);
        let (began, mut samples) = (Instant::now(), vec![]);
        loop {
            if stop.asked() {
                return Ok(None);
            }
            samples.push(self.sample(batch)?);
            let Some(summary) = summary(&samples) else { continue };
            let enough = samples.len() >= SAMPLES.0 && summary.uncertainty <= UNCERTAINTY;
            if enough || samples.len() >= SAMPLES.1 || began.elapsed() > LIMIT {
                return Ok(Some((summary, samples.len())));
            }
        }
    }
}

/// A timing as a point.
pub fn point(what: &What, (summary, samples): (Summary, usize)) -> Point {
    let round = |us: f64| (us * 1e4).round() / 1e4;
    Point {
        p10: round(summary.p10),
        p90: round(summary.p90),
        outliers: summary.outliers,
        regime: Regime::Burst,
        ..Point::published(what.clone(), round(summary.median), samples as u32)
    }
}

/// The same type in the plugin's words.
fn element(of: Element) -> ffi::Element {
    match of {
        Element::I1 | Element::I8 => ffi::Element::S8,
        Element::I32 => ffi::Element::S32,
        Element::F8E4M3Fn => ffi::Element::F8E4M3Fn,
        Element::Bf16 => ffi::Element::Bf16,
        Element::F32 => ffi::Element::F32,
    }
}

/// A number's bytes; small whole numbers are exact in all types.
fn encoded(of: Element, number: f64) -> Vec<u8> {
    match of {
        Element::I1 | Element::I8 => (number as i8).to_le_bytes().to_vec(),
        Element::I32 => (number as i32).to_le_bytes().to_vec(),
        Element::F32 => (number as f32).to_le_bytes().to_vec(),
        Element::Bf16 => ((number as f32).to_bits() >> 16).to_le_bytes()[..2].to_vec(),
        Element::F8E4M3Fn => vec![e4m3(number)],
    }
}

/// An 8-bit float of 4 exponent bits, of a number that it can hold.
fn e4m3(number: f64) -> u8 {
    if number == 0.0 {
        return 0;
    }
    // The exponent's bias is 7 where a double's is 1023; of its 52 digits 3 are kept.
    let bits = number.to_bits();
    let exponent = ((bits >> 52) & 0x7ff) as i64 - 1023 + 7;
    ((bits >> 63) << 7) as u8 | (exponent << 3) as u8 | ((bits >> 49) & 7) as u8
}

/// Numbers that the device gave, if they are floats or 32-bit numbers.
pub fn decoded(of: Element, bytes: &[u8]) -> Vec<f64> {
    match of {
        Element::Bf16 => {
            let wide = |pair: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16);
            bytes.chunks_exact(2).map(|pair| f64::from(wide(pair))).collect()
        }
        Element::F32 => bytes
            .chunks_exact(4)
            .map(|four| f64::from(f32::from_le_bytes([four[0], four[1], four[2], four[3]])))
            .collect(),
        Element::I32 => bytes
            .chunks_exact(4)
            .map(|four| f64::from(i32::from_le_bytes([four[0], four[1], four[2], four[3]])))
            .collect(),
        Element::I8 | Element::I1 | Element::F8E4M3Fn => {
            bytes.iter().map(|byte| f64::from(byte.cast_signed())).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::e4m3;

    #[test]
    fn small_whole_numbers_have_the_bits_that_the_format_gives_them() {
        // arXiv 2209.05433, table 1: one is 0.0111.000, the bias being 7.
        assert_eq!([0.0, 1.0, 2.0, -1.0, 3.0, 0.5].map(e4m3), [0, 0x38, 0x40, 0xb8, 0x44, 0x30]);
    }
}
