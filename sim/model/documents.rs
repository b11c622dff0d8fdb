//! Documents that are packed into a sequence, where attention stays inside each (a block-diagonal causal mask).
//!
//! A document of l tokens costs attention l² pairs, halved under the causal mask. So all that attention's FLOPs need is Q, the mean
//! over sequences of the sum of l² over a sequence's documents:
//!
//! ```text
//! whole   Q = S · E[l²] / E[l], with l cut at S               packers fill sequences with whole documents
//! cut     Q = E[M·m² − (m³ − m)/3] / E[l], m = min(l, S), M = max(l, S)    a stream of documents is cut at every sequence's end
//! ```
//!
//! The second is Σ over pairs of tokens of a window of S of the chance that both are of one document: of documents of l tokens, a
//! pair d apart has Σ_d max(S − d, 0) · max(l − d, 0) / E\[l\]. Where lengths and S are multiples of g, documents begin at multiples of
//! g alone, and the same sum holds in units of g. Documents of one length that divides S give S/l blocks of l² either way.
//!
//! Padding is not counted, but for documents of one length packed whole: what they leave of a sequence is one more document, as
//! packers write it into `cu_seqlens`.

/// What the mask makes of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Documents {
    /// Q: the sum of the squares of its documents' lengths, the mean over sequences.
    pub squares: u64,
    /// Its documents, the mean rounded up: parts of documents count as documents.
    pub count: u64,
}

/// Lengths of documents.
#[derive(Clone, Debug, PartialEq)]
pub enum Lengths {
    /// These lengths, each with its share of the documents. Shares are positive.
    Listed(Vec<(u64, f64)>),
    /// Lognormal: the mean in tokens, and the standard deviation of the logarithm.
    Lognormal {
        /// Mean.
        mean: f64,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
    },
}

/// What happens to a document that does not fit into what is left of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// It goes into another sequence.
    Whole,
    /// It is cut, and goes on in the next sequence.
    Cut,
}

impl Documents {
    /// Those of sequences of so many tokens; none where each sequence is one document.
    pub fn of(lengths: &Lengths, packing: Packing, sequence: u64) -> Option<Documents> {
        let (squares, count) = match (lengths, packing) {
            (Lengths::Listed(list), Packing::Whole) => match list[..] {
                [(length, _)] => alike(length, sequence),
                _ => whole(moments(list, sequence), sequence),
            },
            (Lengths::Listed(list), Packing::Cut) => cut(list, sequence),
            (&Lengths::Lognormal { mean, sigma }, Packing::Whole) => {
                whole(Lognormal::new(mean, sigma).within(sequence as f64), sequence)
            }
            (&Lengths::Lognormal { mean, sigma }, Packing::Cut) => Lognormal::new(mean, sigma).cut(sequence as f64),
        };
        Documents::counted(squares, count, sequence)
    }

    /// Those of sequences with this mean sum of squares. As many documents of one length are the fewest that have it.
    pub fn with_squares(squares: u64, sequence: u64) -> Option<Documents> {
        let s = sequence as f64;
        Documents::counted(squares as f64, s * s / squares.max(1) as f64, sequence)
    }

    fn counted(squares: f64, count: f64, sequence: u64) -> Option<Documents> {
        let (least, most) = (sequence, sequence * sequence);
        let squares = (squares.round() as u64).clamp(least, most);
        // A mean of whole documents may come out a hair above a whole number.
        let count = ((count - 1e-6).ceil() as u64).clamp(1, sequence);
        (squares < most).then_some(Documents { squares, count })
    }
}

/// Documents of one length, and what they leave of a sequence.
fn alike(length: u64, sequence: u64) -> (f64, f64) {
    let length = length.min(sequence);
    let (full, rest) = (sequence / length, sequence % length);
    let squares = (full * length * length + rest * rest) as f64;
    (squares, (full + u64::from(rest > 0)) as f64)
}

/// E\[l\] and E\[l²\] of lengths that are cut at the sequence's.
fn moments(list: &[(u64, f64)], sequence: u64) -> (f64, f64) {
    let sum = |power: i32| list.iter().map(|&(l, share)| share * (l.min(sequence) as f64).powi(power)).sum::<f64>();
    let all: f64 = list.iter().map(|(_, share)| share).sum();
    (sum(1) / all, sum(2) / all)
}

