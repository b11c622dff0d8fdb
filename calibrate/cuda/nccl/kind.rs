//! The collectives: how many elements each rank sends and receives, what it must receive, and how nccl-tests makes a
//! bandwidth of a time.
//!
//! ```text
//! algbw = S/t        busbw = algbw · factor        S the whole buffer, n ranks
//! factor = 2(n−1)/n all-reduce; (n−1)/n all-gather, reduce-scatter, all-to-all; 1 send and receive
//! ```
//!
//! Sizes and factors are those of nccl-tests (`doc/PERFORMANCE.md`, `src/*.cu`).

/// Bytes of an element: everything is measured in bf16, as training communicates.
pub const WIDTH: u64 = 2;

/// Parts of a buffer are multiples of so many elements: 16 bytes, as in nccl-tests.
const GRAIN: u64 = 16 / WIDTH;

/// A collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Every rank's part to every rank.
    AllGather,
    /// Sums, a part to each rank.
    ReduceScatter,
    /// Sums, all to each rank.
    AllReduce,
    /// A part from each rank to each rank, as grouped sends and receives.
    AllToAll,
    /// To the next rank and from the one before.
    SendRecv,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::AllGather, Self::ReduceScatter, Self::AllReduce, Self::AllToAll, Self::SendRecv];

    /// As points name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllReduce => "all_reduce",
            Self::AllToAll => "all_to_all",
            Self::SendRecv => "send_recv",
        }
    }

    /// The collective of a name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether ranks each send or receive a part of the buffer.
    fn parted(self) -> bool {
        !matches!(self, Self::AllReduce | Self::SendRecv)
    }

    /// Whether it can read from where it writes.
    pub fn can_be_in_place(self) -> bool {
        matches!(self, Self::AllGather | Self::ReduceScatter | Self::AllReduce)
    }

    /// The largest whole buffer of at most `bytes` that `ranks` share evenly \[B\].
    pub fn even(self, bytes: u64, ranks: u64) -> u64 {
        if self.parted() { bytes / WIDTH / ranks / GRAIN * GRAIN * ranks * WIDTH } else { bytes / WIDTH * WIDTH }
    }

    /// Elements that NCCL is given as its count, of a whole buffer of `bytes`.
    pub fn count(self, bytes: u64, ranks: u64) -> u64 {
        if self.parted() { bytes / WIDTH / ranks } else { bytes / WIDTH }
    }

    /// Elements that a rank sends.
    pub fn sends(self, bytes: u64, ranks: u64) -> u64 {
        self.count(bytes, ranks) * if matches!(self, Self::ReduceScatter | Self::AllToAll) { ranks } else { 1 }
    }

    /// Elements that a rank receives.
    pub fn receives(self, bytes: u64, ranks: u64) -> u64 {
        self.count(bytes, ranks) * if matches!(self, Self::AllGather | Self::AllToAll) { ranks } else { 1 }
    }

    /// What a link's bandwidth is to the algorithm's.
    pub fn factor(self, ranks: u64) -> f64 {
        let n = ranks as f64;
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::AllGather | Self::ReduceScatter | Self::AllToAll => (n - 1.0) / n,
            Self::SendRecv => 1.0,
        }
    }

    /// Bus bandwidth \[B/s\] of a buffer of `bytes` in `us` microseconds.
    pub fn bus_bandwidth(self, bytes: u64, ranks: u64, us: f64) -> f64 {
        bytes as f64 / (us * 1e-6) * self.factor(ranks)
    }

    /// What rank `rank` of `ranks` must hold in element `at` of what it receives, if each sends [`sent`].
    pub fn received(self, rank: u64, ranks: u64, count: u64, at: u64) -> u16 {
        let sum = |at: u64| (0..ranks).map(|from| sent(from, ranks, at)).sum();
        match self {
            Self::AllGather => sent(at / count, ranks, at % count),
            Self::ReduceScatter => sum(rank * count + at),
            Self::AllReduce => sum(at),
            Self::AllToAll => sent(at / count, ranks, rank * count + at % count),
            Self::SendRecv => sent((rank + ranks - 1) % ranks, ranks, at),
        }
    }
}

