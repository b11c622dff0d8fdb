//! Keys that a file leaves out, filled in from a table of defaults.

use std::ops::Range;

use toml::Spanned;

use super::{Attention, Checkpointing, Compile, Framework, Fsdp, Loop, Loss, Memory, Optimizer, Precision, Scenario};

/// Takes what is missing from `below`; `at` is where the file asks for it.
trait Fill {
    fn fill(&mut self, below: Self, at: &Range<usize>);
}

/// Every key of a table, those with a place in the file first: a key that is missing here does not compile.
macro_rules! fill {
    ($table:ident { $($placed:ident),* $(,)? } { $($plain:ident),* $(,)? } $({ $($own:ident),* })?) => {
        impl Fill for $table {
            #[allow(unused_variables, reason = "a table may have no key with a place")]
            fn fill(&mut self, below: Self, at: &Range<usize>) {
                let $table { $($placed,)* $($plain,)* $($($own: _,)*)? } = below;
                $(if self.$placed.is_none() {
                    self.$placed = $placed.map(|value| Spanned::new(at.clone(), value.into_inner()));
                })*
                $(if self.$plain.is_none() { self.$plain = $plain; })*
            }
        }
    };
}

fill!(Fsdp {
    wrap, ends, head_reshard_after_forward, reshard_after_forward, root_reshard_after_forward, reshard_after_backward, forward_prefetch, backward_prefetch,
    reduce_scatter_buffers, shard_dim_1,
} { unshard_in_backward, cpu_offload } { overrides });
fill!(Compile { loss, model } { blocks });
fill!(Loss { kind, chunks, words, inside_model, unshards_head, unnamed_logits } { keep_logits });
fill!(Loop { train_metrics, host_syncs_per_step } {});
fill!(Framework {
    release, cublas, device_max_connections, modules, experts, linears, context_parallel_rotate_method,
    context_parallel_load_balancer,
} {
    fused_rms_norm, launch_blocking, persistent_cublas_workspace, rope, repeat_kv, fused_qkv, cuda_graphs,
});
fill!(Checkpointing { policy, offload, use_reentrant, around_hooks } { early_stop, around_compiled });
fill!(Optimizer {
    name, implementation, weight_decay, momentum, nesterov, amsgrad, master_weights, step_on_device, capturable, maximize, in_backward,
} { clip_grad_norm, scale_gradients });
fill!(Attention { backend, deterministic, unpad, implementation } { alibi_tensor, reads_back });
fill!(Memory { initialisation } { expandable_segments });
fill!(Precision { storage, param, reduce, output, autocast, autocast_cache } { tf32 });

/// The tables that a release may have defaults for.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    fsdp: Fsdp,
    compile: Compile,
    loss: Loss,
    #[serde(rename = "loop")]
    training_loop: Loop,
    framework: Framework,
    activation_checkpointing: Checkpointing,
    optimizer: Optimizer,
    attention: Attention,
    memory: Memory,
    precision: Precision,
}

impl Scenario {
    /// Takes every key that the file leaves out from a release's defaults.
    pub fn fill(&mut self, below: Defaults, at: &Range<usize>) {
        self.fsdp.fill(below.fsdp, at);
        self.compile.fill(below.compile, at);
        self.loss.fill(below.loss, at);
        self.training_loop.fill(below.training_loop, at);
        self.framework.fill(below.framework, at);
        self.activation_checkpointing.fill(below.activation_checkpointing, at);
        self.optimizer.fill(below.optimizer, at);
        self.attention.fill(below.attention, at);
        self.memory.fill(below.memory, at);
        self.precision.fill(below.precision, at);
    }
}
