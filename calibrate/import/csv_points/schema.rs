//! The published tables whose rows are times of something that a point can name.

use std::collections::BTreeMap;

use super::{Cells, quality};
use crate::import::nccl_tests::Kind;
use crate::points::{Point, What};

/// A cell that is not what its column holds: the column, and why.
pub type Wrong = (&'static str, String);

/// A table.
pub struct Schema {
    /// Its name.
    pub name: &'static str,
    /// Columns it has.
    pub columns: &'static [&'static str],
    /// Columns it may have.
    pub may_have: &'static [&'static str],
    /// Understands a row; the second is the chip that the reader names.
    pub read: fn(&Cells<'_>, Option<&str>) -> Result<Outcome, Wrong>,
}

/// What a row comes to.
pub enum Outcome {
    /// Points and what they were measured on.
    Points(Origin, Vec<Point>),
    /// Nothing that a cost model could use, and why.
    LeftOut(String),
}

/// What a row says of where it comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// The chip.
    pub chip: String,
    /// GPUs that took part.
    pub gpus: u64,
    /// Versions by component.
    pub versions: BTreeMap<String, String>,
    /// Who published it.
    pub source: String,
}

/// All, each by the name of its file.
pub const SCHEMAS: [Schema; 9] = [
    Schema {
        name: "collectives_nccl_single_node",
        columns: &["system", "gpu", "nodes", "num_gpus", "op", "dtype", "bytes", "time_us", "nccl_version", "source"],
        may_have: &["algbw_GBps", "busbw_GBps", "table_dir", "rep"],
        read: collective,
    },
    Schema {
        name: "collectives_nccltests_logs",
        columns: &[
            "op",
            "gpu",
            "nodes",
            "num_gpus",
            "bytes",
            "dtype",
            "time_us",
            "time_us_inplace",
            "nccl_version",
            "source",
        ],
        may_have: &["algbw_GBps", "busbw_GBps", "busbw_inplace_GBps", "fabric", "site", "config"],
        read: collective,
    },
    Schema {
        name: "collectives_stas00",
        columns: &["op", "gpu", "nodes", "num_gpus", "bytes", "time_us", "algo", "software", "source"],
        may_have: &["algbw_GBps", "busbw_GBps", "config"],
        read: collective,
    },
    Schema {
        name: "collectives_issue_points",
        columns: &["op", "gpu", "nodes", "num_gpus", "bytes", "time_us", "algo", "quality", "source"],
        may_have: &["algbw_GBps", "busbw_GBps", "fabric", "note"],
        read: collective,
    },
    Schema {
        name: "gemm",
        columns: &["dtype", "m", "n", "k", "time_us", "kernel_source", "source"],
        may_have: &["tflops", "eff", "power_w"],
        read: gemm,
    },
    Schema {
        name: "gemm_layout_simumax",
        columns: &["gpu", "b", "m", "n", "k", "layout", "accumulate", "out_dtype", "time_us", "source"],
        may_have: &["eff", "peak_tflops", "tflops"],
        read: layout,
    },
    Schema {
        name: "grouped_gemm_simumax",
        columns: &["gpu", "ng", "M", "N", "K", "stage", "accumulate", "time_us", "source"],
        may_have: &["eff", "peak_tflops", "tflops"],
        read: grouped,
    },
    Schema {
        name: "attention_cudnn",
        columns: &[
            "gpu",
            "backend",
            "dtype",
            "mask",
            "batch",
            "q_len",
            "kv_len",
            "q_heads",
            "kv_heads",
            "d_qk",
            "d_vo",
            "deterministic_bwd",
            "window",
            "success",
            "cudnn",
            "source",
            "pas",
            "time_ms",
        ],
        may_have: &["model", "tflops"],
        read: cudnn,
    },
    Schema {
        name: "attention_fwd_aic",
        columns: &[
            "gpu",
            "batch_size",
            "isl",
            "num_heads",
            "num_key_value_heads",
            "head_dim",
            "time_us",
            "kernel_source",
            "source",
        ],
        may_have: &["tflops_causal", "power_w"],
        read: context,
    },
];

