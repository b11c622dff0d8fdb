//! All ranks of a job at once, each at its own pace: a second engine, without a queue.
//!
//! Ranks that differ cannot be folded, and the event loop on all of them takes minutes for a large cluster. But the program is static:
//! what waits for what is known before anything runs. So the job is first run folded, with all ranks alike, and it is noted how long each
//! kernel, collective and message took: slowdowns and shared links included. Then the order of everything is written down once, as a
//! *tape* of ticks (`tape.rs`, `compile.rs`), and the tape is played over arrays of ranks (`play.rs`). Times are vectors:
//!
//! ```text
//! kernel       end = max(end of the one before, issued) + stretch of the rank × duration
//! event wait   end = max(end of the one before, event)
//! collective   end = max over its members' arrivals     + stretch of the slowest link × duration
//! message      end = max(sender's arrival, receiver's)  + the same
//! host call    due = due + stretch of the host × cost, and not before a full stream has room
//! ```
//!
//! Where the rounds of a pipeline repeat, few of them are written. One is then played over and over again (`repeat.rs`), and where every
//! rank is later by the same time than a round before, all that are left are taken at once (`play/leap.rs`).
//!
//! **How exact.** Where ranks are alike, this is the event loop's answer to the picosecond. Where they differ, starts and waits are exact,
//! and a duration is the alike rank's times the stretch: kernels overlap with as much communication as they did there. Runs of all ranks in
//! the event loop say what that leaves out (`tests/lanes.rs`).

mod compile;
mod members;
mod noise;
mod play;
mod repeat;
mod tape;

use rand::rngs::ChaCha8Rng;

use crate::units::Time;

use super::ranks::{Jitter, Noted, RankPace, WHOLE_FROM};
use super::state::Engine;
use super::{EngineError, Job, Options, Timeline};
use members::Members;
use noise::Noise;
use play::Player;
pub use tape::Met;
use tape::Tape;

/// A job that is ready to be played at any paces.
#[derive(Debug)]
pub struct Lanes {
    tape: Tape,
    members: Members,
    durations: Noted,
    ranks: usize,
    /// The run with all ranks alike.
    pub alike: Timeline,
}

/// What ranks at paces of their own do.
#[derive(Clone, Debug, PartialEq)]
pub struct Played {
    /// The last step \[ps\].
    pub step: Time,
    /// The end of each step \[ps\].
    pub ends: Vec<Time>,
    /// How long each rank waited for others in the last step, by group \[ps\]. A message is counted with the group it is sent in.
    pub waits: Vec<(String, Vec<Time>)>,
    /// What watched ranks met others for in the last step, in order.
    pub met: Vec<Met>,
}

impl Lanes {
    /// Runs a job with all ranks alike and writes its tape.
    pub fn of(job: Job<'_>, options: Options) -> Result<Lanes, EngineError> {
        let options = Options { record: false, fold: true, ..options };
        super::check::check(job, options)?;
        Lanes::lay(job, options, 0)?.ok_or(EngineError::Uneven)
    }

    /// The same with so many rounds of micro-batches in each step beyond those that are written: they are like one that repeats. None if
    /// no round repeats.
    pub fn of_further(job: Job<'_>, options: Options, rounds: u32) -> Result<Option<Lanes>, EngineError> {
        let options = Options { record: false, fold: true, ..options };
        super::check::check(job, options)?;
        let Some(lanes) = Lanes::lay(job, options, rounds)?.filter(|lanes| lanes.tape.again.is_some()) else {
            return Ok(None);
        };
        // The event loop on ranks that are alike says whether these are the rounds that it found.
        let played = lanes.play(&vec![RankPace::NONE; lanes.ranks]);
        Ok(played.is_some_and(|played| played.ends == lanes.alike.ends).then_some(lanes))
    }

    /// None if no round repeats, and further ones are asked for.
    fn lay(job: Job<'_>, options: Options, further: u32) -> Result<Option<Lanes>, EngineError> {
        let engine = Engine::new(job, options);
        let classes: Vec<u32> = (0..job.classes.len() as u32).collect();
        if !engine.exchanges.is_even(&classes, &engine.plans) {
            return Err(EngineError::Uneven);
        }
        let plans = engine.plans.clone();
        let Some((alike, durations, like)) = engine.noting(further)? else { return Ok(None) };
        let (mut tape, cuts) = compile::compile(job, &plans, options, further > 0).ok_or(EngineError::Uneven)?;
        tape.again = repeat::find(&tape, &cuts, (&plans, &durations, &like), further);
        let members = Members::of(job, &tape);
        Ok(Some(Lanes { tape, members, durations, ranks: job.class_of.len(), alike }))
    }

    /// Ranks of the job.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Plays the steps with a pace for each rank. None if they take longer than 75 minutes.
    ///
    /// # Panics
    /// If there are not as many paces as ranks.
    pub fn play(&self, paces: &[RankPace]) -> Option<Played> {
        self.play_watching(paces, None::<(Jitter, fn(u32) -> ChaCha8Rng)>, &[])
    }

    /// The same with times that vary, each rank by a stream of random numbers, and with ranks that are watched.
    ///
    /// # Panics
    /// If there are not as many paces as ranks.
    pub fn play_watching(
        &self,
        paces: &[RankPace],
        varying: Option<(Jitter, impl Fn(u32) -> ChaCha8Rng)>,
        watched: &[u32],
    ) -> Option<Played> {
        assert_eq!(paces.len(), self.ranks, "a pace for each rank");
        let noise = varying.map(|(jitter, stream)| Noise::new(jitter, &self.members, stream));
        let steps = self.durations.steps();
        let mut player = Player::new(&self.tape, &self.members, (paces, noise), steps);
        player.watch(watched);
        let ends: Vec<f64> = (0..steps).map(|step| player.step((&self.durations, step), step + 1 == steps)).collect();
        let last = *ends.last()?;
        // Floats count picoseconds exactly up to here.
        if last >= WHOLE_FROM {
            return None;
        }
        let before = ends.len().checked_sub(2).map_or(0.0, |at| ends[at]);
        Some(Played {
            step: Time((last - before) as u64),
            ends: ends.iter().map(|&end| Time(end as u64)).collect(),
            waits: player.waits(),
            met: player.met(before),
        })
    }
}
