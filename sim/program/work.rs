//! What one kernel computes and moves, in the terms a cost model needs.
//!
//! FLOPs follow PyTorch's FlopCounterMode (`torch/utils/flop_counter.py`): a matmul is `2·m·n·k`; attention forward is
//! `4·B·N·Sq·Sk·H`, backward 2.5 times that; causal masking is not discounted, a mask by document is; everything else counts zero.

use serde::{Deserialize, Serialize};
use strum::VariantArray;

use crate::units::{Bytes, Flops};

/// Element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    Fp16,
    /// IEEE single; matmuls may run in tf32 (a setting of the framework).
    Fp32,
    /// 8-bit float, E4M3 or E5M2.
    Fp8,
    /// 32-bit integer (ends of groups).
    Int32,
    /// 64-bit integer (token ids).
    Int64,
}

impl DType {
    /// The name in files and reports.
    pub fn name(self) -> &'static str {
        match self {
            DType::Bf16 => "bf16",
            DType::Fp16 => "fp16",
            DType::Fp32 => "fp32",
            DType::Fp8 => "fp8",
            DType::Int32 => "int32",
            DType::Int64 => "int64",
        }
    }

    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            DType::Fp8 => 1,
            DType::Bf16 | DType::Fp16 => 2,
            DType::Fp32 | DType::Int32 => 4,
            DType::Int64 => 8,
        }
    }
}

/// Which part of the training step a kernel belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// Forward.
    Forward,
    /// Backward.
    Backward,
    /// Forward run again inside backward (activation checkpointing).
    Recompute,
    /// Copies, casts and divisions around a collective.
    Communication,
    /// Gradient clipping and the optimizer step.
    Optimizer,
}

impl Pass {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Forward => "forward",
            Pass::Backward => "backward",
            Pass::Recompute => "recompute",
            Pass::Communication => "communication",
            Pass::Optimizer => "optimizer",
        }
    }
}

/// How the host comes to launch a kernel, which decides what the host pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, VariantArray, Serialize)]
pub enum Dispatch {
    /// An eager operator called from Python, through autograd.
    EagerForward,
    /// An operator called by the autograd engine's C++ thread.
    EagerBackward,
    /// One launch of a multi-tensor kernel whose operator was dispatched already.
    Foreach,
    /// A kernel launched by code that inductor generated.
    Compiled,
    /// A collective through `torch.distributed`.
    Collective,
    /// One FSDP hook (pre/post forward/backward), without the operators in it.
    FsdpHook,
    /// Per-parameter host work inside an FSDP hook (views, `nn.Parameter` swaps).
    FsdpParam,
    /// Per-parameter host work of the optimizer before its kernels.
    OptimizerParam,
    /// A further kernel of an operator that launches several.
    Extra,
    /// One matmul of Transformer Engine's grouped ones: cuBLAS is asked which kernel to take, and it is launched.
    GroupedMatmul,
    /// An operator of Megatron-Core's modules, with its part of the Python around it.
    ModuleForward,
    /// The same in backward: half of them are autograd functions in Python.
    ModuleBackward,
    /// An operator of Transformer Engine's modules, with its part of the Python around it.
    TransformerEngineForward,
    /// The same in backward.
    TransformerEngineBackward,
    /// Transformer Engine's Python around a CUDA graph in forward, without its launch and the copies before it.
    GraphForward,
    /// The same in backward.
    GraphBackward,
    /// `cudaGraphLaunch`: about 1 ns a node is left out.
    GraphLaunch,
    /// From the end of a kernel until a host that waits for it goes on.
    Synchronize,
    /// Python of the training loop around a step.
    StepOverhead,
    /// A block's forward in PyTorch/XLA, whose operators the host writes down in place of running them.
    LazyForward,
    /// The same backward.
    LazyBackward,
    /// A block's part of a sync: the graph is walked, hashed and found.
    LazySync,
    /// What the optimizer writes down for a parameter.
    LazyParameter,
    /// An instruction of a program that was compiled whole: the device runs it, no host launches it.
    Static,
}

