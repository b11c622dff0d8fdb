//! An event of PyTorch's profiler as the file has it. Only what is used is parsed: arguments of most events are skipped.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// An event.
#[derive(Debug, Deserialize)]
pub(in super::super) struct Event<'a> {
    #[serde(borrow, default)]
    pub ph: Cow<'a, str>,
    #[serde(borrow, default)]
    pub cat: Cow<'a, str>,
    #[serde(borrow, default)]
    pub name: Cow<'a, str>,
    #[serde(borrow)]
    pub ts: Option<&'a RawValue>,
    #[serde(borrow)]
    pub dur: Option<&'a RawValue>,
    #[serde(borrow)]
    pub pid: Option<&'a RawValue>,
    #[serde(borrow)]
    pub tid: Option<&'a RawValue>,
    #[serde(borrow)]
    pub args: Option<&'a RawValue>,
}

/// What an operator's arguments may say.
#[derive(Debug, Default, Deserialize)]
pub(super) struct OpArgs<'a> {
    #[serde(borrow, rename = "Input Dims")]
    pub dims: Option<&'a RawValue>,
    #[serde(borrow, rename = "Input type")]
    pub types: Option<&'a RawValue>,
    #[serde(borrow, rename = "Input Strides")]
    pub strides: Option<&'a RawValue>,
    #[serde(borrow, rename = "Concrete Inputs")]
    pub values: Option<&'a RawValue>,
    #[serde(rename = "Sequence number")]
    pub sequence: Option<i64>,
    #[serde(rename = "Fwd thread id")]
    pub forward_thread: Option<i64>,
    #[serde(borrow, rename = "Collective name")]
    pub collective: Option<&'a RawValue>,
}

/// What a call's arguments may say.
#[derive(Debug, Default, Deserialize)]
pub(super) struct CallArgs {
    pub correlation: Option<i64>,
}

/// What a kernel's or a copy's arguments may say.
#[derive(Debug, Default, Deserialize)]
pub(super) struct KernelArgs<'a> {
    pub correlation: Option<i64>,
    pub device: Option<i64>,
    #[serde(borrow)]
    pub stream: Option<&'a RawValue>,
    pub grid: Option<[u32; 3]>,
    pub block: Option<[u32; 3]>,
    pub bytes: Option<u64>,
    #[serde(borrow, rename = "Collective name")]
    pub collective: Option<&'a RawValue>,
}

/// What is said of a collective, on the kernel or on `record_param_comms`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct CommArgs<'a> {
    #[serde(borrow, default, rename = "Collective name")]
    pub name: Cow<'a, str>,
    #[serde(borrow, default)]
    pub dtype: Cow<'a, str>,
    #[serde(rename = "In msg nelems")]
    pub elements_in: Option<u64>,
    #[serde(rename = "Out msg nelems")]
    pub elements_out: Option<u64>,
    #[serde(rename = "Group size")]
    pub group_size: Option<u32>,
    #[serde(borrow, rename = "Process Group Name")]
    pub group: Option<&'a RawValue>,
    #[serde(borrow, rename = "Process Group ID")]
    pub group_id: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "Process Group Description")]
    pub purpose: Cow<'a, str>,
    #[serde(borrow, default, rename = "Process Group Ranks")]
    pub ranks: Cow<'a, str>,
    #[serde(rename = "Seq")]
    pub sequence: Option<i64>,
}

/// The text of a number, or what stands between a string's quotes.
pub(in super::super) fn plain(value: &RawValue) -> &str {
    value.get().trim_matches('"')
}

/// A number as it is, or the last number in a string such as "stream 7 ".
pub(in super::super) fn integer(value: &RawValue) -> Option<i64> {
    let text = plain(value).trim();
    text.parse().ok().or_else(|| text.rsplit(|c: char| !c.is_ascii_digit()).find(|word| !word.is_empty())?.parse().ok())
}

/// Microseconds as decimal text, in nanoseconds, without a float between: a double cannot hold an epoch and its nanoseconds.
pub(in super::super) fn nanoseconds(micros: &str) -> Option<i128> {
    let (text, is_negative) = micros.strip_prefix('-').map_or((micros, false), |rest| (rest, true));
    let (digits, exponent) = match text.split_once(['e', 'E']) {
        Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok().filter(|&e| (-40..=40).contains(&e))?),
        None => (text, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() || whole.len() > 24 || !whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit()) {
        return None;
    }
    // Digits from the first on, and how many of them stand before the point of nanoseconds.
    let point = whole.len() as i32 + exponent + 3;
    let all = whole.bytes().chain(fraction.bytes());
    let mut ns = 0i128;
    for (at, digit) in all.chain(std::iter::repeat(b'0')).enumerate().take(point.max(0) as usize + 1) {
        let digit = i128::from(digit - b'0');
        match (at as i32).cmp(&point) {
            std::cmp::Ordering::Less => ns = ns.checked_mul(10)?.checked_add(digit)?,
            // The first digit that is left out rounds.
            std::cmp::Ordering::Equal => ns += i128::from(digit >= 5),
            std::cmp::Ordering::Greater => {}
        }
    }
    Some(if is_negative { -ns } else { ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_lose_no_digit() {
        for (text, ns) in [
            ("1706850122846038", 1_706_850_122_846_038_000),
            ("1712195495520870.926", 1_712_195_495_520_870_926),
            ("6322354292627.936", 6_322_354_292_627_936),
            ("0.1234", 123),
            ("0.1235", 124),
            ("-2.5", -2500),
            ("1.5e3", 1_500_000),
            ("25e-3", 25),
            ("9e-9", 0),
            ("0", 0),
        ] {
            assert_eq!(nanoseconds(text), Some(ns), "{text}");
        }
        for text in ["", "1e99", "x", "1.2.3", "+1", "99999999999999999999999999"] {
            assert_eq!(nanoseconds(text), None, "{text}");
        }
    }

    #[test]
    fn streams_and_threads_may_be_words() {
        let number = |text: &str| integer(serde_json::from_str::<&RawValue>(text).expect("it is JSON"));
        assert_eq!(number("7"), Some(7));
        assert_eq!(number("\"stream 7 \""), Some(7));
        assert_eq!(number("\"25738\""), Some(25738));
        assert_eq!(number("\"Spans\""), None);
        assert_eq!(number("-1"), Some(-1));
    }
}
