//! The board while it works: power, clocks, temperature; and who else uses it.

use std::ffi::OsStr;
use std::time::Duration;

use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::library::{Libraries, Library};
use crate::points::Board;

/// Readings of one board.
pub struct Monitor {
    nvml: Nvml,
    bus: String,
}

impl Monitor {
    /// Watches the board at a PCI address; says why it cannot.
    pub fn open(libraries: &Libraries, bus: &str) -> Result<Self, String> {
        let path = libraries.from(Library::Nvml).ok_or("NVML is not here")?;
        let nvml = Nvml::builder().lib_path(OsStr::new(path)).init().map_err(|error| error.to_string())?;
        nvml.device_by_pci_bus_id(bus).map_err(|error| format!("{bus}: {error}"))?;
        Ok(Self { nvml, bus: bus.to_owned() })
    }

    fn device(&self) -> Result<Device<'_>, NvmlError> {
        self.nvml.device_by_pci_bus_id(self.bus.as_str())
    }

    /// Power, clocks and temperature now; none if the board hides one of them.
    pub fn read(&self) -> Option<Board> {
        let device = self.device().ok()?;
        Some(Board {
            power: f64::from(device.power_usage().ok()?) / 1e3,
            clock: f64::from(device.clock_info(Clock::SM).ok()?),
            memory_clock: f64::from(device.clock_info(Clock::Memory).ok()?),
            temperature: f64::from(device.temperature(TemperatureSensor::Gpu).ok()?),
        })
    }

    /// The limit in force \[W\].
    pub fn power_limit(&self) -> Option<f64> {
        Some(f64::from(self.device().ok()?.enforced_power_limit().ok()?) / 1e3)
    }

    /// The processors' highest clock \[MHz\].
    pub fn highest_clock(&self) -> Option<f64> {
        Some(f64::from(self.device().ok()?.max_clock_info(Clock::SM).ok()?))
    }

    /// The driver's version, as `580.65.06`.
    pub fn driver(&self) -> Option<String> {
        self.nvml.sys_driver_version().ok()
    }

    /// Who else uses the board, in words; none if nobody. Asked before this program opens the device, so that whatever it
    /// sees is somebody else: in a container a process does not know the number that NVML gives it.
    pub fn others(&self) -> Option<String> {
        let device = self.device().ok()?;
        let mut processes: Vec<u32> = [device.running_compute_processes(), device.running_graphics_processes()]
            .into_iter()
            .flatten()
            .flatten()
            .map(|process| process.pid)
            .collect();
        processes.sort_unstable();
        processes.dedup();
        if !processes.is_empty() {
            let names: Vec<String> = processes.iter().map(|pid| self.process(*pid)).collect();
            return Some(format!("{} process(es) use it: {}", names.len(), names.join(", ")));
        }
        // A container hides other containers' processes, but not their load. A reading covers up to a second that has
        // passed, so a run that just ended is waited out; whoever trains leaves no reading low.
        let loaded = (0..20).all(|_| {
            std::thread::sleep(Duration::from_millis(100));
            device.utilization_rates().is_ok_and(|rates| rates.gpu > 10)
        });
        loaded.then(|| "it is under load, by a process that is not visible from here".to_owned())
    }

    fn process(&self, pid: u32) -> String {
        match self.nvml.sys_process_name(pid, 64) {
            Ok(name) => format!("{pid} ({name})"),
            Err(_) => pid.to_string(),
        }
    }
}

/// The mean of readings; none of none.
pub fn mean(readings: &[Board]) -> Option<Board> {
    let count = readings.len() as f64;
    let of = |get: fn(&Board) -> f64| readings.iter().map(get).sum::<f64>() / count;
    (count > 0.0).then(|| Board {
        power: of(|board| board.power).round(),
        clock: of(|board| board.clock).round(),
        memory_clock: of(|board| board.memory_clock).round(),
        temperature: of(|board| board.temperature).round(),
    })
}
