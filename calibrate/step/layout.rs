//! How arrays lie on the mesh: MaxText's logical rules (`configs/base.yml`, `logical_axis_rules`), as `plan/xla/mesh.rs`
//! has them.

use windtunnel::runtime::spmd;

use crate::stablehlo::{Mesh, Spec};

/// What an axis of an array is, by which it is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logical {
    /// Sequences of a batch.
    Batch,
    /// Tokens of a sequence.
    Sequence,
    /// Tokens of all sequences in one line.
    Tokens,
    /// A weight's side to the model's width.
    Embed,
    /// A weight's side to the feed-forward's width.
    Mlp,
    /// Heads, words, or the feed-forward's width of an activation.
    Tensor,
    /// Experts.
    Expert,
    /// Anything that every chip has all of.
    Whole,
}

/// The mesh, and who shares what.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Axes, in MaxText's order.
    pub mesh: Mesh,
    /// Whether the axis of experts holds experts and nothing else.
    experts_only: bool,
}

impl Layout {
    /// That of a job's mesh.
    pub fn of(mesh: spmd::Mesh) -> Self {
        let (names, mut sizes) = (["data", "fsdp", "fsdp_transpose", "context", "expert", "tensor"], mesh.axes());
        // Replicas are on all slices, those of a slice beside one another.
        sizes[0] *= mesh.dcn_data;
        // As many names as sizes, by their types.
        let axes: [_; 6] = std::array::from_fn(|at| (names[at], u64::from(sizes[at])));
        Self { mesh: Mesh::new(axes), experts_only: mesh.experts_only }
    }

    /// How an array of such axes lies.
    pub fn spec(&self, axes: &[Logical]) -> Spec {
        // One mesh axis shares out one axis of an array: the feed-forward's width takes what the model's would have.
        let mlp = axes.contains(&Logical::Mlp);
        // What experts lie on, nothing else of the array does.
        let experts = axes.contains(&Logical::Expert);
        let shared = |axis: &Logical| -> &[&str] {
            match axis {
                Logical::Batch => &["data", "fsdp", "fsdp_transpose", "expert"],
                Logical::Embed if mlp => &["fsdp", "context", "expert"],
                Logical::Embed => &["fsdp", "fsdp_transpose", "context", "expert"],
                Logical::Mlp => &["fsdp_transpose", "tensor"],
                Logical::Sequence => &["context"],
                Logical::Tokens => &["data", "fsdp", "fsdp_transpose", "context", "expert"],
                Logical::Tensor => &["tensor"],
                Logical::Expert => &["expert"],
                Logical::Whole => &[],
            }
        };
        let taken = experts || self.experts_only;
        let free = |axis: &Logical, name: &&str| *axis == Logical::Expert || !taken || *name != "expert";
        let of =
            |axis: &Logical| shared(axis).iter().filter(|name| free(axis, name)).map(|&name| name.to_owned()).collect();
        Spec(axes.iter().map(of).collect())
    }
}
