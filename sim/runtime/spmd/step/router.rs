//! What choosing experts takes besides arithmetic: the scatter of scores, and tokens sent to experts.

use super::state::{FULL, HALF, Step};
use crate::program::{Collective, Comm, DType};
use crate::runtime::spmd::tape::Value;

impl Step<'_> {
    /// Scores of the chosen experts are put among zeros by index (`moe.py`, `reshape_and_update_weights`). The partitioner does
    /// not see that each chip's indices are of its own tokens: all chips get all numbers of tokens, whole and in their three
    /// parts, and add their scores up (`tests/oracles/xla_steps.json`, the steps with experts).
    pub(super) fn scatter_scores(&mut self) {
        let Some((tokens, top_k, count)) = self.routed() else { return };
        let index = FULL * tokens * top_k;
        for (kind, bytes, dtype) in [
            (Collective::AllGather, index, DType::Fp32),
            (Collective::AllGather, 3 * index, DType::Fp32),
            (Collective::AllReduce, HALF * tokens * count, DType::Bf16),
        ] {
            self.among_tokens(kind, bytes, dtype);
        }
    }

    /// The gradient of the chosen scores is looked up among all tokens'.
    pub(super) fn scatter_scores_backward(&mut self) {
        if let Some((tokens, _, count)) = self.routed() {
            self.among_tokens(Collective::AllGather, HALF * tokens * count, DType::Bf16);
        }
    }

    /// Tokens of all chips, experts of each, and experts; none where one chip has them all.
    fn routed(&self) -> Option<(u64, u64, u64)> {
        let experts = self.job.model.experts()?;
        let chips = u64::from(self.job.mesh.ranks() / self.job.mesh.alike());
        (chips > 1).then_some((self.tokens() * chips, experts.top_k, experts.count))
    }

    fn among_tokens(&mut self, kind: Collective, bytes: u64, dtype: DType) {
        let comm = Comm { dtype, ..self.comm(kind, self.groups.batch, bytes) };
        let after = self.tape.now();
        let at = self.tape.exchange(comm, (&[], &[]), after);
        self.tape.join(at);
    }

    /// Adds up what chips with the same tokens made with experts of their own.
    pub(super) fn sum_experts(&mut self, value: Value, bytes: u64) {
        if self.job.expert_parts() > 1 {
            let comm = self.comm(Collective::AllReduce, self.groups.expert, bytes);
            let after = self.tape.now();
            let at = self.tape.exchange(comm, (&[value], &[]), after);
            self.tape.join(at);
        }
    }

    /// Tokens to the chips of their experts, or back.
    pub(super) fn send(&mut self, value: Value, sent: Value, bytes: u64) {
        let comm = self.comm(Collective::AllToAll, self.groups.expert, bytes);
        let after = self.tape.now();
        let at = self.tape.exchange(comm, (&[value], &[sent]), after);
        self.tape.join(at);
    }
}
