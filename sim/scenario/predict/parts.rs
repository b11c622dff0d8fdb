//! Where a step's time went: by kind, and by kernel, collective and message.

use std::collections::BTreeMap;

use super::class::Class;
use crate::cost::{Backend, Basis};
use crate::engine::{Breakdown, Busy, Costs, Round, Timeline};
use crate::program::{Collective, DType, Dispatch, Instr, Owner, Pass, Program, TransferId, Work};
use crate::units::{Flops, Time};

/// A part of the step.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Pass, or the collective.
    pub group: &'static str,
    /// Kernel or collective.
    pub name: String,
    /// How often in a step, on one rank of each class together: in a pipeline, on all of its stages.
    pub count: u64,
    /// Time it ran, the mean of all ranks \[ps\].
    pub busy: Time,
    /// Time it ran with nothing else to do for the rank, the mean of all ranks \[ps\].
    pub exposed: Time,
    /// The weakest evidence among its costs.
    pub basis: Basis,
}

/// The mean over the ranks of all classes.
#[derive(Clone, Copy, Debug)]
struct Mean<'a> {
    classes: &'a [Class],
}

impl Mean<'_> {
    /// The mean of times, one of each class \[ps\].
    fn of(self, times: impl Fn(usize, &Class) -> Time) -> Time {
        Time((self.sum(times) / self.ranks()) as u64)
    }

    fn sum(self, times: impl Fn(usize, &Class) -> Time) -> u128 {
        let weighted = |(index, class): (usize, &Class)| u128::from(class.ranks) * u128::from(times(index, class).0);
        self.classes.iter().enumerate().map(weighted).sum()
    }

    fn ranks(self) -> u128 {
        self.classes.iter().map(|class| u128::from(class.ranks)).sum::<u128>().max(1)
    }
}

/// Where the step of a class's first rank went.
pub(super) fn of_class(timeline: &Timeline, class: usize) -> Breakdown {
    let rank = timeline.ranks.iter().position(|rank| rank.class as usize == class);
    rank.and_then(|rank| timeline.breakdown.get(rank)).copied().unwrap_or_default()
}

/// The mean of all ranks' breakdowns. Sums are rounded, not parts, so that the parts still sum to the step exactly.
pub(super) fn mean(classes: &[Class]) -> Breakdown {
    let mean = Mean { classes };
    let parts: [fn(&Breakdown) -> Time; 5] =
        [|b| b.compute, |b| b.exposed_communication, |b| b.bubble, |b| b.host_bound, |b| b.waiting];
    let (mut sum, mut before) = (0, Time::ZERO);
    let [compute, exposed_communication, bubble, host_bound, waiting] = parts.map(|part| {
        sum += mean.sum(|_, class| part(&class.breakdown));
        let until = Time((sum / mean.ranks()) as u64);
        until - std::mem::replace(&mut before, until)
    });
    Breakdown { compute, exposed_communication, bubble, host_bound, waiting }
}

/// Time in kernels that memory bandwidth bounds, the mean of all ranks \[ps\].
pub(super) fn memory_bound(classes: &[Class], timeline: &Timeline) -> Time {
    let of = |busy: &Busy, program: &Program| -> Time {
        let busy = busy.kernel.iter().zip(&program.kernels);
        busy.filter(|(_, kernel)| matches!(kernel.work, Work::Memory { .. }) && kernel.pass != Pass::Communication)
            .map(|(&time, _)| time)
            .sum()
    };
    Mean { classes }.of(|index, class| of(&timeline.busy[index], &class.program))
}

/// How often one rank issues each kernel, collective and exchange in a step, by id, and what else its host does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub(crate) kernels: Vec<u64>,
    pub(super) comms: Vec<u64>,
    pub(super) exchanges: Vec<u64>,
    /// Host work without a launch, by dispatch class, of the micro-batches that are written.
    pub(super) host: [u64; Dispatch::COUNT],
    /// FLOPs of the step, without the optimizer's.
    pub flops: Flops,
    /// The same of each part of the model ([`Owner::ALL`]).
    pub(super) owners: [Flops; Owner::COUNT],
}

impl Counts {
    /// Counted in a program.
    pub(super) fn of(program: &Program) -> Counts {
        let mut counts = Counts {
            kernels: vec![0; program.kernels.len()],
            comms: vec![0; program.comms.len()],
            exchanges: vec![0; program.exchanges.len()],
            host: [0; Dispatch::COUNT],
            flops: program.flops,
            owners: [Flops(0); Owner::COUNT],
        };
        for instr in &program.step {
            match instr {
                Instr::Launch { kernel, scope, .. } => {
                    counts.kernels[kernel.0 as usize] += 1;
                    counts.owners[scope.part()] += program.kernel(*kernel).model_flops();
                }
                Instr::Collective { comm, .. } => counts.comms[comm.0 as usize] += 1,
                Instr::Exchange { exchange, .. } => counts.exchanges[exchange.0 as usize] += 1,
                Instr::Host { dispatch, count } => counts.host[*dispatch as usize] += u64::from(*count),
                _ => {}
            }
        }
        counts
    }

