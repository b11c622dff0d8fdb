//! The chips for which profiles are built, with their vendors' figures (hw_specs.csv).

/// One chip.
#[derive(Clone, Copy, Debug)]
pub struct ChipSpec {
    /// Name of the profile.
    pub name: &'static str,
    /// What the profile is, in a sentence.
    pub summary: &'static str,
    /// The vendor's name.
    pub chip: &'static str,
    /// Suffix of the matmul table whose points it uses.
    pub matmul: &'static str,
    /// `system` in the tables of memory-bound kernels and of layers of experts.
    pub system: &'static str,
    /// `system` in the tables of collectives.
    pub fabric: &'static str,
    /// Whether it is carried over from another board's points.
    pub derived: bool,
    /// Streaming multiprocessors.
    pub processors: u32,
    /// Peak memory bandwidth \[GB/s\].
    pub bandwidth: f64,
    /// Bandwidth of the board whose points are used \[GB/s\].
    pub measured_bandwidth: f64,
    /// Capacity.
    pub memory: &'static str,
    /// What its L2 holds.
    pub l2: &'static str,
    /// Power limit \[W\].
    pub power: f64,
    /// Tensor clock \[MHz\].
    pub clock: u32,
    /// Peaks \[TFLOP/s\]: bf16, fp8, tf32, fp32 without tensor cores.
    pub peaks: [f64; 4],
    /// One direction of the link inside a node \[GB/s\].
    pub link: f64,
    /// One direction between a pair of GPUs, as measured \[GB/s\].
    pub pair: f64,
    /// Line rate of the usual NIC for each GPU [Gbit/s].
    pub rail: f64,
    /// What says how far it falls below its bursts when it never stops.
    pub sustained: Sustained,
    /// Between host and device, as measured \[GB/s\]: to the device, to the host.
    pub host: [f64; 2],
    /// Software behind the points.
    pub software: &'static str,
    /// Source of the figures here.
    pub source: &'static str,
}

