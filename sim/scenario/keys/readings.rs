//! A figure that was read off a run: once, at every step, or as a distribution.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Visitor};

use crate::statistics::of_sorted;

/// One reading, one of each step, or three quantiles of them.
#[derive(Clone, Debug, PartialEq)]
pub enum Readings<T> {
    /// One.
    One(T),
    /// One of each step.
    Many(Vec<T>),
    /// Quantiles.
    Quantiles(Quantiles<T>),
}

/// Three quantiles of many readings.
#[derive(Clone, Copy, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantiles<T> {
    /// A tenth of the readings is at most this.
    pub p10: T,
    /// Half of them.
    pub p50: T,
    /// Nine tenths of them.
    pub p90: T,
}

impl<T: Copy + PartialOrd> Readings<T> {
    /// The reading in the middle, and those that a tenth and nine tenths are at most, if there are several; `None` of an empty list, and
    /// of quantiles that are out of order.
    pub fn quantiles(&self) -> Option<(T, Option<(T, T)>)> {
        match self {
            Readings::One(one) => Some((*one, None)),
            Readings::Many(many) => {
                let mut sorted = many.clone();
                sorted.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
                let at = |q: f64| of_sorted(&sorted, q).copied();
                let spread = at(0.1).zip(at(0.9)).filter(|_| sorted.len() > 1);
                Some((at(0.5)?, spread))
            }
            Readings::Quantiles(Quantiles { p10, p50, p90 }) => {
                (p10 <= p50 && p50 <= p90).then_some((*p50, Some((*p10, *p90))))
            }
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Readings<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any(PhantomData))
    }
}

struct Any<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Any<T> {
    type Value = Readings<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one reading, a list of readings, or { p10 = …, p50 = …, p90 = … }")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        T::deserialize(text.into_deserializer()).map(Readings::One)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        T::deserialize(number.into_deserializer()).map(Readings::One)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        T::deserialize(number.into_deserializer()).map(Readings::One)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(Readings::Many)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        Quantiles::deserialize(MapAccessDeserializer::new(map)).map(Readings::Quantiles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables;
    use crate::units::Time;

    #[derive(Debug, serde::Deserialize)]
    struct File {
        step: Readings<Time>,
        rate: Option<Readings<f64>>,
    }

    #[test]
    fn a_figure_is_one_reading_a_list_or_quantiles() {
        let of = |text: &str| tables::read::<File>(text);
        let step = |text: &str| of(text).expect(text).step.quantiles();
        let ms = |millis: u64| Time(millis * 1_000_000_000);
        assert_eq!(step("step = \"1.5 s\""), Some((ms(1500), None)));
        assert_eq!(step("step = [\"3 ms\", \"1 ms\", \"2 ms\"]"), Some((ms(2), Some((ms(1), ms(3))))));
        let quantiles = step("step = { p10 = \"1 ms\", p50 = \"2 ms\", p90 = \"4 ms\" }");
        assert_eq!(quantiles, Some((ms(2), Some((ms(1), ms(4))))));
        assert_eq!(step("step = []"), None);
        assert_eq!(step("step = { p10 = \"3 ms\", p50 = \"2 ms\", p90 = \"4 ms\" }"), None);
        let rate = of("step = \"1 s\"\nrate = [6000, 6100.5]").expect("numbers").rate;
        assert_eq!(rate.and_then(|rate| rate.quantiles()), Some((6000.0, Some((6000.0, 6100.5)))));
    }

    #[test]
    fn what_is_no_reading_is_refused_as_the_reading_itself_would_be() {
        let refused = |text: &str| tables::read::<File>(text).expect_err(text).to_string();
        assert!(refused("step = \"1.5 sec\"").contains("sec"));
        assert!(refused("step = true").contains("a list of readings"));
        assert!(refused("step = { p10 = \"1 s\", p50 = \"2 s\" }").contains("p90"));
        assert!(refused("step = { p10 = \"1 s\", p50 = \"2 s\", p90 = \"2 s\", p99 = \"9 s\" }").contains("p99"));
    }
}
