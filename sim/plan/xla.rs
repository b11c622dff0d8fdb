//! A training job on XLA, fully decided.

mod compile;
pub mod flags;
mod gpu;
mod mesh;
mod pipeline;
mod policy;
mod torch;
pub mod vmem;
mod windows;

pub use compile::{Run, compiled_in};
pub use flags::Flags;
pub use gpu::{Backend, GpuFlags};
pub use mesh::{Across, Mesh};
pub use pipeline::Pipeline;
pub use policy::{Keep, Policy, TENSORS};
pub use torch::{TorchXla, Written};
pub use windows::Windows;

use serde::Deserialize;

use super::optimizer::OptaxOf;
use crate::model::ModelConfig;
use crate::model::experts::Experts;
use crate::units::{Bytes, Finite};
use flags::Overlap;

/// Windows that are written out one by one; more of them are a loop. Steps on four shards have no loops, on eight and more they have
/// (`tests/oracles/xla_steps.json`).
pub(crate) const UNROLLED: u32 = 4;

/// The most blocks, and words on a chip, with which nothing of a loss was left for when the loop back is over: see [`XlaPlan::late_loss`].
const FEW_BLOCKS: u64 = 10;
const FEW_ONE_HOT: u64 = 16;
const FEW_WORDS: u64 = 32_000;

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Attention {
    /// The splash kernel; gradients of queries, keys and values in one kernel, or in two.
    Splash {
        /// `sa_use_fused_bwd_kernel`.
        fused_backward: bool,
        /// Queries and keys of a block (`sa_block_q`, `sa_block_kv_dkv` and their like).
        block: u64,
    },
    /// Matmuls around a softmax (`attention: dot_product`).
    DotProduct,
    /// cuDNN's fused attention, on GPUs.
    Cudnn {
        /// Whether a policy that keeps the result keeps the sums of the softmax, too, and nothing runs again: Transformer Engine names
        /// both `context` (`cudnn_flash_te`), JAX's own call names neither (`cudnn_flash_jax`).
        named: bool,
    },
}

/// How the loss finds the logit of the right word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Targets {
    /// By a product with one-hot rows (MaxText's `cross_entropy_with_logits`): everything is elementwise or a sum, and the
    /// compiler keeps no logits but those that the matmul makes, in bf16, and their gradient beside them.
    OneHot,
    /// By index (`take_along_axis`) out of logits, less their `logsumexp` (optax's `softmax_cross_entropy_with_integer_labels`): what
    /// is indexed is an array in fp32 of its own.
    Indexed,
    /// By index out of `jax.nn.log_softmax`. What is indexed is an array in fp32 as well, which nothing but the loss reads. Where it
    /// lies depends on how matmuls run.
    LogSoftmax,
}

/// When the logarithms of a loss by `jax.nn.log_softmax` are made, which only its value reads. Read off the compiler's own order of
/// instructions (libtpu 0.0.42.1) in steps that differ in one thing each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Logarithms {
    /// At once, beside the logits: where the words lie on a tensor axis, whose sums are taken together with backward's.
    AtOnce,
    /// After all else. Single matmuls make the logits' gradient as they read it.
    Last,
    /// In one kernel with the logits' gradient, which loops over windows ask for.
    WithGradient,
    /// After blocks' backward, through which logits and their gradient are kept: an array of 4 GiB is not made in one kernel with
    /// another.
    Apart,
}

/// Numbers of an array in fp32 above which the compiler makes it in a kernel of its own: with 2^30 it is not apart, with 1.016 of that
/// it is.
const MOST_FUSED: u64 = 1 << 30;

/// What linears of blocks multiply in, by MaxText's name (`quantization`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantization {
    /// AQT: forward and the gradient of the input in int8, each operand scaled by its own maximum; weight gradients in
    /// bf16 (`layers/quantizations.py`: `drhs_bits = None`).
    Int8,
    /// Qwix: all three in fp8. Operands are scaled by maxima of their own, or by fixed ones.
    Fp8Full {
        /// `weight_quantization_calibration_method` and its like for activations are `fixed,…`: no maximum is looked for.
        fixed: bool,
    },
}

