//! Plays a tape: each tick is a loop over the ranks of a class.

mod leap;

use super::super::ranks::{Bound, Noted, RankPace, Stretch, stretched};
use super::members::{Copies, Members, NOBODY};
use super::noise::Noise;
use super::tape::{Issued, Lane, Meet, Message, Met, Tape, Tick};
use crate::units::Time;

/// A time for each rank of a class \[ps\].
type Times = Vec<f64>;

/// The ranks of one class.
struct Side {
    host: Times,
    streams: Vec<Times>,
    registers: Vec<Times>,
    queues: Vec<Queue>,
    /// Factors on durations, by rank.
    compute: Times,
    memory: Times,
    calls: Times,
}

/// When operations left a stream whose queue may be full: the last so many.
struct Queue {
    left: Vec<Times>,
    /// How many have been issued, and have left, in all steps.
    issues: u64,
    leaves: u64,
}

/// A tape being played.
pub(super) struct Player<'a> {
    tape: &'a Tape,
    members: &'a Members,
    sides: Vec<Side>,
    /// By group and copy, the slowest link's factor; empty where no link is slower than another.
    links: Vec<Times>,
    link: Vec<Times>,
    /// By group and class: what each rank waited, in the last step.
    waits: Vec<Vec<Times>>,
    noise: Option<Noise>,
    /// Watched ranks by class and place, and what they met others for: group, and when they came, it began and it ended.
    watched: Vec<(u32, u32, u32)>,
    met: Vec<(u32, u16, [f64; 3])>,
    /// When the copies of a group have all arrived, and when messages end.
    meeting: Times,
    arriving: Times,
}

