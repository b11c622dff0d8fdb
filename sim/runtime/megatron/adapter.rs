//! Adapters beside Megatron-Core's linears, as NeMo 2 and Megatron-Bridge put them (`ParallelLinearAdapter`, `LoRALinear`;
//! Megatron-Bridge 0.4.0, `peft/utils.py`, `peft/lora_layers.py`).
//!
//! An adapter is two of Megatron's own parallel linears, which know nothing of a split sequence: what they read is gathered. The
//! first of a linear split on its rows is split on its rows, too, and its narrow result gathered; of one split on its columns it
//! is split on its columns, its result summed, and that of the second gathered. The result is scaled and added to the linear's.

use super::builder::{BLD, BSD, Beside, Modules, NormAndLinear};
use crate::model::NormPlacement;
use crate::model::graph::{OpKind, ValueId};
use crate::model::megatron::{Bias, Fp8Recipe, MegatronOp, MtpOp, Reads};
use crate::plan::megatron::{CudaGraphs, Engine, Implementation, MegatronPlan, Split};
use crate::runtime::Refusal;
use crate::schedule::order;

/// A linear that can have an adapter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adapted {
    /// As [`Lora::modules`](crate::model::trained::Lora::modules) has it.
    asked: &'static str,
    module: &'static str,
    weight: &'static str,
    /// Names of the two matrices.
    names: [&'static str; 2],
    /// Whether it is split on its columns.
    row: bool,
}

const LINEARS: [Adapted; 4] = [
    Adapted {
        asked: "attention.wqkv",
        module: "self_attention.linear_qkv",
        weight: "self_attention.linear_qkv.weight",
        names: [
            "self_attention.linear_qkv.adapter.linear_in.weight",
            "self_attention.linear_qkv.adapter.linear_out.weight",
        ],
        row: false,
    },
    Adapted {
        asked: "attention.wo",
        module: "self_attention.linear_proj",
        weight: "self_attention.linear_proj.weight",
        names: [
            "self_attention.linear_proj.adapter.linear_in.weight",
            "self_attention.linear_proj.adapter.linear_out.weight",
        ],
        row: true,
    },
    Adapted {
        asked: "feed_forward.w13",
        module: "mlp.linear_fc1",
        weight: "mlp.linear_fc1.weight",
        names: ["mlp.linear_fc1.adapter.linear_in.weight", "mlp.linear_fc1.adapter.linear_out.weight"],
        row: false,
    },
    Adapted {
        asked: "feed_forward.w2",
        module: "mlp.linear_fc2",
        weight: "mlp.linear_fc2.weight",
        names: ["mlp.linear_fc2.adapter.linear_in.weight", "mlp.linear_fc2.adapter.linear_out.weight"],
        row: true,
    },
];

/// The linear of a job that has an adapter, by what finds it.
fn find(job: &Split, named: impl Fn(&Adapted) -> bool) -> Option<Adapted> {
    let lora = job.lora()?;
    LINEARS.into_iter().find(|linear| named(linear) && lora.modules.contains(&linear.asked))
}

