//! `[ranks]`.

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use toml::Spanned;

/// How ranks differ from one another.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ranks {
    /// A published distribution of the pace of chips.
    pub speed: Option<Spanned<String>>,
    /// Or the deviation of one's own.
    pub spread: Option<Spanned<f64>>,
    /// How far a kernel's time varies from launch to launch.
    pub kernel_jitter: Option<Spanned<f64>>,
    /// How far a host call's time does.
    pub host_jitter: Option<Spanned<f64>>,
    /// Chips of a known pace.
    pub slow: Option<Spanned<Slow>>,
    /// Links of a known pace.
    pub slow_links: Option<Spanned<Slow>>,
    /// What draws begin with.
    pub seed: Option<Spanned<i64>>,
    /// How many clusters are drawn.
    pub draws: Option<Spanned<i64>>,
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
