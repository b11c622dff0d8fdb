//! Traces of training runs as points: kernels whose operators were recorded with shapes, in the steps of a real job.
//!
//! A kernel counts only where no exchange ran beside it on its device: what it takes beside one is another thing. An exchange counts only
//! with the traces of several ranks: the shortest of their times is what it took, the rest is waiting.
//!
//! A training step runs at sustained clocks, and a profile holds times of bursts and, apart, how far a busy board falls below them. So a
//! time is written as the burst that the base's own section `clock` makes this time of: a prediction at sustained clocks gives back what
//! the trace has.

use std::collections::BTreeMap;

use windtunnel::cost::Profile;
use windtunnel::gap::measured::measured;
use windtunnel::gap::{choose, late, side};
use windtunnel::hardware::{Size, Topology};
use windtunnel::program::DType;
use windtunnel::trace::{Arg, Id, Kernel, Kind, Op, Step, Tensor, Trace};

use crate::fit::{median, quantile};
use crate::points::{Machine, Point, Points, What};

/// How much of a kernel's time may lie beside an exchange.
const BESIDE: f64 = 0.02;

/// What traces made.
#[derive(Debug, Default)]
pub struct Read {
    /// Points.
    pub points: Points,
    /// Kernels that make none, by reason.
    pub left_out: BTreeMap<String, usize>,
}

/// Points of traces of one job, each with its file's name, for a base profile.
pub fn points(traces: &[(String, Trace)], base: &Profile) -> Read {
    let mut read = Read::default();
    let mut times: BTreeMap<What, Vec<f64>> = BTreeMap::new();
    let peak = Topology::load(&base.name, &Size::Smallest).ok().map(|topology| topology.chip.peak.bf16.0);
    for (_, trace) in traces {
        kernels(trace, base, peak, &mut times, &mut read.left_out);
    }
    exchanges(traces, &mut times, &mut read.left_out);
    read.points.machines.push(machine(traces));
    for (what, mut times) in times {
        times.sort_by(f64::total_cmp);
        let (us, repeats) = (median(&times), u32::try_from(times.len()).unwrap_or(u32::MAX));
        let point =
            Point { p10: quantile(&times, 0.1), p90: quantile(&times, 0.9), ..Point::published(what, us, repeats) };
        read.points.points.push((0, point));
    }
    read
}

fn machine(traces: &[(String, Trace)]) -> Machine {
    let first = traces.first().map(|(_, trace)| &trace.machine);
    let chip = first.and_then(|machine| machine.devices.first()?.name.clone()).unwrap_or_default();
    let versions = first.map(|machine| machine.versions.iter().cloned().collect()).unwrap_or_default();
    let files: Vec<&str> = traces.iter().map(|(file, _)| file.as_str()).collect();
    let source = format!("kernels of training steps: {}", files.join(", "));
    Machine::published(&chip, traces.len() as u64, versions, "profile fit", &source)
}

/// Times of exchanges on one device, sorted, without overlap.
fn exchanging(trace: &Trace, device: u32) -> Vec<(u64, u64)> {
    let mut merged: Vec<(u64, u64)> = vec![];
    for kernel in trace.kernels.iter().filter(|kernel| kernel.device == device && kernel.kind == Kind::Collective) {
        match merged.last_mut().filter(|(_, end)| kernel.start <= *end) {
            Some((_, end)) => *end = (*end).max(kernel.end()),
            None => merged.push((kernel.start, kernel.end())),
        }
    }
    merged
}

/// The share of a time that lies in some of these.
fn beside(merged: &[(u64, u64)], start: u64, end: u64) -> f64 {
    let first = merged.partition_point(|&(_, until)| until <= start);
    let within = merged[first..].iter().take_while(|&&(from, _)| from < end);
    let shared: u64 = within.map(|&(from, until)| until.min(end) - from.max(start)).sum();
    shared as f64 / end.saturating_sub(start).max(1) as f64
}