impl Modules<'_> {
    /// The adapter of a linear, if it has one.
    pub(super) fn adapter(&self, module: &str) -> Option<Adapted> {
        find(self.job, |linear| linear.module == module)
    }

    /// Registers the adapter of a linear whose weight has just been registered.
    pub(super) fn adapter_params(&mut self, weight: &str, (rows, cols): (u64, u64)) {
        let (Some(adapted), Some(lora)) = (find(self.job, |linear| linear.weight == weight), self.job.lora()) else {
            return;
        };
        let (rank, ranks) = (lora.rank, u64::from(self.job.mesh.tp));
        let (narrow, wide) = if adapted.row { (rank, rows / ranks) } else { (rank / ranks, rows) };
        self.g.adapter(adapted.names[0], narrow, cols);
        self.g.adapter(adapted.names[1], wide, rank);
    }

    /// A norm and a linear of Transformer Engine's with an adapter that reads the norm's result.
    pub(super) fn adapted_up(
        &mut self,
        input: ValueId,
        kind: MegatronOp,
        NormAndLinear { norm_params, linear, params, shape, .. }: NormAndLinear<'_>,
        adapted: Adapted,
    ) -> ValueId {
        let (dtype, sizes) = (self.g.compute(), (self.dims.d, self.g.rows(params[0])));
        let outputs = [("base_SBF", shape, dtype), ("xn_SBD", BSD, dtype)];
        let all = [norm_params, params].concat();
        let [base, input] = self.g.op_all(linear, OpKind::Megatron(kind), &[input], &all, outputs);
        self.g.resize(base, self.dims.tokens() * sizes.1);
        let first = params.iter().max().map_or(0, |last| last + 1);
        self.adapt(adapted, Beside { base, input, own_input: true, sizes, first, shape })
    }

    /// One of an adapter's linears.
    fn narrow_linear(&mut self, module: &'static str, input: ValueId, param: usize, of: (u64, u64, Reads)) -> ValueId {
        let (inputs, outputs, reads) = of;
        let kind = MegatronOp::Linear { inputs, outputs, reads, bias: Bias::Apart };
        let made = self.megatron(module, kind, &[input], &[param], ("lora_SBD", BSD));
        self.g.resize(made, self.dims.tokens() * outputs);
        made
    }

    /// What ranks have parts of, gathered on its width; the parts go.
    fn gather_width(&mut self, module: &'static str, part: ValueId, width: u64) -> ValueId {
        let whole = self.megatron(module, MegatronOp::Mtp(MtpOp::GatherWidth), &[part], &[], ("lora_SBD", BSD));
        self.g.resize(whole, self.dims.tokens() * width);
        self.g.drop_values(&[part]);
        whole
    }

    /// The adapter's operators, and the sum with what the linear has made.
    pub(super) fn adapt(&mut self, adapted: Adapted, beside: Beside) -> ValueId {
        let Some(lora) = self.job.lora() else { return beside.base };
        let (rank, dropout, ranks) = (lora.rank, lora.dropout, u64::from(self.job.mesh.tp));
        let Adapted { module, row, .. } = adapted;
        let Beside { base, input, own_input, sizes: (inputs, outputs), first, shape } = beside;
        let (splits, sequence) = (self.dims.tensor.splits(), self.dims.tensor.sequence);
        let mut x = input;
        if dropout {
            let elements = self.g.elements(input);
            x = self.g.op(module, OpKind::Dropout, &[input], &[], ("lora_x_SBD", BSD));
            self.g.resize(x, elements);
        }
        // A gathered sequence's gradient is summed by the linear whose norm made it.
        let reads = if row || sequence { Reads::Own } else { self.reads() };
        let mut narrow = self.narrow_linear(module, x, first, (inputs, if row { rank } else { rank / ranks }, reads));
        if dropout {
            self.g.drop_values(&[x]);
        }
        if splits && row {
            let part = narrow;
            narrow = self.megatron(module, MegatronOp::AllReduce, &[part], &[], ("lora_SBD", BSD));
            self.g.resize(narrow, self.dims.tokens() * rank);
            self.g.drop_values(&[part]);
        } else if splits {
            narrow = self.gather_width(module, narrow, rank);
        }
        let reads = if splits { Reads::Copied } else { Reads::Own };
        let own = if row { outputs / ranks } else { outputs };
        let mut wide = self.narrow_linear(module, narrow, first + 1, (rank, own, reads));
        self.g.drop_values(&[narrow]);
        if splits && row {
            wide = self.gather_width(module, wide, outputs);
            if sequence {
                let whole = wide;
                wide = self.megatron(module, MegatronOp::Mtp(MtpOp::OwnRows), &[whole], &[], ("lora_LBD", BLD));
                self.g.drop_values(&[whole]);
            }
        }
        let elements = self.g.elements(base);
        let scaled = self.g.op(module, OpKind::SCALE, &[wide], &[], ("lora_scaled", shape));
        self.g.resize(scaled, elements);
        self.g.drop_values(&[wide]);
        let sum = self.g.op(module, OpKind::ADD, &[base, scaled], &[], ("y_SBF", shape));
        self.g.resize(sum, elements);
        self.g.drop_values(&[base]);
        if own_input {
            self.g.drop_values(&[input]);
        }
        self.g.drop_values(&[scaled]);
        sum
    }
}

