//! The TPUs for which profiles are built, with their vendor's figures (hw_specs.csv); of TPU7x those of a device, half of a chip.

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
    /// What its vector units do in a second, over v6e's: cores and clocks.
    pub vector: f64,
    /// Peak memory bandwidth \[GB/s\].
    pub bandwidth: f64,
    /// Capacity.
    pub memory: &'static str,
    /// Links of a chip to other chips.
    pub links: u32,
    /// Between the two devices of a chip, one direction \[GB/s\].
    pub on_chip: Option<f64>,
    /// One direction of one link \[GB/s\].
    pub link: f64,
    /// A rank's share of its host's NICs, one direction \[GB/s\].
    pub nic: f64,
    /// Link to the host, one direction \[GB/s\].
    pub host: f64,
    /// Software behind the points.
    pub software: &'static str,
    /// Source of the figures here.
    pub source: &'static str,
}

const V6E: Tpu = Tpu {
    name: "tpu-v6e",
    summary: "Google TPU v6e (Trillium) on slices of its 2D torus, from published tables",
    chip: "TPU v6e",
    derived: false,
    // No fp8 units: eight-bit matmuls are int8.
    peaks: [918.0, 1836.0],
    vector: 1.0,
    bandwidth: 1638.0,
    memory: "31.25 GiB",
    links: 4,
    on_chip: None,
    link: 90.0,
    nic: 12.5,
    host: 32.0,
    software: "jax 0.5 to 0.9, libtpu of their time",
    source: "hw_specs.csv: docs.cloud.google.com/tpu/docs/v6e; jax-ml/scaling-book (links, host); xprof (31.25 GiB)",
};

/// Every TPU, in the order they are built.
pub const TPUS: [Tpu; 5] = [
    V6E,
    Tpu {
        name: "tpu-v5e",
        summary: "Google TPU v5e on slices of its 2D torus: carried over from TPU v6e by its vendor's figures",
        chip: "TPU v5e",
        derived: true,
        peaks: [197.0, 393.0],
        // 1.5 GHz for 1.75.
        vector: 0.857,
        bandwidth: 819.0,
        memory: "15.75 GiB",
        link: 45.0,
        nic: 3.125,
        host: 16.0,
        source: "hw_specs.csv: docs.cloud.google.com/tpu/docs/v5e; jax-ml/scaling-book (links, host); memory as v6e's less 2.3 %",
        ..V6E
    },
    Tpu {
        name: "tpu-v5p",
        summary: "Google TPU v5p on slices of its 3D torus: carried over from TPU v6e by its vendor's figures",
        chip: "TPU v5p",
        derived: true,
        peaks: [459.0, 918.0],
        // Two cores at 1.75 GHz.
        vector: 2.0,
        bandwidth: 2765.0,
        memory: "95 GiB",
        links: 6,
        nic: 6.25,
        host: 16.0,
        source: "hw_specs.csv: docs.cloud.google.com/tpu/docs/v5p; jax-ml/scaling-book (links, host); int8 twice bf16",
        ..V6E
    },
    Tpu {
        name: "tpu-v4",
        summary: "Google TPU v4 on slices of its 3D torus: carried over from TPU v6e by its vendor's figures",
        chip: "TPU v4",
        derived: true,
        peaks: [275.0, 275.0],
        // Two cores at 1.05 GHz.
        vector: 1.2,
        bandwidth: 1200.0,
        memory: "31.25 GiB",
        links: 6,
        link: 45.0,
        nic: 6.25,
        host: 16.0,
        source: "hw_specs.csv: docs.cloud.google.com/tpu/docs/v4; jax-ml/scaling-book (links); host and NICs as v5p's; memory as v6e's",
        ..V6E
    },
    Tpu {
        name: "tpu-v7x",
        summary: "A device of Google TPU7x (Ironwood), half of a chip, on slices of its 3D torus: bf16 matmuls of its own, all else \
                  carried over from TPU v6e by its vendor's figures",
        chip: "TPU7x",
        derived: true,
        peaks: [1153.5, 2307.0],
        // One core, with a quarter more in bf16 than v6e's.
        vector: 1.25,
        bandwidth: 3690.0,
        memory: "94.74 GiB",
        links: 6,
        // Two dies, said to be joined six times as fast as an axis of links joins chips; no collective there was published.
        on_chip: Some(600.0),
        link: 100.0,
        nic: 6.25,
        host: 8.0,
        source: "hw_specs.csv: docs.cloud.google.com/tpu/docs/tpu7x, AI-Hypercomputer/accelerator-microbenchmarks, half of a chip; libtpu \
                 0.0.51 (94.74 GiB); between its devices six links, assumed, as host and NICs",
        ..V6E
    },
];
