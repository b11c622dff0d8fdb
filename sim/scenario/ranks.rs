//! `[ranks]`: how ranks differ from one another, as understood, and the paces that are drawn from it.
//!
//! A rank's chip is drawn once and stays as it is. Every draw is a named stream of its own: of a seed, a draw, a purpose and a rank. So
//! two what-ifs meet the same chips, and differ by the change alone.

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use toml::Spanned;

use super::error::ScenarioError;
use super::reader::Reader;
use super::written;
use crate::cost::Variation;
use crate::engine::{Jitter, RankPace, Stretch};
use crate::hardware::{Topology, Vendor};
use crate::near::did_you_mean;

/// Clusters that are drawn where the file does not say how many.
const DRAWS: u64 = 16;
/// Clusters that are drawn for each of many runs.
const FEW: u32 = 5;
/// The seed where the file has none.
const SEED: u64 = 1;
/// A deviation of more than this is no pace of a chip.
const MOST_SPREAD: f64 = 0.3;
/// The slowest rank: a hundredth of the profile's pace.
const SLOWEST: f64 = 0.01;

/// How ranks differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranks {
    /// How chips are drawn, if they are.
    pub speed: Option<Speed>,
    /// How far times vary from launch to launch and from call to call.
    pub jitter: Jitter,
    /// Ranks whose chip has a known pace, and their stretch.
    pub slow: Vec<(u32, f64)>,
    /// The same of links.
    pub slow_links: Vec<(u32, f64)>,
    /// What draws begin with.
    pub seed: u64,
    /// How many clusters are drawn.
    pub draws: u32,
}

/// A distribution of the pace of chips.
#[derive(Clone, Debug, PartialEq)]
pub struct Speed {
    /// Deviation of the logarithm of a kernel's time, if arithmetic holds it back.
    pub compute: f64,
    /// The same, if memory does.
    pub memory: f64,
    /// Chips slower than this share are not in the cluster.
    pub cut: f64,
    /// What was measured.
    pub what: String,
    /// Who published it, or that the file says so.
    pub source: String,
}

/// What a stream of draws is for.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    Chip = 1,
    Jitter = 2,
}

/// The named stream of a purpose in one draw.
fn stream(seed: u64, draw: u32, purpose: Purpose, rank: u32) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..12].copy_from_slice(&draw.to_le_bytes());
    key[12..16].copy_from_slice(&(purpose as u32).to_le_bytes());
    let mut stream = ChaCha8Rng::from_seed(key);
    stream.set_stream(rank.into());
    stream
}

impl Ranks {
    /// Chips that differ as published; none where the machine's are not of that kind.
    pub fn published(variation: &Variation, topology: &Topology) -> Option<Ranks> {
        (topology.chip.vendor == Vendor::Nvidia).then(|| Ranks {
            speed: Some(Speed::of(variation)),
            jitter: Jitter::NONE,
            slow: vec![],
            slow_links: vec![],
            seed: SEED,
            draws: FEW,
        })
    }

    /// Whether every draw is the same: nothing is left to chance.
    pub fn is_certain(&self) -> bool {
        self.speed.is_none() && self.jitter.is_none()
    }

    /// Draws that differ.
    pub fn draws(&self) -> u32 {
        if self.is_certain() { 1 } else { self.draws }
    }

    /// The pace of each rank in a draw.
    pub fn paces(&self, ranks: u32, draw: u32) -> Vec<RankPace> {
        let stretch = |factor: f64| Stretch::new(factor).unwrap_or(Stretch::NONE);
        let chip = |rank: u32| {
            let Some(speed) = &self.speed else { return RankPace::NONE };
            let [compute, memory] = speed.draw(&mut stream(self.seed, draw, Purpose::Chip, rank));
            RankPace { compute: stretch(compute), memory: stretch(memory), ..RankPace::NONE }
        };
        let mut paces: Vec<RankPace> = (0..ranks).map(chip).collect();
        for &(rank, factor) in &self.slow {
            let (compute, memory) = (stretch(factor), stretch(factor));
            paces[rank as usize] = RankPace { compute, memory, ..paces[rank as usize] };
        }
        for &(rank, factor) in &self.slow_links {
            paces[rank as usize].link = stretch(factor);
        }
        paces
    }

