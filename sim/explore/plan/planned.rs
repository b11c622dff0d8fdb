//! A plan that was simulated and fits.

use super::candidate::Candidate;
use super::figures::Figures;
use crate::scenario::predict::Floor;

/// A plan that was simulated and fits.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Its framework and keys.
    pub candidate: Candidate,
    /// What it needed at least, by its bounds.
    pub floor: Floor,
    /// Its figures.
    pub figures: Figures,
}

impl std::ops::Deref for Planned {
    type Target = Figures;

    fn deref(&self) -> &Figures {
        &self.figures
    }
}
