//! The head and the loss, with their backward, and the gradient of the embedding.

use super::shards::Gathered;
use super::state::{FULL, HALF, Step};
use crate::plan::xla::flags::Overlap;
use crate::plan::xla::{Logarithms, Targets};
use crate::program::{Category, Collective, Comm, DType, MatmulLayout, MemoryKind, Pass, Work};
use crate::runtime::spmd::tape::Value;

impl Step<'_> {
    /// From the last block's result to its gradient.
    pub(super) fn loss(&mut self, hidden: Value) -> Value {
        self.tape.scope = self.scopes.head;
        let bytes = self.activation();
        // A single matmul scales what it reads.
        let exchanged = self.job.activation_embed && self.job.mesh.tensor > 1;
        let made = self.job.vocab_tiling > 1 || exchanged || self.job.in_memory(false);
        let normed = if made { self.last_norm(hidden) } else { hidden };
        if !made {
            self.tape.kernel("rms_norm", Self::memory(MemoryKind::Norm, 2 * bytes, 0), &[hidden], &[]);
        }
        let gradient = self.tape.value("gradient", bytes, Category::BackwardTemporary);
        match self.job.vocab_tiling.max(1) {
            1 => {
                let weight = self.head();
                let logits = self.logits(normed, &weight, 1);
                self.tape.phase("fwd");
                self.tape.pass = Pass::Backward;
                let scores = self.logits_backward(&logits, &weight, (normed, gradient), 1);
                let normed = match self.room.normed {
                    true => {
                        self.tape.pass = Pass::Recompute;
                        let again = self.last_norm(hidden);
                        self.tape.pass = Pass::Backward;
                        again
                    }
                    false => normed,
                };
                // The compiler leaves the head's gradient, and that of logits with it, for when blocks' backward is over: where it is
                // reduced in a loop over windows, if blocks' backward copies from the host (14 of 14 steps of `xla-edge.json`, and one of 20
                // that copy nothing and clip); where windows are written out, if clipping asks for all gradients at once. A step
                // that is short of memory reduces it first: so it is written without experts, where the loss needs the most memory
                // either way.
                let how = self.settle(self.job.flags.scatter, self.tokens(), self.all());
                let asked = self.job.clip && self.job.model.experts().is_some();
                let copies = self.job.in_memory(false) && self.job.remat.offloads();
                let waits = how == Overlap::Windowed && (asked || copies);
                let late = self.job.late_loss();
                // PyTorch/XLA's optimizer reads it, and the rest of the graph does not wait.
                let lazy = self.job.torch.is_some() && how == Overlap::Windowed;
                let kept = lazy || self.logarithms().is_some_and(|when| when >= Logarithms::WithGradient);
                match waits || kept || (late && self.late_loss.is_none()) {
                    true => self.late_head = Some([normed, scores]),
                    false => self.head_gradient([normed, scores]),
                }
                self.late_scale = late.then_some([hidden, gradient]);
                if let Some((logits, _)) = self.late_loss.as_mut().filter(|_| self.room.logits) {
                    *logits = None;
                }
                let once = self.job.pipeline.is_some_and(|all| all.layers_per_stage * all.repeats == 1);
                let last = self.logarithms().is_some_and(|when| when != Logarithms::AtOnce);
                if once || (!late && !last && self.job.pipeline.is_none()) {
                    self.sum_loss();
                }
            }
            parts => self.loss_in_parts((normed, gradient), parts),
        }
        let result = self.tape.value("gradient", bytes, Category::BackwardTemporary);
        let work = Self::memory(MemoryKind::NormBackward, 4 * bytes, bytes);
        self.tape.elementwise("rms_norm backward", work, &[hidden, gradient], &[result]);
        self.store_gradients();
        result
    }

    /// The last norm of what blocks gave.
    fn last_norm(&mut self, hidden: Value) -> Value {
        let bytes = self.activation();
        let normed = self.tape.value("normed", bytes, Category::Activation);
        self.tape.kernel("rms_norm", Self::memory(MemoryKind::Norm, 2 * bytes, bytes), &[hidden], &[normed]);
        normed
    }

    /// The same in parts of the tokens (MaxText's `utils/vocabulary_tiling.py`): a part has tokens of every chip, so they
    /// change places; the head is gathered once for all, each part's logits are made again in backward, and the head's
    /// gradient is added up whole, in fp32. Blocks' backward comes before it is reduced.
    fn loss_in_parts(&mut self, (normed, gradient): (Value, Value), parts: u64) {
        let numbers = self.words() * self.job.model.width;
        self.swap(normed, "parts of the tokens");
        let weight = self.head();
        for _ in 0..parts {
            self.logits(normed, &weight, parts);
        }
        self.tape.phase("fwd");
        let sum = self.tape.value("head's gradient", self.full() * numbers, Category::UnshardedGradient);
        self.tape.kernel("broadcast", Self::memory(MemoryKind::Copy, 0, self.full() * numbers), &[], &[sum]);
        for _ in 0..parts {
            self.tape.pass = Pass::Recompute;
            let logits = self.logits(normed, &weight, parts);
            self.tape.pass = Pass::Backward;
            let scores = self.logits_backward(&logits, &weight, (normed, gradient), parts);
            let (m, n, k) = (self.job.model.width, self.words(), self.tokens() / parts);
            let work = Work::Matmul { m, n, k, dtype: DType::Bf16, layout: MatmulLayout::WeightGradient };
            self.tape.kernel("dot_general", work, &[normed, scores, sum], &[sum]);
            // The sum is read, and written in fp32 in place of bf16.
            let more = Self::memory(MemoryKind::Elementwise, self.full() * numbers, (self.full() - HALF) * numbers);
            self.tape.kernel("add", more, &[sum], &[sum]);
        }
        self.swap(gradient, "gradient");
        self.whole_head = Some(sum);
    }

    /// The gradient of the head, from what it multiplied and the gradient of logits.
    fn head_gradient(&mut self, reads: [Value; 2]) {
        let size = (self.job.model.width, self.words());
        self.weight_gradient(size, self.tokens(), self.all(), &reads);
    }

    /// What waited for blocks' backward: the gradient of the head, or of one whose loss was taken in parts from the whole sum
    /// to this chip's shard.
    pub(super) fn reduce_head(&mut self) {
        // Logarithms come when gradients are used up, or, where clipping asks for all of them at once, before.
        let last = self.logarithms().is_some() && !self.job.clip;
        if !last && self.logarithms() != Some(Logarithms::Apart) {
            self.sum_loss();
        }
        if let Some(reads) = self.late_head.take() {
            self.tape.scope = self.scopes.head;
            self.head_gradient(reads);
            self.store_gradients();
        }
        if self.logarithms() == Some(Logarithms::Apart) {
            self.sum_loss();
        }
        let Some(sum) = self.whole_head.take() else { return };
        self.tape.scope = self.scopes.head;
        let shards = u64::from(self.job.mesh.shards());
        let numbers = self.words() * self.job.model.width;
        if shards < 2 {
            return self.sum_replicas(sum, (self.full(), numbers));
        }
        let shard =
            self.tape.value("gradient shard", self.full() * numbers.div_ceil(shards), Category::ShardedGradient);
        let slices = self.job.flags.all_reduce_and_slice;
        let kind = if slices { Collective::AllReduce } else { Collective::ReduceScatter };
        let dtype = if self.full() == FULL { DType::Fp32 } else { DType::Bf16 };
        let comm = Comm { dtype, ..self.comm(kind, self.groups.fsdp, self.full() * numbers) };
        let at = self.tape.exchange(comm, (&[sum], &[shard]), vec![]);
        self.tape.join(at);
        self.sum_replicas(shard, (self.full(), numbers.div_ceil(shards)));
    }

    /// The loss, where it is a pass of its own over the logits, for which nothing waits: with two blocks a chip the compiler
    /// leaves it for when the loop back is over, with one it comes before. So have it the steps with stages of width 2,048
    /// (`tests/oracles/xla_steps.json`); those of width 512 have two blocks a chip and the loss before, which is not explained.
    pub(super) fn sum_loss(&mut self) {
        self.tape.scope = self.scopes.head;
        if let Some((logits, from)) = self.late_loss.take() {
            let logits = logits.unwrap_or_else(|| {
                self.tape.pass = Pass::Recompute;
                let weight = self.head();
                let logits = self.logits(from, &weight, 1)[0];
                self.tape.pass = Pass::Backward;
                logits
            });
            let numbers = self.tokens() * self.words();
            let made: Vec<Value> = self.logarithms().map(|_| self.logarithms_of(numbers)).into_iter().collect();
            let work = Self::memory(MemoryKind::Softmax, HALF * numbers, FULL * numbers * made.len() as u64);
            self.tape.kernel("loss", work, &[logits], &made);
        }
        if let Some(reads) = self.late_scale.take() {
            let read = 2 * self.activation();
            self.tape.kernel("scale's gradient", Self::memory(MemoryKind::Norm, read, 0), &reads, &[]);
        }
    }

    /// Chips' tokens change places.
    fn swap(&mut self, value: Value, name: &'static str) {
        if self.job.mesh.shards() > 1 {
            let bytes = self.activation();
            let swapped = self.tape.value(name, bytes, Category::Activation);
            let comm = self.comm(Collective::AllToAll, self.groups.fsdp, bytes);
            let after = self.tape.now();
            let at = self.tape.exchange(comm, (&[value], &[swapped]), after);
            self.tape.join(at);
        }
    }

    /// The head's weight, gathered at once.
    fn head(&mut self) -> Gathered {
        if self.job.gpu().is_some() {
            return self.fetch(self.head_place());
        }
        let after = self.tape.now();
        self.gather(self.words() * self.job.model.width, self.all(), Overlap::None, after)
    }

    /// When the logarithms of a loss by `log_softmax` are made.
    fn logarithms(&self) -> Option<Logarithms> {
        (self.job.targets == Targets::LogSoftmax).then(|| self.job.logarithms())
    }

    /// The logarithms.
    fn logarithms_of(&mut self, numbers: u64) -> Value {
        self.tape.value("logarithms", FULL * numbers, Category::Logits)
    }

    /// Words on this chip.
    pub(super) fn words(&self) -> u64 {
        self.job.model.vocab / u64::from(self.job.mesh.tensor)
    }

    /// Logits of a part of the tokens as the matmul makes them, and what the loss keeps of them besides.
    fn logits(&mut self, normed: Value, weight: &Gathered, parts: u64) -> Vec<Value> {
        let (tokens, words, width) = (self.tokens() / parts, self.words(), self.job.model.width);
        let mut logits = vec![self.tape.value("logits in bf16", HALF * tokens * words, Category::Logits)];
        let read = match self.job.targets {
            Targets::OneHot => HALF,
            Targets::LogSoftmax if self.job.logarithms() != Logarithms::AtOnce => HALF,
            Targets::Indexed | Targets::LogSoftmax => {
                logits.push(self.tape.value("logits", FULL * tokens * words, Category::Logits));
                FULL
            }
        };
        let size = (tokens, words, width, MatmulLayout::Forward);
        let coming = self.gather_parts(HALF * tokens * width, &[normed], Category::Activation);
        self.matmul(size, weight, (&[normed], &logits));
        if let Some((_, at)) = coming {
            self.tape.join(at);
        }
        let sums = Self::memory(MemoryKind::Softmax, read * tokens * words, 0);
        self.tape.kernel("log_softmax", sums, &logits, &[]);
        logits
    }

    /// The gradient of logits, which it gives, and from it a part of `gradient`, that of what they were made from.
    fn logits_backward(
        &mut self,
        logits: &[Value],
        weight: &Gathered,
        (from, gradient): (Value, Value),
        parts: u64,
    ) -> Value {
        let (tokens, words, width) = (self.tokens() / parts, self.words(), self.job.model.width);
        let when = self.logarithms();
        let (scores, read) = match self.job.targets {
            Targets::LogSoftmax if when == Some(Logarithms::Last) => (logits[0], HALF),
            Targets::LogSoftmax if when != Some(Logarithms::AtOnce) => {
                (self.tape.value("gradient of logits", HALF * tokens * words, Category::Logits), HALF)
            }
            // Single matmuls that ask for the gradient make it of the logits.
            Targets::OneHot if parts == 1 && !self.job.loss_writes_gradient() => (logits[0], HALF),
            // The loss is summed in the same kernel, so the gradient is beside the logits,
            Targets::OneHot => (self.tape.value("gradient of logits", HALF * tokens * words, Category::Logits), HALF),
            // or takes the place of those in bf16.
            Targets::Indexed | Targets::LogSoftmax => (logits[0], FULL),
        };
        if scores == logits[0] && (self.job.targets == Targets::OneHot || when == Some(Logarithms::Last)) {
            self.late_loss = Some((Some(scores), from));
        } else {
            let numbers = tokens * words;
            let mut made = vec![scores];
            match when {
                Some(Logarithms::WithGradient) => made.push(self.logarithms_of(numbers)),
                Some(Logarithms::Apart) => self.late_loss = Some((Some(logits[0]), from)),
                _ => {}
            }
            // The derivative of picking by index: of log_softmax scattered, and laid as the logits are; of logits scattered.
            let parts = match self.job.targets {
                Targets::LogSoftmax if self.job.one_sequence() => 2,
                Targets::Indexed if self.job.one_sequence() => 1,
                _ => 0,
            };
            let scattered = self.tape.value("scattered", HALF * parts * numbers, Category::Logits);
            made.extend((parts > 0).then_some(scattered));
            let written = HALF * numbers + FULL * numbers * (made.len() as u64 - 1).min(1);
            let work = Self::memory(MemoryKind::Softmax, read * numbers, written);
            self.tape.kernel("softmax backward", work, logits, &made);
        }
        let size = (tokens, width, words, MatmulLayout::DataGradient);
        // Another gather for the second use, where memory is short.
        let again = (self.room.head && parts == 1).then(|| self.head());
        let before = self.tape.now();
        self.matmul(size, again.as_ref().unwrap_or(weight), (&[scores], &[gradient]));
        self.sum_parts(HALF * tokens * width, gradient, before);
        scores
    }

    /// The embedding's gradient, from that of its result.
    pub(super) fn embed_backward(&mut self, gradient: Value) {
        self.tape.scope = self.scopes.embedding;
        let (width, words) = (self.job.model.width, self.words());
        if self.job.iota_embed {
            let reads: Vec<Value> = self.one_hot_words(words).into_iter().chain([gradient]).collect();
            self.weight_gradient((words, width), self.tokens(), self.all(), &reads);
            if self.job.gpu().is_none() {
                self.store_gradients();
            }
            return;
        }
        if self.cuts_words() {
            return self.add_words(gradient);
        }
        let bytes = self.activation();
        let own = (words * width).div_ceil(u64::from(self.job.mesh.shards()));
        if self.job.pipeline.is_some() || self.gathers_table() {
            // All rows of the table, of which each chip keeps its columns' sums.
            let numbers = words * width;
            let element = self.looked_up();
            let whole = self.tape.value("embedding's gradient", element * numbers, Category::UnshardedGradient);
            let work = Self::memory(MemoryKind::Scatter, 2 * bytes, bytes + element * numbers);
            self.tape.kernel("scatter-add", work, &[gradient], &[whole]);
            let shard = self.tape.value("embedding's gradient", element * own, Category::ShardedGradient);
            let comm = self.comm(Collective::AllReduce, self.groups.batch, element * numbers);
            let at = self.tape.exchange(comm, (&[whole], &[shard]), vec![]);
            self.tape.join(at);
            self.tables.push(shard);
            return;
        }
        let mut columns = gradient;
        if self.job.mesh.shards() > 1 {
            let laid = self.tape.value("gradient", bytes, Category::BackwardTemporary);
            self.tape.kernel("transpose", Self::memory(MemoryKind::Copy, bytes, bytes), &[gradient], &[laid]);
            columns = self.tape.value("gradient", bytes, Category::BackwardTemporary);
            let comm = self.comm(Collective::AllToAll, self.groups.fsdp, bytes);
            let after = self.tape.now();
            self.tape.exchange(comm, (&[laid], &[columns]), after);
        }
        // Chips of the tensor axis share the tokens, and each has a part of a sum over all words.
        let tensor = u64::from(self.job.mesh.tensor);
        let mut table = self.tape.value("embedding's gradient", HALF * own * tensor, Category::ShardedGradient);
        let work = Self::memory(MemoryKind::Scatter, 2 * bytes / tensor, bytes / tensor + HALF * own * tensor);
        let reads: Vec<Value> = self.sorted_words.take().into_iter().chain([columns]).collect();
        self.tape.kernel("scatter-add", work, &reads, &[table]);
        if tensor > 1 {
            let whole = table;
            table = self.tape.value("embedding's gradient", HALF * own, Category::ShardedGradient);
            let comm = self.comm(Collective::ReduceScatter, self.groups.tensor, HALF * own * tensor);
            let at = self.tape.exchange(comm, (&[whole], &[table]), vec![]);
            self.tape.join(at);
        }
        self.sum_replicas(table, (HALF, own));
    }

    /// A table's gradient, for the optimizer: summed over replicas, which have other tokens.
    pub(super) fn sum_replicas(&mut self, shard: Value, (element, numbers): (u64, u64)) {
        let (replicas, group) = self.replicas();
        let mut sum = shard;
        if replicas > 1 {
            sum = self.tape.value("gradient shard", element * numbers, Category::ShardedGradient);
            let dtype = if element == FULL { DType::Fp32 } else { DType::Bf16 };
            let comm = Comm { dtype, ..self.comm(Collective::AllReduce, group, element * numbers) };
            let at = self.tape.exchange(comm, (&[shard], &[sum]), vec![]);
            self.tape.join(at);
        }
        self.tables.push(sum);
    }
}