impl Dispatch {
    /// Number of classes: the length of a table indexed by `dispatch as usize`.
    pub const COUNT: usize = Self::ALL.len();

    /// All classes, in declaration order.
    pub const ALL: &[Dispatch] = Dispatch::VARIANTS;
}

/// Operand layout of a matmul `C[m,n] = A[m,k]·B[k,n]`, named as PyTorch's linear layer uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MatmulLayout {
    /// `y = x·Wᵀ` (cuBLAS TN).
    Forward,
    /// `dx = dy·W` (cuBLAS NN).
    DataGradient,
    /// `dW = dyᵀ·x` (cuBLAS NT).
    WeightGradient,
    /// The same, added in the matmul to a main gradient of this type (`gradient_accumulation_fusion`), which is read and
    /// written where a gradient of two bytes an element would be written.
    MainGradient(DType),
}

/// The family of a kernel that memory bounds; its bandwidth curve differs by family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, VariantArray)]
pub enum MemoryKind {
    /// Pointwise.
    Elementwise,
    /// Pointwise over operands whose dimensions do not merge into one, such as halves of rows or a row against a column: PyTorch
    /// computes an address for each element (`elementwise_kernel` with an `OffsetCalculator`, `aten/src/ATen/native/cuda/CUDALoops.cuh`).
    /// Elements take the time, not bytes. So two bytes read and two written are counted for each, whatever it reads.
    Strided,
    /// A reduction of rows, and what is made of it: a norm as a compiler writes it, maxima.
    Norm,
    /// A norm's backward as a compiler writes it.
    NormBackward,
    /// PyTorch's RMSNorm, forward.
    RmsNorm,
    /// PyTorch's RMSNorm, backward.
    RmsNormBackward,
    /// PyTorch's LayerNorm, forward.
    LayerNorm,
    /// PyTorch's LayerNorm, backward.
    LayerNormBackward,
    /// A norm by Apex's first kernels, which read a row once for its sums and again to use them
    /// (`apex/csrc/layer_norm_cuda_kernel.cu`), forward.
    ApexNorm,
    /// Their backward: one kernel for the input's gradient, two for the parameters', each of which reads all.
    ApexNormBackward,
    /// A norm by kernels that hold a row in registers and read it once: Apex's `FastLayerNorm`
    /// (`apex/contrib/csrc/layer_norm`); forward.
    PersistentNorm,
    /// Their backward.
    PersistentNormBackward,
    /// Softmax or cross-entropy over a long row.
    Softmax,
    /// Table look-up.
    Gather,
    /// Scatter-add into a table.
    Scatter,
    /// PyTorch's log-softmax over the vocabulary, forward (`cunn_SoftMaxForward`).
    LogSoftmax,
    /// Its backward (`cunn_SoftMaxBackward`).
    LogSoftmaxBackward,
    /// Maximum and sum of exponentials of a row over the vocabulary, as a compiler writes them: the row is read once.
    CompiledLogSoftmax,
    /// The gradient of such a row, as a compiler writes it.
    CompiledLogSoftmaxBackward,
    /// Multi-tensor kernel (`_foreach_*`, packing for collectives).
    Foreach,
    /// A fused optimizer's step over parameters, gradients and state in fp32, by `multi_tensor_apply`.
    FusedOptimizer,
    /// The same in 16 bits: a thread takes as many elements, so half the bytes are on their way at a time.
    FusedOptimizer16,
    /// `_chunk_cat`: gradients cut by rank, put together and cast (FSDP2).
    ChunkCat,
    /// Plain copy or fill.
    Copy,
    /// Pointwise over 8-byte complex numbers, as complex rotary embeddings do.
    Complex,
    /// PyTorch's eager cast. One to a wider type runs the kernel for any pair of types, element by element
    /// (`unrolled_elementwise_kernel` with `LoadWithCast`, `aten/src/ATen/native/cuda/CUDALoops.cuh`); one to a narrower type has
    /// a kernel of its own and is as fast as the stream (`Copy.cu`).
    Cast,
    /// mamba_ssm's Triton kernels that multiply tokens of a chunk with each other (`_chunk_scan_fwd_kernel` and two of its backward): too
    /// many products for their bytes.
    ChunkScan,
    /// Those that multiply a chunk with states, or gradients of them.
    ChunkState,
    /// mamba_ssm's gated norm, backward (`_layer_norm_bwd_kernel`).
    GatedNormBackward,
}

