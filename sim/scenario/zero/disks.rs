//! What of ZeRO's states is on disks (ZeRO-Infinity): keys of `offload_optimizer` and `offload_param` for `device = "nvme"`, and `aio`.
//! What the file leaves open is what `deepspeed/runtime/zero/offload_config.py` and `swap_tensor/constants.py` (0.19.6) have.

use toml::{Spanned, Value};

use super::super::error::ScenarioError;
use super::super::reader::Reader;
use super::super::written::{self, ZeroDevice};
use crate::cost::Disks;
use crate::hardware::Topology;
use crate::runtime::zero::{Aio, ParameterFiles, Stage, StateFiles, Trouble, ZeroPlan, swappable};
use crate::scenario::reader::MOST_SMALL;
use crate::units::Bandwidth;

/// Elements, at most, that a key of `[zero]` counts.
pub(super) const MOST: i64 = 1 << 40;

/// A key of a table, its value as written, and what DeepSpeed has where it is left out.
type Key = (&'static str, Option<Value>, Option<Value>);

/// A table that says where something is kept.
pub(super) trait Table {
    /// Its name.
    const NAME: &'static str;
    /// Where.
    fn device(&self) -> Option<&Spanned<ZeroDevice>>;
    /// Whether the host's memory is pinned.
    fn pin_memory(&self) -> Option<&Spanned<bool>>;
    /// The part of groups that are stepped on the host; none where a table has no such key.
    fn ratio(&self) -> Option<f64>;
    /// The folder of its files.
    fn nvme_path(&self) -> Option<&String>;
    /// Counts among its keys for disks: the most, and DeepSpeed's own.
    fn counts(&self) -> Vec<(&'static str, Option<&Spanned<i64>>, i64, i64)>;
    /// Switches among its keys for disks; all are off in DeepSpeed.
    fn switches(&self) -> Vec<(&'static str, Option<bool>)>;

    /// Whether it names disks.
    fn is_disk(&self) -> bool {
        self.device().is_some_and(|at| *at.get_ref() == ZeroDevice::Nvme)
    }

    /// Keys that are for disks.
    fn keys(&self) -> Vec<Key> {
        let path = ("nvme_path", self.nvme_path().cloned().map(Value::String), None);
        let counts = self.counts().into_iter().map(|(name, at, _, default)| {
            (name, at.map(|at| Value::Integer(*at.get_ref())), Some(Value::Integer(default)))
        });
        let switches =
            self.switches().into_iter().map(|(name, at)| (name, at.map(Value::Boolean), Some(Value::Boolean(false))));
        std::iter::once(path).chain(counts).chain(switches).collect()
    }
}

impl Table for written::OffloadOptimizer {
    const NAME: &'static str = "offload_optimizer";

    fn device(&self) -> Option<&Spanned<ZeroDevice>> {
        self.device.as_ref()
    }

    fn pin_memory(&self) -> Option<&Spanned<bool>> {
        self.pin_memory.as_ref()
    }

    fn ratio(&self) -> Option<f64> {
        self.ratio.as_ref().map(|at| *at.get_ref())
    }

    fn nvme_path(&self) -> Option<&String> {
        self.nvme_path.as_ref()
    }

    fn counts(&self) -> Vec<(&'static str, Option<&Spanned<i64>>, i64, i64)> {
        vec![("buffer_count", self.buffer_count.as_ref(), MOST_SMALL, 4)]
    }

    fn switches(&self) -> Vec<(&'static str, Option<bool>)> {
        vec![
            ("pipeline_read", self.pipeline_read),
            ("pipeline_write", self.pipeline_write),
            ("fast_init", self.fast_init),
        ]
    }
}

impl Table for written::OffloadParam {
    const NAME: &'static str = "offload_param";

    fn device(&self) -> Option<&Spanned<ZeroDevice>> {
        self.device.as_ref()
    }

    fn pin_memory(&self) -> Option<&Spanned<bool>> {
        self.pin_memory.as_ref()
    }

    fn ratio(&self) -> Option<f64> {
        None
    }

    fn nvme_path(&self) -> Option<&String> {
        self.nvme_path.as_ref()
    }

    fn counts(&self) -> Vec<(&'static str, Option<&Spanned<i64>>, i64, i64)> {
        vec![
            ("buffer_count", self.buffer_count.as_ref(), MOST_SMALL, 5),
            ("buffer_size", self.buffer_size.as_ref(), MOST, 100_000_000),
            ("max_in_cpu", self.max_in_cpu.as_ref(), MOST, 1_000_000_000),
        ]
    }

    fn switches(&self) -> Vec<(&'static str, Option<bool>)> {
        vec![]
    }
}

/// Without disks the keys for them have no effect, and are named.
pub(super) fn fitting<T: Table>(reader: &mut Reader<'_>, table: &T) -> Result<(), ScenarioError> {
    for (name, written, _) in table.keys() {
        if written.is_none() {
            continue;
        }
        let idle = match name {
            "nvme_path" | "fast_init" => "a step does not depend on it",
            _ if table.is_disk() => continue,
            _ => "nothing is on disks",
        };
        reader.idle(format!("zero.{}.{name}", T::NAME), idle);
    }
    for (name, at, most, _) in table.counts() {
        if let Some(at) = at {
            reader.count_within(&format!("zero.{}.{name}", T::NAME), at, 0, most)?;
        }
    }
    Ok(())
}

/// Whether disks have a folder to write to.
pub(super) fn has_folder<T: Table>(reader: &Reader<'_>, table: &Spanned<T>) -> Result<(), ScenarioError> {
    if !table.get_ref().is_disk() || table.get_ref().nvme_path().is_some() {
        return Ok(());
    }
    let key = T::NAME;
    let problem =
        format!("zero.{key}.device = \"nvme\" without nvme_path: DeepSpeed has no folder of its own, and stops");
    let remedy = format!("write zero.{key}.nvme_path, a folder on the node's disks such as \"/local_nvme\"");
    Err(reader.plan(table, problem, remedy))
}

fn or(at: Option<&Spanned<i64>>, default: u64) -> u64 {
    at.map_or(default, |at| at.get_ref().unsigned_abs())
}

/// The optimizer's states, if they are on disks.
pub(super) fn states(
    reader: &Reader<'_>,
    table: &Spanned<written::OffloadOptimizer>,
    stage: Stage,
) -> Result<Option<StateFiles>, ScenarioError> {
    let own = table.get_ref();
    if !own.is_disk() {
        return Ok(None);
    }
    if stage < Stage::Three {
        let problem =
            "below stage = 3 DeepSpeed keeps states in the host's memory whatever disks zero.offload_optimizer names";
        return Err(reader.plan(table, problem, "write device = \"cpu\", or stage = 3"));
    }
    if let Some(at) = own.ratio.as_ref().filter(|at| *at.get_ref() < 1.0) {
        let problem = "groups stepped on the device with other groups on disks are not simulated";
        return Err(reader.plan(at, problem, "remove the key, or write device = \"cpu\""));
    }
    let (read_ahead, write_behind) = (own.pipeline_read == Some(true), own.pipeline_write == Some(true));
    Ok(Some(StateFiles { buffers: or(own.buffer_count.as_ref(), 4), read_ahead, write_behind }))
}

/// Parameters, if they are on disks.
pub(super) fn files(table: &written::OffloadParam) -> Option<ParameterFiles> {
    table.is_disk().then(|| ParameterFiles {
        buffers: or(table.buffer_count.as_ref(), 5),
        buffer: or(table.buffer_size.as_ref(), 100_000_000),
        in_memory: or(table.max_in_cpu.as_ref(), 1_000_000_000),
    })
}

/// `aio`.
pub(super) fn aio(reader: &mut Reader<'_>, table: &written::Zero, used: bool) -> Result<Aio, ScenarioError> {
    let default = Aio::default();
    let Some(at) = &table.aio else {
        if used {
            reader.assume("zero.aio.block_size", (), default.block);
            reader.assume("zero.aio.intra_op_parallelism", (), default.threads);
        }
        return Ok(default);
    };
    if !used {
        let problem = "zero.aio says how files are read and written, and nothing is in files";
        return Err(reader.plan(at, problem, "write offload_optimizer.device = \"nvme\", or remove the table"));
    }
    let own = at.get_ref();
    if let Some(at) = own.use_gds.as_ref().filter(|at| *at.get_ref()) {
        let problem = "zero.aio.use_gds = true has no rules: files would go to the device past the host's memory";
        return Err(reader.plan(at, problem, "write false, which is DeepSpeed's default"));
    }
    let idle = [
        ("queue_depth", own.queue_depth.is_some()),
        ("single_submit", own.single_submit.is_some()),
        ("overlap_events", own.overlap_events.is_some()),
    ];
    for (key, _) in idle.into_iter().filter(|&(_, written)| written) {
        reader.idle(format!("zero.aio.{key}"), "disks are as fast as the topology says");
    }
    let block = reader.count_or(&written::Aio::block_size, own.block_size.as_ref(), default.block)?;
    let threads =
        reader.count_or(&written::Aio::intra_op_parallelism, own.intra_op_parallelism.as_ref(), default.threads)?;
    Ok(Aio { block, threads })
}

/// What each rank has of a node's disks, if anything is on them.
pub(super) fn rates(
    reader: &Reader<'_>,
    table: &written::Zero,
    topology: &Topology,
) -> Result<Option<Disks>, ScenarioError> {
    fn device<T: Table>(table: &Option<Spanned<T>>) -> Option<&Spanned<ZeroDevice>> {
        table.as_ref().map(Spanned::get_ref).filter(|table| table.is_disk())?.device()
    }
    let named = device(&table.offload_optimizer).or_else(|| device(&table.offload_param));
    let Some(at) = named else { return Ok(None) };
    let (Some(read), Some(write)) = (topology.node.disk_read, topology.node.disk_write) else {
        let problem = format!("how fast the disks of a node of {} are read and written is not known", topology.name);
        let remedy = "write node.disk_read and node.disk_write, such as { value = \"25 GB/s\", source = \"...\" }, into a \
                      topology file of your own, or device = \"cpu\"";
        return Err(reader.plan(at, problem, remedy));
    };
    let share = |all: Bandwidth| Bandwidth(all.0 / f64::from(topology.node.chips.max(1)));
    Ok(Some(Disks { read: share(read), write: share(write) }))
}

/// What DeepSpeed's own assertions say of a job's buffers, and what has no rules.
pub(super) fn check(reader: &mut Reader<'_>, table: &written::Zero, job: &ZeroPlan) -> Result<(), ScenarioError> {
    let offload = job.zero.offload;
    if let (Some(states), Some(at)) = (offload.states, &table.offload_optimizer) {
        let held = job.groups().0.iter().filter(|&elements| offload.aio.swappable(4 * elements)).count();
        let least = states.least(&job.whole.optimizer, held);
        if states.buffers < least {
            let problem = format!(
                "zero.offload_optimizer.buffer_count = {} is too few for its groups: DeepSpeed runs out of swap buffers",
                states.buffers
            );
            return Err(reader.plan(at, problem, format!("write buffer_count = {least}")));
        }
    }
    let (Some(files), Some(at)) = (offload.files, &table.offload_param) else { return Ok(()) };
    let (elements, parts) = (job.elements(), job.groups().1);
    if parts.iter().sum::<u64>() <= files.in_memory {
        reader.note("zero.offload_param.max_in_cpu has room for all parameters: no step reads them from disks");
    }
    let in_files = elements.iter().zip(&parts).filter(|&(&elements, _)| swappable(&job.zero, elements));
    let largest = in_files.clone().map(|(_, &part)| part).max().unwrap_or(0);
    if largest > files.buffer {
        let problem = format!(
            "zero.offload_param.buffer_size = {} is less than the largest part's {largest} elements",
            files.buffer
        );
        return Err(reader.plan(at, problem, format!("write buffer_size = {largest}")));
    }
    if let Some((elements, _)) = in_files.clone().find(|&(&elements, _)| elements <= job.zero.gathering.persist) {
        let problem = format!("a parameter of {elements} elements that stays gathered and is a file has no rules");
        return Err(reader.plan(at, problem, "lower stage3_param_persistence_threshold"));
    }
    let trouble = job.trouble();
    match trouble(files.buffers) {
        None => Ok(()),
        Some(Trouble::Buffers(most)) => {
            let problem = format!(
                "zero.offload_param.buffer_count = {} is too few: a gather wants {most} parts in buffers, and DeepSpeed stops",
                files.buffers
            );
            let remedy =
                enough(trouble, most).map_or(FEWER_AHEAD.to_owned(), |enough| format!("write buffer_count = {enough}"));
            Err(reader.plan(at, problem, remedy))
        }
        Some(Trouble::Twice) => {
            let problem =
                "DeepSpeed asks for a part twice while it reads ahead, and stops: too few parameters are in files";
            Err(reader.plan(at, problem, FEWER_AHEAD))
        }
    }
}

/// What helps where no number of buffers does.
const FEWER_AHEAD: &str = "write a smaller stage3_prefetch_bucket_size, or device = \"cpu\"";

/// Buffers with which a job runs that wanted so many: where there are more, more parts are read ahead, and wanted.
fn enough(trouble: impl Fn(u64) -> Option<Trouble>, wanted: u64) -> Option<u64> {
    let mut buffers = wanted;
    loop {
        match trouble(buffers) {
            None => return Some(buffers),
            Some(Trouble::Buffers(more)) => buffers = more,
            Some(Trouble::Twice) => return None,
        }
    }
}
