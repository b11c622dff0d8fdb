//! ZeRO-3's parameters (`partitioned_param_coordinator.py`, `parameter_offload.py`): which are gathered when a module
//! begins, which ahead of time, and which are let go when it ends.
//!
//! Two steps find out in which order modules begin; from then on a queue holds the parameters of all of them in that order.
//! When a module begins, what it lacks is gathered; then parameters are taken from the queue, and those that are not there
//! gathered with one collective, until they have as many elements as `stage3_prefetch_bucket_size`, or as may still live
//! (`stage3_max_live_parameters`). The one that goes beyond is still taken. When a module ends, its parameters go, unless
//! they are small enough to stay for good (`stage3_param_persistence_threshold`), a later use has been passed over in the
//! queue because they were there, or they are used again within `stage3_max_reuse_distance` elements.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Shelf;
use crate::plan::zero::Gathering;

/// Elements that a collective gathers for parameters of `elements`: each is cut into equal parts, the last one filled up.
pub fn gathered_elements(elements: &[u64], ranks: u32) -> u64 {
    let ranks = u64::from(ranks).max(1);
    elements.iter().map(|elements| elements.div_ceil(ranks) * ranks).sum()
}

/// Where a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    /// On all ranks, a part on each.
    Away,
    /// Being gathered, by a collective.
    Coming(usize),
    Here,
}

#[derive(Clone, Debug, PartialEq)]
struct Param {
    elements: u64,
    stays: bool,
    status: Status,
    /// Modules that use it now.
    used_by: Vec<usize>,
    /// The last place in the order for which it has been taken from the queue.
    taken_for: Option<usize>,
}

/// The gathers of a step, once the order of modules is known (`PartitionedParameterCoordinator`).
#[derive(Clone, Debug, PartialEq)]
pub struct Coordinator {
    settings: Gathering,
    params: Vec<Param>,
    /// Parameters of each module itself, in order.
    modules: Vec<Vec<usize>>,
    order: Vec<usize>,
    /// Elements of the modules before each place in the order.
    before: Vec<u64>,
    /// The places in the order whose modules use each parameter.
    places: Vec<Vec<usize>>,
    queue: VecDeque<(usize, usize)>,
    /// Modules that have begun in this step.
    at: usize,
    live: u64,
    gathers: usize,
    /// What gathers bring that nobody has waited for yet.
    coming: BTreeMap<usize, Vec<usize>>,
    /// Modules whose backward has begun and not ended.
    backward: Vec<usize>,
    /// What a module lets go at a place in the order: decided the first time, and kept.
    decided: BTreeMap<(usize, usize), Vec<usize>>,
    /// Parameters of which each node has a second copy in parts, where there are such: those that have gone once in this step.
    second: Option<BTreeSet<usize>>,
    /// Parameters whose gathers no module of theirs has waited for.
    unclaimed: BTreeSet<usize>,
    /// Parts in files, where there are such.
    shelf: Option<Shelf>,
}

/// One gather, and what it needs first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bring {
    /// Parameters, in order.
    pub params: Vec<usize>,
    /// Those whose parts are read from files first.
    pub read: Vec<usize>,
    /// Whether the host waits for all that is being read.
    pub waits: bool,
}

/// What a module's beginning issues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetch {
    /// Gathers of what it lacks; it then waits for what it uses.
    pub now: Vec<Bring>,
    /// Gathers of what comes next.
    pub ahead: Vec<Bring>,
    /// Parts that are read from files for later gathers.
    pub read_ahead: Vec<usize>,
}

impl Fetch {
    /// Parameters of each gather.
    pub fn gathers(self) -> Vec<Vec<usize>> {
        self.now.into_iter().chain(self.ahead).map(|bring| bring.params).collect()
    }
}

impl Coordinator {
    /// Of parameters of so many elements, modules with the parameters of each, and the order in which they begin in a step.
    pub fn new(settings: Gathering, elements: &[u64], modules: &[Vec<usize>], order: &[usize]) -> Coordinator {
        let param = |&elements: &u64| {
            let stays = elements <= settings.persist;
            let status = if stays { Status::Here } else { Status::Away };
            Param { elements, stays, status, used_by: vec![], taken_for: None }
        };
        let own = |params: &Vec<usize>| {
            let mut own = params.clone();
            own.sort_unstable();
            own.dedup();
            own
        };
        let modules: Vec<Vec<usize>> = modules.iter().map(own).collect();
        let (mut before, mut places) = (vec![0; order.len() + 1], vec![vec![]; elements.len()]);
        for (place, &module) in order.iter().enumerate() {
            before[place + 1] = before[place] + modules[module].iter().map(|&param| elements[param]).sum::<u64>();
            modules[module].iter().for_each(|&param| places[param].push(place));
        }
        Coordinator {
            settings,
            params: elements.iter().map(param).collect(),
            modules,
            order: order.to_vec(),
            before,
            places,
            queue: VecDeque::new(),
            at: 0,
            live: 0,
            gathers: 0,
            coming: BTreeMap::new(),
            backward: vec![],
            decided: BTreeMap::new(),
            second: None,
            unclaimed: BTreeSet::new(),
            shelf: None,
        }
    }

