//! Policies of rematerialisation by name (MaxText's `layers/decoders.py`, `get_remat_policy`; `configs/base.yml`).

use serde::Deserialize;

/// What becomes of a named tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Keep {
    /// Computed again in backward.
    #[default]
    Remat,
    /// Kept in HBM.
    Device,
    /// Copied to the host's memory and back.
    Offload,
}

/// Names that a policy may speak of, in the order of a block's forward.
pub const TENSORS: [&str; 9] = [
    "decoder_layer_input",
    "query_proj",
    "key_proj",
    "value_proj",
    "context",
    "out_proj",
    "mlpwi_0",
    "mlpwi_1",
    "mlpwo",
];

/// A policy: what becomes of each of [`TENSORS`], or that nothing is computed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Policy {
    /// `none`: whatever backward needs is kept in HBM.
    None,
    /// By name; a tensor without a name is computed again.
    Names([Keep; TENSORS.len()]),
}

impl Policy {
    /// Policies by MaxText's name.
    pub const NAMED: [(&'static str, Policy); 11] = [
        ("none", Policy::None),
        ("full", Policy::names(&[], Keep::Device)),
        ("minimal", Policy::names(&[1, 2, 3, 5, 6, 7, 8], Keep::Device)),
        ("minimal_with_context", Policy::names(&[1, 2, 3, 4, 5, 6, 7, 8], Keep::Device)),
        ("save_dot_except_mlp", Policy::names(&[1, 2, 3, 5], Keep::Device)),
        ("save_dot_except_mlpwi", Policy::names(&[1, 2, 3, 5, 8], Keep::Device)),
        ("save_out_proj", Policy::names(&[5], Keep::Device)),
        ("save_dot_with_context_except_mlp", Policy::names(&[1, 2, 3, 4, 5], Keep::Device)),
        ("save_qkv_proj", Policy::names(&[1, 2, 3], Keep::Device)),
        ("qkv_proj_offloaded", Policy::names(&[1, 2, 3], Keep::Offload)),
        ("minimal_offloaded", Policy::names(&[1, 2, 3, 5, 6, 7, 8], Keep::Offload)),
    ];

    /// The tensors at these places of [`TENSORS`] kept so; a block's input is always kept in HBM.
    const fn names(places: &[usize], keep: Keep) -> Policy {
        let mut names = [Keep::Remat; TENSORS.len()];
        names[0] = Keep::Device;
        let mut at = 0;
        while at < places.len() {
            names[places[at]] = keep;
            at += 1;
        }
        Policy::Names(names)
    }

    /// Whether anything is copied to the host's memory and back.
    pub fn offloads(self) -> bool {
        self.of_backward().contains(&Keep::Offload)
    }

    /// Whether something is kept or copied to the host besides a block's input in HBM.
    pub fn keeps_more_than_inputs(self) -> bool {
        let all = self.of_backward();
        all.first() == Some(&Keep::Offload) || all.iter().skip(1).any(|keep| *keep != Keep::Remat)
    }

    /// What becomes of the tensors that backward reads: nothing reads the last one, which is dropped whatever a policy says. None for
    /// [`Policy::None`].
    fn of_backward(&self) -> &[Keep] {
        match self {
            Policy::None => &[],
            Policy::Names(names) => &names[..TENSORS.len() - 1],
        }
    }

    /// What becomes of a tensor of forward.
    pub fn keep(self, name: Option<&str>) -> Keep {
        // A feed-forward without a gate has one tensor in the place of two.
        let place = |name| TENSORS.iter().position(|known| *known == if name == "mlpwi" { "mlpwi_0" } else { name });
        match self {
            Policy::None => Keep::Device,
            Policy::Names(names) => name.and_then(place).map_or(Keep::Remat, |at| names[at]),
        }
    }
}
