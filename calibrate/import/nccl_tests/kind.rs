//! Which collective a table is of, and between how many ranks, where the log does not say.
//!
//! The bus bandwidth is the time's other half: `busbw · time / size` is the factor of the collective,
//!
//! ```text
//! all-reduce                                                     2(n−1)/n
//! all-gather, reduce-scatter, all-to-all, gather, scatter         (n−1)/n
//! broadcast, reduce, send and receive                                   1
//! ```
//!
//! so a table tells its number of ranks, as sharply as its figures are printed, and whether it is what it is said to be.
//! The count does too: it is of one rank where the size is of all.

use super::row::{Body, Figure, Row};

/// A collective of nccl-tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `all_gather_perf`.
    AllGather,
    /// `reduce_scatter_perf`.
    ReduceScatter,
    /// `all_reduce_perf`.
    AllReduce,
    /// `alltoall_perf`.
    AllToAll,
    /// `alltoallv_perf`: uneven shares.
    AllToAllV,
    /// `sendrecv_perf`.
    SendRecv,
    /// `broadcast_perf`.
    Broadcast,
    /// `reduce_perf`.
    Reduce,
    /// `gather_perf`.
    Gather,
    /// `scatter_perf`.
    Scatter,
    /// `hypercube_perf`: an all-gather by pairs.
    HyperCube,
}

impl Kind {
    /// All, with the name in points and the program's without underscores; a name comes before those it contains.
    const NAMES: [(Kind, &'static str, &'static str); 11] = [
        (Kind::AllGather, "all_gather", "allgather"),
        (Kind::ReduceScatter, "reduce_scatter", "reducescatter"),
        (Kind::AllReduce, "all_reduce", "allreduce"),
        (Kind::AllToAllV, "all_to_all_v", "alltoallv"),
        (Kind::AllToAll, "all_to_all", "alltoall"),
        (Kind::SendRecv, "send_recv", "sendrecv"),
        (Kind::Broadcast, "broadcast", "broadcast"),
        (Kind::HyperCube, "hypercube", "hypercube"),
        (Kind::Gather, "gather", "gather"),
        (Kind::Scatter, "scatter", "scatter"),
        (Kind::Reduce, "reduce", "reduce"),
    ];

