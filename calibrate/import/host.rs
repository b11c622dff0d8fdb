//! Host costs, memory that no tensor owns, and interference: figures of second_order_effects.csv and
//! memory_overheads.csv as they stand, and stated guesses where there are none.

use std::fmt::Write as _;

use super::chips::ChipSpec;
use super::{Section, evidence};
use crate::fit::overheads::{write_class, write_overlap};

/// Class, time \[us\], basis, 90th percentile of its error, source.
const CLASSES: [(&str, f64, &str, f64, &str); 19] = [
    ("eager_forward", 6.0, "published", 0.4, "second_order_effects.csv: 4 to 8 us an eager operator"),
    ("eager_backward", 5.0, "assumed", 0.5, "assumed: no Python in the autograd engine, same dispatcher as forward"),
    ("foreach", 2.3, "published", 0.45, "second_order_effects.csv: cuLaunchKernel 1.3 to 3.3 us"),
    ("compiled", 8.0, "published", 0.2, "second_order_effects.csv: inductor's launcher 6.8 to 9.1 us on a GB200 host"),
    ("collective", 17.0, "published", 0.8, "README of the tables: torch.distributed adds 4 to 30 us to a collective"),
    ("fsdp_hook", 100.0, "assumed", 0.8, "assumed: Python of one hook, 40 to 200 us; nobody published it"),
    ("fsdp_param", 8.0, "assumed", 0.8, "assumed: a view and an attribute swap for each parameter"),
    ("optimizer_param", 8.0, "assumed", 0.8, "assumed: state look-ups for each parameter"),
    ("extra", 2.3, "published", 0.45, "second_order_effects.csv: cuLaunchKernel 1.3 to 3.3 us"),
    (
        "grouped_matmul",
        9.0,
        "published",
        0.5,
        "grouped_gemm_simumax.csv: experts' matmuls of 154 and of 308 rows take 8.6 to 9.3 us each on a B200, where they take as long as each other",
    ),
    (
        "module_forward",
        50.0,
        "published",
        0.5,
        "a kernel's part of the host's time for a block of Megatron-Core 0.16.1's own modules, on a device that does nothing, at the scale of 2.7 times torch.nn.Linear's 13.48 us on a DGX H100's host, as te.Linear is (NVIDIA/TransformerEngine#2053), to tests/oracles/host-time.json, where that is 122 us (43 to 59)",
    ),
    ("module_backward", 20.0, "published", 0.5, "the same backward (19 to 21)"),
    (
        "transformer_engine_forward",
        146.0,
        "published",
        0.5,
        "the same of a block of Transformer Engine 2.9's modules, less what inductor compiled, a kernel of its own",
    ),
    ("transformer_engine_backward", 44.0, "published", 0.5, "the same backward"),
    (
        "graph_forward",
        65.0,
        "published",
        0.5,
        "the host's time for the replay of a block that Transformer Engine 2.9 captured, on a device that does nothing, at the scale of module_forward, less its copies and its launch (tests/oracles/host-time.json)",
    ),
    ("graph_backward", 80.0, "published", 0.5, "the same backward (76 to 100)"),
    (
        "graph_launch",
        2.5,
        "published",
        0.5,
        "NVIDIA's blog, Constant Time Launch for Straight-Line CUDA Graphs (2024): 2.5 us and about 1 ns a node, CUDA 12.6; CUDA.jl's documentation (usage/graphs) has 3.5 us of processor time for 80 kernels",
    ),
    (
        "synchronize",
        7.0,
        "published",
        0.5,
        "second_order_effects.csv: an eager add of 3 MB on A100 takes 17 us with a wait, 8 of them its submission and 2 the kernel",
    ),
    ("step_overhead", 1000.0, "assumed", 0.9, "assumed: data loader, logging and Python of the loop"),
];

/// The sections `host`, `overheads` and `overlap`.
pub fn section(chip: &ChipSpec) -> Section {
    let mut text = String::new();
    for (name, us, basis, p90, source) in CLASSES {
        let e = evidence(basis, usize::from(basis == "published"), p90 / 2.0, p90, source);
        write_class(&mut text, name, us, &e);
    }
    let (first, each, workspace) = match chip.matmul {
        "a100" => ("688 MB", "688 MB", "8519680 B"),
        _ => ("1600 MB", "1100 MB", "32 MiB"),
    };
    let _ = write!(
        text,
        "[overheads]\ncontext = \"0.55 GiB\"\nnccl_first = \"{first}\"\nnccl_each = \"{each}\"\n\
         cublas_workspace = \"{workspace}\"\nevidence = {}\n\n",
        evidence(
            "published",
            6,
            0.25,
            0.6,
            "memory_overheads.csv: context 0.47-0.92 GiB; NCCL 0.69 GB a communicator (A100), 1.6 GB the first (H100), \
             more than three together near 6 GB by one user's report; workspace: PyTorch's source"
        )
    );
    let survey = "second_order_effects.csv: compute slows 18.9 % on average, 40 % at most, under communication (arXiv 2507.03114)";
    let _ = writeln!(text, "[overlap]\nprocessors = 24 # one report: CTAs of ncclAllGather on H100\n");
    for (name, factor, basis, p90, source) in [
        ("matmul", 1.189, "published", 0.15, survey.to_owned()),
        ("attention", 1.189, "extrapolated", 0.18, format!("{survey}; the same, one CTA a processor")),
        (
            "memory",
            1.15,
            "assumed",
            0.2,
            "assumed: a collective takes its bus bandwidth, read and written, from HBM".to_owned(),
        ),
    ] {
        let e = evidence(basis, usize::from(basis == "published"), p90 / 2.0, p90, &source);
        write_overlap(&mut text, name, factor, &e);
    }
    Section { text: text.trim_end().to_owned() + "\n", residuals: Vec::new() }
}
