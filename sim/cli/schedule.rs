//! `windtunnel show schedule [NAME|FILE.csv]`: a pipeline schedule as a picture, and what it costs.

use std::fmt::Write;
use std::path::PathBuf;

use super::Failure;
use windtunnel::report::text::table;
use windtunnel::schedule::{self, Costs, Lowering, Schedule, Shape, csv, in_flight, lower, order, picture, replay};
use windtunnel::units::Time;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A schedule's name, or a CSV file in PyTorch's format; without one, the names there are.
    name: Option<PathBuf>,
    /// Pipeline ranks.
    #[arg(long, value_name = "P")]
    stages: Option<u32>,
    /// Stages on each rank; 1 if not given.
    #[arg(long = "virtual", value_name = "V")]
    virtual_stages: Option<u32>,
    /// Micro-batches of one step.
    #[arg(long, value_name = "M")]
    microbatches: Option<u32>,
    /// Time of a forward, of gradients of inputs and of gradients of weights at one stage, in any unit.
    #[arg(long, value_name = "F,I,W", value_delimiter = ',', default_value = "1,1,1")]
    costs: Vec<u32>,
    /// Time from one rank to the next, in the same unit.
    #[arg(long, default_value_t = 0)]
    hop: u32,
    /// Print PyTorch's CSV instead of a picture.
    #[arg(long)]
    csv: bool,
    /// With sends, receives, unshards and reductions, as PyTorch's runtime issues them (CSV only).
    #[arg(long, requires = "csv")]
    lowered: bool,
}

/// Columns that are still a picture.
const WIDEST: usize = 250;

pub fn show(args: &Args) -> Result<String, Failure> {
    let Some(name) = &args.name else {
        let rows = order::ENTRIES.iter().map(|entry| vec![entry.name.to_owned(), entry.about.to_owned()]);
        return Ok(table(&["schedule", "what it is"], rows.collect(), 2) + "\n");
    };
    let schedule = build(args, name)?;
    if args.csv {
        let lowered = || lower(&schedule, &Lowering::default()).map_err(Failure::input);
        return Ok(if args.lowered { lowered()?.csv() } else { schedule.lists.csv() });
    }
    let &[forward, input, weight] = args.costs.as_slice() else {
        let found = args.costs.len();
        return Err(Failure::input(format!("--costs has {found} numbers: expected three, such as --costs 2,2,1")));
    };
    let parts = [forward, input, weight].map(|cost| Time(cost.into()));
    let costs = Costs::uniform(schedule.stages, parts, Time(args.hop.into()));
    describe(&schedule, &costs).map_err(Failure::input)
}

fn build(args: &Args, name: &std::path::Path) -> Result<Schedule, Failure> {
    let shape = (args.stages, args.microbatches);
    if name.extension().is_some_and(|extension| extension == "csv") {
        if shape != (None, None) || args.virtual_stages.is_some() {
            let problem = "a CSV file says itself how many ranks, stages and micro-batches there are: leave out";
            return Err(Failure::input(format!("{problem} --stages, --virtual and --microbatches")));
        }
        return csv::load(name).map_err(Failure::input);
    }
    let name = name.to_string_lossy();
    let entry = schedule::find(&name).map_err(Failure::input)?;
    let (Some(ranks), Some(microbatches)) = shape else {
        return Err(Failure::input(format!(
            "how many ranks and micro-batches? for example: windtunnel show schedule {name} --stages 4 --microbatches 8"
        )));
    };
    let shape = Shape { ranks, virtual_stages: args.virtual_stages.unwrap_or(1), microbatches };
    entry.build(shape).map_err(Failure::input)
}

fn describe(schedule: &Schedule, costs: &Costs) -> Result<String, schedule::ScheduleError> {
    let timeline = replay(schedule, costs)?;
    let mut out = format!(
        "{}: {} stages on {} ranks, {} micro-batches\n\n",
        schedule.name,
        schedule.stages,
        schedule.ranks(),
        schedule.microbatches
    );
    match picture::draw(schedule, &timeline, WIDEST) {
        Some(picture) => out += &picture,
        None => {
            let _ = writeln!(out, "more than {WIDEST} columns: --csv prints the lists");
        }
    }
    let flying = in_flight(schedule, false);
    let rows = timeline.ranks.iter().enumerate().map(|(rank, time)| {
        let stages = (0..schedule.stages).filter(|&stage| schedule.rank_of[stage] as usize == rank);
        let stages: Vec<String> = stages.map(|stage| stage.to_string()).collect();
        let idle = timeline.makespan() - time.busy;
        let cells = [time.busy.0, idle.0].map(|time| time.to_string());
        vec![rank.to_string(), stages.join(", "), cells[0].clone(), cells[1].clone(), flying[rank].to_string()]
    });
    let _ = writeln!(out, "\n{}", table(&["rank", "stages", "busy", "idle", "in flight"], rows.collect(), 2));
    let free = Costs { hop: vec![Time(0); schedule.stages], ..costs.clone() };
    let free = replay(schedule, &free)?;
    let _ = writeln!(out, "\nbubble {:.2} % of {} units on each rank", 100.0 * free.bubble(), free.makespan().0);
    if free.bubble() > 0.0 {
        let under_way: u64 = free.ranks.iter().map(|rank| (rank.last - rank.first).0).sum();
        let busy: u64 = free.ranks.iter().map(|rank| rank.busy.0).sum();
        let _ = match under_way == busy {
            true => {
                writeln!(out, "all of it before a rank's first action or after its last: once begun, no rank waits")
            }
            false => {
                let waits = 100.0 * (1.0 - busy as f64 / under_way as f64);
                writeln!(
                    out,
                    "between its first action and its last a rank waits {waits:.2} % of the time, in the mean"
                )
            }
        };
    }
    let longer = timeline.makespan() - free.makespan();
    if longer > Time(0) {
        let _ = writeln!(out, "exposed transfers make that {} longer", longer.0);
    }
    Ok(out)
}