/// What is sent repeats after so many elements: a prime, so that no part of a buffer looks like another.
pub const PERIOD: u64 = 1021;

/// What rank `rank` sends in element `at`: whole numbers so small that bf16 holds the sum over all ranks exactly.
pub fn sent(rank: u64, ranks: u64, at: u64) -> u16 {
    let most = (256 / ranks.max(1)).clamp(2, 16);
    ((7 * (at % PERIOD) + 13 * rank + 3) % most) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_bandwidth_is_what_nccl_tests_prints() {
        // doc/PERFORMANCE.md: 8 ranks, S = 1 GB in 10 ms is 100 GB/s of algorithm bandwidth.
        let bus = |kind: Kind| kind.bus_bandwidth(1_000_000_000, 8, 10_000.0);
        assert!((bus(Kind::AllReduce) - 175e9).abs() < 1.0);
        for kind in [Kind::AllGather, Kind::ReduceScatter, Kind::AllToAll] {
            assert!((bus(kind) - 87.5e9).abs() < 1.0, "{kind:?}");
        }
        assert!((bus(Kind::SendRecv) - 100e9).abs() < 1.0);
    }

    #[test]
    fn the_size_is_the_whole_buffer() {
        // doc/PERFORMANCE.md: `sendcount * sizeof * n` for an all-gather, `recvcount * sizeof * n` for a reduce-scatter.
        for kind in Kind::ALL {
            let (sends, receives) = (kind.sends(1 << 20, 8), kind.receives(1 << 20, 8));
            assert_eq!(sends.max(receives) * WIDTH, 1 << 20, "{kind:?}");
        }
        assert_eq!(Kind::AllGather.sends(1 << 20, 8) * 8, Kind::AllGather.receives(1 << 20, 8));
        assert_eq!(Kind::ReduceScatter.receives(1 << 20, 8) * 8, Kind::ReduceScatter.sends(1 << 20, 8));
    }

    #[test]
    fn parts_are_multiples_of_16_bytes() {
        assert_eq!(Kind::AllGather.even(512, 8), 512);
        assert_eq!(Kind::AllGather.even(512, 6), 480);
        assert_eq!(Kind::AllReduce.even(512, 6), 512);
        assert_eq!(Kind::AllToAll.even(64, 8), 0);
    }

    #[test]
    fn names_lead_back_to_their_collectives() {
        assert!(Kind::ALL.into_iter().all(|kind| Kind::of(kind.name()) == Some(kind)));
        assert_eq!(Kind::of("broadcast"), None);
    }

    #[test]
    fn sums_are_exact_in_bf16() {
        for ranks in [2, 3, 8, 16] {
            let sum = (0..PERIOD).map(|at| Kind::AllReduce.received(0, ranks, PERIOD, at)).max();
            assert!(sum.is_some_and(|sum| sum <= 256), "{ranks} ranks");
        }
    }

    #[test]
    fn collectives_compose_as_they_must() {
        // An all-reduce is a reduce-scatter and an all-gather; an all-to-all twice is where one began.
        let (ranks, count) = (4, 24);
        for at in 0..ranks * count {
            let part = Kind::ReduceScatter.received(at / count, ranks, count, at % count);
            assert_eq!(part, Kind::AllReduce.received(0, ranks, ranks * count, at));
        }
        for rank in 0..ranks {
            for from in 0..ranks {
                let got = Kind::AllToAll.received(rank, ranks, count, from * count + 5);
                assert_eq!(got, sent(from, ranks, rank * count + 5));
            }
        }
        assert_eq!(Kind::SendRecv.received(0, ranks, count, 7), sent(3, ranks, 7));
    }

    #[test]
    fn a_rank_that_sends_to_the_wrong_place_is_noticed() {
        // Parts of a buffer differ from each other and from rank to rank.
        let part = |rank: u64, from: u64| (from..from + 64).map(|at| sent(rank, 8, at)).collect::<Vec<_>>();
        assert_ne!(part(0, 0), part(1, 0));
        assert_ne!(part(0, 0), part(0, 4096));
    }
}
