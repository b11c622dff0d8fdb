//! Which of the model's parameters a graph reads, and which are read several times.

/// Where a graph's parameters are among the model's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamMap {
    /// The model's index of the graph's first parameter.
    pub first: usize,
    /// Parameters of the graph (by their local index) that are others of the model's.
    pub tied: [Option<(usize, usize)>; 2],
}

impl From<usize> for ParamMap {
    /// Parameters that are the model's from `first` on.
    fn from(first: usize) -> ParamMap {
        ParamMap { first, tied: [None; 2] }
    }
}

impl ParamMap {
    /// The model's index of a graph's parameter.
    pub fn index(&self, local: usize) -> usize {
        let tied = self.tied.iter().flatten().find(|&&(tied, _)| tied == local);
        tied.map_or(self.first + local, |&(_, target)| target)
    }
}

/// A parameter that is used several times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Its number.
    pub param: usize,
    /// How often.
    pub uses: u32,
    /// Whether gradients that matmuls have added to the main gradients are followed by zeros (`zero_out_wgrad`), so that
    /// the sum of all is added; else by numbers that nobody reads.
    pub zeroed: bool,
}