/// A training job, fully decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct XlaPlan {
    /// The model.
    pub model: ModelConfig,
    /// Sequences of a step on each chip (`per_device_batch_size`); fewer than one where chips share a sequence.
    pub batch: u64,
    /// Tokens of a sequence.
    pub seq: u64,
    /// Axes.
    pub mesh: Mesh,
    /// Whether a token's numbers between the halves of a block lie on the tensor axis (the logical axis `activation_embed`).
    pub activation_embed: bool,
    /// How blocks are run in a pipeline, where the mesh has stages.
    pub pipeline: Option<Pipeline>,
    /// What of forward is kept for backward, and where.
    pub remat: Policy,
    /// Whether blocks run in one loop (`scan_layers`), or are written out one after the other.
    pub scan: bool,
    /// Attention.
    pub attention: Attention,
    /// Whether attention in matmuls has its scores in fp32 (`float32_qk_product`).
    pub float32_scores: bool,
    /// Whether RMSNorm squares by a product in place of `lax.square`, whose derivative keeps an array more.
    pub norm_by_product: bool,
    /// What linears of blocks multiply in, if not in bf16.
    pub quantization: Option<Quantization>,
    /// Micro-batches of a step, each of `batch` sequences (`gradient_accumulation_steps`).
    pub accumulation: u32,
    /// Whether each is a program of its own, and optax adds gradients up (`optax.MultiSteps`).
    pub multi_steps: bool,
    /// Whether parameters, and so gradients and moments, are in bf16 (`weight_dtype`).
    pub half_weights: bool,
    /// Which of optax's optimizers steps.
    pub optax: OptaxOf,
    /// Whether AdamW's first moment is kept in bf16 (`mu_dtype`).
    pub half_moment: bool,
    /// The compiler's flags on TPUs, by name.
    pub compiler_flags: flags::Named,
    /// What the compiler's flags let it do.
    pub flags: Flags,
    /// Which matmuls exchange in windows, where the flags allow it.
    pub windows: Windows,
    /// How the loss finds the logit of the right word.
    pub targets: Targets,
    /// Parts that the loss is computed in (`num_vocab_tiling`).
    pub vocab_tiling: u64,
    /// Embedding by a matmul with one-hot rows (`use_iota_embed`).
    pub iota_embed: bool,
    /// Places of experts over tokens sent (`capacity_factor`); none where the model has no experts.
    pub capacity_factor: Option<Finite>,
    /// What goes over the expert axis: tokens to experts that stay where they are, or experts' weights.
    pub send_tokens: bool,
    /// Whether sorted experts see the tokens of all chips of the expert axis (`use_ring_of_experts`).
    pub ring_of_experts: bool,
    /// Rows of the buffer that sorted copies come into, over those of even shares (`ragged_buffer_factor`); none: the most there can be.
    pub ragged_buffer: Option<Finite>,
    /// Whether gradients are clipped to a norm.
    pub clip: bool,
    /// Whose compiler.
    pub backend: Backend,
    /// What the compiler may give out of a chip's memory.
    pub hbm: Bytes,
    /// The run that the step is part of.
    pub run: Run,
    /// Device-to-host reads that the loop waits for in a step (`.item()`, a logged metric).
    pub host_syncs: u32,
    /// What is otherwise where PyTorch/XLA writes the step.
    pub torch: Option<TorchXla>,
}

/// How sorted experts get their rows over the expert axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Copies of tokens go to the chips of their experts, by an all-to-all of uneven parts, into a buffer of so many rows.
    Copies {
        /// Rows of the buffer.
        rows: u64,
    },
    /// Each chip gets all tokens of so many, and runs its own experts on them.
    Ring {
        /// Chips of the axis.
        chips: u64,
    },
}

impl XlaPlan {
    /// Tokens on each chip in a step.
    pub fn own_tokens(&self) -> u64 {
        self.batch * self.seq / u64::from(self.mesh.context)
    }

    /// What a stage computes at a time: a chip's part of a micro-batch.
    pub(crate) fn micro_batch(&self) -> Option<XlaPlan> {
        let pipeline = self.pipeline?;
        let batch = self.batch * pipeline.stages / pipeline.micro_batches;
        Some(XlaPlan { batch, remat: pipeline.remat, scan: true, ..self.clone() })
    }

    /// Places of all experts for a sequence: as many for each (`moe.py`, `generate_masks`).
    pub fn places(&self, experts: &Experts) -> u64 {
        let sent = (self.seq * experts.top_k) as f64 * self.capacity_factor.map_or(1.0, Finite::get);
        (sent / experts.count as f64).floor().max(1.0) as u64 * experts.count
    }

    /// Chips that experts are spread over, each of which multiplies with its own.
    pub fn expert_ranks(&self) -> u64 {
        if self.send_tokens || self.mesh.experts_only { u64::from(self.mesh.expert) } else { 1 }
    }

    /// Chips that have the same tokens and other experts: each makes a part of the sum over experts.
    pub fn expert_parts(&self) -> u64 {
        if self.mesh.experts_only { u64::from(self.mesh.expert) } else { 1 }
    }