fn origin(cells: &Cells<'_>, chip: &str, gpus: u64) -> Origin {
    let mut versions = BTreeMap::new();
    if !cells.text("nccl_version").is_empty() {
        versions.insert("nccl".to_owned(), cells.text("nccl_version").to_owned());
    }
    let cudnn = cells.text("cudnn");
    if let Ok(code) = cudnn.trim_end_matches(".0").parse::<u32>() {
        versions.insert("cudnn".to_owned(), format!("{}.{}.{}", code / 10_000, code % 10_000 / 100, code % 100));
    }
    Origin { chip: chip.to_owned(), gpus, versions, source: cells.text("source").to_owned() }
}

fn point(what: What, us: f64) -> Point {
    Point::published(what, us, 1)
}

fn left_out(why: &str) -> Result<Outcome, Wrong> {
    Ok(Outcome::LeftOut(why.to_owned()))
}

fn collective(cells: &Cells<'_>, _: Option<&str>) -> Result<Outcome, Wrong> {
    let op = cells.text("op");
    let Some(kind) = Kind::named(op).filter(|kind| kind.is_modelled()) else {
        return Ok(Outcome::LeftOut(format!("no cost model asks for `{op}`")));
    };
    if cells.text("time_us").is_empty() && cells.text("time_us_inplace").is_empty() {
        return left_out("they state a bandwidth and no time");
    }
    // Rows taken from discussions say "small" or "large (size not stated)".
    let unsaid = |column: &&str| !cells.text(column).contains(|c: char| c.is_ascii_digit());
    if ["nodes", "num_gpus", "bytes"].iter().any(unsaid) {
        return left_out("they do not say on how many nodes or GPUs, or of how many bytes");
    }
    if cells.text("bytes").contains(" - ") {
        return left_out("a range of sizes");
    }
    if cells.text("software").contains("torch") {
        return left_out("timed through PyTorch, which adds its own calls");
    }
    if let Some(why) = quality::doubt(cells.text("quality"), cells.text("site"), cells.text("config")) {
        return Ok(Outcome::LeftOut(why));
    }
    let (nodes, ranks, bytes) = (cells.whole("nodes")?, cells.whole("num_gpus")?, cells.whole("bytes")?);
    if bytes == 0 {
        return left_out("sizes of no bytes");
    }
    if nodes == 0 || ranks < 2 || nodes > ranks {
        return Err(("num_gpus", format!("{ranks} ranks on {nodes} nodes are no group")));
    }
    let mut points = Vec::new();
    for (column, in_place) in [("time_us", false), ("time_us_inplace", true)] {
        if !cells.text(column).is_empty() {
            let (kind, dtype) = (kind.name().to_owned(), cells.text("dtype").to_owned());
            let mut timed =
                point(What::Collective { kind, ranks, nodes, bytes, in_place, dtype }, cells.positive(column)?);
            timed.algorithm = Some(cells.text("algo").to_owned()).filter(|algo| !algo.is_empty());
            points.push(timed);
        }
    }
    Ok(Outcome::Points(origin(cells, cells.text("gpu"), ranks), points))
}

fn gemm(cells: &Cells<'_>, chip: Option<&str>) -> Result<Outcome, Wrong> {
    let dtype = match cells.text("dtype") {
        "bfloat16" => "bf16",
        "fp8" => return left_out("fp8 rows hold a quantising kernel of about 12 us besides the matmul"),
        other => return Err(("dtype", format!("`{other}` is neither bfloat16 nor fp8"))),
    };
    let Some(chip) = chip else {
        return Err(("source", "no column of this table names the chip: say --chip NAME".to_owned()));
    };
    let what = matmul(cells, dtype, "forward")?;
    Ok(Outcome::Points(origin(cells, chip, 1), vec![point(what, cells.positive("time_us")?)]))
}

fn matmul(cells: &Cells<'_>, dtype: &str, layout: &str) -> Result<What, Wrong> {
    let (m, n, k) = (cells.whole("m")?, cells.whole("n")?, cells.whole("k")?);
    Ok(What::Matmul { m, n, k, dtype: dtype.to_owned(), layout: layout.to_owned() })
}

