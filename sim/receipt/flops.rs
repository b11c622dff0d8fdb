//! Throughputs that a source printed in TFLOP/s, or as a share of the peak: the formula it divided by a step's time gives
//! the time back.
//!
//! FLOPs of one token, with L layers, D width, K·H key-value width, F feed-forward width, V vocabulary, S sequence. To add
//! a formula: a line in [`FORMULAS`], named by a rule's `measured.flops`.

/// Sizes that a formula takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// L: blocks.
    pub layers: u64,
    /// D: width.
    pub width: u64,
    /// N·H: width of the queries.
    pub heads_width: u64,
    /// K·H: width of the keys.
    pub kv_width: u64,
    /// F: feed-forward width.
    pub ffn: u64,
    /// V: vocabulary.
    pub vocab: u64,
    /// S: tokens of a sequence.
    pub sequence: u64,
}

/// FLOPs of one token by a formula.
type Formula = fn(Sizes) -> u128;

/// Formulas by name.
const FORMULAS: [(&str, Formula); 6] = [
    // 96·B·S·L·D²·(1 + S/6D + V/16LD): with a second forward of each block (Narayanan et al. 2021, eq. 3).
    ("96BSLD2", |s| 96 * s.blocks() + 16 * s.scores() + 6 * s.head()),
    // 72·B·S·L·D²·(1 + S/6D + V/12LD): model FLOPs (Korthikanti et al. 2022, appendix A).
    ("72BSLD2", |s| 72 * s.blocks() + 12 * s.scores() + 6 * s.head()),
    // 6·N + 12·L·D·S with gated feed-forwards (nanotron, get_flops).
    ("6N + 12LHS, gated", |s| {
        let width = u128::from(s.width);
        let block = width * (2 * width + 2 * u128::from(s.kv_width) + 3 * u128::from(s.ffn));
        6 * u128::from(s.layers) * block + 12 * s.scores() + 6 * s.head()
    }),
    // 6·N + 6·L·N·H·S: causal pairs, gated feed-forwards, both tables counted (MaxText of 2024).
    ("6N + 6LNHS, gated", |s| {
        let (width, heads) = (u128::from(s.width), u128::from(s.heads_width));
        let block = width * (2 * heads + 2 * u128::from(s.kv_width) + 3 * u128::from(s.ffn));
        6 * (u128::from(s.layers) * (block + heads * u128::from(s.sequence)) + 2 * s.head())
    }),
    // 6·N, a feed-forward without a gate, tied words (MaxText of April 2023, train.py).
    ("6N, plain", |s| 6 * (s.plain() + s.head())),
    // 6·N + 6·L·N·H·S: causal pairs besides (MaxText of autumn 2023, calculate_training_tflops).
    ("6N + 6LNHS, plain", |s| {
        let pairs = u128::from(s.layers) * u128::from(s.heads_width) * u128::from(s.sequence);
        6 * (s.plain() + pairs + s.head())
    }),
];

impl Sizes {
    fn blocks(self) -> u128 {
        u128::from(self.layers) * u128::from(self.width) * u128::from(self.width)
    }

    /// Parameters of blocks without gates.
    fn plain(self) -> u128 {
        let attention = 2 * (u128::from(self.heads_width) + u128::from(self.kv_width));
        u128::from(self.layers) * u128::from(self.width) * (attention + 2 * u128::from(self.ffn))
    }

    fn scores(self) -> u128 {
        u128::from(self.layers) * u128::from(self.sequence) * u128::from(self.width)
    }

    fn head(self) -> u128 {
        u128::from(self.vocab) * u128::from(self.width)
    }
}

/// FLOPs of one token by the formula of a name.
pub fn per_token(name: &str, sizes: Sizes) -> Option<u128> {
    FORMULAS.iter().find(|(known, _)| *known == name).map(|(_, formula)| formula(sizes))
}

/// Names of the formulas.
pub fn names() -> Vec<&'static str> {
    FORMULAS.iter().map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::{Sizes, per_token};

    const GPT3: Sizes = Sizes {
        layers: 96,
        width: 12_288,
        heads_width: 12_288,
        kv_width: 12_288,
        ffn: 49_152,
        vocab: 51_200,
        sequence: 2048,
    };

    #[test]
    fn gpt3_takes_the_days_that_the_paper_says() {
        // Narayanan et al. 2021, section 5.1: 300 billion tokens on 1,024 A100 at 140 TFLOP/s in 34 days, and there by 8·N
        // with N of 175 billion; the whole formula counts head and scores too.
        let seconds = per_token("96BSLD2", GPT3).expect("a formula") as f64 * 300e9 / (1024.0 * 140e12);
        assert!((34.0..36.0).contains(&(seconds / 86_400.0)), "{seconds}");
    }

    #[test]
    fn a_model_flop_utilisation_is_the_papers() {
        // Korthikanti et al. 2022, Table 5: 175B, global batch 64, 13.75 s on 64 A100: 51.4 % of 312 TFLOP/s.
        let flops = per_token("72BSLD2", GPT3).expect("a formula") as f64 * 64.0 * 2048.0;
        let utilisation = flops / (13.75 * 64.0 * 312e12);
        assert!((utilisation - 0.514).abs() < 5e-4, "{utilisation}");
    }

    #[test]
    fn a_scaled_model_of_maxtext_is_as_large_as_its_name() {
        // 32B on v5e: 40 blocks of 8,192, heads of 256, 32,768 tied words; one sequence is 6·N and 6·L·N·H·S a token.
        let sizes = Sizes {
            layers: 40,
            width: 8192,
            heads_width: 8192,
            kv_width: 8192,
            ffn: 32_768,
            vocab: 32_768,
            sequence: 2048,
        };
        let params = per_token("6N, plain", sizes).expect("a formula") as f64 / 6.0;
        assert!((params / 32.5e9 - 1.0).abs() < 0.01, "{params}");
        let pairs = per_token("6N + 6LNHS, plain", sizes).expect("a formula") as f64 - 6.0 * params;
        assert!((pairs / (6.0 * 40.0 * 8192.0 * 2048.0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_name_that_is_none_has_no_formula() {
        assert_eq!(per_token("6N", GPT3), None);
    }
}
