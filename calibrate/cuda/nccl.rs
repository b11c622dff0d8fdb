//! NCCL's collectives over this machine's GPUs, one process for all ranks.
//!
//! All-gather, reduce-scatter, all-reduce, all-to-all (grouped sends and receives), send and receive, from 512 B to 8 GiB,
//! over 2, 4, 8 … GPUs and over all. What every rank received is compared with what was sent before anything is timed. The
//! time is rank 0's: a collective ends there when all have done their part.

mod api;
mod kind;
mod plan;
mod ranks;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use kind::Kind;
use ranks::{Ranks, Ready};

use super::device::Device;
use super::error::CudaError;
use super::library::Library;
use super::sweep::{Prepared, Skip, Sweep};
use crate::plan::Job;
use crate::points::{Machine, Point, What};

/// NCCL's collectives.
#[derive(Default)]
pub struct Collectives {
    /// Communicators by how many ranks they have; making them takes seconds.
    ranks: RefCell<BTreeMap<u64, Rc<Ranks>>>,
}

impl Sweep for Collectives {
    fn name(&self) -> &'static str {
        "collectives"
    }

    fn needs(&self) -> &'static [Library] {
        &[Library::Driver, Library::Nccl]
    }

    fn lacks(&self, machine: &Machine) -> Option<String> {
        (machine.gpus < 2).then(|| format!("collectives need two GPUs or more, and there is {} here", machine.gpus))
    }

    fn plan(&self, machine: &Machine) -> Vec<Job> {
        plan::plan(machine)
    }

    fn measures(&self, what: &What) -> bool {
        matches!(what, What::Collective { .. })
    }

    /// Small collectives of every kind over all GPUs.
    fn check(&self, device: &Device) -> Result<Option<String>, Skip> {
        let gpus = u64::from(gpus());
        let mut checked = 0;
        for kind in Kind::ALL {
            for (bytes, in_place) in [(1 << 12, false), (1 << 22, false), (1 << 22, true)] {
                let what = plan::what(kind, gpus, kind.even(bytes, gpus), in_place);
                if !in_place || kind.can_be_in_place() {
                    self.prepare(device, &what)?;
                    checked += 1;
                }
            }
        }
        Ok(Some(format!("what {gpus} GPUs received in {checked} collectives is what was sent")))
    }

    fn prepare<'d>(&self, device: &'d Device, what: &What) -> Result<Box<dyn Prepared + 'd>, Skip> {
        let (kind, ranks, bytes, in_place) = understood(what).map_err(Skip::because)?;
        let here = gpus();
        if ranks > u64::from(here) {
            return Err(Skip::because(format!(
                "a collective of {ranks} ranks needs as many GPUs, and there are {here}"
            )));
        }
        device.context().bind_to_thread().map_err(CudaError::from)?;
        let known = self.ranks.borrow().get(&ranks).filter(|known| known.are_of(device)).cloned();
        let group = match known {
            Some(group) => group,
            None => {
                let group = Rc::new(Ranks::open(device, ranks)?);
                self.ranks.borrow_mut().insert(ranks, group.clone());
                group
            }
        };
        // A buffer larger than the cache is its own eviction.
        let copies = if bytes > 2 * device.facts().l2 { 1 } else { device.turns(bytes) };
        let ready = Ready::new(group, device, kind, bytes, in_place, copies)?;
        ready.check(bytes)?;
        Ok(Box::new(ready))
    }
}

impl Prepared for Ready<'_> {
    fn launch(&mut self, turn: usize) -> Result<(), CudaError> {
        self.issue(turn)
    }
}

/// GPUs that the driver names; the driver has started.
pub fn gpus() -> u32 {
    cudarc::driver::result::device::get_count().map_or(0, |count| count.max(0) as u32)
}

/// The collective, its ranks, its bytes, and whether in place; or why it is not measured here.
fn understood(what: &What) -> Result<(Kind, u64, u64, bool), String> {
    let What::Collective { ref kind, ranks, nodes, bytes, in_place, ref dtype } = *what else {
        return Err("not a collective".to_owned());
    };
    let names: Vec<&str> = Kind::ALL.into_iter().map(Kind::name).collect();
    let kind = Kind::of(kind).ok_or_else(|| format!("no collective {kind:?} is measured: {}", names.join(", ")))?;
    if nodes != 1 {
        return Err(format!("a collective over {nodes} nodes: one process reaches one; import a log of nccl-tests"));
    }
    if dtype != "bfloat16" {
        return Err(format!("a collective in {dtype:?}: only \"bfloat16\" is measured"));
    }
    if ranks < 2 {
        return Err(format!("a collective of {ranks}: two ranks are the fewest"));
    }
    if bytes == 0 || kind.even(bytes, ranks) != bytes {
        let even = kind.even(bytes, ranks);
        return Err(format!("{bytes} B do not part evenly among {ranks} ranks in 16-byte grains: {even} do"));
    }
    if in_place && !kind.can_be_in_place() {
        return Err(format!("{} cannot be in place", kind.name()));
    }
    Ok((kind, ranks, bytes, in_place))
}

/// The collective of a point, its ranks and the bus bandwidth it reached \[B/s\].
pub fn bus_bandwidth(point: &Point) -> Option<(&'static str, u64, f64)> {
    let What::Collective { kind, ranks, bytes, .. } = &point.what else { return None };
    let kind = Kind::of(kind)?;
    Some((kind.name(), *ranks, kind.bus_bandwidth(*bytes, *ranks, point.median)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collective(kind: &str, ranks: u64, bytes: u64, in_place: bool) -> What {
        let (kind, dtype) = (kind.to_owned(), "bfloat16".to_owned());
        What::Collective { kind, ranks, nodes: 1, bytes, in_place, dtype }
    }

    #[test]
    fn what_cannot_be_measured_is_refused_in_words() {
        let refused = |what: What| understood(&what).expect_err("refused");
        assert!(refused(collective("broadcast", 2, 512, false)).contains("all_gather, reduce_scatter"));
        assert!(refused(collective("all_gather", 1, 512, false)).contains("two ranks"));
        assert!(refused(collective("all_gather", 6, 512, false)).contains("480 do"));
        assert!(refused(collective("all_to_all", 2, 512, true)).contains("in place"));
        assert!(understood(&collective("all_reduce", 2, 512, true)).is_ok());
    }
}
