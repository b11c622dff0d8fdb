//! `[topology]`: the machine.

use serde::Deserialize;
use toml::Spanned;

use super::readers::{ALL, COMPILED, CUDA};
use super::row::Kind::Quantity;
use super::row::between;
use crate::units::{Bandwidth, Power};

keys! {
    /// The machine.
    #[derive(Debug, Deserialize)]
    ["topology"] Topology in Hardware.instead(&[(COMPILED, "a TPU is rented as slices: write topology.slice")]);

    /// A shipped name, or the path of a topology file.
    name: Spanned<String> => ALL.such_as("\"h100-sxm-80gb\"");
    /// Nodes of the machine, of GPUs.
    nodes: Option<Spanned<i64>> as between(1, 1 << 17) => ALL.such_as("4");
    /// A slice of a TPU pod, such as `4x4`, in place of nodes.
    slice: Option<Spanned<String>> => ALL.such_as("\"4x4\"");
    /// Slices, joined by the network between them.
    slices: Option<Spanned<i64>> as between(1, 1 << 17) => ALL.such_as("2");
    /// Some chips of one node, or of each of `nodes`.
    chips: Option<Spanned<i64>> => ALL.such_as("1");
    /// A profile of costs other than the topology's own: a shipped name or a path.
    profile: Option<Spanned<String>> => ALL.such_as("\"h100-sxm-80gb\"");
    /// What one GPU's share of the network between nodes carries, one direction, where it is not the topology's.
    nic_bandwidth: Option<Spanned<Bandwidth>> as Quantity("50 GB/s") => ALL;
    /// Clocks of the chips: `sustained`, as a board runs at its power limit, or `burst`, as it runs before it gets
    /// there.
    clocks: Option<Clocks> => CUDA
        default CUDA => "\"sustained\"" of "none" at "of the job or the machine: no framework has a default";
    /// What each board may draw (`nvidia-smi --power-limit`), where it is less than the topology's `chip.power`.
    power_limit: Option<Spanned<Power>> as Quantity("500 W") => CUDA
        default CUDA => "\"300 W\" or \"400 W\" or \"700 W\" or \"1000 W\" or \"1100 W\" or \"1200 W\" or \"1400 W\"" of "none" at "of the machine: its chip.power";
}

words! {
    /// Clock regime.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum Clocks {
        /// Boost clocks.
        Burst = "burst",
        /// Under the power limit.
        Sustained = "sustained",
    }
}