    /// With so many further rounds.
    pub(super) fn add(&mut self, program: &Program, round: &Round, further: u32) {
        let further = u64::from(further);
        let add = |sums: &mut [u64], more: &[u64]| {
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more * further);
        };
        add(&mut self.kernels, &round.kernels);
        add(&mut self.comms, &round.comms);
        add(&mut self.exchanges, &round.exchanges);
        let launched = program.kernels.iter().zip(&round.kernels);
        let flops: u128 = launched.map(|(kernel, &count)| kernel.model_flops().0 * u128::from(count)).sum();
        self.flops = Flops(self.flops.0 + flops * u128::from(further));
        for (sum, more) in self.owners.iter_mut().zip(round.flops) {
            sum.0 += more.0 * u128::from(further);
        }
    }

    /// The time of all these, one after the other, but for launches \[ps\].
    pub(super) fn busy(&self, program: &Program, costs: &Costs) -> u128 {
        let transfers = |ids: &Vec<TransferId>| ids.iter().map(|id| costs.transfer[id.0 as usize].time).max();
        let exchanges = program.exchanges.iter().map(|ids| transfers(ids).unwrap_or(Time::ZERO));
        let kernels = costs.kernel.iter().map(|cost| cost.time).zip(&self.kernels);
        let comms = costs.comm.iter().map(|cost| cost.time).zip(&self.comms);
        let host = costs.dispatch.iter().copied().zip(&self.host);
        let all = kernels.chain(comms).chain(exchanges.zip(&self.exchanges)).chain(host);
        all.map(|(time, &count)| u128::from(time.0) * u128::from(count)).sum()
    }
}

/// What one rank of a class spends on each part.
type Table = BTreeMap<(&'static str, String), Part>;

/// A kernel's name. Operators of attention do not say whose kernels they run: where their name leaves it open or says
/// another's, whose time was taken stands behind it.
fn named(name: &str, work: &Work, attention: Backend) -> String {
    let flash = attention == Backend::Flash2 && name.contains("flash");
    match work {
        Work::Attention { dtype, .. } if *dtype != DType::Fp32 && !flash && !name.contains(attention.name()) => {
            format!("{name} ({})", attention.name())
        }
        _ => name.to_owned(),
    }
}

/// Parts, largest first; `attention` is whose kernels attention is priced as.
pub(super) fn parts(classes: &[Class], timeline: &Timeline, attention: Backend) -> Vec<Part> {
    let one = |(class, busy)| of_one(class, busy, attention);
    let tables: Vec<Table> = classes.iter().zip(&timeline.busy).map(one).collect();
    let mut all = Table::new();
    for (key, part) in tables.iter().flatten() {
        match all.get_mut(key) {
            None => drop(all.insert(key.clone(), part.clone())),
            Some(known) => {
                known.count += part.count;
                known.basis = known.basis.and(part.basis);
            }
        }
    }
    let mean = Mean { classes };
    for (key, part) in &mut all {
        let of = |index: usize| tables[index].get(key);
        part.busy = mean.of(|index, _| of(index).map_or(Time::ZERO, |part| part.busy));
        part.exposed = mean.of(|index, _| of(index).map_or(Time::ZERO, |part| part.exposed));
    }
    let mut list: Vec<Part> = all.into_values().collect();
    list.sort_by_key(|part| std::cmp::Reverse(part.busy));
    list
}

fn of_one(Class { program, counts, evidence, .. }: &Class, busy: &Busy, attention: Backend) -> Table {
    let Counts { kernels, comms, exchanges, .. } = counts;
    let mut table = Table::new();
    let mut add = |group: &'static str, name: String, count, time, exposed, basis| {
        let entry = table.entry((group, name.clone())).or_insert(Part {
            group,
            name,
            count: 0,
            busy: Time::ZERO,
            exposed: Time::ZERO,
            basis,
        });
        entry.count += count;
        entry.busy += time;
        entry.exposed += exposed;
        entry.basis = entry.basis.and(basis);
    };
    for (index, kernel) in program.kernels.iter().enumerate().filter(|&(index, _)| kernels[index] > 0) {
        let basis = evidence.kernels[index].basis;
        let name = named(kernel.name, &kernel.work, attention);
        let exposed = busy.kernel_exposed[index];
        add(kernel.pass.name(), name, kernels[index], busy.kernel[index], exposed, basis);
    }
    for (index, comm) in program.comms.iter().enumerate().filter(|&(index, _)| comms[index] > 0) {
        let group = program.group(comm.group);
        let name = format!("{} over {} ({})", comm.kind.name(), group.name, group.size);
        let basis = evidence.comms[index].basis;
        add("collective", name, comms[index], busy.comm[index], busy.comm_exposed[index], basis);
    }
    for (index, ends) in program.exchanges.iter().enumerate().filter(|&(index, _)| exchanges[index] > 0) {
        let Some(first) = ends.first() else { continue };
        let group = program.group(program.transfers[first.0 as usize].group);
        let name = format!("{} over {} ({})", Collective::SendRecv.name(), group.name, group.size);
        let basis = evidence.exchanges[index].basis;
        add("collective", name, exchanges[index], busy.exchange[index], busy.exchange_exposed[index], basis);
    }
    table
}
