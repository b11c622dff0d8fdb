//! `[ranks]`.

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use toml::Spanned;

use super::readers::ALL;
use super::row::between;

keys! {
    /// How ranks differ from one another. Without the table all are alike.
    #[derive(Debug, Deserialize)]
    ["ranks"] Ranks in Hardware;

    /// A published distribution of the pace of chips, from which every rank is drawn: `gemm` or `training`.
    speed: Option<Spanned<String>> => ALL.such_as("\"gemm\"");
    /// In place of `speed`: the standard deviation of a chip's time for the same kernel, as a share.
    spread: Option<Spanned<f64>> => ALL.such_as("0.02");
    /// The standard deviation of a kernel's time from launch to launch on one chip, as a share.
    kernel_jitter: Option<Spanned<f64>> => ALL.such_as("0.01");
    /// The standard deviation of a host call's time from call to call, as a share.
    host_jitter: Option<Spanned<f64>> => ALL.such_as("0.05");
    /// Ranks whose chip has a known pace, such as `{ rank = 3, pace = 0.9 }`: it does nine tenths of the work in the
    /// same time.
    slow: Option<Spanned<Slow>> => ALL.such_as("{ rank = 0, pace = 0.9 }");
    /// Ranks whose links have a known pace, such as `{ rank = 3, pace = 0.5 }`. A collective takes as long as its
    /// slowest link needs.
    slow_links: Option<Spanned<Slow>> => ALL.such_as("{ rank = 0, pace = 0.5 }");
    /// What the draws begin with. The same seed gives the same chips.
    seed: Option<Spanned<i64>> as between(0, i64::MAX) => ALL.such_as("7");
    /// How many clusters are drawn. The report gives the distribution.
    draws: Option<Spanned<i64>> as between(1, 1 << 16) => ALL.such_as("64");
}

/// One rank of a known pace, or a list of them.
#[derive(Debug)]
pub struct Slow(pub Vec<Spanned<SlowRank>>);

/// A rank and its pace.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowRank {
    /// The rank, from 0.
    pub rank: i64,
    /// Its pace: 0.9 does nine tenths of the work in the same time.
    pub pace: f64,
}

impl<'de> Deserialize<'de> for Slow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Slow, D::Error> {
        struct OneOrMany;
        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Slow;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("{ rank = N, pace = X }, or a list of such tables")
            }
            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Slow, M::Error> {
                let one = SlowRank::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(Slow(vec![Spanned::new(0..0, one)]))
            }
            fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Slow, S::Error> {
                let mut all = vec![];
                while let Some(one) = seq.next_element::<Spanned<SlowRank>>()? {
                    all.push(one);
                }
                Ok(Slow(all))
            }
        }
        deserializer.deserialize_any(OneOrMany)
    }
}
