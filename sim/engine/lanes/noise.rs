//! Times that vary from one time to the next.

use rand::rngs::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use super::super::ranks::Jitter;
use super::members::Members;

/// Nothing takes less than this share of its time, however the dice fall.
const LEAST: f64 = 0.1;

/// The random numbers of all ranks.
pub(super) struct Noise {
    jitter: Jitter,
    /// By class and rank of the class.
    streams: Vec<Vec<ChaCha8Rng>>,
}

impl Noise {
    pub(super) fn new(jitter: Jitter, members: &Members, stream: impl Fn(u32) -> ChaCha8Rng) -> Noise {
        let streams = members.ranks.iter().map(|ranks| ranks.iter().map(|&rank| stream(rank)).collect());
        Noise { jitter, streams: streams.collect() }
    }

    /// By what a kernel's time is multiplied on each rank of a class, this time.
    pub(super) fn kernel(&mut self, class: usize) -> impl Iterator<Item = f64> {
        factors(&mut self.streams[class], self.jitter.kernel)
    }

    /// The same of the host's calls.
    pub(super) fn host(&mut self, class: usize) -> impl Iterator<Item = f64> {
        factors(&mut self.streams[class], self.jitter.host)
    }
}

fn factors(streams: &mut [ChaCha8Rng], deviation: f64) -> impl Iterator<Item = f64> {
    streams.iter_mut().map(move |stream| {
        if deviation == 0.0 {
            return 1.0;
        }
        let deviate: f64 = StandardNormal.sample(stream);
        let factor = 1.0 + deviation * deviate;
        if factor > LEAST { factor } else { LEAST }
    })
}