    /// Its name in points.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(kind, ..)| *kind == self).map_or("", |(_, name, _)| name)
    }

    /// Of a name as points, programs or tables write it.
    pub fn named(name: &str) -> Option<Kind> {
        let plain = plain(name);
        Self::NAMES.iter().find(|(_, _, known)| *known == plain).map(|(kind, ..)| *kind)
    }

    /// The last program that a line names, as `all_reduce_perf`.
    pub fn program(text: &str) -> Option<Kind> {
        let end = text.rfind("_perf")?;
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        Self::named(text[..end].rsplit(|c| !word(c)).next()?)
    }

    /// What a file's name mentions.
    pub fn mentioned(file: &str) -> Option<Kind> {
        let plain = plain(file);
        Self::NAMES.iter().find(|(_, _, known)| plain.contains(known)).map(|(kind, ..)| *kind)
    }

    /// Whether the simulator has a cost model for it.
    pub fn is_modelled(self) -> bool {
        !matches!(self, Kind::AllToAllV | Kind::Gather | Kind::Scatter | Kind::HyperCube)
    }

    /// Busbw over size and time, in units of one, for n ranks; none where it is not a fixed share.
    fn factor(self, ranks: f64) -> Option<f64> {
        match self {
            Kind::AllReduce => Some(2.0 * (ranks - 1.0) / ranks),
            Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll | Kind::Gather | Kind::Scatter | Kind::HyperCube => {
                Some((ranks - 1.0) / ranks)
            }
            Kind::SendRecv | Kind::Broadcast | Kind::Reduce => Some(1.0),
            Kind::AllToAllV => None,
        }
    }

    /// Ranks that a factor means.
    fn ranks_of(self, factor: f64) -> f64 {
        match self {
            Kind::AllReduce => 2.0 / (2.0 - factor).max(1e-12),
            _ => 1.0 / (1.0 - factor).max(1e-12),
        }
    }

    /// Whether a row may be of this collective, by what it says beside figures.
    fn may_print(self, row: &Row) -> bool {
        let rooted = matches!(self, Kind::Broadcast | Kind::Reduce | Kind::Gather | Kind::Scatter);
        let reduces = matches!(self, Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce);
        // Send and receive name a reduction that they do not do; only they and all-to-all have no check in place.
        let checked = |at: usize| row.bodies[at].map(|body| body.wrong.is_some());
        let unchecked_in_place = checked(0) == Some(true) && checked(1) == Some(false);
        let can_be_unchecked = matches!(self, Kind::AllToAll | Kind::AllToAllV | Kind::SendRecv);
        rooted == row.root.is_some()
            && (reduces == row.reduces || self == Kind::SendRecv)
            && (!unchecked_in_place || can_be_unchecked)
    }

    /// The collectives that all rows can be of.
    pub fn candidates(rows: &[Row], ranks: Option<u64>) -> Vec<Kind> {
        let fits = |kind: Kind| {
            let (first, last) = kind.range(rows);
            rows.iter().all(|row| kind.may_print(row))
                && match ranks.or_else(|| kind.ranks(rows)) {
                    Some(ranks) => kind.check(rows, ranks).is_ok(),
                    None => first <= last,
                }
        };
        // Uneven all-to-alls and hypercubes always say what they are.
        let rare = |kind: Kind| matches!(kind, Kind::AllToAllV | Kind::HyperCube);
        Self::NAMES.iter().map(|(kind, ..)| *kind).filter(|&kind| !rare(kind) && fits(kind)).collect()
    }

    /// The number of ranks that a table's own figures mean, where they mean just one.
    pub fn ranks(self, rows: &[Row]) -> Option<u64> {
        let shared =
            matches!(self, Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll | Kind::Gather | Kind::Scatter);
        let by_count = |row: &Row| {
            let one = row.count.saturating_mul(row.element());
            row.bytes.is_multiple_of(one).then(|| row.bytes / one)
        };
        let mut counted = rows.iter().filter(|row| shared && row.count > 0).map(by_count);
        if let Some(Some(first)) = counted.next()
            && first > 1
            && counted.all(|ranks| ranks == Some(first))
        {
            return Some(first);
        }
        let (first, last) = self.range(rows);
        (first == last).then_some(first)
    }

    /// Least and most ranks that a table's figures allow; the first above the second where they allow none.
    fn range(self, rows: &[Row]) -> (u64, u64) {
        const MOST: f64 = 1e6;
        if self == Kind::AllToAllV {
            return (2, MOST as u64);
        }
        let (mut low, mut high) = (2.0_f64, MOST);
        for (row, body) in bodies(rows) {
            let (least, most) = share(row, body.time, body.busbw);
            if let Some(same) = self.factor(2.0).filter(|factor| self.factor(MOST) == Some(*factor)) {
                if !(least..=most).contains(&same) {
                    return (2, 1);
                }
                continue;
            }
            low = low.max(self.ranks_of(least));
            high = high.min(self.ranks_of(most));
        }
        (libm::ceil(low - 1e-9) as u64, libm::floor(high + 1e-9) as u64)
    }

    /// Whether a table's figures are those of this collective between so many ranks; the line and what is wrong.
    pub fn check(self, rows: &[Row], ranks: u64) -> Result<(), super::Mistake> {
        let Some(factor) = self.factor(ranks as f64) else { return Ok(()) };
        for (row, body) in bodies(rows) {
            let (least, most) = share(row, body.time, body.busbw);
            if !(least..=most).contains(&factor) {
                return Err((
                    row.line,
                    format!(
                        "busbw {} GB/s for {} bytes in {} us is {least:.4} to {most:.4} of the size, but {} between {ranks} \
                         ranks moves {factor:.4}: is it another collective, another number of ranks, or a figure mistyped?",
                        body.busbw.value,
                        row.bytes,
                        body.time.value,
                        self.name()
                    ),
                ));
            }
            // Before 2.13 some programs printed the bus bandwidth as algbw too.
            let (least, most) = share(row, body.time, body.algbw);
            if !((least..=most).contains(&1.0) || (least..=most).contains(&factor)) {
                return Err((
                    row.line,
                    format!(
                        "algbw {} GB/s is not {} bytes over {} us: is the table cut or typed by hand?",
                        body.algbw.value, row.bytes, body.time.value
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// Lower case without underscores and hyphens.
fn plain(name: &str) -> String {
    name.to_lowercase().replace(['_', '-'], "")
}

fn bodies(rows: &[Row]) -> impl Iterator<Item = (&Row, Body)> {
    rows.iter().filter(|row| row.bytes > 0).flat_map(|row| row.bodies.iter().flatten().map(move |body| (row, *body)))
}

/// Least and most of `bandwidth · time / size` that round to what is printed.
fn share(row: &Row, time: Figure, bandwidth: Figure) -> (f64, f64) {
    // GB/s times µs is 1,000 bytes; a last digit may have been cut rather than rounded.
    let of = |by: f64| {
        (bandwidth.value + by * 1.01 * bandwidth.half) * (time.value + by * 1.01 * time.half) * 1e3 / row.bytes as f64
    };
    (of(-1.0) - 1e-9, of(1.0) + 1e-9)
}
