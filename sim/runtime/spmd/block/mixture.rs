//! Experts of a block: with places, as `dense_matmul` of MaxText's `layers/moe.py` has them, or sorted, as `sparse_matmul` does.

use super::{Block, Kind, ROUTER, Tensor};
use crate::model::experts::Experts;
use crate::plan::xla::{Spread, XlaPlan};

impl Block {
    /// Experts, those that every token passes among them.
    pub(super) fn mixture(&mut self, input: Tensor, job: &XlaPlan, (width, experts): (u64, &Experts)) -> Tensor {
        let routed = match job.capacity_factor {
            Some(_) => self.places(input, job, (width, experts)),
            None => self.sorted(input, job, (width, experts)),
        };
        if experts.shared == 0 {
            return routed;
        }
        let sizes = (width, experts.shared / u64::from(job.mesh.tensor), 1);
        let shared = self.feed_forward(input, experts.gating, sizes);
        self.op(Kind::Add, &[routed, shared], None, job.stream())
    }

    /// All copies of tokens, in the order of their experts, in matmuls of groups of rows (`sparse_matmul` with `megablox`);
    /// experts are taken to get as many each.
    fn sorted(&mut self, input: Tensor, job: &XlaPlan, (width, experts): (u64, &Experts)) -> Tensor {
        let tensor = u64::from(job.mesh.tensor);
        // Policies know one of the two factors of a gate by name (`moe.py`, `gmm_up`).
        let gating = (experts.gating, None);
        let sizes = (width, experts.width / tensor, experts.count);
        let scores = self.linear(input, None, (ROUTER, width, experts.count, false));
        let tokens = self.rows;
        match job.spread_of_sorted() {
            None => {
                self.rows = tokens * experts.top_k;
                let sent = self.op(Kind::Sort, &[input, scores], None, width);
                let made = self.feed_forward_of(sent, gating, sizes);
                self.rows = tokens;
                self.op(Kind::Unsort, &[made, scores], None, job.stream())
            }
            Some(Spread::Copies { rows }) => {
                self.rows = tokens * experts.top_k;
                let sorted = self.op(Kind::Sort, &[input, scores], None, width);
                self.rows = rows;
                let came = self.op(Kind::Exchange, &[sorted], None, width);
                let sent = self.op(Kind::Arrange, &[came], None, width);
                let made = self.feed_forward_of(sent, gating, sizes);
                let back = self.op(Kind::Arrange, &[made], None, job.stream());
                self.rows = tokens * experts.top_k;
                let home = self.op(Kind::Exchange, &[back], None, job.stream());
                self.rows = tokens;
                self.op(Kind::Unsort, &[home, scores], None, job.stream())
            }
            Some(Spread::Ring { chips }) => {
                self.rows = tokens * chips;
                let all = self.op(Kind::AllTokens, &[input], None, width);
                let chosen = self.op(Kind::AllTokens, &[scores], None, experts.count);
                self.rows = tokens * chips * experts.top_k;
                let sent = self.op(Kind::Sort, &[all, chosen], None, width);
                let made = self.feed_forward_of(sent, gating, sizes);
                self.rows = tokens * chips;
                let sums = self.op(Kind::Unsort, &[made, chosen], None, job.stream());
                self.rows = tokens;
                self.op(Kind::OwnTokens, &[sums], None, job.stream())
            }
        }
    }

    /// Experts with as many places each for every sequence; tokens that find none are dropped (MaxText's `dense_matmul` with
    /// a `capacity_factor`).
    fn places(&mut self, input: Tensor, job: &XlaPlan, (width, experts): (u64, &Experts)) -> Tensor {
        let places = job.places(experts);
        let tensor = u64::from(job.mesh.tensor);
        let scores = self.linear(input, None, (ROUTER, width, experts.count, false));
        // Chips with the same tokens have the places of their own experts.
        let places = places / job.expert_parts();
        let masks = self.op(Kind::Masks, &[scores], None, places);
        let tokens = std::mem::replace(&mut self.rows, job.batch * places);
        let sent = self.op(Kind::Dispatch(places), &[input, masks], None, width);
        let sent = self.sent(sent, (job, width));
        let made = self.feed_forward(sent, experts.gating, (width, experts.width / tensor, experts.count));
        let made = self.sent(made, (job, width));
        self.rows = tokens;
        self.op(Kind::Combine(places), &[made, masks], None, width)
    }

    /// The same rows of fewer experts and more sequences, or the reverse, where chips have experts of their own.
    fn sent(&mut self, input: Tensor, (job, width): (&XlaPlan, u64)) -> Tensor {
        if job.send_tokens { self.op(Kind::Send, &[input], None, width) } else { input }
    }
}
