//! Where a compiler decides what fits: which length to ask it about next, and what its answers make of the ceiling.
//!
//! A compiler takes its time, so few are asked for: the predicted ceiling, the next length, and then, while the two sides of the
//! compiler's own edge are further apart than one step, where a line through what is known meets the limit.

use super::answer::{Ceiling, Checked, End};

impl Ceiling {
    /// What a compiler says of a length.
    pub fn check(&self, sequence: u64) -> Option<&Checked> {
        self.checked.iter().find(|checked| checked.sequence == sequence)
    }

    /// The longest that the compiler fits, and the shortest longer one that it refuses.
    #[doc(hidden)]
    pub fn compiled(&self) -> (Option<&Checked>, Option<&Checked>) {
        let fits = self.checked.iter().filter(|checked| checked.fits).max_by_key(|checked| checked.sequence);
        let longer = |checked: &&Checked| !checked.fits && fits.is_none_or(|fits| checked.sequence > fits.sequence);
        (fits, self.checked.iter().filter(longer).min_by_key(|checked| checked.sequence))
    }

    /// The length that a compiler can say most of; none where its edge is known to a step, or there is nothing more to ask.
    #[doc(hidden)]
    pub fn to_ask(&self) -> Option<u64> {
        let step = self.options.step;
        let (low, high, next) = match self.compiled() {
            (None, None) => (step.min(self.last()), self.last(), self.predicted()?),
            (Some(fits), None) => {
                let predicted = self.beyond.as_ref().map(|point| point.sequence).filter(|next| *next > fits.sequence);
                (
                    fits.sequence + 1,
                    self.last(),
                    predicted.unwrap_or_else(|| self.meets(fits)).max(fits.sequence + step),
                )
            }
            (None, Some(refused)) => (step, refused.sequence.saturating_sub(step), self.meets(refused)),
            (Some(fits), Some(refused)) => {
                (fits.sequence + step, refused.sequence.saturating_sub(step), self.between(fits, refused))
            }
        };
        (low <= high).then(|| next.clamp(low, high)).filter(|&next| self.check(next).is_none())
    }

    /// The predicted ceiling, or the first length where none fits.
    fn predicted(&self) -> Option<u64> {
        self.longest.as_ref().or(self.beyond.as_ref()).map(|point| point.sequence)
    }

    /// The longest length there is.
    fn last(&self) -> u64 {
        match self.end {
            End::Refused { sequence, .. } => sequence.saturating_sub(self.options.step),
            _ => self.most,
        }
    }

    /// Where memory would be full, from what the compiler says of one length and what a token more is predicted to take; of a
    /// refusal that gives no bytes, the half.
    fn meets(&self, from: &Checked) -> u64 {
        let Some(last) = self.longest.as_ref().or(self.beyond.as_ref()) else { return from.sequence };
        let Some(has) = from.bytes else { return self.on_grid(from.sequence as f64 / 2.0) };
        let first = self.ladder.first().unwrap_or(last);
        let (tokens, bytes) = (last.sequence.abs_diff(first.sequence), last.wants().0.abs_diff(first.wants().0));
        // With one length alone, all that it takes is put down to its tokens.
        let slope =
            if tokens == 0 { last.wants().0 as f64 / last.sequence as f64 } else { bytes as f64 / tokens as f64 };
        let room = last.memory.capacity.0 as f64 - has.0 as f64;
        self.on_grid(from.sequence as f64 + room / slope.max(1.0))
    }

    /// Where a line through two lengths meets the limit.
    fn between(&self, fits: &Checked, refused: &Checked) -> u64 {
        let half = self.on_grid((fits.sequence + refused.sequence) as f64 / 2.0);
        let (Some(low), Some(high)) = (fits.bytes, refused.bytes) else { return half };
        let Some(capacity) = self.beyond.as_ref().or(self.longest.as_ref()).map(|point| point.memory.capacity) else {
            return half;
        };
        if high.0 <= low.0 {
            return half;
        }
        let share = capacity.0.saturating_sub(low.0) as f64 / (high.0 - low.0) as f64;
        self.on_grid(fits.sequence as f64 + share.min(1.0) * (refused.sequence - fits.sequence) as f64)
    }

    fn on_grid(&self, length: f64) -> u64 {
        let step = self.options.step;
        (length.max(0.0) / step as f64) as u64 * step
    }
}
