//! Without a device: asks the compiler, and writes down what it knows and what it thinks.

use crate::journal::Journal;
use crate::pjrt::compile::{CompileError, Setup, Target, compile};
use crate::pjrt::plugins::Plugin;
use crate::pjrt::slice::Slice;
use crate::pjrt::source::Source;
use crate::points::{Compiled, Machine, Regime, What};
use crate::stamp;

use super::error::Failure;
use super::programs::program;

/// TPU v6e's clock, of its peak: 918e12 / (2 · 4 · 256²) multiply-adds a cycle \[MHz\].
const CLOCK: f64 = 1750.9;

/// Who is asked, and about which slice.
pub struct Asked {
    /// The compiler.
    pub plugin: Plugin,
    /// The slice of collectives; all else is compiled for one chip.
    pub slice: Slice,
    /// Where and how.
    pub setup: Setup,
}

impl Asked {
    /// The machine line of what is compiled and not run.
    pub fn machine(&self) -> Machine {
        let versions = [("plugin".to_owned(), self.plugin.to_string())].into();
        Machine {
            clock: Some(CLOCK),
            date: stamp::now(),
            tool: stamp::program(),
            ..Machine::published(
                &self.slice.chip(),
                u64::from(self.slice.ranks()),
                versions,
                "xla",
                "compiled, not run",
            )
        }
    }

    /// Asks about one thing and writes the answer down; whether there was one.
    pub fn ask(&self, what: &What, journal: &mut Journal) -> Result<bool, Failure> {
        let wanted = match program(what) {
            Ok(wanted) => wanted,
            Err(why) => return journal.skip(what, Regime::Burst, &why).map(|()| false).map_err(Failure::from),
        };
        let slice = if wanted.devices == 1 { self.slice.single() } else { self.slice.clone() };
        let name = slice.name();
        let target = Target {
            plugin: self.plugin.clone(),
            partitions: wanted.devices,
            slice: Some(slice),
            flags: std::collections::BTreeMap::new(),
        };
        match compile(&Source::written(wanted.text), &target, &self.setup) {
            Ok(answer) => {
                let mut collectives = std::collections::BTreeMap::new();
                for one in &answer.collectives {
                    *collectives.entry(one.kind.clone()).or_default() += one.count;
                }
                journal.compile(Compiled {
                    what: what.clone(),
                    slice: name,
                    argument: answer.memory.argument,
                    output: answer.memory.output,
                    temp: answer.memory.temp,
                    flops: answer.flops.matmul,
                    collectives,
                    estimated_cycles: answer.estimated_cycles,
                })?;
                Ok(true)
            }
            Err(why @ (CompileError::Refused { .. } | CompileError::OutOfMemory { .. })) => {
                journal.skip(what, Regime::Burst, &why.to_string())?;
                Ok(false)
            }
            Err(other) => Err(other.into()),
        }
    }
}