fn whole((mean, square): (f64, f64), sequence: u64) -> (f64, f64) {
    (sequence as f64 * square / mean, sequence as f64 / mean)
}

fn cut(list: &[(u64, f64)], sequence: u64) -> (f64, f64) {
    let unit = list.iter().fold(sequence, |unit, &(length, _)| greatest_divisor(unit, length)) as f64;
    let all: f64 = list.iter().map(|(_, share)| share).sum();
    let of = |f: &dyn Fn(f64) -> f64| list.iter().map(|&(l, share)| share * f(l as f64 / unit)).sum::<f64>() / all;
    let (s, mean) = (sequence as f64 / unit, of(&|l| l));
    let pairs = |l: f64| {
        let (m, most) = (l.min(s), l.max(s));
        most * m * m - (m * m * m - m) / 3.0
    };
    (unit * unit * of(&pairs) / mean, 1.0 + (s - 1.0) / mean)
}

fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

/// A lognormal distribution by its parameters.
struct Lognormal {
    mu: f64,
    sigma: f64,
}

impl Lognormal {
    fn new(mean: f64, sigma: f64) -> Lognormal {
        Lognormal { mu: libm::log(mean) - sigma * sigma / 2.0, sigma }
    }

    /// E\[l^k\] over lengths up to a bound; the whole where there is none.
    fn moment(&self, k: f64, bound: f64) -> f64 {
        let whole = libm::exp(k * self.mu + k * k * self.sigma * self.sigma / 2.0);
        if self.sigma == 0.0 {
            return if self.mu <= libm::log(bound) { whole } else { 0.0 };
        }
        let z = (libm::log(bound) - self.mu - k * self.sigma * self.sigma) / self.sigma;
        whole * 0.5 * libm::erfc(-z / std::f64::consts::SQRT_2)
    }

    /// The share of documents that are longer than a bound.
    fn beyond(&self, bound: f64) -> f64 {
        (1.0 - self.moment(0.0, bound)).max(0.0)
    }

    /// E\[l\] and E\[l²\] of lengths that are cut at a bound.
    fn within(&self, bound: f64) -> (f64, f64) {
        let beyond = self.beyond(bound);
        (self.moment(1.0, bound) + bound * beyond, self.moment(2.0, bound) + bound * bound * beyond)
    }

