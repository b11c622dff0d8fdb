//! What a kernel is for: by the operator that launched it first, by its own name second. [`table`] has the words.

mod kind;
mod table;

use super::id::Id;
use super::parts::{Kernel, Kind, Name, Op, Trace};
pub use kind::Class;
use table::{INSTRUCTIONS, KERNELS, OPERATORS, RANGES, Word};

/// What kernels of a trace are for. Each name is looked up once.
pub struct Classes<'a> {
    trace: &'a Trace,
    operators: Vec<Option<Class>>,
    kernels: Vec<Option<Class>>,
    ranges: Vec<Option<Class>>,
    instructions: Vec<Option<Class>>,
}

impl<'a> Classes<'a> {
    /// Looks up all names of a trace.
    pub fn new(trace: &'a Trace) -> Classes<'a> {
        let all = |words: &[Word]| {
            let names = (0..trace.names.len()).map(|at| trace.name(Id::new(at)));
            names.map(|name| class_of(words, name)).collect()
        };
        Classes {
            trace,
            operators: all(OPERATORS),
            kernels: all(KERNELS),
            ranges: all(RANGES),
            instructions: all(INSTRUCTIONS),
        }
    }

    /// What a kernel is for.
    pub fn of(&self, kernel: &Kernel) -> Class {
        match kernel.kind {
            Kind::Collective => {
                let known = kernel.collective.map(|id| self.trace.collectives[id.at()].kind);
                return Class::Collective(known.unwrap_or_default());
            }
            Kind::Copy => return Class::Copy,
            Kind::Set => return Class::Set,
            Kind::Compute => {}
        }
        let within = |id: Option<Id<Op>>, of: &[Option<Class>]| self.trace.around(id).find_map(|op| of[op.name.at()]);
        if let Some(class) = within(kernel.op.or(kernel.range), &self.ranges) {
            return class;
        }
        let by_operator = within(kernel.op, &self.operators);
        let by_name = self.kernels[kernel.name.at()];
        // A function of somebody's own may launch all sorts of kernels: names that leave no doubt count for more.
        let is_certain = by_name.filter(|class| matches!(class, Class::Matmul | Class::Attention | Class::Convolution));
        let found = match self.is_of_framework(kernel) {
            true => by_operator.or_else(|| self.of_instruction(kernel)).or(by_name),
            false => is_certain.or(by_operator).or_else(|| self.of_instruction(kernel)).or(by_name),
        };
        let by_path =
            || self.trace.instructions[kernel.instruction?.at()].path.and_then(|id| self.instructions[id.at()]);
        found.or_else(by_path).unwrap_or(match self.is_of_framework(kernel) || kernel.instruction.is_some() {
            true => Class::Pointwise,
            false => Class::Other,
        })
    }

    /// By XLA's name of an instruction, or its class of it.
    fn of_instruction(&self, kernel: &Kernel) -> Option<Class> {
        let of = &self.trace.instructions[kernel.instruction?.at()];
        let look = |name: Id<Name>| self.instructions[name.at()];
        look(of.name).or_else(|| of.category.and_then(look))
    }

    /// Whether an operator of PyTorch's own launched it: it does one thing, and those that no row names compute little.
    fn is_of_framework(&self, kernel: &Kernel) -> bool {
        kernel.op.is_some_and(|op| self.trace.name(self.trace.ops[op.at()].name).starts_with("aten::"))
    }
}

fn class_of(words: &[Word], name: &str) -> Option<Class> {
    // What is called stands at the begin of a name; what follows are types of templates.
    let lower: String = name.chars().take(300).map(|c| c.to_ascii_lowercase()).collect();
    words.iter().find(|(word, _)| lower.contains(word)).map(|&(_, class)| class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_table_are_lower_case_and_none_hides_another() {
        for words in [OPERATORS, KERNELS, RANGES, INSTRUCTIONS] {
            for (at, (word, _)) in words.iter().enumerate() {
                assert_eq!(*word, word.to_ascii_lowercase());
                let hidden = words[..at].iter().find(|(before, _)| word.contains(before));
                assert_eq!(hidden, None, "{word} is never reached");
            }
        }
    }

    #[test]
    fn kernels_of_each_kind_are_known_by_name() {
        for (name, class) in [
            ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn", Class::Matmul),
            ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT", Class::Matmul),
            ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<>>", Class::Attention),
            ("void at::native::vectorized_elementwise_kernel<4>", Class::Pointwise),
            ("void cudnn::winograd_nonfused::winogradForwardData4x4", Class::Convolution),
            ("Cijk_Ailk_Bljk_BBS_BH_MT256x128x64", Class::Matmul),
            ("void multi_tensor_apply_kernel<AdamFunctor>", Class::Optimizer),
        ] {
            assert_eq!(class_of(KERNELS, name), Some(class), "{name}");
        }
        assert_eq!(class_of(OPERATORS, "aten::addmm"), Some(Class::Matmul));
        assert_eq!(class_of(OPERATORS, "aten::addcmul"), Some(Class::Pointwise));
        assert_eq!(class_of(OPERATORS, "triton_poi_fused_mm_add_3"), Some(Class::Pointwise));
        assert_eq!(class_of(OPERATORS, "triton_tem_fused_flex_attention_0"), Some(Class::Attention));
    }
}