/// Matmuls and attention: all kernels of one operator together.
fn kernels(
    trace: &Trace,
    base: &Profile,
    peak: Option<f64>,
    times: &mut BTreeMap<What, Vec<f64>>,
    left_out: &mut BTreeMap<String, usize>,
) {
    let mut leave = |why: &str| *left_out.entry(why.to_owned()).or_default() += 1;
    let mut ops: BTreeMap<(Id<Op>, u32), Vec<&Kernel>> = BTreeMap::new();
    for kernel in trace.kernels.iter().filter(|kernel| kernel.kind == Kind::Compute) {
        match kernel.op.filter(|_| !kernel.in_graph) {
            Some(op) => ops.entry((op, kernel.device)).or_default().push(kernel),
            None if kernel.in_graph => leave("kernels of CUDA graphs: their operators tell no shapes"),
            None => leave("kernels that no operator launched"),
        }
    }
    let mut merged: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    for ((op, device), kernels) in ops {
        let op = &trace.ops[op.at()];
        let names: Vec<&str> = kernels.iter().map(|kernel| trace.name(kernel.name)).collect();
        let Some(work) = work(trace, op, &names) else { continue };
        let what = match work {
            Ok(what) => what,
            Err(why) => {
                leave(why);
                continue;
            }
        };
        let merged = merged.entry(device).or_insert_with(|| exchanging(trace, device));
        if kernels.iter().any(|kernel| beside(merged, kernel.start, kernel.end()) > BESIDE) {
            leave("matmuls and attention beside an exchange");
            continue;
        }
        let seconds = kernels.iter().map(|kernel| kernel.duration as f64 * 1e-9).sum::<f64>();
        match burst(&what, seconds, base, peak) {
            Some(seconds) if seconds > 0.0 => times.entry(what).or_default().push(seconds * 1e6),
            _ => leave("attention on a chip whose peak is not known: its clocks cannot be told"),
        }
    }
}

/// The burst that the base's clocks make a sustained time of \[s\].
fn burst(what: &What, sustained: f64, base: &Profile, peak: Option<f64>) -> Option<f64> {
    let mut burst = sustained;
    // The factor hardly changes with the time: a few rounds settle it.
    for _ in 0..20 {
        let slowed = match what {
            What::Matmul { dtype, .. } => {
                let dtype = if dtype.starts_with("fp8") { DType::Fp8 } else { DType::Bf16 };
                burst / base.clock.matmul(burst, dtype)
            }
            What::Attention { .. } => {
                let share = (flops(what) / (burst * peak?)).min(1.0);
                base.clock.attention(burst, share, DType::Bf16)
            }
            _ => burst,
        };
        burst *= sustained / slowed;
    }
    Some(burst)
}

/// FLOPs of an attention, with half the pairs under a causal mask.
fn flops(what: &What) -> f64 {
    let What::Attention { backward, batch, heads, queries, keys, head_dim, causal, .. } = what else { return 0.0 };
    let matmuls = if *backward { 5.0 } else { 2.0 };
    let pairs = *queries as f64 * *keys as f64 * if *causal { 0.5 } else { 1.0 };
    matmuls * 2.0 * (batch * heads * head_dim) as f64 * pairs
}

/// What an operator does, if it is a matmul or an attention; why it makes no point, if it makes none.
fn work(trace: &Trace, op: &Op, kernels: &[&str]) -> Option<Result<What, &'static str>> {
    let args = op.signature.map(|signature| trace.signatures[signature.at()].args.as_slice()).unwrap_or_default();
    let name = trace.name(op.name);
    match name {
        "aten::mm" => Some(matmul(trace, kernels, [args.first(), args.get(1)], None)),
        "aten::addmm" => Some(matmul(trace, kernels, [args.get(1), args.get(2)], None)),
        "aten::_scaled_mm" => Some(matmul(trace, kernels, [args.first(), args.get(1)], args.get(2))),
        "aten::_flash_attention_forward" => Some(attention(trace, args, "flash2", false, (0, 8))),
        "aten::_flash_attention_backward" => Some(attention(trace, args, "flash2", true, (1, 11))),
        "aten::_cudnn_attention_forward" => Some(attention(trace, args, "cudnn", false, (0, 10))),
        "aten::_cudnn_attention_backward" => Some(attention(trace, args, "cudnn", true, (1, 14))),
        _ => None,
    }
}

const SHAPELESS: &str = "operators without shapes: profile with record_shapes=True";

/// An argument that is a tensor.
fn tensor(arg: Option<&Arg>) -> Option<(&Arg, &Tensor)> {
    arg.and_then(|arg| Some((arg, arg.tensors.first()?)))
}

