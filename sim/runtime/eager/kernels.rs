//! Kernels that many rules launch: those bounded by memory, and matmuls with their workspace.

use super::shape::MatmulShape;
use super::{COMPUTE, Eager};
use crate::model::graph::Op;
use crate::program::{Category, DType, Dispatch, MatmulLayout, MemoryKind, Pass, Work};
use crate::units::Bytes;

/// Whether a linear adds a bias, which it reads as a parameter or as a value.
pub(super) fn has_bias(op: &Op) -> bool {
    op.params.len() > 1 || op.inputs.len() > 2
}

impl Eager {
    /// Launches a kernel bounded by memory.
    pub fn pointwise(&mut self, name: &'static str, kind: MemoryKind, read: u64, written: u64, dispatch: Dispatch) {
        let work = Work::Memory { kind, read: Bytes(read), written: Bytes(written) };
        self.program.launch(self.stream, name, work, dispatch);
    }

    /// A pointwise kernel over `elements` whose operands' dimensions do not merge into one ([`MemoryKind::Strided`]).
    pub(in crate::runtime) fn strided(&mut self, name: &'static str, elements: u64, dispatch: Dispatch) {
        self.pointwise(name, MemoryKind::Strided, 2 * elements, 2 * elements, dispatch);
    }

    /// A matmul with its workspace.
    pub(in crate::runtime) fn matmul(
        &mut self,
        name: &'static str,
        MatmulShape { m, n, k }: MatmulShape,
        dtype: DType,
        layout: MatmulLayout,
        dispatch: Dispatch,
    ) {
        self.workspace();
        self.program.launch(COMPUTE, name, Work::Matmul { m, n, k, dtype, layout }, dispatch);
    }

    pub(super) fn workspace(&mut self) {
        let bytes = Bytes(self.settings.workspace);
        if self.settings.persistent_workspace {
            let thread = usize::from(self.program.pass() != Pass::Forward);
            if !std::mem::replace(&mut self.workspaces[thread], true) {
                // Taken by the first step and kept: no later step takes it again.
                self.program.before_steps(|program| {
                    program.alloc(bytes, COMPUTE, Category::Workspace, "cublas workspace");
                });
            }
            return;
        }
        self.program.transient(bytes, COMPUTE, Category::Workspace, "cublas workspace");
    }
}
