//! The state of a run, in flat arrays.
//!
//! Actor `rank · width + s` is stream `s` of the rank, and the last one, `s = width − 1`, is its host. What they are made of
//! is in `parts.rs`. Ranks are counted as they are simulated (`cast.rs`).

use std::collections::VecDeque;
use std::ops::Range;

use rayon::prelude::*;

use crate::network::Sharing;
use crate::units::Time;

use super::cast::{Cast, Meetings};
use super::flights::Exchanges;
use super::parts::{Actor, Doing, Event, Meeting, NONE, Passed, Rank, Running};
use super::plan::Plan;
use super::ranks::{Noted, RankPace};
use super::rounds::Rounds;
use super::spent::{Exposed, Spent, Totals};
use super::uplinks::Uplinks;
use super::watch::Watch;
use super::{Busy, Class, EngineError, EventQueue, Job, Options, Simulated, Span};

/// A run.
pub(super) struct Engine<'a> {
    pub(super) job: Job<'a>,
    pub(super) options: Options,
    pub(super) plans: Vec<Plan>,
    /// Actors per rank: streams and one host.
    pub(super) width: u32,
    /// Slots per rank.
    pub(super) slots: u32,
    pub(super) cast: Cast<'a>,
    pub(super) ranks: Vec<Rank>,
    pub(super) actors: Vec<Actor>,
    /// From when on each stream may run the operations issued to it and not passed \[ps\], in order, by actor.
    pub(super) ready: Vec<VecDeque<u64>>,
    pub(super) meetings: Vec<Meeting>,
    /// The meeting of each rank on the first stream, group after group, and who meets there.
    pub(super) meeting_of: Vec<u32>,
    pub(super) members: Vec<u32>,
    pub(super) exchanges: Exchanges,
    /// How many steps' records each slot has seen become visible, rank after rank.
    pub(super) seen: Vec<u32>,
    /// The first actor waiting for each slot.
    pub(super) waiter: Vec<u32>,
    pub(super) queue: EventQueue<Event>,
    pub(super) now: u64,
    pub(super) events: u64,
    /// Actors to look at again within this instant.
    pub(super) agenda: Vec<u32>,
    /// Streams that have begun a kernel and await its pace.
    pub(super) fresh: Vec<u32>,
    /// Ranks whose collectives have changed.
    pub(super) dirty: Vec<u32>,
    /// Ranks on which more or fewer kernels share the processors.
    pub(super) crowds: Vec<u32>,
    pub(super) sharing: Sharing,
    /// Uplinks that ranks share, and who crosses them.
    pub(super) uplinks: Uplinks,
    /// Ranks of one search, and behind them uplinks; and its flows: meetings, and behind them flights.
    pub(super) place: Vec<u32>,
    pub(super) flow: Vec<u32>,
    pub(super) visit: u32,
    /// Actors that have not ended each step, and its end.
    pub(super) open: Vec<u64>,
    pub(super) ends: Vec<u64>,
    /// What had been spent at the end of each step.
    pub(super) totals: Vec<Totals>,
    /// By step and class.
    pub(super) busy: Vec<Busy>,
    /// Exposed communication by class.
    pub(super) exposed: Vec<Exposed>,
    /// Host and device time, by class, step and mark.
    pub(super) marks: Vec<Passed>,
    /// Marks of each class and step.
    pub(super) mark_count: u32,
    pub(super) spans: Vec<Span>,
    /// When the watched host of each class went past each action of the last step, after its beginning of the step;
    /// empty unless recorded.
    pub(super) acted: Vec<Vec<u64>>,
    pub(super) failure: Option<EngineError>,
    /// Steps to be run: fewer than asked, once it is known how they go on.
    pub(super) steps: u32,
    pub(super) watch: Watch,
    pub(super) rounds: Rounds,
    /// The pace of each simulated rank; none where all are as their class.
    pub(super) paces: Option<&'a [RankPace]>,
    /// How long everything took, if that is asked for.
    pub(super) noted: Option<Noted>,
}