    /// How sorted experts get their rows over the expert axis; none where a chip has all experts.
    pub fn spread_of_sorted(&self) -> Option<Spread> {
        let chips = u64::from(self.mesh.expert);
        let experts = self.model.experts().filter(|_| self.sorts_experts() && chips > 1)?;
        Some(match self.ring_of_experts {
            true => Spread::Ring { chips },
            false => Spread::Copies { rows: self.buffered(experts, chips) },
        })
    }

    /// Rows that come to a chip at most: all copies of all chips of the axis, or as many of a token as a chip has experts (`moe.py`,
    /// `get_ragged_buffer_size`).
    fn buffered(&self, experts: &Experts, chips: u64) -> u64 {
        let tokens = self.own_tokens();
        match self.ragged_buffer {
            Some(factor) => ((tokens * experts.top_k) as f64 * factor.get()) as u64,
            None => tokens * (experts.top_k * chips).min(experts.count),
        }
    }

    /// Of so many rows in a chip's buffer of sorted copies, those that are multiplied: kernels visit what groups have, and experts are
    /// taken to get as many each.
    pub fn multiplied(&self, rows: u64) -> u64 {
        let Some(experts) = self.model.experts() else { return rows };
        let own = self.own_tokens() * experts.top_k;
        match self.spread_of_sorted() {
            None => rows,
            Some(_) => rows.min(own),
        }
    }

    /// Whether experts have as many rows as they get, in the order of experts (`sparse_matmul`).
    pub fn sorts_experts(&self) -> bool {
        self.model.experts().is_some() && self.capacity_factor.is_none()
    }

    /// The flags of XLA:GPU, where the step is compiled for GPUs.
    pub fn gpu(&self) -> Option<GpuFlags> {
        match self.backend {
            Backend::Tpu => None,
            Backend::Gpu(flags) => Some(flags),
        }
    }

    /// The share of a chip's matmuls that other chips do alike: where the axis of experts holds nothing else, all but experts'.
    pub fn repeated(&self) -> f64 {
        let parts = self.expert_parts() as f64;
        let Some(experts) = self.model.experts().filter(|_| parts > 1.0) else { return 0.0 };
        let params = self.model.params();
        let routed = (params.total - params.active) as f64 / (experts.count - experts.top_k).max(1) as f64;
        let chosen = routed * experts.top_k as f64;
        let own = chosen * self.capacity_factor.map_or(1.0, Finite::get) / parts;
        let alike = params.active as f64 - chosen - (self.model.vocab * self.model.width) as f64;
        (1.0 - 1.0 / parts) * alike / (alike + own)
    }

    /// Numbers of a token that a chip holds between the halves of a block.
    pub fn stream(&self) -> u64 {
        if self.activation_embed { self.model.width / u64::from(self.mesh.tensor) } else { self.model.width }
    }

    /// When the logarithms of a loss by `log_softmax` are made.
    pub(crate) fn logarithms(&self) -> Logarithms {
        let numbers = self.own_tokens() * (self.model.vocab / u64::from(self.mesh.tensor));
        let at_once = self.mesh.tensor > 1 || self.vocab_tiling > 1 || self.pipeline.is_some() || self.one_sequence();
        match (at_once, self.in_memory(false)) {
            (true, _) => Logarithms::AtOnce,
            (false, false) => Logarithms::Last,
            (false, true) if numbers > MOST_FUSED => Logarithms::Apart,
            (false, true) => Logarithms::WithGradient,
        }
    }

    /// Whether the kernel that sums a loss by one-hot rows writes the gradient of logits beside them, for matmuls to read: around loops
    /// over windows, and of one sequence a chip, whose axis the partitioner leaves with nothing to count. Else single matmuls make it of
    /// the logits as they read them (`tests/oracles/xla-edge.json`: with one sequence a chip there are both, with more there are not).
    pub(crate) fn loss_writes_gradient(&self) -> bool {
        self.in_memory(false) || (self.batch == 1 && !self.one_sequence() && !self.shares_words_in_windows())
    }

    /// Whether chips share the head's words and exchange its shards in windows that are written out. Of such steps some write the
    /// gradient of logits and some do not, by what is not known (`tests/oracles/xla-edge.json`: `r-11` does, `l-f4t2-16` and `r-19` do not).
    pub(crate) fn shares_words_in_windows(&self) -> bool {
        self.mesh.tensor > 1 && self.exchanges_in_windows() && !self.in_loops(false)
    }

