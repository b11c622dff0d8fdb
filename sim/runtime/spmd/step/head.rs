//! The head and the loss, with their backward, and the gradient of the embedding.

use super::weights::Gathered;
use super::{Category, Collective, FULL, HALF, Step};
use crate::program::{MatmulLayout, MemoryKind, Pass};
use crate::runtime::spmd::Targets;
use crate::runtime::spmd::flags::Overlap;
use crate::runtime::spmd::tape::Value;

impl Step<'_> {
    /// From the last block's result to its gradient.
    pub(super) fn loss(&mut self, hidden: Value) -> Value {
        self.tape.scope = self.scopes.head;
        let bytes = self.activation();
        let normed = self.tape.value("normed", bytes, Category::Activation);
        self.tape.kernel("rms_norm", Self::memory(MemoryKind::Norm, 2 * bytes, bytes), &[hidden], &[normed]);
        let parts = self.job.vocab_tiling.max(1);
        if parts > 1 {
            // The loss is taken part by part, and each part's logits are made again in backward.
            for _ in 0..parts {
                self.logits(normed, parts);
            }
        }
        let gradient = self.tape.value("gradient", bytes, Category::BackwardTemporary);
        for part in 0..parts {
            self.tape.pass = if parts > 1 { Pass::Recompute } else { Pass::Forward };
            let (logits, weight) = self.logits(normed, parts);
            if part == 0 {
                self.tape.phase("fwd");
            }
            self.tape.pass = Pass::Backward;
            self.logits_backward(&logits, &weight, (normed, gradient), parts);
        }
        let result = self.tape.value("gradient", bytes, Category::BackwardTemporary);
        let work = Self::memory(MemoryKind::NormBackward, 4 * bytes, bytes);
        self.tape.elementwise("rms_norm backward", work, &[hidden, gradient], &[result]);
        self.store_gradients();
        result
    }

    /// Words on this chip.
    fn words(&self) -> u64 {
        self.job.model.vocab / u64::from(self.job.mesh.tensor)
    }

    /// Logits of a part of the tokens as the matmul makes them, and what the loss keeps of them besides.
    fn logits(&mut self, normed: Value, parts: u64) -> (Vec<Value>, Gathered) {
        let (tokens, words, width) = (self.tokens() / parts, self.words(), self.job.model.width);
        let after = self.tape.now();
        let weight = self.gather(words * width, Overlap::None, after);
        let mut logits = vec![self.tape.value("logits in bf16", HALF * tokens * words, Category::Logits)];
        let read = match self.job.targets {
            Targets::OneHot => HALF,
            Targets::Indexed => {
                logits.push(self.tape.value("logits", FULL * tokens * words, Category::Logits));
                FULL
            }
        };
        let size = (tokens, words, width, MatmulLayout::Forward);
        let coming = self.gather_parts(HALF * tokens * width, &[normed], Category::Activation);
        self.matmul(size, &weight, (&[normed], &logits));
        if let Some((_, at)) = coming {
            self.tape.join(at);
        }
        let sums = Self::memory(MemoryKind::Softmax, read * tokens * words, 0);
        self.tape.kernel("log_softmax", sums, &logits, &[]);
        (logits, weight)
    }

    fn logits_backward(&mut self, logits: &[Value], weight: &Gathered, (normed, gradient): (Value, Value), parts: u64) {
        let (tokens, words, width) = (self.tokens() / parts, self.words(), self.job.model.width);
        let (scores, read) = match self.job.targets {
            // The loss is summed in the same kernel, so the gradient is beside the logits,
            Targets::OneHot => (self.tape.value("gradient of logits", HALF * tokens * words, Category::Logits), HALF),
            // or takes the place of those in bf16.
            Targets::Indexed => (logits[0], FULL),
        };
        let work = Self::memory(MemoryKind::Softmax, read * tokens * words, HALF * tokens * words);
        self.tape.kernel("softmax backward", work, logits, &[scores]);
        let size = (tokens, width, words, MatmulLayout::DataGradient);
        let before = self.tape.now();
        self.matmul(size, weight, (&[scores], &[gradient]));
        self.sum_parts(HALF * tokens * width, gradient, before);
        self.weight_gradient((width, words), tokens, &[normed, scores]);
    }

    /// The embedding's gradient, from that of its result.
    pub(super) fn embed_backward(&mut self, gradient: Value) {
        self.tape.scope = self.scopes.embedding;
        let (width, words) = (self.job.model.width, self.words());
        if self.job.iota_embed {
            self.weight_gradient((words, width), self.tokens(), &[gradient]);
            self.store_gradients();
            return;
        }
        let bytes = self.activation();
        let own = (words * width).div_ceil(u64::from(self.job.mesh.shards()));
        let mut columns = gradient;
        if self.job.mesh.shards() > 1 {
            let laid = self.tape.value("gradient", bytes, Category::BackwardTemporary);
            self.tape.kernel("transpose", Self::memory(MemoryKind::Copy, bytes, bytes), &[gradient], &[laid]);
            columns = self.tape.value("gradient", bytes, Category::BackwardTemporary);
            let comm = self.comm(Collective::AllToAll, self.groups.fsdp, bytes);
            let after = self.tape.now();
            self.tape.exchange(comm, (&[laid], &[columns]), after);
        }
        let table = self.tape.value("embedding's gradient", HALF * own, Category::ShardedGradient);
        let work = Self::memory(MemoryKind::Scatter, 2 * bytes, bytes + HALF * own);
        self.tape.kernel("scatter-add", work, &[columns], &[table]);
        self.tables.push(table);
    }
}