fn matmul(
    trace: &Trace,
    kernels: &[&str],
    [left, right]: [Option<&Arg>; 2],
    scale: Option<&Arg>,
) -> Result<What, &'static str> {
    let ((arg, a), (_, b)) = (tensor(left).ok_or(SHAPELESS)?, tensor(right).ok_or(SHAPELESS)?);
    let (&[m, k], &[_, n]) = (&*a.dims, &*b.dims) else { return Err(SHAPELESS) };
    let dtype = match arg.kind.map(|kind| trace.name(kind)).unwrap_or_default() {
        "c10::BFloat16" | "c10::Half" => "bf16",
        name if name.starts_with("c10::Float8") => match scale.and_then(|scale| scale.tensors.first()) {
            Some(scale) if scale.dims.iter().product::<u64>() == 1 => "fp8_tensor",
            _ => "fp8_row",
        },
        // Whether the matrix units cut it to tf32 is a setting that no trace tells.
        _ => return Err("matmuls in fp32, and of other types"),
    };
    // A matrix stored as [rows, columns] steps by one along its columns; a view of its transpose along its rows.
    let transposed = |strides: &[i64], dims: &[u64]| match *strides {
        [1, along] if along >= dims[0] as i64 && dims[0] > 1 => Some(true),
        [along, 1] if along >= dims[1] as i64 => Some(false),
        _ => None,
    };
    let told = match (transposed(&a.strides, &a.dims), transposed(&b.strides, &b.dims)) {
        // PyTorch before 2.4 writes no strides.
        _ if a.strides.is_empty() && b.strides.is_empty() => kernels.iter().find_map(|name| lettered(name)).unzip(),
        told => told,
    };
    let layout = match told {
        (Some(false), Some(true)) => "forward",
        (Some(false), Some(false)) => "data_gradient",
        (Some(true), Some(false)) => "weight_gradient",
        _ => return Err("matmuls whose operands' strides are not told, or are of no linear layer"),
    };
    Ok(What::Matmul { m, n, k, dtype: dtype.to_owned(), layout: layout.to_owned() })
}

/// Which operands of a row-major matmul are transposed, by the letters in its kernel's name. cuBLAS multiplies the column-major
/// transposes in the opposite order: `tn` is the forward matmul of a linear layer.
fn lettered(kernel: &str) -> Option<(bool, bool)> {
    kernel.split(|c: char| !c.is_ascii_alphanumeric()).find_map(|part| match part {
        "tn" => Some((false, true)),
        "nn" => Some((false, false)),
        "nt" => Some((true, false)),
        _ => None,
    })
}

/// Queries stand at `first`, keys behind them, the flag of the mask at `causal`.
fn attention(
    trace: &Trace,
    args: &[Arg],
    backend: &str,
    backward: bool,
    (first, causal): (usize, usize),
) -> Result<What, &'static str> {
    let dims = |at: usize| args.get(at).and_then(|arg| <[u64; 4]>::try_from(&*arg.tensors.first()?.dims).ok());
    let (q, k) = dims(first).zip(dims(first + 1)).ok_or("attention of packed sequences, or without shapes")?;
    let mask = args.get(causal).and_then(|arg| arg.value).map(|value| trace.name(value));
    let causal = match mask {
        Some("True") => true,
        Some("False") => false,
        _ => return Err("attention whose mask is not told"),
    };
    // PyTorch's flash kernels take [B, S, N, H], cuDNN's [B, N, S, H].
    let of = |[batch, one, other, dim]: [u64; 4]| {
        if backend == "cudnn" { [batch, other, one, dim] } else { [batch, one, other, dim] }
    };
    let ([batch, queries, heads, head_dim], [_, keys, kv_heads, value_dim]) = (of(q), of(k));
    let half = args[first].kind.is_some_and(|kind| matches!(trace.name(kind), "c10::BFloat16" | "c10::Half"));
    if !half {
        return Err("attention in other types than 16 bits");
    }
    Ok(What::Attention {
        backend: backend.to_owned(),
        backward,
        batch,
        heads,
        kv_heads,
        queries,
        keys,
        head_dim,
        value_dim,
        causal,
        window: None,
        dtype: "bf16".to_owned(),
    })
}

