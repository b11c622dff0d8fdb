//! The embedding of FSDPv2, whose table is cut on its words: each chip looks all tokens of the job up among its own words.
//!
//! What other chips have is zero, and the sum of all is scattered back to the chips that the tokens are of. Backward gathers the gradients
//! of all tokens, and each chip adds up those of its words (`tests/oracles/torch-xla.json`: `fsdp8`, one reduce-scatter and one
//! all-gather of all tokens in fp32).

use super::state::{FULL, HALF, Step};
use crate::program::{Category, Collective, Comm, DType, MemoryKind};
use crate::runtime::spmd::tape::Value;

impl Step<'_> {
    /// Whether all tokens are looked up in a table that is cut on its words. FSDPv2 cuts the longest dimension; a tensor axis has the words
    /// for itself. With more tokens on a chip than there are words the compiler gathers the table, here too.
    pub(super) fn cuts_words(&self) -> bool {
        let (mesh, model) = (self.job.mesh, &self.job.model);
        let on_words = self.job.torch.is_some() && mesh.tensor == 1 && model.vocab > model.width;
        on_words && mesh.shards() > 1 && !self.gathers_table()
    }

    /// Bytes of a number of the table where it is looked up in: JAX's is cast to bf16 first, PyTorch's is as its parameter is.
    pub(super) fn looked_up(&self) -> u64 {
        if self.job.torch.is_some() { self.full() } else { HALF }
    }

    /// Bytes of what all tokens are looked up as.
    fn all_tokens(&self) -> u64 {
        self.activation() * u64::from(self.job.mesh.shards())
    }

    /// What all tokens' lookups are exchanged as.
    fn words_comm(&self, kind: Collective) -> Comm {
        let dtype = if self.job.residual() == FULL { DType::Fp32 } else { DType::Bf16 };
        Comm { dtype, ..self.comm(kind, self.groups.fsdp, self.all_tokens()) }
    }

    /// Looks all tokens up, into `output` those of this chip.
    pub(super) fn look_up(&mut self, output: Value) {
        let bytes = self.all_tokens();
        let found = self.tape.value("looked up", bytes, Category::Activation);
        self.tape.kernel("gather", Self::memory(MemoryKind::Gather, bytes, bytes), &[], &[found]);
        let comm = self.words_comm(Collective::ReduceScatter);
        let after = self.tape.now();
        let at = self.tape.exchange(comm, (&[found], &[output]), after);
        self.tape.join(at);
    }

    /// The gradient of this chip's words, from that of its tokens.
    pub(super) fn add_words(&mut self, gradient: Value) {
        let bytes = self.all_tokens();
        let all = self.tape.value("gradient of all tokens", bytes, Category::BackwardTemporary);
        let comm = self.words_comm(Collective::AllGather);
        let after = self.tape.now();
        let at = self.tape.exchange(comm, (&[gradient], &[all]), after);
        self.tape.join(at);
        let own = (self.job.model.vocab * self.job.model.width).div_ceil(u64::from(self.job.mesh.shards()));
        let table = self.tape.value("embedding's gradient", self.full() * own, Category::ShardedGradient);
        let work = Self::memory(MemoryKind::Scatter, 2 * bytes, bytes + self.full() * own);
        self.tape.kernel("scatter-add", work, &[all], &[table]);
        self.sum_replicas(table, (self.full(), own));
    }
}
