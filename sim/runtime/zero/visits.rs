//! What happens to modules in a micro-batch, as the engine's first two steps write it down (`partitioned_param_coordinator.py`): ZeRO-3
//! gathers by it, and what files would end the run with follows from it alone.

use std::cell::RefCell;
use std::rc::Rc;

use super::files;
use super::gather::Coordinator;
use super::modules::Modules;
use super::shelf::{Shelf, Trouble};
use crate::plan::zero::Zero;
use crate::runtime::eager::Eager;
use crate::runtime::eager::around::{Around, Place};

/// What decides on gathers, once it is known in which order modules begin.
pub(super) fn coordinator(zero: &Zero, elements: &[u64], modules: &Modules, order: &[usize]) -> Coordinator {
    let mut coordinator = Coordinator::new(zero.gathering, elements, &modules.params, order);
    if zero.hpz > 1 {
        coordinator = coordinator.with_second();
    }
    if let Some(settings) = zero.offload.files {
        coordinator = coordinator.with_shelf(Shelf::new(&files::of(zero, elements), settings.buffers));
    }
    coordinator
}

/// What of files would end the run, found without writing its step: the coordinator alone goes through what was recorded.
pub(super) fn trouble(
    (zero, micro_batches): (&Zero, u32),
    elements: &[u64],
    modules: &Modules,
    visits: &[Visit],
) -> Option<Trouble> {
    let mut coordinator = coordinator(zero, elements, modules, &Visit::order(visits));
    let mut before = coordinator.state();
    for _ in 0..micro_batches {
        coordinator.begin();
        for &visit in visits {
            match visit {
                Visit::Begins { module, backward } => _ = coordinator.fetch(module, backward),
                Visit::Ends { module } => _ = coordinator.release(module),
            }
        }
        coordinator.finish();
        let state = coordinator.state();
        if state == before {
            break;
        }
        before = state;
    }
    coordinator.shelf().and_then(Shelf::trouble)
}

/// What happens to a module in a micro-batch.
#[derive(Clone, Copy, Debug)]
pub(super) enum Visit {
    /// Its forward or backward begins.
    Begins { module: usize, backward: bool },
    /// It has ended.
    Ends { module: usize },
}

impl Visit {
    /// Modules in the order in which they begin.
    pub(super) fn order(visits: &[Visit]) -> Vec<usize> {
        let begins = |visit: &Visit| match *visit {
            Visit::Begins { module, .. } => Some(module),
            Visit::Ends { .. } => None,
        };
        visits.iter().filter_map(begins).collect()
    }
}

/// Writes down what happens to modules: what the engine's first two steps are for.
#[derive(Clone, Debug)]
pub(super) struct Recorder {
    pub modules: Rc<Modules>,
    pub visits: Rc<RefCell<Vec<Visit>>>,
}

impl Around for Recorder {
    fn begins(&mut self, _eager: &mut Eager, at: Place) {
        let begins = |module| Visit::Begins { module, backward: at.backward };
        self.visits.borrow_mut().extend(self.modules.begin(at).into_iter().map(begins));
    }

    fn ended(&mut self, _eager: &mut Eager, at: Place) {
        let ends = |module| Visit::Ends { module };
        self.visits.borrow_mut().extend(self.modules.end(at).into_iter().map(ends));
    }

    fn arrived(&mut self, eager: &mut Eager, param: usize) {
        if let Some((gradient, _)) = eager.take_leaf(param) {
            eager.release(gradient);
        }
    }
}
