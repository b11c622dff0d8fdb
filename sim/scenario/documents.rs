//! `batch.documents` and `batch.packing`: documents packed into a sequence, with attention that stays inside each.

use toml::Spanned;

use super::error::ScenarioError;
use super::reader::{MOST_SEQUENCE, Reader};
use super::written;
use crate::model::documents::{Documents, Lengths, Packing};

/// The widest lognormal: with it, one document in 10,000 is 70,000 times as long as the median.
const WIDEST: f64 = 3.0;
/// Lengths that a file may list.
const MOST_LENGTHS: usize = 1 << 16;

/// The key.
pub(super) const KEY: &str = "batch.documents";
const PACKING: &str = "batch.packing";

/// Documents of a sequence; none: attention sees the whole sequence.
pub(super) fn documents(
    reader: &mut Reader<'_>,
    batch: &written::Batch,
    sequence: u64,
) -> Result<Option<Documents>, ScenarioError> {
    let Some(at) = &batch.documents else {
        if batch.packing.is_some() {
            reader.idle(PACKING, "without batch.documents attention sees the whole sequence, however it was packed");
        }
        return Ok(None);
    };
    let lengths = match at.get_ref() {
        written::Documents::Length(length) => Lengths::Listed(vec![(count(reader, "length", length)?, 1.0)]),
        written::Documents::Lengths(list) => listed(reader, at, list)?,
        written::Documents::Lognormal(written) => lognormal(reader, written)?,
        written::Documents::Squares(squares) => return counted(reader, batch, squares, sequence),
    };
    let [whole, cut] = [Packing::Whole, Packing::Cut].map(|packing| Documents::of(&lengths, packing, sequence));
    let packing = match batch.packing {
        Some(packing) => packing.into(),
        None if whole == cut => Packing::Whole,
        None => reader.assume(PACKING, Packing::Whole, "whole"),
    };
    if whole == cut && batch.packing.is_some() {
        reader.idle(PACKING, "documents of this length leave the same mask either way");
    }
    let documents = if packing == Packing::Whole { whole } else { cut };
    told(reader, documents, sequence);
    Ok(documents)
}

/// Says what the mask lets through, or that there is none.
fn told(reader: &mut Reader<'_>, documents: Option<Documents>, sequence: u64) {
    match documents {
        None => reader.idle(KEY, "each sequence is one document, so the mask hides nothing"),
        Some(Documents { squares, count }) => {
            let share = 100.0 * squares as f64 / (sequence as f64 * sequence as f64);
            reader.note(format!(
                "batch.documents: of the pairs of a causal mask attention computes {share:.2} %, those inside {count} documents a sequence"
            ));
        }
    }
}

fn count(reader: &Reader<'_>, name: &str, at: &Spanned<i64>) -> Result<u64, ScenarioError> {
    reader.count_within(&format!("{KEY}.{name}"), at, 1, MOST_SEQUENCE)
}

fn listed(
    reader: &Reader<'_>,
    at: &Spanned<written::Documents>,
    list: &[written::DocumentLength],
) -> Result<Lengths, ScenarioError> {
    if list.is_empty() || list.len() > MOST_LENGTHS {
        let problem = format!("batch.documents.lengths has {} lengths: expected 1 to {MOST_LENGTHS}", list.len());
        return Err(reader.plan(at, problem, "write lengths = [{ length = 512, share = 1.0 }]"));
    }
    let read = |one: &written::DocumentLength| {
        let share = *one.share.get_ref();
        if !(share > 0.0 && share <= 1e9) {
            let problem = format!("batch.documents.lengths has a share of {share}");
            let remedy = "write what share of the documents has this length: a number above 0";
            return Err(reader.plan(&one.share, problem, remedy));
        }
        Ok((count(reader, "lengths", &one.length)?, share))
    };
    Ok(Lengths::Listed(list.iter().map(read).collect::<Result<_, _>>()?))
}

fn lognormal(reader: &Reader<'_>, written: &written::Lognormal) -> Result<Lengths, ScenarioError> {
    let (mean, sigma) = (*written.mean.get_ref(), *written.sigma.get_ref());
    if !(1.0..=MOST_SEQUENCE as f64).contains(&mean) {
        let problem = format!("batch.documents.lognormal.mean = {mean} is out of range");
        return Err(reader.plan(
            &written.mean,
            problem,
            format!("write the mean length, from 1 to {MOST_SEQUENCE} tokens"),
        ));
    }
    if !(0.0..=WIDEST).contains(&sigma) {
        let problem = format!("batch.documents.lognormal.sigma = {sigma} is out of range");
        let remedy = format!("write the standard deviation of the logarithm of lengths, from 0 to {WIDEST}");
        return Err(reader.plan(&written.sigma, problem, remedy));
    }
    Ok(Lengths::Lognormal { mean, sigma })
}

/// The sum of squares as somebody counted it.
fn counted(
    reader: &mut Reader<'_>,
    batch: &written::Batch,
    at: &Spanned<i64>,
    sequence: u64,
) -> Result<Option<Documents>, ScenarioError> {
    let most = sequence * sequence;
    let squares = u64::try_from(*at.get_ref()).ok().filter(|squares| (sequence..=most).contains(squares));
    let Some(squares) = squares else {
        let problem = format!(
            "batch.documents.squares = {} is out of range: documents of {sequence} tokens together have from {sequence} to {most}",
            at.get_ref()
        );
        let remedy = "write the mean over sequences of the sum of the squares of their documents' lengths";
        return Err(reader.plan(at, problem, remedy));
    };
    if batch.packing.is_some() {
        reader.idle(PACKING, "batch.documents.squares is what packing has made of the documents");
    }
    let documents = Documents::with_squares(squares, sequence);
    told(reader, documents, sequence);
    Ok(documents)
}

impl From<written::Packing> for Packing {
    fn from(written: written::Packing) -> Packing {
        match written {
            written::Packing::Whole => Packing::Whole,
            written::Packing::Cut => Packing::Cut,
        }
    }
}
