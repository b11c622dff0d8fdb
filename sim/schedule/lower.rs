//! From what is computed to what is issued: parameters gathered and let go, gradients reduced, sends and receives.
//!
//! Schedules of one stage a rank send and receive around each computation ([`single`]), Megatron's interleaved one after
//! each step of all ranks ([`megatron`]), DeepSpeed's by the parity of stage and step ([`parity`]); those that spread the
//! vocabulary issue its parts too ([`vocabulary`]); the others go through PyTorch's passes one after the other (`_PipelineScheduleRuntime._prepare_schedule_with_comms`): [`unshard`], [`reduce`],
//! [`exchange`], [`wait`] and, if wanted, [`defer`].

mod defer;
mod exchange;
mod interlaced;
mod megatron;
mod parity;
mod reduce;
mod single;
mod unshard;
pub(super) mod vocabulary;
mod wait;
mod writer;

use super::{Batching, Lists, Schedule, ScheduleError};

/// PyTorch's and Megatron's options, under their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lowering {
    /// `max_active_stages`: stages of a rank whose parameters may be gathered at once.
    pub max_active_stages: usize,
    /// `unshard_lookahead`: how many of the next stages are gathered ahead.
    pub unshard_lookahead: Lookahead,
    /// `defer_reduce_grad_wait`: wait for a reduction only before the next one.
    pub defer_reduce_grad_wait: bool,
    /// `defer_pp_recv`: post receives as late as possible.
    pub defer_pp_recv: bool,
    /// Megatron's `overlap_p2p_comm`: forwards and backwards exchange each for themselves.
    pub overlap_p2p_comm: bool,
}

/// How many of the next stages are gathered ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookahead {
    /// As many as may be gathered at once.
    Full,
    /// The rank and two, at most as many as may be gathered at once.
    Auto,
    /// One number for each rank.
    Ranks(Vec<usize>),
}

impl Default for Lowering {
    /// PyTorch's and Megatron's defaults.
    fn default() -> Lowering {
        Lowering {
            max_active_stages: 3,
            unshard_lookahead: Lookahead::Full,
            defer_reduce_grad_wait: false,
            defer_pp_recv: false,
            overlap_p2p_comm: true,
        }
    }
}

impl Lowering {
    /// How many of the next stages each rank gathers ahead.
    fn lookahead(&self, ranks: usize) -> Result<Vec<usize>, ScheduleError> {
        let wrong = |problem: String| Err(ScheduleError::Lowering { problem });
        let most = self.max_active_stages;
        if most == 0 {
            return wrong("max_active_stages is 0: at least the stage at work must be gathered".to_owned());
        }
        match &self.unshard_lookahead {
            Lookahead::Full => Ok(vec![most; ranks]),
            Lookahead::Auto => Ok((0..ranks).map(|rank| most.min(rank + 2)).collect()),
            Lookahead::Ranks(given) if given.len() != ranks => wrong(format!(
                "unshard_lookahead has {} numbers for {ranks} pipeline ranks: give one for each",
                given.len()
            )),
            Lookahead::Ranks(given) => match given.iter().find(|&&ahead| ahead == 0 || ahead > most) {
                Some(ahead) => {
                    wrong(format!("unshard_lookahead holds {ahead}: expected 1 to max_active_stages = {most}"))
                }
                None => Ok(given.clone()),
            },
        }
    }
}

/// What each rank issues.
pub fn lower(schedule: &Schedule, options: &Lowering) -> Result<Lists, ScheduleError> {
    match schedule.batching {
        Batching::Separate | Batching::Paired => return Ok(single::lower(schedule)),
        Batching::Parity => return Ok(parity::lower(schedule)),
        Batching::Stepwise(settings) => return Ok(megatron::lower(schedule, settings, options.overlap_p2p_comm)),
        Batching::Vocabulary(split) => return Ok(vocabulary::lower(schedule, split)),
        Batching::Eager => {}
    }
    let lookahead = options.lookahead(schedule.ranks())?;
    let mut lists = Lists::with_capacity(schedule.ranks(), 3 * schedule.lists.all().len());
    let mut gathered = vec![];
    for (rank, &ahead) in lookahead.iter().enumerate() {
        gathered.clear();
        unshard::add(schedule.lists.rank(rank), options.max_active_stages, ahead, &mut gathered)?;
        reduce::add(&gathered, schedule, options.defer_reduce_grad_wait, lists.open());
        lists.close();
    }
    let lists = exchange::add(schedule, &lists)?;
    let lists = wait::add(schedule, &lists);
    Ok(if options.defer_pp_recv { defer::receives(schedule, &lists) } else { lists })
}