/// PyTorch's operator that converts a tensor to another type, whoever calls it.
const TO_COPY: &str = "aten._to_copy";

impl Work {
    /// The work of a kernel by its name: all conversions are one kernel.
    pub(super) fn of(self, name: &'static str) -> Work {
        match self {
            Work::Memory { kind: MemoryKind::Elementwise, read, written } if name == TO_COPY => {
                Work::Memory { kind: MemoryKind::Cast, read, written }
            }
            work => work,
        }
    }
}

impl MemoryKind {
    /// All families, in declaration order.
    pub const ALL: &[MemoryKind] = MemoryKind::VARIANTS;
}

/// Shape of an attention kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttentionShape {
    /// Sequences in the batch (B).
    pub batch: u64,
    /// Query heads (N).
    pub heads: u64,
    /// Key-value heads (K).
    pub kv_heads: u64,
    /// Query length (S).
    pub queries: u64,
    /// Key length.
    pub keys: u64,
    /// Head dimension (H).
    pub head_dim: u64,
    /// Causal mask.
    pub causal: bool,
    /// Sliding window, in keys; none: all.
    pub window: Option<u64>,
    /// Sum of the squares of the lengths of a sequence's documents, where attention stays inside each; none: it does not.
    pub squares: Option<u64>,
}

/// How matmuls of groups are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grouping {
    /// One of cuBLAS for each group, on several streams (Transformer Engine's `general_grouped_gemm`).
    Streams,
    /// One kernel of equal groups (cuBLAS's batched matmuls, `aten.bmm`).
    Batched,
    /// One kernel of groups of any rows (`aten._grouped_mm`).
    OneKernel,
}

/// Arithmetic and memory traffic of one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// Dense matmul.
    Matmul {
        /// Rows of the output.
        m: u64,
        /// Columns of the output.
        n: u64,
        /// Length of the dot products.
        k: u64,
        /// Operand type.
        dtype: DType,
        /// Which of the three matmuls of a linear layer.
        layout: MatmulLayout,
    },
    /// Matmuls of groups of rows, each with a matrix of its own, in one kernel.
    GroupedMatmul {
        /// Groups.
        groups: u64,
        /// Rows of all groups.
        rows: u64,
        /// Columns of the groups' matrices as a linear reads them.
        inputs: u64,
        /// Columns of a linear's result.
        outputs: u64,
        /// Operand type.
        dtype: DType,
        /// Which of the three matmuls of a linear layer.
        layout: MatmulLayout,
        /// How they are launched.
        kernels: Grouping,
    },
    /// Fused attention.
    Attention {
        /// Shape.
        shape: AttentionShape,
        /// Element type of q, k and v.
        dtype: DType,
        /// Backward (5 matmuls) or forward (2).
        backward: bool,
    },
    /// A kernel bounded by memory.
    Memory {
        /// Family.
        kind: MemoryKind,
        /// Bytes read from device memory.
        read: Bytes,
        /// Bytes written to device memory.
        written: Bytes,
    },
    /// Work of the host's own processors on data in its memory, for which the rank waits (an offloaded optimizer).
    HostMemory {
        /// Bytes read and written in the host's memory.
        bytes: Bytes,
    },
    /// A copy over PCIe or C2C between host and device.
    HostCopy {
        /// Bytes.
        bytes: Bytes,
        /// Device to host, or host to device.
        to_host: bool,
    },
    /// A file of the node's disks is read into the host's memory, or written from it.
    Disk {
        /// Bytes.
        bytes: Bytes,
        /// Written, or read.
        write: bool,
    },
}

