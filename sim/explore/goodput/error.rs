//! Why a training has no goodput to tell.

use crate::units::Span;

/// A training that is not simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GoodputError {
    /// It is interrupted too often to be drawn.
    #[error(
        "the training would be interrupted {count:.0} times, and at most {most} are simulated: it is interrupted every {mean} on \
         average, and takes {up_again} to train again: write lower failures.rates, a shorter failures.restart, or fewer \
         failures.draws"
    )]
    Hopeless {
        /// Expected interruptions of all trainings that are drawn.
        count: f64,
        /// The most.
        most: f64,
        /// Mean time between them.
        mean: Span,
        /// Until training goes on.
        up_again: Span,
    },
    /// It is shorter than a step.
    #[error("{length} of training are less than one step, which takes {step}: write a longer --for")]
    Short {
        /// What was asked.
        length: Span,
        /// A step.
        step: Span,
    },
}