    /// Parts of parameters are in files.
    pub fn with_shelf(self, shelf: Shelf) -> Coordinator {
        Coordinator { shelf: Some(shelf), ..self }
    }

    /// Parts in files, where there are such.
    pub fn shelf(&self) -> Option<&Shelf> {
        self.shelf.as_ref()
    }

    /// What has gone once is gathered from the ranks of a node, until the step (`zero_hpz_partition_size`).
    pub fn with_second(self) -> Coordinator {
        Coordinator { second: Some(BTreeSet::new()), ..self }
    }

    /// The optimizer has stepped: second copies are stale (`invalidate_secondary_tensor`).
    pub fn stepped(&mut self) {
        self.second.iter_mut().for_each(BTreeSet::clear);
    }

    /// The model's forward begins (`reset_step`).
    pub fn begin(&mut self) {
        let places = self.order.iter().enumerate();
        self.queue =
            places.flat_map(|(at, &module)| self.modules[module].iter().map(move |&param| (param, at))).collect();
        self.params.iter_mut().for_each(|param| param.taken_for = None);
        (self.at, self.live) = (0, 0);
    }

    /// A module's forward or backward begins.
    ///
    /// # Panics
    ///
    /// If modules do not begin in the order given.
    pub fn fetch(&mut self, module: usize, backward: bool) -> Fetch {
        assert_eq!(self.order.get(self.at), Some(&module), "modules begin in the order recorded");
        if backward {
            self.backward.push(module);
        }
        let own = self.modules[module].clone();
        let now = self.gather(own.clone());
        for &param in &own {
            self.params[param].used_by.push(module);
            self.unclaimed.remove(&param);
            if let Status::Coming(gather) = self.params[param].status {
                self.arrive(gather);
            }
        }
        self.take(&own);
        let ahead = self.ahead();
        let ahead = self.gather(ahead);
        let read_ahead = self.read_ahead();
        self.at += 1;
        Fetch { now, ahead, read_ahead }
    }

    /// Parts that are read from files beside gathers ahead of time.
    fn read_ahead(&mut self) -> Vec<usize> {
        let Some(shelf) = self.shelf.as_mut().filter(|_| self.settings.prefetch > 0) else { return vec![] };
        let elements = |param: usize| self.params[param].elements;
        let gathered = self.unclaimed.iter().map(|&param| elements(param)).sum();
        shelf.ahead(self.queue.iter().map(|&(param, _)| (param, elements(param))), gathered)
    }

    /// A module's forward or backward ends; returns the parameters it lets go.
    pub fn release(&mut self, module: usize) -> Vec<usize> {
        self.backward.retain(|&other| other != module);
        let going = match self.decided.get(&(module, self.at)) {
            Some(known) => known.clone(),
            None => {
                let going = self.going(module);
                self.decided.insert((module, self.at), going.clone());
                going
            }
        };
        self.let_go(module, &going)
    }

    /// The backward has ended; returns what modules still held whose end nobody saw, as their inputs need no gradient.
    pub fn finish(&mut self) -> Vec<usize> {
        let mut gone = vec![];
        while let Some(module) = self.backward.pop() {
            let stays = |param: &usize| self.params[*param].stays;
            let going: Vec<usize> = self.modules[module].iter().copied().filter(|param| !stays(param)).collect();
            gone.extend(self.let_go(module, &going));
        }
        gone
    }

    /// The same with gathers numbered backwards from the last: two micro-batches that end in the same state go on alike.
    pub(super) fn state(&self) -> Coordinator {
        let mut state = self.clone();
        let last = state.gathers;
        for param in &mut state.params {
            if let Status::Coming(gather) = &mut param.status {
                *gather = last - *gather;
            }
        }
        state.coming = std::mem::take(&mut state.coming).into_iter().map(|(at, params)| (last - at, params)).collect();
        state.gathers = 0;
        state
    }

    /// Gathers what is away; returns that, what a node has a second copy of apart from and before the rest.
    fn gather(&mut self, params: Vec<usize>) -> Vec<Bring> {
        let mut away: Vec<usize> =
            params.into_iter().filter(|&param| self.params[param].status == Status::Away).collect();
        away.sort_unstable();
        let near = |param: &usize| self.second.as_ref().is_some_and(|second| second.contains(param));
        let (second, first): (Vec<usize>, Vec<usize>) = away.into_iter().partition(near);
        let gathers: Vec<Vec<usize>> = [second, first].into_iter().filter(|params| !params.is_empty()).collect();
        for params in &gathers {
            for &param in params {
                self.params[param].status = Status::Coming(self.gathers);
                self.live += self.params[param].elements;
                self.unclaimed.insert(param);
            }
            self.coming.insert(self.gathers, params.clone());
            self.gathers += 1;
        }
        let bring = |params: Vec<usize>| {
            let (read, waits) = self.shelf.as_mut().map_or((vec![], false), |shelf| shelf.ensure(&params));
            Bring { params, read, waits }
        };
        gathers.into_iter().map(bring).collect()
    }

