//! `windtunnel show model|plan|program|memory|costs SCENARIO`: the stages on the way to a prediction; and
//! `windtunnel show schedule NAME` and `windtunnel show schema WHAT`.

mod plan;

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use super::{Failure, Outcome, named, print, print_json, read, schedule};
use plan::plan;
use windtunnel::cost::{Basis, profile};
use windtunnel::hardware;
use windtunnel::model::block;
use windtunnel::model::graph::{Graph, OpKind};
use windtunnel::model::tensor::TensorParallel;
use windtunnel::model::{Layer, ModelConfig, head, unpad::unpad};
use windtunnel::program::{Collective, Dispatch, ExchangeId, Instr, Mark, Program, Work};
use windtunnel::receipt::row;
use windtunnel::report::layout;
use windtunnel::report::text::table;
use windtunnel::scenario::keys;
use windtunnel::scenario::predict::{Class, Settings};
use windtunnel::scenario::{Prediction, Scenario, predict};

#[derive(Debug, clap::Args)]
#[command(after_help = super::help::SHOW)]
pub struct Args {
    /// Which stage.
    #[command(subcommand)]
    stage: Stage,
}

#[derive(Debug, clap::Args)]
struct File {
    /// The scenario file, or a sample's name.
    scenario: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Modelled {
    /// The scenario file, a config.json, or a shipped model's name.
    scenario: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Staged {
    #[command(flatten)]
    file: File,
    /// Of a pipeline, which rank of it, from 0; left out: the first, and of memory the fullest.
    #[arg(long, value_name = "N")]
    stage: Option<usize>,
}

impl Staged {
    /// The rank asked for, out of so many.
    fn of(&self, count: usize) -> Result<Option<usize>, Failure> {
        match self.stage {
            Some(stage) if stage >= count => Err(Failure::input(match count {
                1 => format!("--stage {stage}: all ranks of this scenario are alike, so there is only --stage 0"),
                _ => format!("--stage {stage}: the pipeline has ranks 0 to {}", count - 1),
            })),
            stage => Ok(stage),
        }
    }
}

#[derive(Debug, clap::Subcommand)]
enum Stage {
    /// Operators, shapes and parameters of a scenario's model, or of a Hugging Face config.json or a shipped model by itself.
    #[command(after_help = super::help::SHOW_MODEL)]
    Model(Modelled),
    /// Mesh, parameter groups, communicators.
    #[command(after_help = super::help::SHOW_STAGE)]
    Plan(File),
    /// What a rank's host issues in one step, in order.
    #[command(after_help = super::help::SHOW_STAGE)]
    Program(Staged),
    /// Memory by phase and by hook.
    #[command(after_help = super::help::SHOW_STAGE)]
    Memory(Staged),
    /// Every distinct kernel and collective, with its cost and evidence.
    #[command(after_help = super::help::SHOW_STAGE)]
    Costs(Staged),
    /// A pipeline schedule by name or from a CSV file.
    #[command(after_help = super::help::SHOW_SCHEDULE)]
    Schedule(schedule::Args),
    /// The JSON Schema of a file that is read or written, for editors and for checks.
    #[command(after_help = super::help::SHOW_SCHEMA)]
    Schema(Schema),
}

#[derive(Debug, clap::Args)]
struct Schema {
    /// Of which file.
    of: Described,
}

/// A file that has a schema.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Described {
    /// A scenario.
    Scenario,
    /// The report of `run --json`.
    Report,
    /// A topology.
    Topology,
    /// A profile of costs.
    Profile,
    /// A measured run: a line of a file of receipts.
    Receipt,
    /// A line of what `calibrate plan --json` writes.
    Plan,
}

/// Instructions that are printed at a time.
const PRINTED: usize = 1 << 12;

pub fn run(args: &Args) -> Outcome {
    let load = |file: &File| {
        let (name, text) = read(&file.scenario)?;
        Scenario::parse(&name, &text).map_err(Failure::input)
    };
    let simulable = |file: &File| {
        let scenario = load(file)?;
        scenario.simulable().map_err(Failure::input)?;
        Ok::<_, Failure>(scenario)
    };
    let text = match &args.stage {
        Stage::Model(args) => model(&named::for_its_model(&args.scenario)?),
        Stage::Plan(file) => {
            let scenario = simulable(file)?;
            plan(&scenario, &scenario.flight().map_err(Failure::input)?)
        }
        Stage::Program(args) => {
            let flight = simulable(&args.file)?.flight().map_err(Failure::input)?;
            let program = &flight.classes[args.of(flight.classes.len())?.unwrap_or(0)];
            // Millions of lines are no text to hold.
            for part in program.step.chunks(PRINTED) {
                print(&instructions(program, part))?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        Stage::Memory(args) => {
            let answer = fly(&simulable(&args.file)?)?;
            memory(&answer.classes[args.of(answer.classes.len())?.unwrap_or(answer.tightest)])
        }
        Stage::Costs(args) => {
            let answer = fly(&simulable(&args.file)?)?;
            costs(&answer.classes[args.of(answer.classes.len())?.unwrap_or(0)])
        }
        Stage::Schedule(args) => schedule::show(args)?,
        Stage::Schema(args) => {
            print_json(match args.of {
                Described::Scenario => keys::SCHEMA,
                Described::Report => layout::SCHEMA,
                Described::Topology => hardware::SCHEMA,
                Described::Profile => profile::SCHEMA,
                Described::Receipt => row::SCHEMA,
                Described::Plan => include_str!("../../docs/schema/plan.json"),
            })?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn fly(scenario: &Scenario) -> Result<Prediction, Failure> {
    predict(scenario, Settings::default()).map_err(Failure::input)
}

/// How many blocks of how many parameters, with and without experts.
fn blocks(model: &ModelConfig) -> String {
    let (params, sparse) = (model.params(), model.expert_blocks());
    let of_one = |layer: &Layer| layer.params(model.width).0;
    let Some(experts) = model.experts().filter(|_| sparse > 0) else {
        return format!("{} blocks of {} parameters", model.layers.count(), of_one(model.layers.at(0)));
    };
    let shared = if experts.shared > 0 { format!(" (shared ones {} wide)", experts.shared) } else { String::new() };
    let dense = match model.layers.iter().find(|layer| layer.experts().is_none()) {
        None => String::new(),
        Some(layer) => format!(" and {} dense ones of {}", model.layers.count() - sparse, of_one(layer)),
    };
    format!(
        "E={} k={} X={}{shared} · {sparse} blocks with experts of {} parameters{dense}",
        experts.count, experts.top_k, experts.width, params.block
    )
}

fn model(scenario: &Scenario) -> String {
    let model = scenario.job.model();
    let params = model.params();
    let tensor = scenario.job.train().map_or(TensorParallel::NONE, |job| job.tensor);
    let dims = block::dims(model, scenario.job.batch(), scenario.job.seq(), tensor);
    let mut out = format!("{model}\nsource: {}\n", model.source);
    if let Some(why) = scenario.simulable().err().and_then(|error| error.to_string().lines().next().map(str::to_owned))
    {
        let _ = writeln!(out, "note: {why}");
    }
    let _ = writeln!(
        out,
        "B={} S={} D={} N={} K={} H={} F={} V={} · {} · embedding {} · head {}\n",
        dims.b,
        dims.s,
        dims.d,
        dims.n,
        dims.k,
        dims.h,
        dims.f,
        dims.v,
        blocks(model),
        params.embedding,
        params.head
    );
    if model.mtp_layers > 0 {
        let _ = writeln!(
            out,
            "modules ahead: {}, each a block, a projection of 2D to D and three norms, of {} parameters\n",
            model.mtp_layers, params.ahead
        );
    }
    let Some(job) = scenario.job.train() else {
        let _ = writeln!(
            out,
            "operators are those of the runtime: `windtunnel show program` lists them as they are issued"
        );
        return out;
    };
    let compute = scenario.job.dtype();
    let first = model.layers.at(0);
    let sparse = model.layers.iter().find(|layer| layer.experts().is_some()).filter(|_| first.experts().is_none());
    // The first layer, and if that is dense the first with experts; where layers have other parts, one of each kind.
    let shown: Vec<&Layer> = match model.is_transformer() {
        true => [Some(first), sparse].into_iter().flatten().collect(),
        false => model.layers.used().iter().collect(),
    };
    let blocks = shown.into_iter().map(|layer| {
        let block = block::block(model, dims, compute, layer, job.style);
        if job.unpad { unpad(block) } else { block }
    });
    let mut modules = vec![block::embedding(model, dims, compute, job.style)];
    modules.extend(blocks);
    modules.push(head::head(model, dims, compute, (job.loss, job.loss_inside), job.output).graph);
    for graph in &modules {
        let rows = operators(graph);
        let _ =
            writeln!(out, "{}\n{}\n", graph.name, table(&["module", "operator", "reads", "makes", "size"], rows, 4));
    }
    out
}

/// A row for each operator; experts one after the other that do the same share theirs.
fn operators(graph: &Graph) -> Vec<Vec<String>> {
    let mut rows: Vec<(Vec<String>, usize)> = vec![];
    for op in &graph.ops {
        let name = |&value: &usize| graph.values[value].name.to_owned();
        let bytes: u64 = op.outputs.iter().map(|&value| graph.values[value].bytes()).sum();
        let kind = match op.kind {
            OpKind::Experts(kind) => format!("{kind:?}"),
            OpKind::Simple(simple) => simple.label.to_owned(),
            kind => format!("{kind:?}"),
        };
        // Parts of a split or a join are as many as there are experts: two say enough.
        let names = |values: &[usize]| match values {
            [first, .., last] if values.len() > 4 => format!("{}, … {}", name(first), name(last)),
            _ => values.iter().map(name).collect::<Vec<_>>().join(", "),
        };
        let row = vec![
            op.module.to_owned(),
            kind.split(['{', '(']).next().unwrap_or("").trim().to_owned(),
            names(&op.inputs),
            names(&op.outputs),
            windtunnel::units::Bytes(bytes).to_string(),
        ];
        let one_of_many = op.module == "feed_forward.experts";
        match rows.iter_mut().find(|(known, _)| one_of_many && *known == row) {
            Some((_, count)) => *count += 1,
            None => rows.push((row, 1)),
        }
    }
    let many = |(mut row, count): (Vec<String>, usize)| {
        if count > 1 {
            row[1] += &format!(" × {count}");
        }
        row
    };
    rows.into_iter().map(many).collect()
}

fn work(work: &Work) -> String {
    match *work {
        Work::Matmul { m, n, k, dtype, layout } => format!("{m}×{n}×{k} {} {layout:?}", dtype.name()),
        Work::GroupedMatmul { groups, rows, inputs, outputs, dtype, layout, .. } => {
            format!("{groups} groups, {rows} rows together, {inputs}→{outputs} {} {layout:?}", dtype.name())
        }
        Work::Attention { shape: s, dtype, .. } => format!(
            "B={} N={} K={} S={}{} H={} {}{}",
            s.batch,
            s.heads,
            s.kv_heads,
            s.queries,
            if s.keys == s.queries { String::new() } else { format!(" T={}", s.keys) },
            s.head_dim,
            dtype.name(),
            s.window.map_or_else(String::new, |window| format!(" window {window}"))
        ),
        Work::Memory { kind, read, written } => format!("{kind:?}: reads {read}, writes {written}"),
        Work::HostMemory { bytes } => format!("{bytes} in the host's memory"),
        Work::HostCopy { bytes, to_host } => {
            format!("{bytes} {}", if to_host { "to the host" } else { "from the host" })
        }
        Work::Disk { bytes, write } => format!("{bytes} {}", if write { "to disks" } else { "from disks" }),
    }
}

/// Some of a program's instructions, a line each.
fn instructions(program: &Program, part: &[Instr]) -> String {
    let mut out = String::new();
    let stream = |id: windtunnel::program::StreamId| program.streams[id.0 as usize];
    for instr in part {
        let _ = match *instr {
            Instr::Launch { stream: on, kernel, scope } => {
                let kernel = program.kernel(kernel);
                writeln!(
                    out,
                    "launch      {:20} {:14} {:13} {} [{}]",
                    stream(on),
                    program.scope(scope),
                    kernel.pass.name(),
                    kernel.name,
                    work(&kernel.work)
                )
            }
            Instr::Collective { stream: on, comm, scope } => {
                let comm = program.comm(comm);
                let group = &program.groups[comm.group.0 as usize];
                let (scope, kind) = (program.scope(scope), comm.kind.name());
                writeln!(out, "collective  {:20} {scope:14} {kind} {} over {}", stream(on), comm.bytes, group.name)
            }
            Instr::Exchange { stream: on, exchange, scope } => {
                let ends = program.exchange(exchange).map(|end| {
                    let (verb, group) = (end.direction.name(), &program.group(end.group).name);
                    format!("{verb} {} {} ahead over {group}", end.bytes, end.ahead)
                });
                let ends: Vec<String> = ends.collect();
                writeln!(out, "exchange    {:20} {:14} {}", stream(on), program.scope(scope), ends.join(", "))
            }
            Instr::Record { stream: on, event } => writeln!(out, "record      {:20} event {}", stream(on), event.0),
            Instr::Wait { stream: on, event } => writeln!(out, "wait        {:20} event {}", stream(on), event.0),
            Instr::HostWait { event } => writeln!(out, "host wait   {:20} event {}", "host", event.0),
            Instr::Host { dispatch, count } => writeln!(out, "host        {:20} {count} × {dispatch:?}", "host"),
            Instr::Alloc { buffer } | Instr::Free { buffer } => {
                let verb = if matches!(instr, Instr::Alloc { .. }) { "alloc" } else { "free" };
                let b = program.buffer(buffer);
                let (on, scope) = (stream(b.stream), program.scope(b.scope));
                writeln!(out, "{verb:11} {on:20} {scope:14} {} {} ({})", b.bytes, b.name, b.category.label())
            }
            Instr::Graph { begins } => writeln!(out, "graph       {}", if begins { "begins" } else { "ends" }),
            Instr::EmptyCache => writeln!(out, "empty cache"),
            Instr::Rename { .. } | Instr::Recategorize { .. } => Ok(()),
            Instr::Mark { mark } => match &program.marks[mark as usize] {
                Mark::PhaseEnd(name) => writeln!(out, "---- end of {name}"),
                Mark::Hook(hook, scope) => writeln!(out, "hook        {hook} {}", program.scope(*scope)),
            },
        };
    }
    out
}

fn memory(class: &Class) -> String {
    let report = &class.memory.report;
    let mut out = String::new();
    let gib = |bytes: windtunnel::units::Bytes| format!("{:.3}", bytes.gib());
    let rows = report.phases.iter().map(|phase| {
        let largest: Vec<String> = phase
            .breakdown
            .sorted()
            .iter()
            .take(4)
            .map(|(category, bytes)| format!("{} {bytes}", category.label()))
            .collect();
        vec![phase.name.clone(), gib(phase.peak_allocated), gib(phase.end_allocated), largest.join(", ")]
    });
    let header = ["phase", "peak GiB", "end GiB", "largest at the peak"];
    let _ = writeln!(out, "allocated by phase\n{}\n", table(&header, rows.collect(), 4));
    let rows =
        report.hooks.iter().map(|hook| vec![hook.hook.to_owned(), hook.group.clone(), gib(hook.now), gib(hook.peak)]);
    let _ = writeln!(
        out,
        "allocated by hook\n{}\n",
        table(&["hook", "group", "now GiB", "peak since GiB"], rows.collect(), 2)
    );
    let rows = report.live(&class.program).into_iter().map(|live| {
        vec![live.category.label().to_owned(), live.name.to_owned(), live.count.to_string(), live.bytes.to_string()]
    });
    let _ = writeln!(out, "live at the peak\n{}\n", table(&["category", "what", "blocks", "size"], rows.collect(), 2));
    let rows = report
        .reserved_by_stream
        .iter()
        .enumerate()
        .map(|(stream, &bytes)| vec![class.program.streams[stream].to_owned(), gib(bytes)]);
    let _ = writeln!(out, "reserved by stream\n{}", table(&["stream", "GiB"], rows.collect(), 1));
    out
}

fn costs(class: &Class) -> String {
    let program = &class.program;
    let mut out = String::new();
    let evidence = |cost: &windtunnel::cost::Cost| {
        let basis: Basis = cost.basis;
        (cost.time.to_string(), format!("± {:.0} %", 100.0 * cost.spread), basis.label().to_owned())
    };
    let kernels = program.kernels.iter().zip(&class.evidence.kernels).map(|(kernel, cost)| {
        let (time, spread, basis) = evidence(cost);
        vec![kernel.pass.name().to_owned(), kernel.name.to_owned(), work(&kernel.work), time, spread, basis]
    });
    let _ = writeln!(out, "{}\n", table(&["pass", "kernel", "shape", "time", "", "rests on"], kernels.collect(), 3));
    let comms = program.comms.iter().zip(&class.evidence.comms).map(|(comm, cost)| {
        let (time, spread, basis) = evidence(cost);
        let group = &program.groups[comm.group.0 as usize];
        vec![comm.kind.name().to_owned(), group.name.clone(), comm.bytes.to_string(), time, spread, basis]
    });
    let ends = |exchange: u32| program.exchange(ExchangeId(exchange));
    let exchanges = (0..).zip(&class.evidence.exchanges).filter_map(|(exchange, cost)| {
        let (time, spread, basis) = evidence(cost);
        let group = program.group(ends(exchange).next()?.group);
        let sizes: Vec<String> = ends(exchange).map(|end| end.bytes.to_string()).collect();
        let kind = Collective::SendRecv.name().to_owned();
        Some(vec![kind, group.name.clone(), sizes.join(", "), time, spread, basis])
    });
    let comms = comms.chain(exchanges).collect();
    let _ = writeln!(out, "{}\n", table(&["collective", "group", "size", "time", "", "rests on"], comms, 2));
    let launched = Dispatch::ALL.iter().zip(&class.evidence.dispatch).filter(|(class, _)| **class != Dispatch::Static);
    let host = launched.map(|(class, cost)| {
        let (time, spread, basis) = evidence(cost);
        vec![format!("{class:?}"), time, spread, basis]
    });
    let _ = writeln!(out, "{}", table(&["host dispatch", "time", "", "rests on"], host.collect(), 1));
    out
}