    /// What times of a rank vary by in a draw.
    pub fn noise(&self, draw: u32) -> impl Fn(u32) -> ChaCha8Rng + use<'_> {
        move |rank| stream(self.seed, draw, Purpose::Jitter, rank)
    }
}

impl Speed {
    /// As published.
    fn of(variation: &Variation) -> Speed {
        let Variation { compute, memory, cut, ref name, ref description, ref source, .. } = *variation;
        Speed { compute, memory, cut, what: format!("{name}: {description}"), source: source.clone() }
    }

    /// One chip: the factors on its times. Both kinds of kernel go by one draw, as one chip is slow or fast.
    fn draw(&self, stream: &mut ChaCha8Rng) -> [f64; 2] {
        loop {
            let deviate: f64 = StandardNormal.sample(stream);
            let factors = [self.compute, self.memory].map(|deviation| libm::exp(deviate * deviation));
            if factors[0] <= 1.0 + self.cut {
                return factors;
            }
        }
    }
}

/// Understands the table.
pub(super) fn understand(
    reader: &mut Reader<'_>,
    written: Option<&Spanned<written::Ranks>>,
    topology: &Topology,
) -> Result<Option<Ranks>, ScenarioError> {
    let Some(w) = written.map(Spanned::get_ref) else { return Ok(None) };
    let speed = speed(reader, w, topology)?;
    let jitter = Jitter {
        kernel: share(reader, "ranks.kernel_jitter", w.kernel_jitter.as_ref())?,
        host: share(reader, "ranks.host_jitter", w.host_jitter.as_ref())?,
    };
    let slow = known(reader, "ranks.slow", w.slow.as_ref(), topology)?;
    let slow_links = known(reader, "ranks.slow_links", w.slow_links.as_ref(), topology)?;
    let certain = speed.is_none() && jitter.is_none();
    if certain {
        for (key, written) in [("ranks.seed", w.seed.as_ref()), ("ranks.draws", w.draws.as_ref())] {
            if written.is_some() {
                reader.idle(key, "nothing is drawn: write ranks.speed, ranks.spread or a jitter");
            }
        }
    }
    let seed = match &w.seed {
        Some(at) => reader.count(&written::Ranks::seed, at)?,
        None if certain => SEED,
        None => reader.assume("ranks.seed", SEED, SEED),
    };
    let draws = match &w.draws {
        Some(at) => reader.count(&written::Ranks::draws, at)?,
        None if certain => 1,
        None => reader.assume("ranks.draws", DRAWS, DRAWS),
    };
    let alike = certain && slow.is_empty() && slow_links.is_empty();
    Ok((!alike).then_some(Ranks { speed, jitter, slow, slow_links, seed, draws: draws as u32 }))
}

/// `ranks.speed` or `ranks.spread`.
fn speed(reader: &Reader<'_>, w: &written::Ranks, topology: &Topology) -> Result<Option<Speed>, ScenarioError> {
    match (&w.speed, &w.spread) {
        (Some(at), Some(_)) => {
            let problem = "the pace of chips is written twice: ranks.speed and ranks.spread";
            Err(reader.plan(at, problem, "keep ranks.speed for a published distribution, or ranks.spread for your own"))
        }
        (Some(at), None) => {
            let name = at.get_ref().as_str();
            let Some(found) = Variation::named(name) else {
                let names: Vec<&str> = Variation::all().iter().map(|known| known.name.as_str()).collect();
                let hint = did_you_mean(name, names.iter().copied());
                let problem = format!("no distribution of paces is called {name:?}{hint}");
                let each = |known: &Variation| format!("{:?} ({})", known.name, known.description);
                let known: Vec<String> = Variation::all().iter().map(each).collect();
                return Err(reader.unknown(at, problem, format!("write one of: {}", known.join(", "))));
            };
            if topology.chip.vendor != Vendor::Nvidia {
                let problem =
                    format!("ranks.speed = {name:?} is of GPUs, and nobody has published how far TPUs differ");
                return Err(reader.plan(at, problem, "write ranks.spread = 0.01 in place of ranks.speed"));
            }
            Ok(Some(Speed::of(found)))
        }
        (None, Some(_)) => {
            let spread = share(reader, "ranks.spread", w.spread.as_ref())?;
            let [what, source] =
                [format!("{:.2} % of a chip's time", 100.0 * spread), "the file's own ranks.spread".to_owned()];
            Ok((spread > 0.0).then_some(Speed { compute: spread, memory: spread, cut: f64::INFINITY, what, source }))
        }
        (None, None) => Ok(None),
    }
}