    /// Whether the head's gradient is reduced in windows.
    fn exchanges_in_windows(&self) -> bool {
        self.flags.scatter == Overlap::Windowed && self.windows.pay(self.own_tokens(), self.mesh.shards())
    }

    /// Whether the step is laid out otherwise than the steps by which peaks are best known, MaxText's own with full remat: written out block
    /// by block, with another loss, with a policy that keeps more or copies to the host, with sorted experts over an axis, or with layers of
    /// several kinds (`tests/oracles/xla-dropless.json`).
    pub(crate) fn is_laid_out_otherwise(&self) -> bool {
        let patterned = self.model.layers.kinds().len() > 1;
        let written = !self.scan || self.targets != Targets::OneHot || self.remat.keeps_more_than_inputs();
        written || patterned || self.spread_of_sorted().is_some()
    }

    /// Whether the batch of the whole job is one sequence. Then what picks the logits of right words is an index, whose derivative is a
    /// scatter; with more sequences it is a comparison, which is part of what reads it.
    pub(crate) fn one_sequence(&self) -> bool {
        self.mesh.ranks() == 1 && self.batch == 1
    }

    /// Whether matmuls with weights are loops over windows, of which no more than [`UNROLLED`] are written out: around a pipeline's
    /// stages, or in them (`staged`).
    fn in_loops(&self, staged: bool) -> bool {
        let shards = self.mesh.shards();
        let windowed = [self.flags.gather_forward, self.flags.scatter].contains(&Overlap::Windowed);
        let apart = staged || self.pipeline.is_none();
        windowed && apart && shards > UNROLLED && self.windows.pay(self.own_tokens(), shards)
    }

    /// Whether what a matmul reads and writes lies in memory. On TPUs that is so around loops over windows; what goes into a single
    /// matmul is made as it is read: norms' results, and the gradient of logits. On GPUs a matmul is a call of cuBLAS.
    pub(crate) fn in_memory(&self, staged: bool) -> bool {
        self.gpu().is_some() || self.in_loops(staged)
    }

    /// Whether the compiler merges what blocks compute again with what they computed first, so that all of it is kept: where blocks are
    /// written out around loops over windows. Of such steps (`tests/oracles/xla-plain.json`, `loop8`) the matmuls of forward are there
    /// once, `jax.checkpoint` or not.
    pub fn merges_blocks(&self) -> bool {
        // PyTorch/XLA's checkpoint ties what runs again to the gradient that comes (`torch_xla/utils/checkpoint.py`).
        let free = self.torch.is_none();
        free && self.gpu().is_none() && !self.scan && self.remat != Policy::None && self.in_memory(false)
    }

    /// Bytes of a number between the halves of a block.
    pub fn residual(&self) -> u64 {
        if self.torch.is_some_and(|torch| torch.autocast) { 4 } else { 2 }
    }

    /// Chips of the tensor axis that multiply the same heads in attention.
    pub fn same_heads(&self) -> u64 {
        if self.torch.is_some_and(TorchXla::whole_heads) { u64::from(self.mesh.tensor) } else { 1 }
    }

    /// Whether something of the loss is left for when the loop back is over: the loss itself, or the head's gradient, both of which
    /// read the logits. The compiler's scheduler decides, by what is not known. Of 22 steps compiled for this question
    /// (`tests/oracles/xla-late.json`) it is at once with up to [`FEW_BLOCKS`] blocks, one-hot targets without a tensor axis up to
    /// [`FEW_ONE_HOT`], and no more than [`FEW_WORDS`] words on a chip; late with more of either. Where chips share words and exchange in
    /// windows, words do not count. It is at once, too, where chips have all of the head, and where they share words with too few chips
    /// for windows to pay (`tests/oracles/xla-edge.json`).
    pub fn late_loss(&self) -> bool {
        let tensor = self.mesh.tensor;
        let most = if self.targets == Targets::OneHot && tensor == 1 { FEW_ONE_HOT } else { FEW_BLOCKS };
        let few_words = self.model.vocab / u64::from(tensor) <= FEW_WORDS || self.shares_words_in_windows();
        let few = self.model.layers.count() <= most && few_words;
        let shards = self.mesh.shards();
        let at_once = shards < 2 || (tensor > 1 && !self.windows.pay(self.own_tokens(), shards));
        let written_out = !self.scan || self.in_memory(false);
        self.pipeline.is_none() && self.vocab_tiling < 2 && !(few || at_once || written_out)
    }

    /// Tokens of one step of the whole job: chips of the tensor axis share theirs.
    pub fn tokens(&self) -> u64 {
        self.batch * self.seq * u64::from(self.accumulation) * u64::from(self.mesh.data_ranks())
    }
}
