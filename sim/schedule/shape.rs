//! What a schedule is a function of: ranks, stages and micro-batches, and which rank runs which stage.

/// What a schedule is a function of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Pipeline ranks.
    pub ranks: u32,
    /// Stages on each rank.
    pub virtual_stages: u32,
    /// Micro-batches of one step.
    pub microbatches: u32,
}

impl Shape {
    /// Stages over all ranks.
    pub fn stages(self) -> u32 {
        self.ranks * self.virtual_stages
    }

    /// The stage that is `chunk`th on `rank`.
    pub fn stage(self, placement: Placement, rank: u32, chunk: u32) -> u16 {
        let within = match placement {
            Placement::V if chunk % 2 == 1 => self.ranks - 1 - rank,
            _ => rank,
        };
        u16::try_from(chunk * self.ranks + within).expect("a shape of at most 65,536 stages")
    }
}

/// Which rank runs which stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Placement {
    /// Round and round: stage s on rank s mod ranks.
    Loop,
    /// There and back: the last rank runs two neighbouring stages, and so on up.
    V,
}
