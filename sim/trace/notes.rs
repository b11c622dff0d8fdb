//! What cannot be known from a trace, a sentence each.

use super::draft::{Draft, DraftKernel};
use super::id::Id;
use super::parts::{Format, Kind, Op};

/// How calls and kernels found each other.
pub(super) struct Launches {
    /// Kernels and copies without a call.
    pub without: usize,
    /// Calls that repeat the number of another.
    pub repeated: usize,
}

/// Writes down what the file leaves open.
pub(super) fn write(draft: &mut Draft, launches: Launches) {
    let all = draft.kernels.len();
    let Launches { without, repeated } = launches;
    let in_graph = draft.kernels.iter().filter(|kernel| kernel.kernel.in_graph).count();
    if without == all {
        draft.note("the file holds no launches: idle time cannot be laid to the host".to_owned());
    } else if without > 0 {
        draft.note(format!(
            "{without} of {all} kernels and copies have no launch in the file: they were launched before recording began, or \
             their launches were left out"
        ));
    }
    if repeated > 0 {
        draft.note(format!(
            "{repeated} launches repeat the number of another: the file may hold several processes, and some kernels may have \
             the wrong operator"
        ));
    }
    if in_graph > 0 {
        draft.note(format!("{in_graph} kernels were replayed by CUDA graphs: their shapes are not in the file"));
    }
    if lacks_shapes(draft) {
        draft.note(match draft.trace.format {
            Format::Kineto => "no operator has shapes: profile with record_shapes=True".to_owned(),
            Format::Nsight => {
                "no operator has shapes: run under torch.autograd.profiler.emit_nvtx(record_shapes=True)".to_owned()
            }
            Format::Xplane | Format::XlaViewer => {
                "no instruction has shapes: profile a TPU, or dump the compiled program beside the trace".to_owned()
            }
        });
    }
}

/// Whether kernels compute, and none of them has shapes.
fn lacks_shapes(draft: &Draft) -> bool {
    let mut compute = draft.kernels.iter().filter(|kernel| kernel.kernel.kind == Kind::Compute).peekable();
    let of_op = |op: Id<Op>| draft.ops[op.at()].op.signature.is_some();
    let has_shapes = |kernel: &DraftKernel| {
        let instruction = kernel.kernel.instruction.map(|id| &draft.trace.instructions[id.at()]);
        kernel.kernel.op.is_some_and(of_op) || instruction.is_some_and(|of| of.operands.is_some())
    };
    compute.peek().is_some() && !compute.any(has_shapes)
}