/// What says how far a busy board falls below its burst clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sustained {
    /// Cubes of `gemm_sustained_points.csv` on this GPU, over bursts of the chip's table.
    Cubes(&'static str),
    /// Medians over many shapes, by length of the burst (`sustained.csv`, column `gpu`); carried over where it is another chip's.
    Shapes(&'static str),
    /// What a board of this GPU does in training steps, matmuls and attention (`sustained.csv`, column `gpu`, "in training").
    Training(&'static str),
    /// Matmuls of one machine in `gemm_layout_simumax.csv` (column `gpu`), 75 in a row each, over bursts of the chip's table.
    Loops(&'static str),
}

const AIC: &str = "ai-dynamo/aiconfigurator@095f58a51c4c";

const H100: ChipSpec = ChipSpec {
    name: "h100-sxm-80gb",
    summary: "NVIDIA H100 SXM5 80 GB at 700 W in an 8-GPU NVSwitch node, from published tables",
    chip: "NVIDIA H100 SXM5 80 GB",
    matmul: "h100",
    system: "h100_sxm",
    fabric: "h100_sxm",
    derived: false,
    processors: 132,
    bandwidth: 3350.0,
    measured_bandwidth: 3350.0,
    memory: "80 GiB",
    l2: "50 MiB",
    power: 700.0,
    clock: 1830,
    peaks: [989.4, 1978.9, 494.5, 66.9],
    link: 450.0,
    pair: 376.0,
    rail: 400.0,
    sustained: Sustained::Shapes("h200"),
    host: [51.0, 52.0],
    software: "TensorRT-LLM 1.3.0rc20 (cuBLASLt) matmuls, NCCL 2.29.2 collectives",
    source: "hw_specs.csv: NVIDIA-authored figures in aiconfigurator; fp32: NVIDIA H100 datasheet",
};

const B200: ChipSpec = ChipSpec {
    name: "b200-sxm",
    summary: "NVIDIA B200 SXM 180 GB at 1000 W in an 8-GPU NVSwitch node, from published tables",
    chip: "NVIDIA B200 SXM 180 GB",
    matmul: "b200",
    system: "b200_sxm",
    fabric: "b200_sxm",
    processors: 148,
    bandwidth: 7700.0,
    measured_bandwidth: 7700.0,
    memory: "180 GiB",
    l2: "126.5 MiB",
    power: 1000.0,
    clock: 1965,
    peaks: [2250.0, 4500.0, 1125.0, 75.0],
    link: 900.0,
    pair: 746.0,
    source: "hw_specs.csv: NVIDIA-authored figures in aiconfigurator; tf32, fp32: NVIDIA HGX B200 datasheet; \
                 148 SMs and clock: deviceQuery of public machines",
    sustained: Sustained::Shapes("b200"),
    ..H100
};

const GB200: ChipSpec = ChipSpec {
    name: "gb200-nvl72",
    summary: "NVIDIA GB200 186 GB at 1200 W in an NVL72 rack, from published tables",
    chip: "NVIDIA GB200",
    matmul: "gb200",
    system: "gb200",
    peaks: [2500.0, 5000.0, 1250.0, 80.0],
    bandwidth: 8000.0,
    measured_bandwidth: 8000.0,
    memory: "189471 MiB",
    power: 1200.0,
    host: [225.0, 225.0],
    source: "gb200.yaml of aiconfigurator-core 0.12.0 (NVIDIA); tf32, fp32: NVIDIA GB200 NVL72's table; host: half of a Grace's \
             NVLink-C2C; SMs, L2 and clock: assumed, as a B200's",
    ..B200
};

/// Every chip, in the order they are built.
pub const CHIPS: [ChipSpec; 10] = [
    ChipSpec {
        name: "a100-sxm-80gb",
        summary: "NVIDIA A100 SXM4 80 GB at 400 W in an 8-GPU NVSwitch node, from published tables",
        chip: "NVIDIA A100 SXM4 80 GB",
        matmul: "a100",
        system: "a100_sxm",
        fabric: "a100_sxm",
        processors: 108,
        bandwidth: 2039.0,
        measured_bandwidth: 2039.0,
        l2: "40 MiB",
        power: 400.0,
        clock: 1410,
        // No fp8 units: fp8 operands run at the bf16 rate at best.
        peaks: [312.0, 312.0, 156.0, 19.5],
        link: 300.0,
        pair: 274.0,
        rail: 200.0,
        sustained: Sustained::Cubes("A100-80GB SXM"),
        host: [26.28, 25.0],
        software: "SGLang 0.5.10 (cuBLASLt) matmuls, NCCL 2.27.3 collectives",
        source: "hw_specs.csv: NVIDIA-authored figures in aiconfigurator, deviceQuery; tf32, fp32: NVIDIA A100 datasheet",
        ..H100
    },
    ChipSpec {
        name: "a100-sxm-40gb",
        summary: "NVIDIA A100 SXM4 40 GB at 400 W in an 8-GPU NVSwitch node: carried over from A100 SXM4 80 GB points \
                  by its own memory bandwidth",
        chip: "NVIDIA A100 SXM4 40 GB",
        matmul: "a100",
        system: "a100_sxm",
        fabric: "a100_sxm",
        derived: true,
        processors: 108,
        bandwidth: 1555.0,
        measured_bandwidth: 2039.0,
        memory: "40 GiB",
        l2: "40 MiB",
        power: 400.0,
        clock: 1410,
        peaks: [312.0, 312.0, 156.0, 19.5],
        link: 300.0,
        pair: 274.0,
        rail: 200.0,
        sustained: Sustained::Cubes("A100-80GB SXM"),
        host: [26.28, 25.0],
        software: "SGLang 0.5.10 (cuBLASLt) matmuls, NCCL 2.27.3 collectives, on the 80 GB part",
        source: "hw_specs.csv: A100 white paper and deviceQuery; all else as A100 SXM4 80 GB",
    },
    H100,
    ChipSpec {
        name: "h100-hbm2e-96gb-500w",
        summary: "H100 96 GB with HBM2e at a 500 W limit: carried over from H100 SXM5 80 GB (700 W) points by its \
                  own memory bandwidth and power limit; nothing was measured on this board",
        chip: "NVIDIA H100 96 GB HBM2e, 500 W",
        derived: true,
        bandwidth: 2400.0,
        memory: "96 GB",
        power: 500.0,
        source: "power limit: torchtitan benchmarks (second_order_effects.csv); bandwidth: assumed 2.4 TB/s, six \
                 HBM2e stacks at 3.2 Gbit/s a pin less margin; all else as H100 SXM5",
        ..H100
    },
    ChipSpec {
        name: "h200-sxm-141gb",
        summary: "NVIDIA H200 SXM5 141 GB at 700 W in an 8-GPU NVSwitch node, from published tables and training steps on one",
        chip: "NVIDIA H200 SXM5 141 GB",
        matmul: "h200",
        system: "h200_sxm",
        fabric: "h200_sxm",
        bandwidth: 4800.0,
        measured_bandwidth: 4800.0,
        memory: "141 GB",
        sustained: Sustained::Training("h200 in training"),
        pair: 396.4,
        host: [52.0, 52.0],
        ..H100
    },
    B200,
    ChipSpec {
        name: "b200-sxm-throttled",
        summary: "NVIDIA B200 SXM 180 GB whose long matmuls run at 0.7 of their bursts, as on the one machine of SimuMax's \
                  published kernel table, with that table's attention; all else as B200 SXM",
        sustained: Sustained::Loops("B200"),
        ..B200
    },
    ChipSpec {
        name: "b300-sxm",
        summary: "NVIDIA B300 SXM 288 GB at 1100 W in an 8-GPU NVSwitch node, from published tables",
        chip: "NVIDIA B300 SXM 288 GB",
        matmul: "b300",
        system: "b300_sxm",
        bandwidth: 8000.0,
        measured_bandwidth: 8000.0,
        memory: "275040 MiB",
        power: 1100.0,
        source: "b300_sxm.yaml of aiconfigurator-core 0.12.0 (NVIDIA); bandwidth, tf32, fp32: NVIDIA HGX B300's table; SMs, L2 and clock: assumed, \
                 as a B200's",
        ..B200
    },
    GB200,
    ChipSpec {
        name: "gb300-nvl72",
        summary: "NVIDIA GB300 288 GB at 1400 W in an NVL72 rack, from published tables",
        chip: "NVIDIA GB300",
        matmul: "gb300",
        system: "gb300",
        memory: "284208 MiB",
        power: 1400.0,
        source: "gb300.yaml of aiconfigurator-core 0.12.0 (NVIDIA); tf32, fp32: NVIDIA GB300 NVL72's table; host: half of a Grace's \
                 NVLink-C2C; SMs, L2 and clock: assumed, as a B200's",
        ..GB200
    },
];

/// Name of the collection most tables come from.
pub fn collection() -> &'static str {
    AIC
}