    fn cut(&self, s: f64) -> (f64, f64) {
        let mean = libm::exp(self.mu + self.sigma * self.sigma / 2.0);
        let (longer, longer_mean) = (self.beyond(s), (mean - self.moment(1.0, s)).max(0.0));
        let shorter = s * self.moment(2.0, s) - self.moment(3.0, s) / 3.0;
        let squares = (shorter + s * s * longer_mean - longer * s * s * s / 3.0) / mean;
        (squares, 1.0 + s / mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(length: u64) -> Lengths {
        Lengths::Listed(vec![(length, 1.0)])
    }

    #[test]
    fn documents_that_divide_a_sequence_are_so_many_blocks() {
        for packing in [Packing::Whole, Packing::Cut] {
            for (length, sequence) in [(512, 4096), (1, 64), (2048, 8192)] {
                let blocks = sequence / length;
                let known = Documents { squares: blocks * length * length, count: blocks };
                assert_eq!(Documents::of(&one(length), packing, sequence), Some(known), "{packing:?} {length}");
            }
            for length in [4096, 8192, 1 << 20] {
                assert_eq!(Documents::of(&one(length), packing, 4096), None, "one document a sequence");
            }
        }
    }

    #[test]
    fn what_whole_documents_leave_is_a_document() {
        let known = Documents { squares: 4 * 900 * 900 + 496 * 496, count: 5 };
        assert_eq!(Documents::of(&one(900), Packing::Whole, 4096), Some(known));
    }

    #[test]
    fn longer_documents_weigh_more_than_many_short_ones() {
        // Half of the documents have 100 tokens and half 300: E[l²]/E[l] = 250.
        let two = Lengths::Listed(vec![(100, 0.5), (300, 0.5)]);
        let documents = Documents::of(&two, Packing::Whole, 4000).expect("many documents");
        assert_eq!((documents.squares, documents.count), (4000 * 250, 20));
        assert_eq!(Documents::with_squares(4000 * 250, 4000).map(|documents| documents.count), Some(16));
    }

    #[test]
    fn a_lognormal_without_spread_is_one_length() {
        let alike = Lengths::Lognormal { mean: 256.0, sigma: 0.0 };
        let packed = Documents::of(&alike, Packing::Whole, 4096);
        assert_eq!(packed, Documents::of(&one(256), Packing::Whole, 4096));
        // E[l²]/E[l] = mean · exp(σ²), far from the sequence's end.
        let wide = Lengths::Lognormal { mean: 100.0, sigma: 0.5 };
        let squares = Documents::of(&wide, Packing::Whole, 1 << 20).expect("many documents").squares as f64;
        let known = (1 << 20) as f64 * 100.0 * libm::exp(0.25);
        assert!((squares / known - 1.0).abs() < 1e-6, "{squares}");
    }

    #[test]
    fn a_lognormal_is_the_list_of_its_lengths() {
        let (mean, sigma, sequence) = (300.0, 0.8, 2048);
        let mu = libm::log(mean) - sigma * sigma / 2.0;
        let density = |l: u64| {
            let z = (libm::log(l as f64) - mu) / sigma;
            (l, libm::exp(-z * z / 2.0) / l as f64)
        };
        let listed = Lengths::Listed((1..40_000).map(density).collect());
        for packing in [Packing::Whole, Packing::Cut] {
            let [closed, listed] = [&Lengths::Lognormal { mean, sigma }, &listed]
                .map(|lengths| Documents::of(lengths, packing, sequence).expect("many documents"));
            let off = closed.squares as f64 / listed.squares as f64 - 1.0;
            assert!(off.abs() < 0.001 && closed.count == listed.count, "{packing:?}: {off}");
        }
    }

    /// Squares of the parts that a stream of documents has in windows of a sequence, one after the other, until it repeats itself.
    fn streamed(length: u64, sequence: u64) -> f64 {
        let rounds = length / greatest_divisor(length, sequence);
        let (mut sum, mut at, mut left) = (0, 0, length);
        while at < rounds * sequence {
            let part = left.min(sequence - at % sequence);
            (sum, at, left) = (sum + part * part, at + part, left - part);
            left = if left == 0 { length } else { left };
        }
        sum as f64 / rounds as f64
    }

    /// The same of documents drawn one after the other.
    fn drawn(list: &[(u64, f64)], sequence: u64) -> f64 {
        let mut state = 1_u64;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let mut share = (state >> 11) as f64 / (1_u64 << 53) as f64;
            list.iter()
                .find(|one| {
                    share -= one.1;
                    share < 0.0
                })
                .unwrap_or(&list[0])
                .0
        };
        let (rounds, mut sum, mut at, mut left) = (40_000, 0.0, 0, draw());
        while at < rounds * sequence {
            let part = left.min(sequence - at % sequence);
            (sum, at, left) = (sum + (part * part) as f64, at + part, left - part);
            left = if left == 0 { draw() } else { left };
        }
        sum / rounds as f64
    }

    #[test]
    fn a_stream_of_drawn_documents_has_the_sum() {
        for (list, sequence) in [
            (vec![(100, 0.7), (901, 0.3)], 1000),
            (vec![(64, 0.9), (4096, 0.1)], 1024),
            (vec![(3, 0.2), (7, 0.3), (50, 0.5)], 20),
        ] {
            let closed = Documents::of(&Lengths::Listed(list.clone()), Packing::Cut, sequence).expect("several");
            let off = drawn(&list, sequence) / closed.squares as f64 - 1.0;
            assert!(off.abs() < 0.02, "{list:?}: {off}");
        }
    }

    proptest! {
        #[test]
        fn a_stream_of_one_length_has_the_sum(length in 1_u64..300, sequence in 2_u64..200) {
            let closed = Documents::of(&one(length), Packing::Cut, sequence);
            let squares = closed.map_or(sequence * sequence, |documents| documents.squares) as f64;
            prop_assert!((squares - streamed(length, sequence)).abs() <= 0.5 + 1e-9 * squares);
        }

        #[test]
        fn a_mask_never_adds_pairs(mean in 1.0_f64..1e5, sigma in 0.0_f64..3.0, sequence in 2_u64..65_536) {
            for packing in [Packing::Whole, Packing::Cut] {
                if let Some(documents) = Documents::of(&Lengths::Lognormal { mean, sigma }, packing, sequence) {
                    prop_assert!(documents.squares >= sequence && documents.squares < sequence * sequence);
                    prop_assert!((1..=sequence).contains(&documents.count));
                }
            }
        }
    }
}