/// Exchanges of the steps that all traces have.
fn exchanges(traces: &[(String, Trace)], times: &mut BTreeMap<What, Vec<f64>>, left_out: &mut BTreeMap<String, usize>) {
    let all =
        traces.iter().flat_map(|(_, trace)| &trace.kernels).filter(|kernel| kernel.kind == Kind::Collective).count();
    if traces.len() < 2 {
        if all > 0 {
            let why = "exchanges of one rank: how much of their time is waiting is not told";
            *left_out.entry(why.to_owned()).or_default() += all;
        }
        return;
    }
    let mut used = 0;
    for number in traces[0].1.steps.iter().filter_map(|step| step.number) {
        let mut sides = vec![];
        for (_, trace) in traces {
            for (rank, device) in choose::ranks(trace) {
                let step: Option<Id<Step>> = choose::step(trace, device, Some(number)).ok();
                sides.extend(step.and_then(|step| measured(trace, device, step)).map(|side| (rank, side)));
            }
        }
        late::waits(&mut sides);
        let ranks = sides.len() as u64;
        // Of a group of some of the ranks nobody says here how many it has: those of the whole job do.
        let whole = traces.iter().all(|(_, trace)| trace.world.map(u64::from) == Some(ranks));
        let mut members: BTreeMap<(side::Class, &str), std::collections::BTreeSet<u32>> = BTreeMap::new();
        for (rank, side) in &sides {
            for item in side.items.iter().filter(|item| item.own && item.waited.is_some()) {
                members.entry((item.class, &item.group)).or_default().insert(*rank);
            }
        }
        let all_take_part = |item: &side::Item| {
            whole && members.get(&(item.class, &*item.group)).is_some_and(|members| members.len() as u64 == ranks)
        };
        for item in sides.iter().flat_map(|(_, side)| &side.items).filter(|item| item.own && all_take_part(item)) {
            let (Some(waited), Some(kind)) = (item.waited, kind(item.class)) else { continue };
            let side::Shape::Bytes(bytes) = item.shape else { continue };
            let what = What::Collective {
                kind: kind.to_owned(),
                ranks,
                nodes: 1,
                bytes,
                in_place: false,
                dtype: "bfloat16".to_owned(),
            };
            used += 1;
            times.entry(what).or_default().push((item.time() - waited).seconds() * 1e6);
        }
    }
    if let Some(rest) = all.checked_sub(used).filter(|rest| *rest > 0) {
        let why = "exchanges outside marked steps, of unlike ranks, or whose bytes are not told";
        *left_out.entry(why.to_owned()).or_default() += rest;
    }
}

