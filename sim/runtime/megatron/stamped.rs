//! A chunk's forward and backward, run or stamped: what a micro-batch does as another did is not run again (`eager::Stamps`).

use super::chunk::ChunkFrame;
use super::state::Rank;
use crate::runtime::eager::{Eager, Storage};

impl Rank<'_> {
    /// Whether no gathering or reduction goes on that a chunk's operators would wait for or start.
    fn is_quiet(&self, chunk: usize) -> bool {
        self.data.iter().all(|data| data.borrow().is_quiet(chunk))
    }

    /// Forward of a chunk from an input, which it takes over.
    pub(super) fn run_forward(&mut self, chunk: usize, input: Option<Storage>) -> (ChunkFrame, Storage) {
        let quiet = self.is_quiet(chunk);
        let run = |eager: &mut Eager| self.chunks[chunk].forward(eager, input);
        match self.stamps.as_mut().filter(|_| quiet) {
            Some(stamps) => stamps.forward.write(&mut self.eager, chunk, input.as_slice(), run),
            None => run(&mut self.eager),
        }
    }

    /// Its backward, from what forward left and the gradient of its output, which it takes over.
    pub(super) fn run_backward(
        &mut self,
        chunk: usize,
        frame: ChunkFrame,
        gradient: Option<Storage>,
    ) -> Option<Storage> {
        let quiet = self.is_quiet(chunk);
        let Some(stamps) = self.stamps.as_mut().filter(|_| quiet) else {
            return self.chunks[chunk].backward(&mut self.eager, frame, gradient);
        };
        let mut given = (frame, gradient);
        let held = self.eager.held(&mut given);
        let (frame, gradient) = given;
        let run = |eager: &mut Eager| self.chunks[chunk].backward(eager, frame, gradient);
        stamps.backward.write(&mut self.eager, chunk, &held, run)
    }
}