impl Work {
    /// FLOPs as FlopCounterMode counts them; of a grouped matmul, for which it has no formula, as of its parts.
    pub fn flops(&self) -> Flops {
        match *self {
            Work::Matmul { m, n, k, .. } => Flops(2 * u128::from(m) * u128::from(n) * u128::from(k)),
            Work::GroupedMatmul { rows, inputs, outputs, .. } => {
                Flops(2 * u128::from(rows) * u128::from(inputs) * u128::from(outputs))
            }
            Work::Attention { shape, backward, .. } => {
                let s = shape;
                let pairs = s.squares.map_or(u128::from(s.queries) * u128::from(s.keys), u128::from);
                let matmul = 2 * u128::from(s.batch * s.heads) * pairs * u128::from(s.head_dim);
                Flops(matmul * if backward { 5 } else { 2 })
            }
            Work::Memory { .. } | Work::HostMemory { .. } | Work::HostCopy { .. } | Work::Disk { .. } => Flops(0),
        }
    }
}

/// The collectives, as NCCL names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Every rank ends with every shard.
    AllGather,
    /// Every rank ends with its shard of the sum.
    ReduceScatter,
    /// Every rank ends with the whole sum.
    AllReduce,
    /// Every rank sends a part to every other.
    AllToAll,
    /// One rank sends to all.
    Broadcast,
    /// Point to point.
    SendRecv,
    /// Rows of tokens to the ranks of their experts or back, each once to a rank; the buffer is that of the rank's own tokens.
    Rows(Rows),
}

/// Rows of tokens between ranks that have all experts together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rows {
    /// What is done.
    pub way: Way,
    /// Tokens of a rank.
    pub tokens: u64,
    /// Experts of all ranks.
    pub experts: u64,
    /// Experts that a token is sent to.
    pub top_k: u64,
    /// Whose kernels take them.
    #[serde(default)]
    pub library: ExchangeLibrary,
    /// Processors of the chip that they run on, if not as many as the library takes by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors: Option<u32>,
}

/// Whose kernels take rows of tokens from rank to rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExchangeLibrary {
    /// DeepEP's (deepseek-ai/DeepEP).
    #[default]
    DeepEp,
    /// NVIDIA's Hybrid-EP (its branch `hybrid-ep`).
    HybridEp,
}

/// What is done with rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Ranks tell each other how many will come.
    Notify,
    /// Each row goes once to every rank on which its token has an expert.
    Dispatch,
    /// Rows come back, and those of a token are added up.
    Combine,
}

impl Rows {
    /// How many of `parts` equal parts of the experts a token has experts in, where all choices are as likely:
    /// `parts·(1 − C(E − E/parts, k) / C(E, k))`.
    pub fn reached(&self, parts: u64) -> f64 {
        let own = self.experts / parts.max(1);
        let missed = (0..self.top_k).map(|at| {
            let (left, all) = ((self.experts - own).saturating_sub(at), self.experts.saturating_sub(at));
            left as f64 / all.max(1) as f64
        });
        parts as f64 * (1.0 - missed.product::<f64>())
    }
}

impl Collective {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllGather => "all-gather",
            Collective::ReduceScatter => "reduce-scatter",
            Collective::AllReduce => "all-reduce",
            Collective::AllToAll => "all-to-all",
            Collective::Broadcast => "broadcast",
            Collective::SendRecv => "send/recv",
            Collective::Rows(Rows { way: Way::Notify, .. }) => "notify",
            Collective::Rows(Rows { way: Way::Dispatch, .. }) => "dispatch",
            Collective::Rows(Rows { way: Way::Combine, .. }) => "combine",
        }
    }

    /// Where costs of its kind err together: a number below 8.
    pub fn family(self) -> usize {
        match self {
            Collective::AllGather => 0,
            Collective::ReduceScatter => 1,
            Collective::AllReduce => 2,
            Collective::AllToAll => 3,
            Collective::Broadcast => 4,
            Collective::SendRecv => 5,
            Collective::Rows(_) => 6,
        }
    }
}