fn layout(cells: &Cells<'_>, _: Option<&str>) -> Result<Outcome, Wrong> {
    if cells.whole("b")? != 1 {
        return left_out("batches of matmuls are no single one");
    }
    let layout = match (cells.text("layout"), cells.text("out_dtype"), cells.truth("accumulate")?) {
        ("TN", "bf16", false) => "forward",
        ("NN", "bf16", false) => "data_gradient",
        ("NT", "fp32", true) => "weight_gradient_fp32",
        ("NT", "bf16", false) => "weight_gradient",
        ("TN" | "NN" | "NT", "bf16" | "fp32", _) => {
            return left_out("an output that no framework asks for in this layout");
        }
        (layout, ..) => return Err(("layout", format!("`{layout}` is not TN, NN or NT with a bf16 or fp32 output"))),
    };
    let what = matmul(cells, "bf16", layout)?;
    Ok(Outcome::Points(origin(cells, cells.text("gpu"), 1), vec![point(what, cells.positive("time_us")?)]))
}

fn grouped(cells: &Cells<'_>, _: Option<&str>) -> Result<Outcome, Wrong> {
    match cells.text("stage") {
        "fwd" => {}
        "bwd_grad_act" | "bwd_grad_w" => return left_out("points of grouped matmuls are of the forward pass"),
        other => return Err(("stage", format!("`{other}` is not fwd, bwd_grad_act or bwd_grad_w"))),
    }
    let (groups, m, n, k) = (cells.whole("ng")?, cells.whole("M")?, cells.whole("N")?, cells.whole("K")?);
    let what = What::GroupedMatmul { groups, m, n, k, dtype: "bf16".to_owned() };
    Ok(Outcome::Points(origin(cells, cells.text("gpu"), 1), vec![point(what, cells.positive("time_us")?)]))
}

fn cudnn(cells: &Cells<'_>, _: Option<&str>) -> Result<Outcome, Wrong> {
    if !cells.truth("success")? {
        return left_out("the kernel did not run");
    }
    let dtype = match cells.text("dtype") {
        "bfloat16" => "bf16",
        "fp8" => "fp8",
        other => return Ok(Outcome::LeftOut(format!("no cost model asks for attention in {other}"))),
    };
    let backward = match cells.text("pas") {
        "fwd" => false,
        "bwd" => true,
        other => return Err(("pas", format!("`{other}` is neither fwd nor bwd"))),
    };
    if backward && cells.truth("deterministic_bwd")? {
        return left_out("deterministic backward passes are another kernel");
    }
    let causal = match cells.text("mask") {
        "top_left" | "bottom_right" => true,
        "no_mask" => false,
        other => return Err(("mask", format!("`{other}` is not top_left, bottom_right or no_mask"))),
    };
    let window = if cells.text("window").is_empty() { None } else { Some(cells.whole("window")?) };
    let what = What::Attention {
        backend: cells.text("backend").to_owned(),
        backward,
        batch: cells.whole("batch")?,
        heads: cells.whole("q_heads")?,
        kv_heads: cells.whole("kv_heads")?,
        queries: cells.whole("q_len")?,
        keys: cells.whole("kv_len")?,
        head_dim: cells.whole("d_qk")?,
        value_dim: cells.whole("d_vo")?,
        causal,
        window,
        dtype: dtype.to_owned(),
    };
    Ok(Outcome::Points(origin(cells, cells.text("gpu"), 1), vec![point(what, 1e3 * cells.positive("time_ms")?)]))
}

/// TensorRT-LLM's attention over a whole context: causal, forward.
fn context(cells: &Cells<'_>, _: Option<&str>) -> Result<Outcome, Wrong> {
    let (tokens, head_dim) = (cells.whole("isl")?, cells.whole("head_dim")?);
    let what = What::Attention {
        backend: "trtllm".to_owned(),
        backward: false,
        batch: cells.whole("batch_size")?,
        heads: cells.whole("num_heads")?,
        kv_heads: cells.whole("num_key_value_heads")?,
        queries: tokens,
        keys: tokens,
        head_dim,
        value_dim: head_dim,
        causal: true,
        window: None,
        dtype: "bf16".to_owned(),
    };
    Ok(Outcome::Points(origin(cells, cells.text("gpu"), 1), vec![point(what, cells.positive("time_us")?)]))
}
