//! Sharding rules: which logical axes lie on which mesh axes, as MaxText's `logical_axis_rules` and T5X's write them, and what
//! that makes of a mesh axis.

use toml::{Spanned, Value};

use crate::near::did_you_mean;
use crate::scenario::error::ScenarioError;
use crate::scenario::reader::Reader;
use crate::scenario::written;

/// Axes that tokens, weights or heads lie on, outermost first. Stages of a pipeline come before them.
pub(super) const AXES: [&str; 6] = ["data", "fsdp", "fsdp_transpose", "context", "expert", "tensor"];

/// What MaxText's rules have (`configs/base.yml`, e591f30cb), of the axes that are simulated.
const DEFAULT: [(Logical, &[&str]); 8] = [
    (Logical::Batch, &["data", "fsdp", "fsdp_transpose", "expert"]),
    (Logical::Length, &["context"]),
    (Logical::ActivationEmbed, &["tensor"]),
    (Logical::Embed, &["fsdp", "fsdp_transpose", "context", "expert"]),
    (Logical::Heads, &["tensor"]),
    (Logical::Mlp, &["fsdp_transpose", "tensor"]),
    (Logical::Vocab, &["tensor"]),
    (Logical::Experts, &["expert"]),
];

/// Names of logical axes: MaxText's first, then those of T5X and of older rules.
const NAMES: [(Logical, &[&str]); 8] = [
    (Logical::Batch, &["activation_batch", "batch"]),
    (Logical::Length, &["activation_length", "length"]),
    (Logical::ActivationEmbed, &["activation_embed"]),
    (Logical::Embed, &["embed"]),
    (Logical::Heads, &["heads", "q_heads", "joined_kv"]),
    (Logical::Mlp, &["mlp"]),
    (Logical::Vocab, &["vocab"]),
    (Logical::Experts, &["exp", "expert", "experts"]),
];

/// Mesh axes of MaxText that have one chip here.
const OF_ONE: [&str; 7] =
    ["stage", "diloco", "sequence", "context_autoregressive", "tensor_transpose", "tensor_sequence", "autoregressive"];

/// A logical axis that predictions read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Logical {
    /// Sequences of a batch.
    Batch,
    /// Tokens of a sequence.
    Length,
    /// Numbers of a token between the halves of a block.
    ActivationEmbed,
    /// A weight's side to the model's width.
    Embed,
    /// Heads.
    Heads,
    /// The feed-forward's width.
    Mlp,
    /// Words.
    Vocab,
    /// Experts.
    Experts,
}

/// What a mesh axis is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Other tokens, all weights.
    Replicas,
    /// Other tokens, and shards of weights.
    Shards,
    /// The same, with an MLP's width, and heads if the rules say so, in place of the model's.
    Transposed,
    /// Parts of a sequence, and shards of weights.
    Context,
    /// Other tokens, shards of weights, and other experts.
    Experts,
    /// Other experts, and all else alike.
    ExpertsOnly,
    /// Other heads, words, and parts of the feed-forward's width.
    Tensor,
}

impl Role {
    /// The axis of that role, by its place in [`AXES`].
    pub(super) fn place(self) -> usize {
        match self {
            Role::Replicas => 0,
            Role::Shards => 1,
            Role::Transposed => 2,
            Role::Context => 3,
            Role::Experts | Role::ExpertsOnly => 4,
            Role::Tensor => 5,
        }
    }
}

/// What of blocks' and tables' inner dimensions lies on a mesh axis.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// Nothing.
    None,
    /// Heads, the feed-forward's width and words.
    All,
    /// The feed-forward's width.
    Mlp,
    /// Heads and the feed-forward's width.
    Blocks,
    /// Some of them.
    Other,
}

/// The rules of a job.
pub(super) struct Rules {
    /// Where they are written.
    pub(super) at: Spanned<()>,
    /// Whether a token's numbers between the halves of a block lie on the tensor axis, if the file's rules say.
    pub(super) activation_embed: Option<bool>,
    rules: [(Logical, Vec<String>); 8],
}

