//! The TPUs for which profiles are built, with their vendor's figures (hw_specs.csv).

/// One chip.
#[derive(Clone, Copy, Debug)]
pub struct Tpu {
    /// Name of the profile.
    pub name: &'static str,
    /// What the profile is, in a sentence.
    pub summary: &'static str,
    /// The vendor's name.
    pub chip: &'static str,
    /// Whether it is carried over from v6e's points.
    pub derived: bool,
    /// Peaks \[TFLOP/s\]: bf16, and eight-bit numbers (int8 where the units have no fp8).
    pub peaks: [f64; 2],
    /// Peak memory bandwidth \[GB/s\].
    pub bandwidth: f64,
    /// Capacity.
    pub memory: &'static str,
    /// Links to other chips.
    pub links: u32,
    /// One direction of one link \[GB/s\].
    pub link: f64,
    /// A chip's share of its host's NICs, one direction \[GB/s\].
    pub nic: f64,
    /// Link to the host, one direction \[GB/s\].
    pub host: f64,
    /// Software behind the points.
    pub software: &'static str,
    /// Source of the figures here.
    pub source: &'static str,
}

/// Every TPU, in the order they are built.
pub const TPUS: [Tpu; 1] = [Tpu {
    name: "tpu-v6e",
    summary: "Google TPU v6e (Trillium) on slices of its 2D torus, from published tables",
    chip: "TPU v6e",
    derived: false,
    // No fp8 units: eight-bit matmuls are int8.
    peaks: [918.0, 1836.0],
    bandwidth: 1638.0,
    memory: "31.25 GiB",
    links: 4,
    link: 90.0,
    nic: 12.5,
    host: 32.0,
    software: "jax 0.5 to 0.9, libtpu of their time",
    source: "hw_specs.csv: docs.cloud.google.com/tpu/docs/v6e; jax-ml/scaling-book (links, host); xprof (31.25 GiB)",
}];
