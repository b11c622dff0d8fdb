//! Rows of experts where every token draws its experts at random (`--moe-router-force-load-balancing`;
//! `core/transformer/moe/moe_utils.py`, `RandomSTE`, 0.16.1): balanced but for chance.
//!
//! Of k different experts of E that a token draws, the l of one rank get k·l/E in the mean, with a variance of
//! k · l/E · (1 − l/E) · (E − k)/(E − 1). Over many tokens the sum is nearly normal. The R = E/l ranks' sums have a fixed
//! total: they are independent ones of a variance R/(R − 1) times as large, less their mean, and the largest of those lies
//! at the quantile (R − 3/8)/(R + 1/4) (Blom 1958).

/// The rows that the busiest of `ranks` ranks is sent, in the mean, where `tokens` tokens draw `top_k` of `experts`
/// experts, as many on each rank.
pub fn busiest(tokens: u64, (experts, top_k): (u64, u64), ranks: u64) -> u64 {
    let [tokens, experts, top_k, ranks] = [tokens, experts, top_k, ranks].map(|number| number as f64);
    let share = 1.0 / ranks;
    let rest = if experts > 1.0 { (experts - top_k) / (experts - 1.0) } else { 0.0 };
    let deviation = (tokens * top_k * share * rest).max(0.0).sqrt();
    (tokens * top_k * share + deviation * quantile((ranks - 0.375) / (ranks + 0.25))).round() as u64
}

/// Where a share of a normal number of deviation 1 lies below.
fn quantile(share: f64) -> f64 {
    let (mut low, mut high) = (-10.0, 10.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        let below = 0.5 * libm::erfc(-middle / std::f64::consts::SQRT_2);
        if below < share { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The busiest rank where tokens really draw.
    fn drawn(tokens: u64, (experts, top_k): (u64, u64), ranks: u64, state: &mut u64) -> u64 {
        let mut next = |below: u64| {
            // xorshift64*
            *state ^= *state >> 12;
            *state ^= *state << 25;
            *state ^= *state >> 27;
            (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % below
        };
        let mut rows = vec![0; ranks as usize];
        let mut order: Vec<u64> = (0..experts).collect();
        for _ in 0..tokens {
            for at in 0..top_k {
                order.swap(at as usize, (at + next(experts - at)) as usize);
                rows[(order[at as usize] * ranks / experts) as usize] += 1;
            }
        }
        rows.into_iter().max().unwrap_or(0)
    }

    #[test]
    fn chance_leaves_the_busiest_rank_as_much_more_as_tokens_that_draw() {
        let mut state = 0x9E37_79B9_7F4A_7C15;
        for (tokens, sizes, ranks) in [(4096, (128, 8), 32), (4096, (128, 4), 8), (2048, (8, 2), 4), (2048, (16, 8), 2)]
        {
            let times = 40;
            let found = (0..times).map(|_| drawn(tokens, sizes, ranks, &mut state)).sum::<u64>() as f64 / times as f64;
            let mean = (tokens * sizes.1 / ranks) as f64;
            let more = busiest(tokens, sizes, ranks) as f64 - mean;
            assert!((more / (found - mean) - 1.0).abs() < 0.2, "{sizes:?} on {ranks}: {more} of {}", found - mean);
        }
        // One rank gets all there is.
        assert_eq!(busiest(4096, (128, 8), 1), 4096 * 8);
    }
}