/// Checks the rules that are written, and reads them.
pub(super) fn read(reader: &mut Reader<'_>, mesh: &written::Mesh) -> Result<Rules, ScenarioError> {
    let mut unread = vec![];
    let list = mesh.logical_axis_rules.as_ref().map(Spanned::get_ref);
    for row in list.into_iter().flatten() {
        let (name, axes) = pair(row.get_ref()).ok_or_else(|| {
            let problem = "a rule is the name of a logical axis, and the mesh axes that it lies on";
            reader.unknown(row, problem, "write such as [\"embed\", [\"fsdp\", \"context\"]], and [] for none")
        })?;
        for axis in &axes {
            if !AXES.contains(&axis.as_str()) && !OF_ONE.contains(&axis.as_str()) {
                let hint = did_you_mean(axis, AXES);
                let problem = format!("there is no mesh axis {axis:?}{hint}");
                let model = if axis == "model" { " (T5X's \"model\" is \"tensor\")" } else { "" };
                return Err(reader.unknown(row, problem, format!("write some of: {}{model}", AXES.join(", "))));
            }
        }
        if logical(&name).is_none() {
            unread.push(name);
        }
    }
    if !unread.is_empty() {
        let words = "mesh.logical_axis_rules: no prediction reads where these lie";
        reader.note(format!("{words}: {}.", unread.join(", ")));
    }
    Ok(Rules::of(mesh))
}

/// What a name of an axis means.
fn logical(name: &str) -> Option<Logical> {
    NAMES.iter().find(|(_, names)| names.contains(&name)).map(|(logical, _)| *logical)
}

/// A rule's name and axes: one, several, or none.
fn pair(row: &Value) -> Option<(String, Vec<String>)> {
    let [name, axes] = row.as_array()?.as_slice() else { return None };
    let axes = match axes {
        Value::String(one) => vec![one.clone()],
        Value::Array(some) => some.iter().map(|axis| Some(axis.as_str()?.to_owned())).collect::<Option<_>>()?,
        _ => return None,
    };
    Some((name.as_str()?.to_owned(), axes))
}

impl Rules {
    /// Those of a file. A logical axis that is written twice has the first, as in Flax; one that is not written has MaxText's.
    pub(super) fn of(mesh: &written::Mesh) -> Rules {
        let rules = DEFAULT.map(|(logical, axes)| (logical, axes.iter().map(|&axis| axis.to_owned()).collect()));
        let mut all = Rules { at: Spanned::new(0..0, ()), activation_embed: None, rules };
        let Some(list) = &mesh.logical_axis_rules else { return all };
        all.at = Spanned::new(list.span(), ());
        let mut written = vec![];
        for (name, axes) in list.get_ref().iter().filter_map(|row| pair(row.get_ref())) {
            let Some(logical) = logical(&name).filter(|logical| !written.contains(logical)) else { continue };
            written.push(logical);
            if let Some((_, known)) = all.rules.iter_mut().find(|(known, _)| *known == logical) {
                *known = axes;
            }
        }
        let ruled = written.contains(&Logical::ActivationEmbed);
        all.activation_embed = ruled.then(|| all.lies(Logical::ActivationEmbed, "tensor"));
        all
    }

    fn lies(&self, logical: Logical, axis: &str) -> bool {
        self.rules.iter().any(|(known, axes)| *known == logical && axes.iter().any(|known| known == axis))
    }

    /// What a mesh axis is for; an error says why it is for nothing that is simulated.
    pub(super) fn role(&self, axis: &str) -> Result<Role, String> {
        use Logical::{Batch, Embed, Experts, Heads, Length, Mlp, Vocab};
        let [batch, length, embed, heads, mlp, vocab, experts] =
            [Batch, Length, Embed, Heads, Mlp, Vocab, Experts].map(|logical| self.lies(logical, axis));
        let cut = match [heads, mlp, vocab] {
            [false, false, false] => Cut::None,
            [true, true, true] => Cut::All,
            [false, true, false] => Cut::Mlp,
            [true, true, false] => Cut::Blocks,
            _ => Cut::Other,
        };
        match (batch, length, embed, cut, experts) {
            (true, false, false, Cut::None, false) => Ok(Role::Replicas),
            (true, false, true, Cut::None, false) => Ok(Role::Shards),
            (true, false, true, Cut::Mlp, false) => Ok(Role::Transposed),
            // Two axes of shards: the other cuts the width of the model, this one what is inside of blocks.
            (true, false, false, Cut::Blocks, false) => Ok(Role::Transposed),
            (false, true, true, Cut::None, false) => Ok(Role::Context),
            (true, false, true, Cut::None, true) => Ok(Role::Experts),
            (false, false, false, Cut::None, true) => Ok(Role::ExpertsOnly),
            (false, false, false, Cut::All, false) => Ok(Role::Tensor),
            (false, false, false, Cut::None, false) => {
                Err("by the rules nothing lies on it, and its chips would all do the same".to_owned())
            }
            (false, false, false, _, false) => {
                Err("heads, mlp and vocab lie on it together, or none of them does: other cuts are not simulated"
                    .to_owned())
            }
            _ => Err("what lies on it by the rules is not simulated together".to_owned()),
        }
    }
}
