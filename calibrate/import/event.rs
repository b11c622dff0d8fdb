//! How long after an event a stream that waits for it goes on, from traces that others published.
//!
//! `events.csv` holds what six sets of PyTorch's traces say, read by `events.py`: the mean gap between kernels next to each
//! other on one stream, and between a kernel and the last one to end before it where that ran on another stream and the host
//! had called `cudaStreamWaitEvent` since its last launch. Counted are gaps below 20 us of kernels that the host had launched
//! at least 5 us before they could begin. The difference is what the event adds: kernels' own times hold the gap within a
//! stream.
//! A chip without traces of its own gets the mean of all.

use super::chips::ChipSpec;
use super::{ImportError, Section, evidence};
use crate::fit::{median, quantile};

const TRACES: &str = include_str!("events.csv");

/// What one set of traces says.
struct Traces {
    gpu: String,
    hops: f64,
    /// What an event adds, mean \[us\].
    adds: f64,
}

fn traces() -> Result<Vec<Traces>, ImportError> {
    let bad = |line: &str| ImportError::Table {
        path: "calibrate/import/events.csv".to_owned(),
        why: format!("{line:?} is not a GPU, two counts with their means [us], and a source"),
    };
    let read = |line: &str| {
        let fields: Vec<&str> = line.splitn(6, ',').collect();
        let [gpu, _, same, hops, hop, _] = fields[..] else { return Err(bad(line)) };
        let [same, hops, hop] = [same, hops, hop].map(|field| field.parse::<f64>().map_err(|_| bad(line)));
        Ok(Traces { gpu: gpu.to_owned(), adds: hop.as_ref().map_err(|_| bad(line))? - same?, hops: hops? })
    };
    TRACES.lines().skip(1).map(read).collect()
}

/// The section `event`.
pub fn section(chip: &ChipSpec) -> Result<Section, ImportError> {
    let all = traces()?;
    let own = all.iter().any(|set| set.gpu == chip.matmul);
    let used: Vec<&Traces> = all.iter().filter(|set| !own || set.gpu == chip.matmul).collect();
    let hops: f64 = used.iter().map(|set| set.hops).sum();
    let adds = used.iter().map(|set| set.hops * set.adds).sum::<f64>() / hops;
    let mut errors: Vec<f64> = used.iter().map(|set| (set.adds / adds - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    let basis = if own { "published" } else { "extrapolated" };
    let whose = if own { "of this chip" } else { "of A100 and V100" };
    let source = format!(
        "calibrate/import/events.csv: {hops} waits of streams for events in published PyTorch traces {whose}, over the gap \
         between kernels of one stream; the errors are those of whole traces"
    );
    let e = evidence(basis, hops as usize, median(&errors), quantile(&errors, 0.9).min(1.0), &source);
    Ok(Section { text: format!("[event]\ntime = \"{adds:.1} us\"\nevidence = {e}\n"), residuals: Vec::new() })
}