    /// Somebody has waited for a gather: all that it brings is there.
    fn arrive(&mut self, gather: usize) {
        for param in self.coming.remove(&gather).unwrap_or_default() {
            self.params[param].status = Status::Here;
        }
    }

    /// Takes from the queue what the module now needs and no earlier look ahead has taken.
    fn take(&mut self, own: &[usize]) {
        let fresh = |param: &usize| self.params[*param].taken_for.is_none_or(|place| place < self.at);
        let wanted = own.iter().filter(|param| fresh(param)).count();
        for (param, place) in self.queue.drain(..wanted.min(self.queue.len())) {
            self.params[param].taken_for = Some(place);
        }
    }

    /// Takes from the queue what is to be gathered ahead.
    fn ahead(&mut self) -> Vec<usize> {
        let most = self.settings.prefetch.min(self.settings.live.saturating_sub(self.live));
        let (mut ahead, mut seen, mut elements) = (vec![], BTreeSet::new(), 0);
        // What is in a file is read first.
        while elements < most
            && self
                .queue
                .front()
                .is_some_and(|&(param, _)| !self.shelf.as_ref().is_some_and(|shelf| shelf.lacks(param)))
            && let Some((param, place)) = self.queue.pop_front()
        {
            let state = &mut self.params[param];
            state.taken_for = state.taken_for.max(Some(place));
            if state.status == Status::Away && seen.insert(param) {
                ahead.push(param);
                elements += state.elements;
            }
        }
        ahead
    }

    /// What a module that ends here may let go.
    fn going(&self, module: usize) -> Vec<usize> {
        let passed_over = |param: &Param| param.taken_for.is_some_and(|place| place > self.at);
        let may_go = |&param: &usize| !self.params[param].stays && !passed_over(&self.params[param]);
        // It is used again within the distance if fewer elements than that lie between here and its next place.
        let at = self.at.min(self.order.len());
        let again = |&param: &usize| {
            let places = &self.places[param];
            let next = places.get(places.partition_point(|&place| place < at));
            next.is_some_and(|&next| self.before[next] - self.before[at] < self.settings.reuse)
        };
        self.modules[module].iter().copied().filter(|param| may_go(param) && !again(param)).collect()
    }

    /// A module no longer uses its parameters, and those `going` that nobody else uses go.
    fn let_go(&mut self, module: usize, going: &[usize]) -> Vec<usize> {
        let mut gone = vec![];
        for &param in &self.modules[module] {
            let state = &mut self.params[param];
            state.used_by.retain(|&other| other != module);
            if going.contains(&param) && state.status == Status::Here && state.used_by.is_empty() {
                state.status = Status::Away;
                self.live = self.live.saturating_sub(state.elements);
                gone.push(param);
                self.second.iter_mut().for_each(|second| _ = second.insert(param));
                self.shelf.iter_mut().for_each(|shelf| shelf.let_go(param));
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three modules of one parameter each, forward and back.
    fn line(settings: Gathering) -> Coordinator {
        let mut line = Coordinator::new(settings, &[10, 20, 30], &[vec![0], vec![1], vec![2]], &[0, 1, 2, 2, 1, 0]);
        line.begin();
        line
    }

    #[test]
    fn with_nothing_ahead_and_no_reuse_a_module_gathers_its_own_and_lets_it_go() {
        let mut line = line(Gathering { prefetch: 0, persist: 0, reuse: 0, ..Gathering::default() });
        for module in 0..3 {
            assert_eq!(line.fetch(module, false).gathers(), [vec![module]]);
            assert_eq!(line.release(module), [module]);
        }
    }

    #[test]
    fn the_parameter_that_goes_beyond_the_bucket_is_still_gathered() {
        let mut line = line(Gathering { prefetch: 21, persist: 0, ..Gathering::default() });
        assert_eq!(line.fetch(0, false).gathers(), [vec![0], vec![1, 2]]);
    }

    #[test]
    fn what_is_small_stays_and_what_is_used_again_soon_too() {
        let mut line = line(Gathering { prefetch: 0, persist: 10, reuse: 25, ..Gathering::default() });
        assert!(line.fetch(0, false).gathers().is_empty());
        assert!(line.release(0).is_empty());
        assert_eq!((line.fetch(1, false).gathers(), line.release(1)), (vec![vec![1]], vec![1]));
        assert_eq!((line.fetch(2, false).gathers(), line.release(2)), (vec![vec![2]], vec![]));
    }

    #[test]
    fn a_module_whose_end_nobody_sees_lets_go_when_the_backward_has_ended() {
        let mut line = line(Gathering { prefetch: 0, persist: 0, reuse: 0, ..Gathering::default() });
        for module in [0, 1, 2] {
            line.fetch(module, false);
            line.release(module);
        }
        for module in [2, 1] {
            line.fetch(module, true);
            line.release(module);
        }
        assert_eq!(line.fetch(0, true).gathers(), [vec![0]]);
        assert_eq!(line.finish(), [0]);
    }
}
