//! Launches that the host waits for: `CUDA_LAUNCH_BLOCKING=1`.
//!
//! ```text
//! host    launch · wait ─────────► launch · wait ──► …
//! stream           kernel ───────►          kernel ─►
//! ```
//!
//! The driver returns from a launch when what was launched has ended, collectives and messages too. So nothing overlaps on
//! a rank, and between two kernels lies all that the host does from one launch to the next.

use super::{Dispatch, EventId, Instr, Program};

impl Program {
    /// The same steps of a host that waits for the end of everything it launches.
    pub fn blocking(mut self) -> Program {
        self.rounds.clear();
        for (steps, at) in [(&mut self.first, &mut None), (&mut self.step, &mut self.first_at)] {
            let issued = std::mem::take(steps);
            steps.reserve(4 * issued.len());
            let place = at.take();
            for (index, instr) in issued.into_iter().enumerate() {
                if Some(index) == place {
                    *at = Some(steps.len());
                }
                steps.push(instr);
                if let Instr::Launch { stream, .. }
                | Instr::Collective { stream, .. }
                | Instr::Exchange { stream, .. } = instr
                {
                    let event = EventId(self.events);
                    self.events += 1;
                    steps.push(Instr::Record { stream, event });
                    steps.push(Instr::HostWait { event });
                    steps.push(Instr::Host { dispatch: Dispatch::Synchronize, count: 1 });
                }
            }
            // Behind the last instruction.
            *at = at.or(place.map(|_| steps.len()));
        }
        self
    }
}