fn later(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

impl<'a> Player<'a> {
    pub(super) fn new(
        tape: &'a Tape,
        members: &'a Members,
        (paces, noise): (&[RankPace], Option<Noise>),
        steps: usize,
    ) -> Player<'a> {
        let side = |(class, ranks): (usize, &Vec<u32>)| {
            let count = ranks.len();
            let of = |stretch: fn(&RankPace) -> Stretch| {
                ranks.iter().map(|&rank| stretch(&paces[rank as usize]).factor()).collect::<Times>()
            };
            let ticks = tape.again.as_ref().map_or(tape.ticks.len(), |_| usize::MAX);
            let queue = |&places: &u32| {
                let places = (places as usize).min(ticks.saturating_mul(steps));
                Queue { left: vec![vec![0.0; count]; places], issues: 0, leaves: 0 }
            };
            Side {
                host: vec![0.0; count],
                streams: vec![vec![0.0; count]; tape.queues[class].len()],
                registers: vec![vec![0.0; count]; tape.registers[class] as usize],
                queues: tape.queues[class].iter().map(queue).collect(),
                compute: of(|pace| pace.compute),
                memory: of(|pace| pace.memory),
                calls: of(|pace| pace.host),
            }
        };
        let sides = members.ranks.iter().enumerate().map(side).collect();
        let differ = paces.iter().any(|pace| pace.link != Stretch::NONE);
        let link: Vec<Times> = match differ {
            true => members
                .ranks
                .iter()
                .map(|ranks| ranks.iter().map(|&rank| paces[rank as usize].link.factor()).collect())
                .collect(),
            false => vec![],
        };
        let slowest = |copies: &Option<Copies>| {
            let Some(copies) = copies.as_ref().filter(|_| differ) else { return vec![] };
            let mut slowest = vec![0.0; copies.count as usize];
            for (of, link) in copies.of.iter().zip(&link) {
                for (&copy, &link) in of.iter().zip(link).filter(|(copy, _)| **copy != NOBODY) {
                    slowest[copy as usize] = later(slowest[copy as usize], link);
                }
            }
            slowest
        };
        let mut waits: Vec<Vec<Times>> = tape.groups.iter().map(|_| vec![]).collect();
        let met = tape.meets.iter().map(|meet| meet.group).chain(tape.messages.iter().map(|message| message.group));
        for group in met {
            if waits[usize::from(group)].is_empty() {
                waits[usize::from(group)] = members.ranks.iter().map(|ranks| vec![0.0; ranks.len()]).collect();
            }
        }
        Player {
            tape,
            members,
            sides,
            links: members.copies.iter().map(slowest).collect(),
            link,
            waits,
            noise,
            watched: vec![],
            met: vec![],
            meeting: vec![],
            arriving: vec![],
        }
    }

    /// Keeps what these ranks meet others for in the last step.
    pub(super) fn watch(&mut self, watched: &[u32]) {
        for (class, ranks) in self.members.ranks.iter().enumerate() {
            let places = ranks.iter().zip(0..).filter(|(rank, _)| watched.contains(rank));
            self.watched.extend(places.map(|(&rank, place)| (class as u32, place, rank)));
        }
    }

    /// What watched ranks met others for, from a moment on.
    pub(super) fn met(&self, from: f64) -> Vec<Met> {
        let mut listed = vec![0; self.waits.len()];
        let groups = self.waits.iter().zip(&mut listed).filter(|(waits, _)| !waits.is_empty());
        groups.zip(0..).for_each(|((_, listed), place)| *listed = place);
        let met = |&(rank, group, times): &(u32, u16, [f64; 3])| {
            let [came, began, ended] = times.map(|time| (time - from) as i64);
            Met { rank, group: listed[usize::from(group)], came, began, ended }
        };
        let mut all: Vec<Met> = self.met.iter().map(met).collect();
        all.sort_by_key(|met| (met.rank, met.came));
        all
    }

    /// Plays one step; returns when the last rank ended it. Notes what ranks wait for others if this is the last.
    pub(super) fn step(&mut self, durations: (&Noted, usize), last: bool) -> f64 {
        let tape = self.tape;
        let (again, all) = (tape.again.as_ref(), tape.ticks.len());
        self.ticks((0, again.map_or(all, |again| again.to)), durations, last);
        if let Some(again) = again {
            self.again(again, durations, last);
            self.ticks((again.to, all), durations, last);
        }
        self.end()
    }

    /// Plays some of the ticks.
    fn ticks(&mut self, (from, to): (usize, usize), durations: (&Noted, usize), last: bool) {
        let (noted, step) = durations;
        let tape = self.tape;
        for tick in &tape.ticks[from..to] {
            match *tick {
                Tick::Pay { class, cost } => {
                    let Side { host, calls, .. } = &mut self.sides[class as usize];
                    let each = host.iter_mut().zip(calls);
                    match &mut self.noise {
                        None => each.for_each(|(host, &mut factor)| *host += stretched(cost, factor)),
                        Some(noise) => each
                            .zip(noise.host(class as usize))
                            .for_each(|((host, &mut factor), noise)| *host += stretched(cost, factor * noise)),
                    }
                }
                Tick::Room { lane } => self.room(lane),
                Tick::HostWait { class, event } => {
                    let Side { host, registers, .. } = &mut self.sides[class as usize];
                    no_sooner(host, &registers[event as usize]);
                }
                Tick::Keep { class, into } => {
                    let Side { host, registers, .. } = &mut self.sides[class as usize];
                    registers[into as usize].copy_from_slice(host);
                }
                Tick::Kernel { lane, issued, op, bound } => {
                    self.kernel(lane, issued, noted.ops(lane.class as usize, step)[op as usize], bound);
                }
                Tick::Record { lane, issued, later, into } => {
                    self.arrive(lane, issued);
                    let Side { streams, registers, .. } = &mut self.sides[lane.class as usize];
                    let times = registers[into as usize].iter_mut().zip(&streams[lane.stream as usize]);
                    times.for_each(|(register, &time)| *register = time + later);
                }
                Tick::Wait { lane, event } => {
                    let Side { streams, registers, .. } = &mut self.sides[lane.class as usize];
                    no_sooner(&mut streams[lane.stream as usize], &registers[event as usize]);
                }
                Tick::Arrive { lane, issued } => self.arrive(lane, issued),
                Tick::Meet { meet } => self.meet(&tape.meets[meet as usize], durations, last),
                Tick::Post { lane, into } => {
                    let Side { streams, registers, .. } = &mut self.sides[lane.class as usize];
                    registers[into as usize].copy_from_slice(&streams[lane.stream as usize]);
                }
                Tick::Message { message } => {
                    let receivers = &self.members.receivers[self.members.receiver_of[message as usize] as usize];
                    self.message(&tape.messages[message as usize], receivers, durations, last);
                }
                Tick::Leave { lane, at } => {
                    let Side { streams, registers, queues, .. } = &mut self.sides[lane.class as usize];
                    let stream = &mut streams[lane.stream as usize];
                    if let Some(at) = at {
                        stream.copy_from_slice(&registers[at as usize]);
                    }
                    queues[lane.stream as usize].leave(stream);
                }
            }
        }
    }

    /// All streams end when the host has issued the end of the step.
    fn end(&mut self) -> f64 {
        let mut end = 0.0;
        for Side { host, streams, .. } in &mut self.sides {
            for stream in streams {
                no_sooner(stream, host);
                end = stream.iter().fold(end, |end, &time| later(end, time));
            }
        }
        end
    }

    fn room(&mut self, lane: Lane) {
        let Side { host, queues, .. } = &mut self.sides[lane.class as usize];
        let queue = &mut queues[lane.stream as usize];
        let places = queue.left.len() as u64;
        if queue.issues >= places {
            no_sooner(host, &queue.left[(queue.issues % places) as usize]);
        }
        queue.issues += 1;
    }

    fn kernel(&mut self, lane: Lane, issued: Issued, duration: f64, bound: Bound) {
        let Side { host, streams, registers, queues, compute, memory, .. } = &mut self.sides[lane.class as usize];
        let stream = &mut streams[lane.stream as usize];
        let issued = match issued {
            Issued::Now => host,
            Issued::At(register) => &mut registers[register as usize],
        };
        let factors = match bound {
            Bound::Compute => compute,
            Bound::Memory => memory,
            Bound::Host => {
                no_sooner(stream, issued);
                stream.iter_mut().for_each(|time| *time += duration);
                return queues[lane.stream as usize].leave(stream);
            }
        };
        let each = stream.iter_mut().zip(issued).zip(factors);
        match &mut self.noise {
            None => each.for_each(|((time, &mut issued), &mut factor)| {
                *time = later(*time, issued) + stretched(duration, factor);
            }),
            Some(noise) => {
                each.zip(noise.kernel(lane.class as usize)).for_each(|(((time, &mut issued), &mut factor), noise)| {
                    *time = later(*time, issued) + stretched(duration, factor * noise);
                });
            }
        }
        queues[lane.stream as usize].leave(stream);
    }

    /// A stream comes to an operation that was issued then.
    fn arrive(&mut self, lane: Lane, issued: Issued) {
        let Side { host, streams, registers, .. } = &mut self.sides[lane.class as usize];
        let issued = match issued {
            Issued::Now => host,
            Issued::At(register) => &mut registers[register as usize],
        };
        no_sooner(&mut streams[lane.stream as usize], issued);
    }

    fn meet(&mut self, meet: &Meet, (noted, step): (&Noted, usize), last: bool) {
        let group = usize::from(meet.group);
        let Some(copies) = &self.members.copies[group] else { return };
        self.meeting.clear();
        self.meeting.resize(copies.count as usize, 0.0);
        let mut duration = 0.0;
        for &(lane, op) in &meet.parts {
            let (class, stream) = (lane.class as usize, lane.stream as usize);
            duration = later(duration, noted.ops(class, step)[op as usize]);
            for (&copy, &time) in copies.of[class].iter().zip(&self.sides[class].streams[stream]) {
                let start = &mut self.meeting[copy as usize];
                *start = later(*start, time);
            }
        }
        if last {
            for &(lane, _) in &meet.parts {
                let (class, stream) = (lane.class as usize, lane.stream as usize);
                let waits = &mut self.waits[group][class];
                for ((&copy, &time), wait) in copies.of[class].iter().zip(&self.sides[class].streams[stream]).zip(waits)
                {
                    *wait += self.meeting[copy as usize] - time;
                }
            }
        }
        if last {
            for &(class, place, rank) in &self.watched {
                let Some(&(lane, _)) = meet.parts.iter().find(|(lane, _)| lane.class == class) else { continue };
                let copy = copies.of[class as usize][place as usize];
                let came = self.sides[class as usize].streams[lane.stream as usize][place as usize];
                let began = self.meeting[copy as usize];
                let link = self.links[group].get(copy as usize).copied().unwrap_or(1.0);
                self.met.push((rank, meet.group, [came, began, began + stretched(duration, link)]));
            }
        }
        let links = &self.links[group];
        if links.is_empty() {
            self.meeting.iter_mut().for_each(|time| *time += duration);
        } else {
            self.meeting.iter_mut().zip(links).for_each(|(time, &link)| *time += stretched(duration, link));
        }
        for &(lane, _) in &meet.parts {
            let (class, stream) = (lane.class as usize, lane.stream as usize);
            for (&copy, time) in copies.of[class].iter().zip(&mut self.sides[class].streams[stream]) {
                *time = self.meeting[copy as usize];
            }
        }
    }

    fn message(&mut self, message: &Message, receivers: &[u32], (noted, step): (&Noted, usize), last: bool) {
        let Message { group, from, to } = *message;
        let [sender, receiver] = [from, to].map(|end| end.lane.class as usize);
        let duration = later(noted.legs(sender, step)[from.leg as usize], noted.legs(receiver, step)[to.leg as usize]);
        let mut arriving = std::mem::take(&mut self.arriving);
        arriving.clear();
        let sent = &self.sides[sender].streams[from.lane.stream as usize];
        let awaited = &self.sides[receiver].streams[to.lane.stream as usize];
        arriving.extend(sent.iter().zip(receivers).map(|(&sent, &at)| later(sent, awaited[at as usize])));
        if last {
            let [mut sends, mut receives] = [0.0; 2].map(|_| Times::new());
            sends.extend(arriving.iter().zip(sent).map(|(&start, &sent)| start - sent));
            receives.extend(arriving.iter().zip(receivers).map(|(&start, &at)| start - awaited[at as usize]));
            let waits = &mut self.waits[usize::from(group)];
            waits[sender].iter_mut().zip(sends).for_each(|(wait, more)| *wait += more);
            receivers.iter().zip(receives).for_each(|(&at, more)| waits[receiver][at as usize] += more);
        }
        if self.link.is_empty() {
            arriving.iter_mut().for_each(|time| *time += duration);
        } else {
            let (sends, receives) = (&self.link[sender], &self.link[receiver]);
            for ((time, &send), &at) in arriving.iter_mut().zip(sends).zip(receivers) {
                *time += stretched(duration, later(send, receives[at as usize]));
            }
        }
        if last {
            for &(class, place, rank) in &self.watched {
                let sends = (class as usize == sender).then_some(place as usize);
                let receives = || receivers.iter().position(|&at| class as usize == receiver && at == place);
                let (Some(at), stream) = (sends.or_else(receives), if sends.is_some() { from } else { to }) else {
                    continue;
                };
                let came = self.sides[class as usize].streams[stream.lane.stream as usize][place as usize];
                self.met.push((rank, group, [came, arriving[at] - duration, arriving[at]]));
            }
        }
        no_sooner(&mut self.sides[sender].registers[from.until as usize], &arriving);
        let until = &mut self.sides[receiver].registers[to.until as usize];
        for (&time, &at) in arriving.iter().zip(receivers) {
            let until = &mut until[at as usize];
            *until = later(*until, time);
        }
        self.arriving = arriving;
    }

    /// What each rank waited for others in the last step, by group.
    pub(super) fn waits(&self) -> Vec<(String, Vec<Time>)> {
        let ranks = self.members.ranks.iter().map(Vec::len).sum();
        let of = |(name, waits): (&String, &Vec<Times>)| {
            let mut all = vec![Time::ZERO; ranks];
            for (ranks, waits) in self.members.ranks.iter().zip(waits) {
                ranks.iter().zip(waits).for_each(|(&rank, &wait)| all[rank as usize] = Time(wait as u64));
            }
            (name.clone(), all)
        };
        self.tape.groups.iter().zip(&self.waits).filter(|(_, waits)| !waits.is_empty()).map(of).collect()
    }
}

impl Queue {
    /// An operation leaves the stream.
    fn leave(&mut self, stream: &[f64]) {
        let places = self.left.len() as u64;
        if places > 0 {
            self.left[(self.leaves % places) as usize].copy_from_slice(stream);
            self.leaves += 1;
        }
    }
}

/// No time is sooner than another.
fn no_sooner(times: &mut [f64], than: &[f64]) {
    times.iter_mut().zip(than).for_each(|(time, &than)| *time = later(*time, than));
}