/// A deviation as a share.
fn share(reader: &Reader<'_>, key: &str, written: Option<&Spanned<f64>>) -> Result<f64, ScenarioError> {
    let Some(at) = written else { return Ok(0.0) };
    let value = *at.get_ref();
    if (0.0..=MOST_SPREAD).contains(&value) {
        return Ok(value);
    }
    let problem = format!("{key} = {value} is out of range: expected 0 to {MOST_SPREAD}, as a share (0.02 is 2 %)");
    Err(ScenarioError::Written { problem, place: reader.place(at) })
}

/// Ranks of a known pace, each with its stretch.
fn known(
    reader: &Reader<'_>,
    key: &str,
    written: Option<&Spanned<written::Slow>>,
    topology: &Topology,
) -> Result<Vec<(u32, f64)>, ScenarioError> {
    let Some(whole) = written else { return Ok(vec![]) };
    let mut known: Vec<(u32, f64)> = vec![];
    for one in &whole.get_ref().0 {
        let written::SlowRank { rank, pace } = *one.get_ref();
        let refuse = |problem: String, remedy: &str| Err(reader.plan(whole, problem, remedy));
        let last = topology.ranks() - 1;
        let Some(index) = u32::try_from(rank).ok().filter(|&rank| rank <= last) else {
            return refuse(format!("{key} names rank {rank}, and ranks are 0 to {last}"), "name a rank of the job");
        };
        if !(SLOWEST..=1.0 / SLOWEST).contains(&pace) {
            let problem = format!("{key} gives rank {rank} a pace of {pace}: expected {SLOWEST} to {}", 1.0 / SLOWEST);
            return refuse(problem, "write 0.9 for a rank that does nine tenths of the work in the same time");
        }
        if known.iter().any(|&(other, _)| other == index) {
            return refuse(format!("{key} names rank {rank} twice"), "keep one of them");
        }
        known.push((index, 1.0 / pace));
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(speed: Speed) -> Ranks {
        let jitter = Jitter { kernel: 0.0, host: 0.0 };
        Ranks { speed: Some(speed), jitter, slow: vec![(3, 1.25)], slow_links: vec![(5, 2.0)], seed: 7, draws: 4 }
    }

    fn published() -> Speed {
        Speed::of(Variation::named("gemm").expect("shipped"))
    }

    #[test]
    fn paces_are_drawn_from_the_published_distribution_and_none_beyond_its_cut() {
        let ranks = ranks(published());
        let paces = ranks.paces(20_000, 0);
        let logs: Vec<f64> = paces.iter().skip(6).map(|pace| libm::log(pace.compute.factor())).collect();
        let mean = logs.iter().sum::<f64>() / logs.len() as f64;
        let deviation = (logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / logs.len() as f64).sqrt();
        // Three standard errors of 20,000 draws.
        assert!(mean.abs() < 3.0 * 0.0171 / 141.0, "{mean}");
        assert!((deviation - 0.0171).abs() < 3.0 * 0.0171 / 200.0, "{deviation}");
        assert!(logs.iter().all(|&log| log <= libm::log(1.07) + 1e-12));
        assert_eq!((paces[3].compute.factor(), paces[5].link.factor()), (1.25, 2.0));
    }

    #[test]
    fn a_chip_is_the_same_whatever_else_there_is_and_another_in_each_draw() {
        let one = ranks(published());
        let other = Ranks { slow: vec![], draws: 9, ..one.clone() };
        assert_eq!(one.paces(8, 2)[4], other.paces(64, 2)[4]);
        assert_ne!(one.paces(8, 2)[4], one.paces(8, 3)[4]);
        assert_ne!(one.paces(8, 2)[4], Ranks { seed: 8, ..one.clone() }.paces(8, 2)[4]);
    }
}
