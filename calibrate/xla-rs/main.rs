//! Times matmuls through the [`xla`](https://crates.io/crates/xla) crate: a second way to a device, for whoever has XLA's C++
//! library (`xla_extension`) already.
//!
//! `calibrate xla` needs no such library and does more: the crate has no ahead-of-time compilation, memory statistics or cost
//! analysis. Building it takes `XLA_EXTENSION_DIR`; type-checking it takes libclang alone (`DOCS_RS=1`), as CI does. What it
//! prints are lines of a file of points, as `calibrate fit` reads them.

#[allow(dead_code, reason = "shared with the calibrator, which tells more of a timing")]
#[path = "../statistics.rs"]
mod statistics;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use serde_json::json;
use statistics::summary;
use xla::{ElementType, PjRtBuffer, PjRtClient, PjRtLoadedExecutable, XlaBuilder};

/// Times `C[m,n] = A[m,k]·B[k,n]` in bf16 through the xla crate.
#[derive(Debug, Parser)]
#[command(name = "windtunnel-xla", version)]
struct Cli {
    /// Rows of the result.
    m: usize,
    /// Columns of the result.
    n: usize,
    /// Length of the dot products.
    k: usize,
    /// The file of a PJRT plugin, as `calibrate plugins list` shows them; left out, the CPU of the C++ library.
    #[arg(long)]
    plugin: Option<PathBuf>,
    /// Samples.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    samples: u32,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> xla::Result<String> {
    let client = match &cli.plugin {
        Some(plugin) => PjRtClient::plugin("plugin", plugin)?,
        None => PjRtClient::cpu()?,
    };
    let program = matmul(cli, &client)?;
    let operands = [operand(&client, &[cli.m, cli.k])?, operand(&client, &[cli.k, cli.n])?];
    sample(&program, &operands)?;
    let times = (0..cli.samples).map(|_| sample(&program, &operands)).collect::<xla::Result<Vec<f64>>>()?;
    let Some(timed) = summary(&times) else { return Ok(String::new()) };
    let point = json!({"point": {
        "what": {"matmul": {"m": cli.m, "n": cli.n, "k": cli.k, "dtype": "bf16", "layout": "forward"}},
        "regime": "burst",
        "median": timed.median,
        "p10": timed.p10,
        "p90": timed.p90,
        "repeats": cli.samples,
        "outliers": timed.outliers,
    }});
    Ok(format!("{point}\n"))
}

fn matmul(cli: &Cli, client: &PjRtClient) -> xla::Result<PjRtLoadedExecutable> {
    let builder = XlaBuilder::new("matmul");
    let length = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
    let a = builder.parameter(0, ElementType::Bf16, &[length(cli.m), length(cli.k)], "a")?;
    let b = builder.parameter(1, ElementType::Bf16, &[length(cli.k), length(cli.n)], "b")?;
    client.compile(&a.dot_general(&b, &[1], &[0], &[], &[])?.build()?)
}

/// An array of ones: 0x3f80 in bf16.
fn operand(client: &PjRtClient, dims: &[usize]) -> xla::Result<PjRtBuffer> {
    let ones = [0x80, 0x3f].repeat(dims.iter().product());
    client.buffer_from_host_raw_bytes(ElementType::Bf16, &ones, dims, None)
}

/// Microseconds of one run, its result brought to the host.
fn sample(program: &PjRtLoadedExecutable, operands: &[PjRtBuffer]) -> xla::Result<f64> {
    let began = Instant::now();
    for result in program.execute_b(operands)?.iter().flatten() {
        result.to_literal_sync()?;
    }
    Ok(began.elapsed().as_secs_f64() * 1e6)
}
