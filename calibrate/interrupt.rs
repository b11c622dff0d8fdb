//! Stops in good order when the user or the machine asks for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Whether to stop: asked to, or out of time.
#[derive(Clone)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    until: Instant,
}

impl Stop {
    /// Listens for SIGINT, SIGTERM and SIGHUP. The first lets the point in the making go and ends in good order; the second
    /// ends at once.
    pub fn listen(until: Instant) -> std::io::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: a signal that finds the flag up ends the program, then the flag goes up.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&asked))?;
            signal_hook::flag::register(signal, Arc::clone(&asked))?;
        }
        Ok(Self { asked, until })
    }

    /// Whether somebody asked to stop.
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Whether the time is up.
    pub fn late(&self) -> bool {
        Instant::now() >= self.until
    }

    /// The same, but that time is up earlier or later.
    pub fn until(&self, until: Instant) -> Self {
        Self { asked: Arc::clone(&self.asked), until }
    }

    /// When time is up.
    pub fn deadline(&self) -> Instant {
        self.until
    }
}