/// What of a job with adapters has no rules here.
pub(super) fn refuses(job: &MegatronPlan) -> Option<Refusal> {
    let split = &job.split;
    let lora = split.lora()?;
    let (block, model) = (split.block, &split.model);
    let schedule = split.pipeline.schedule;
    let spread = split.vocabulary_split().is_some() || schedule.is_of(&order::MEGATRON_HALVES);
    let scaled_by_blocks = split.matmuls.fp8().is_some_and(|fp8| fp8.recipe != Fp8Recipe::Delayed)
        && split.matmuls.fp8().is_some_and(|fp8| fp8.recipe != Fp8Recipe::Tensorwise);
    let cases = [
        (
            job.engine == Engine::DeepSpeed,
            Refusal::new("adapters-deepspeed-engine", "adapters in DeepSpeed's pipeline engine")
                .on("runtime")
                .instead("write runtime = \"megatron\""),
        ),
        (
            block.implementation == Implementation::Local,
            Refusal::new("adapters-local-modules", "adapters beside Megatron's own linears")
                .on("megatron.implementation")
                .instead("write megatron.implementation = \"transformer_engine\""),
        ),
        (
            model.experts().is_some(),
            Refusal::new("megatron-adapters-experts", "adapters under Megatron in a model with experts")
                .on("lora.modules"),
        ),
        (
            model.latent().is_some(),
            Refusal::new("adapters-latent-attention", "adapters in a model with latent attention").on("lora.modules"),
        ),
        (
            !model.is_transformer(),
            Refusal::new(
                "megatron-adapters-mixers",
                "adapters under Megatron in a model with layers other than attention",
            )
            .on("lora.modules"),
        ),
        (
            model.mtp_layers > 0,
            Refusal::new("adapters-multi-token", "adapters in a model that predicts tokens further ahead")
                .on("megatron.mtp_num_layers")
                .instead("write megatron.mtp_num_layers = 0"),
        ),
        (
            job.graphs != CudaGraphs::None,
            Refusal::new("adapters-cuda-graphs", "CUDA graphs of a step in which adapters alone are trained")
                .on("megatron.cuda_graph_impl")
                .instead("remove megatron.cuda_graph_impl"),
        ),
        (
            spread,
            Refusal::new("adapters-schedule", "adapters under a schedule that Megatron-Core itself does not have")
                .on("pipeline.schedule"),
        ),
        (
            job.fsdp.is_some(),
            Refusal::new("adapters-megatron-fsdp", "adapters under Megatron-FSDP").on("megatron.use_megatron_fsdp"),
        ),
        (
            split.overlap_tensor.is_some(),
            Refusal::new("adapters-tensor-overlap", "adapters with tensor-parallel overlap")
                .on("megatron.tp_comm_overlap")
                .instead("write megatron.tp_comm_overlap = false"),
        ),
        (
            scaled_by_blocks,
            Refusal::new("adapters-fp8-blocks", "adapters beside linears whose fp8 tensors have scales in blocks")
                .on("megatron.fp8")
                .instead("write megatron.fp8 = \"delayed\" or \"tensorwise\", or remove it"),
        ),
        (
            !lora.rank.is_multiple_of(u64::from(split.mesh.tp)),
            Refusal::new("adapters-rank", "adapters whose rank tensor-parallel ranks do not divide").on("lora.rank"),
        ),
        (
            model.norms().placement != NormPlacement::Pre,
            Refusal::new("adapters-norms", "adapters where norms stand elsewhere than before linears")
                .on("lora.modules"),
        ),
    ];
    Refusal::first(cases)
}