impl<'a> Engine<'a> {
    /// Lays out a checked job.
    pub(super) fn new(job: Job<'a>, options: Options) -> Self {
        let first = job.classes[0].program;
        let cast = Cast::new(job, options.fold);
        let streams = job.classes.iter().map(|class| class.program.streams.len()).max().unwrap_or(0);
        let plans: Vec<Plan> = job
            .classes
            .par_iter()
            .with_max_len(1)
            .map(|class| Plan::new(class.program, class.costs, streams, options.record))
            .collect();
        let slots = plans.iter().map(|plan| plan.slots.len()).max().unwrap_or(0) as u32;
        let marks = job.classes.iter().map(|class| class.program.marks.len()).max().unwrap_or(0) as u32;
        let transfers = job.classes.iter().map(|class| class.program.transfers.len()).max().unwrap_or(0) as u32;
        let Meetings { of: meeting_of, members, meetings } = cast.meetings(&first.groups, streams as u32);
        let uplinks = Uplinks::new(&cast, &meeting_of, meetings.len(), streams as u32, transfers);
        let width = streams as u32 + 1;
        let mut watched = vec![false; plans.len()];
        let ranks: Vec<Rank> = cast
            .ranks
            .iter()
            .map(|&Simulated { class, .. }| {
                let watched = !std::mem::replace(&mut watched[class as usize], true);
                Rank {
                    class,
                    watched,
                    slowed: false,
                    dirty: false,
                    filling: 0,
                    crowded: false,
                    comms: 0,
                    spent: Spent::default(),
                    visit: 0,
                }
            })
            .collect();
        let actors: Vec<Actor> = (0..ranks.len() as u32 * width)
            .map(|actor| {
                let plan = &plans[ranks[(actor / width) as usize].class as usize];
                let first = plan.first.get((actor % width) as usize).copied().unwrap_or(0);
                Actor {
                    doing: Doing::Idle,
                    at: first,
                    first,
                    step: 0,
                    queued: 0,
                    next_waiter: NONE,
                    reached: 0,
                    running: Running::NOTHING,
                }
            })
            .collect();
        let each_step = (0..options.steps).flat_map(|_| job.classes);
        let busy = each_step
            .map(|class| Busy {
                kernel: vec![Time::ZERO; class.program.kernels.len()],
                comm: vec![Time::ZERO; class.program.comms.len()],
                comm_waiting: vec![Time::ZERO; class.program.comms.len()],
                exchange: vec![Time::ZERO; class.program.exchanges.len()],
                exchange_waiting: vec![Time::ZERO; class.program.exchanges.len()],
                ..Busy::default()
            })
            .collect();
        let exposed = job.classes.iter().map(|Class { program, .. }| Exposed::of(program)).collect();
        let steps = options.steps as usize;
        Engine {
            width,
            slots,
            ready: vec![VecDeque::new(); actors.len()],
            exchanges: Exchanges::new(&cast, &plans, transfers, actors.len()),
            cast,
            meeting_of,
            members,
            seen: vec![0; ranks.len() * slots as usize],
            waiter: vec![NONE; ranks.len() * slots as usize],
            queue: EventQueue::default(),
            now: 0,
            events: 0,
            agenda: Vec::new(),
            fresh: Vec::new(),
            dirty: Vec::new(),
            crowds: Vec::new(),
            sharing: Sharing::default(),
            uplinks,
            place: Vec::new(),
            flow: Vec::new(),
            visit: 0,
            open: vec![actors.len() as u64; steps],
            ends: vec![0; steps],
            totals: Vec::new(),
            busy,
            exposed,
            marks: vec![(None, None); plans.len() * steps * marks as usize],
            mark_count: marks,
            spans: Vec::new(),
            acted: plans.iter().map(|plan| vec![0; if options.record { plan.host.len() + 1 } else { 0 }]).collect(),
            failure: None,
            steps: options.steps,
            watch: Watch::new(&plans, options),
            rounds: Rounds::new(ranks.first().map(|rank| &plans[rank.class as usize]), options),
            paces: None,
            noted: None,
            job,
            options,
            plans,
            ranks,
            actors,
            meetings,
        }
    }

    /// Where busy times of a class in a step are kept.
    pub(super) fn busy_at(&self, class: usize, step: u32) -> usize {
        step as usize * self.plans.len() + class
    }

    /// The ranks that meet at a meeting: where they lie in `members`.
    pub(super) fn members(&self, meeting: u32) -> Range<usize> {
        let (first, end) = self.meetings[meeting as usize].members;
        first as usize..end as usize
    }

    /// Whether all members have come, and the collective runs.
    pub(super) fn is_running(&self, meeting: u32) -> bool {
        let meeting = &self.meetings[meeting as usize];
        meeting.arrived == meeting.members.1 - meeting.members.0
    }

    /// The actor for a stream of a rank.
    pub(super) fn actor(&self, rank: u32, stream: u8) -> u32 {
        rank * self.width + u32::from(stream)
    }

    /// The actor for the host of a rank.
    pub(super) fn host(&self, rank: u32) -> u32 {
        (rank + 1) * self.width - 1
    }
}