fn kind(class: side::Class) -> Option<&'static str> {
    match class {
        side::Class::AllGather => Some("all_gather"),
        side::Class::ReduceScatter => Some("reduce_scatter"),
        side::Class::AllReduce => Some("all_reduce"),
        side::Class::AllToAll => Some("all_to_all"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::ops::ControlFlow;

    use super::*;

    /// A kernel of an operator: its name, its arguments, when it began and how long it ran \[µs\].
    struct Ran {
        op: &'static str,
        args: String,
        start: u64,
        lasts: u64,
    }

    fn mm(strides: &str, start: u64, lasts: u64) -> Ran {
        let types = r#""Input type":["c10::BFloat16","c10::BFloat16"]"#;
        let args = format!(r#""Input Dims":[[8192,4096],[4096,14336]],"Input Strides":{strides},{types}"#);
        Ran { op: "aten::mm", args, start, lasts }
    }

    /// A trace of these, with an exchange from 100 to 200 ms.
    fn trace(ran: &[Ran]) -> Trace {
        let mut events = String::new();
        for (number, Ran { op, args, start, lasts }) in ran.iter().enumerate() {
            let (at, number) = (start - 50, number + 1);
            let _ = write!(
                events,
                r#"{{"ph":"X","cat":"cpu_op","name":"{op}","pid":1,"tid":1,"ts":{at},"dur":20,"args":{{{args}}}}},
                {{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":{},"dur":5,"args":{{"correlation":{number}}}}},
                {{"ph":"X","cat":"kernel","name":"nvjet_tst","pid":0,"tid":7,"ts":{start},"dur":{lasts},"args":{{"device":0,"stream":7,"correlation":{number}}}}},"#,
                at + 5
            );
        }
        events += r#"{"ph":"X","cat":"kernel","name":"ncclDevKernel_AllGather_RING_LL()","pid":0,"tid":20,"ts":100000,"dur":100000,"args":{"device":0,"stream":20,"correlation":99}}"#;
        let text = format!(
            r#"{{"schemaVersion":1,"cuda_driver_version":12080,"deviceProperties":[{{"id":0,"name":"NVIDIA H100 80GB HBM3","numSms":132}}],"record_shapes":1,"traceEvents":[{events}]}}"#
        );
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("it is written");
        windtunnel::trace::read(file.path(), &|_, _| ControlFlow::Continue(())).expect("it is a trace")
    }

    fn base() -> Profile {
        let (path, text) = Profile::text("h100-sxm-80gb").expect("shipped");
        Profile::parse(&path, &text).expect("it parses")
    }

    const FORWARD: &str = "[[4096,1],[1,4096]]";

    #[test]
    fn kernels_alone_become_points_that_the_base_s_clocks_turn_back_into_what_was_traced() {
        let base = base();
        let times = [1500, 1520, 1480, 1500, 1510];
        let mut ran: Vec<Ran> = (0..5).map(|at| mm(FORWARD, 1000 + 2000 * at as u64, times[at])).collect();
        ran.extend((0..3).map(|at| mm(FORWARD, 110_000 + 3000 * at, 2900)));
        let read = points(&[("rank0.json".to_owned(), trace(&ran))], &base);
        let [(_, point)] = &read.points.points[..] else { panic!("{:?}", read.points) };
        let What::Matmul { m: 8192, n: 14336, k: 4096, dtype, layout } = &point.what else { panic!("{point:?}") };
        assert_eq!((dtype.as_str(), layout.as_str(), point.repeats), ("bf16", "forward", 5));
        let sustained = point.median / base.clock.matmul(point.median * 1e-6, DType::Bf16);
        assert!((sustained - 1500.0).abs() < 1e-3, "{point:?}");
        assert!(point.median < 1500.0, "a busy board is slower than a burst");
        assert_eq!(read.left_out.get("matmuls and attention beside an exchange"), Some(&3));
        assert_eq!(read.points.machines[0].chip, "NVIDIA H100 80GB HBM3");
    }

    #[test]
    fn strides_tell_the_three_matmuls_of_a_linear_layer_apart() {
        let base = base();
        for (strides, layout) in [
            (FORWARD, Some("forward")),
            ("[[4096,1],[14336,1]]", Some("data_gradient")),
            ("[[1,8192],[14336,1]]", Some("weight_gradient")),
            ("[[1,8192],[1,4096]]", None),
            ("[[],[]]", None),
        ] {
            let read = points(&[("a.json".to_owned(), trace(&[mm(strides, 1000, 1500)]))], &base);
            let found = read.points.points.first().map(|(_, point)| match &point.what {
                What::Matmul { layout, .. } => layout.clone(),
                other => panic!("{other:?}"),
            });
            assert_eq!(found.as_deref(), layout, "{strides}");
            assert_eq!(
                layout.is_none(),
                read.left_out.keys().any(|why| why.contains("strides")),
                "{:?}",
                read.left_out
            );
        }
    }

    #[test]
    fn a_trace_makes_a_profile_that_names_the_versions_of_its_run() {
        let text = Profile::text("h100-sxm-80gb").expect("shipped").1;
        let read = points(&[("a.json".to_owned(), trace(&[mm(FORWARD, 1000, 1500)]))], &base());
        let fitted =
            crate::fit::measured::fit("a.json", &read.points, &base(), &text, "mine").expect("it is a profile");
        assert!(fitted.text.contains("\"CUDA driver\" = \"12.8\""), "{}", &fitted.text[..1000]);
    }

    #[test]
    fn without_strides_the_kernel_s_letters_tell_the_layout() {
        for (kernel, transposed) in [
            ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn", Some((false, true))),
            (
                "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_256x128_32x3_nt_align8>",
                Some((true, false)),
            ),
            ("sm80_xmma_gemm_f16f16_f16f32_f32_nn_n_tilesize192x128x32", Some((false, false))),
            ("splitKreduce_kernel", None),
        ] {
            assert_eq!(lettered(kernel), transposed, "{kernel}");
        }
    }

    #[test]
    fn attention_has_its_mask_among_its_arguments() {
        let base = base();
        let qkv = r#"[2,8192,32,128],[2,8192,8,128],[2,8192,8,128]"#;
        let args = format!(
            r#""Input Dims":[{qkv},[],[],[],[],[],[]],"Input type":["c10::BFloat16","c10::BFloat16","c10::BFloat16","","","Scalar","Scalar","Scalar","Scalar"],"Concrete Inputs":["","","","","","8192","8192","0.","True"]"#
        );
        let ran = Ran { op: "aten::_flash_attention_forward", args, start: 1000, lasts: 4000 };
        let read = points(&[("a.json".to_owned(), trace(&[ran]))], &base);
        let [(_, point)] = &read.points.points[..] else { panic!("{:?}", read.left_out) };
        let What::Attention {
            backend,
            backward: false,
            batch: 2,
            heads: 32,
            kv_heads: 8,
            queries: 8192,
            causal: true,
            ..
        } = &point.what
        else {
            panic!("{point:?}")
        };
        assert_eq!(backend, "flash2");
        assert!(point.median < 4000.0 && point.median > 2500.0, "{point:?}");
    }
}
