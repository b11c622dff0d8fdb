//! When interruptions happen: one named random stream for each cause and each training that is drawn.
//!
//! A stream gives the time between two interruptions of its cause, in units of the mean. What changes nothing about a cause therefore
//! leaves its interruptions where they are, and two what-ifs differ by their change alone. The generator is ChaCha with eight rounds, of
//! which the same bytes come everywhere.

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand_distr::{Distribution, Exp1};

use super::job::Cause;

/// The interruptions of one training, on a clock that stands while the job is down.
pub(super) struct Arrivals<'j> {
    causes: &'j [Cause],
    streams: Vec<ChaCha8Rng>,
    /// When each cause strikes next \[s\].
    next: Vec<f64>,
}

/// A stream of a purpose: its name, which training, and the user's seed.
fn stream(purpose: &str, training: u64, seed: u64) -> ChaCha8Rng {
    // Fowler, Noll and Vo's hash with 64 bits (FNV-1a).
    let name = purpose
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let mut key = [0; 32];
    for (part, value) in key.chunks_exact_mut(8).zip([seed, name, training]) {
        part.copy_from_slice(&value.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

impl<'j> Arrivals<'j> {
    pub(super) fn new(causes: &'j [Cause], training: u64, seed: u64) -> Arrivals<'j> {
        let streams = causes.iter().map(|cause| stream(&format!("interruption {}", cause.name), training, seed));
        let mut arrivals = Arrivals { causes, streams: streams.collect(), next: vec![0.0; causes.len()] };
        (0..causes.len()).for_each(|cause| arrivals.advance(cause));
        arrivals
    }

    /// The next interruption: which cause, and when \[s\]. Of two at once the first in the list comes first.
    pub(super) fn next(&self) -> Option<(usize, f64)> {
        let all = self.next.iter().copied().enumerate();
        all.reduce(|first, other| if other.1 < first.1 { other } else { first })
    }

    /// It has happened.
    pub(super) fn advance(&mut self, cause: usize) {
        let means: f64 = Exp1.sample(&mut self.streams[cause]);
        self.next[cause] += means / self.causes[cause].rate;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(name: &str, rate: f64) -> Cause {
        Cause { name: name.to_owned(), rate, takes_node: false, planned: false }
    }

    #[test]
    fn a_cause_strikes_at_the_same_times_whatever_else_there_is() {
        let times = |causes: &[Cause], of: usize| {
            let mut arrivals = Arrivals::new(causes, 7, 1);
            let mut times = vec![];
            while times.len() < 50 {
                let (cause, at) = arrivals.next().expect("causes");
                if cause == of {
                    times.push(at);
                }
                arrivals.advance(cause);
            }
            times
        };
        let alone = times(&[cause("GPU", 0.1)], 0);
        assert_eq!(alone, times(&[cause("NIC", 0.3), cause("GPU", 0.1)], 1));
        // Twice as often is twice as soon.
        let often = times(&[cause("GPU", 0.2)], 0);
        assert!(alone.iter().zip(&often).all(|(one, other)| (one - 2.0 * other).abs() < 1e-9 * one));
        let mean = alone[49] / 50.0;
        assert!((5.0..15.0).contains(&mean), "{mean}");
    }

    #[test]
    fn streams_are_the_same_bytes_everywhere() {
        use rand::Rng;
        let first = stream("interruption GPU", 3, 42).next_u64();
        assert_eq!(first, stream("interruption GPU", 3, 42).next_u64());
        assert_ne!(first, stream("interruption GPU", 4, 42).next_u64());
        assert_ne!(first, stream("interruption NIC", 3, 42).next_u64());
    }
}
