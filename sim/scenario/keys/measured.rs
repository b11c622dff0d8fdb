//! `[measured]`: a receipt of the very run that the file describes.

use serde::Deserialize;
use toml::Spanned;

use super::readers::ALL;
use super::readings::Readings;
use super::row::Kind::{Other, Quantity};
use crate::units::{Bytes, Time};

keys! {
    /// What the run measured, where it has been run.
    #[derive(Debug, Deserialize)]
    ["measured"] Measured in Rest;

    /// Time of a steady step; of several the median counts.
    step_time: Option<Spanned<Readings<Time>>> as Other("a time, a list of times, or a table of p10 and p50 and p90") => ALL.such_as("\"1.5 s\"");
    /// The rate of tokens, in place of `step_time`.
    tokens_per_second_per_chip: Option<Spanned<Readings<f64>>> as Other("a number, a list of numbers, or a table of p10 and p50 and p90") => ALL.such_as("7000.0");
    /// Tokens of a step that the rate counts, where padding is left out of it.
    counted_tokens_per_step: Option<Spanned<i64>> => ALL.such_as("524288");
    /// Peak of `memory_allocated`.
    allocated: Option<Spanned<Bytes>> as Quantity("80 GB") => ALL;
    /// Peak of `memory_reserved`.
    reserved: Option<Spanned<Bytes>> as Quantity("80 GB") => ALL;
    /// A peak of memory that is not said to be allocated or reserved.
    peak_memory: Option<Spanned<Bytes>> as Quantity("80 GB") => ALL;
    /// Model FLOPs utilisation, between 0 and 1.
    mfu: Option<Spanned<f64>> => ALL.such_as("0.41");
    /// The convention of `mfu`, by the name that `run --mfu-all` prints.
    mfu_convention: Option<Spanned<String>> => ALL.such_as("\"6N + 12LHS\"");
    /// Whether the run ended out of memory. `false` alone is a measurement, too.
    out_of_memory: Option<bool> => ALL;
    /// Who measured it, where it is written down.
    source: Option<String> => ALL.such_as("\"our cluster, run 17\"");
    /// The day it was measured on, as YYYY-MM-DD: `check` keeps a history by it.
    date: Option<Spanned<String>> => ALL.such_as("\"2026-11-26\"");
    /// The commit of the code that ran.
    commit: Option<String> => ALL.such_as("\"9dec370\"");
    /// The lane it is counted in.
    lane: Option<String> => ALL.such_as("\"fsdp2\"");
    /// The hardware it is counted under.
    hardware: Option<String> => ALL.such_as("\"H100\"");
    /// How complete the receipt is: A, B or C.
    grade: Option<String> => ALL.such_as("\"A\"");
    /// Runs measured together, such as a model by one publisher: its interval rests on other families alone.
    family: Option<String> => ALL.such_as("\"llama-3.1, our cluster\"");
}
