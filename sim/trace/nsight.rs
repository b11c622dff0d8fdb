//! The SQLite export of Nsight Systems.
//!
//! Tables that would be empty may not exist, and columns come and go with the release: each is asked for. Numbers of calls repeat
//! between processes, so a kernel is joined by process and number. `tests/traces/README.md`, section 2, has the tables.

mod open;
mod table;
mod text;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use rusqlite::Connection;

use super::draft::{Draft, DraftCall, DraftKernel, DraftOp, ZERO};
use super::error::{Interrupted, Stop};
use super::id::Id;
use super::join::join;
use super::parts::{Call, CallKind, Device, Format, Kernel, Kind, Name, Op, Scope, Thread, Trace};
use super::signature::Written;
use crate::budget;
use table::{Row, Table};

/// Told how many rows of how many were read.
pub(super) type Progress<'a> = &'a dyn Fn(u64, u64) -> ControlFlow<()>;

/// Rows between two reports of progress.
const ROWS: u64 = 4096;

/// Reads the whole file.
pub(super) fn read(path: &Path, progress: Progress<'_>) -> Result<Trace, Stop> {
    let file = open::open(path)?;
    let bytes = std::fs::metadata(path)?.len();
    let mut reader =
        Reader { file: &file, bytes, draft: Draft::default(), strings: BTreeMap::new(), read: 0, all: 0, progress };
    reader.draft.trace.format = Format::Nsight;
    for table in [KERNELS, COPIES, SETS, GRAPHS, CALLS, RANGES] {
        reader.all += Table::rows(&file, table)?;
    }
    reader.kernels()?;
    reader.copies(COPIES, Kind::Copy)?;
    reader.copies(SETS, Kind::Set)?;
    reader.graphs()?;
    reader.calls()?;
    reader.ranges()?;
    reader.machine()?;
    reader.ranks();
    join(reader.draft)
}

/// What to try where there are too many events.
const FEWER: &str = "Profile again with fewer steps";

const KERNELS: &str = "CUPTI_ACTIVITY_KIND_KERNEL";
const COPIES: &str = "CUPTI_ACTIVITY_KIND_MEMCPY";
const SETS: &str = "CUPTI_ACTIVITY_KIND_MEMSET";
const GRAPHS: &str = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE";
const CALLS: &str = "CUPTI_ACTIVITY_KIND_RUNTIME";
const RANGES: &str = "NVTX_EVENTS";

/// What a copy copies, by the numbers of `ENUM_CUDA_MEMCPY_OPER`.
const COPY_KINDS: [(i64, &str); 4] = [(1, "Memcpy HtoD"), (2, "Memcpy DtoH"), (8, "Memcpy DtoD"), (10, "Memcpy PtoP")];

struct Reader<'a> {
    file: &'a Connection,
    /// How long the file is \[B\].
    bytes: u64,
    draft: Draft,
    /// Names by their number in the file.
    strings: BTreeMap<i64, Id<Name>>,
    read: u64,
    all: u64,
    progress: Progress<'a>,
}

/// The process in a global id: bits 24 to 47. What is above tells machines apart.
fn pid(global: i64) -> i64 {
    global >> 24
}

/// A process or a thread as users know it.
fn short(number: i64) -> i64 {
    number & 0xff_ffff
}

impl Reader<'_> {
    /// Calls `each` for the rows of a table, and tells how far it is.
    fn rows(
        &mut self,
        name: &'static str,
        columns: &[&str],
        mut each: impl FnMut(&mut Self, &Row<'_>) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let Some(mut table) = Table::open(self.file, name, columns)? else { return Ok(()) };
        table.for_each(|row| {
            self.read += 1;
            if self.read.is_multiple_of(ROWS) {
                if (self.progress)(self.read, self.all).is_break() {
                    return Err(Stop::Io(std::io::Error::other(Interrupted)));
                }
                budget::within(self.bytes, self.draft.kept() as u64 * budget::EVENT).map_err(|what| Stop::Broken {
                    place: name.to_owned(),
                    what,
                    remedy: FEWER,
                })?;
            }
            each(self, row)
        })
    }

    /// The name with this number in the file's table of strings.
    fn string(&mut self, id: Option<i64>) -> Result<Id<Name>, Stop> {
        let Some(id) = id else { return Ok(self.draft.names.id("")) };
        if let Some(&name) = self.strings.get(&id) {
            return Ok(name);
        }
        let text = table::string(self.file, id)?;
        // Calls carry the version of their interface: cudaLaunchKernel_v7000.
        let name = self.draft.names.id(&text);
        self.strings.insert(id, name);
        Ok(name)
    }

    fn thread(&mut self, global: i64) -> Id<Thread> {
        self.draft.thread(pid(global), short(global))
    }

    fn kernels(&mut self) -> Result<(), Stop> {
        let columns = [
            "start",
            "end",
            "deviceId",
            "streamId",
            "correlationId",
            "globalPid",
            "demangledName",
            "shortName",
            "gridX",
            "gridY",
            "gridZ",
            "blockX",
            "blockY",
            "blockZ",
            "graphNodeId",
        ];
        self.rows(KERNELS, &columns, |reader, row| {
            let name = reader.string(row.integer(6)?.or(row.integer(7)?))?;
            let size = |at: usize| Ok::<u32, Stop>(row.integer(at)?.and_then(|n| u32::try_from(n).ok()).unwrap_or(0));
            let grid = [size(8)?, size(9)?, size(10)?];
            let block = [size(11)?, size(12)?, size(13)?];
            let mut kernel = reader.kernel(row, name, Kind::Compute)?;
            (kernel.kernel.grid, kernel.kernel.block) = (grid, block);
            kernel.kernel.in_graph = row.integer(14)?.is_some_and(|node| node != 0);
            reader.draft.kernels.push(kernel);
            Ok(())
        })
    }

    /// A kernel of a row whose first six columns are those of all that runs on devices.
    fn kernel(&mut self, row: &Row<'_>, name: Id<Name>, kind: Kind) -> Result<DraftKernel, Stop> {
        let (start, duration) = row.span(0, 1)?;
        let number = |at: usize| Ok::<u32, Stop>(row.integer(at)?.and_then(|n| u32::try_from(n).ok()).unwrap_or(0));
        let kernel = Kernel {
            name,
            kind,
            in_graph: false,
            device: number(2)?,
            stream: number(3)?,
            start,
            duration,
            grid: [0; 3],
            block: [0; 3],
            bytes: None,
            launch: None,
            op: None,
            range: None,
            step: None,
            collective: None,
            instruction: None,
        };
        let correlation = row.integer(4)?.and_then(|number| u64::try_from(number).ok());
        Ok(DraftKernel { kernel, pid: row.integer(5)?.map(pid), correlation })
    }

    fn copies(&mut self, table: &'static str, kind: Kind) -> Result<(), Stop> {
        let columns = ["start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes", "copyKind"];
        self.rows(table, &columns, |reader, row| {
            let of = row.integer(7)?;
            let name = match kind {
                Kind::Set => "Memset",
                _ => COPY_KINDS.iter().find(|&&(number, _)| Some(number) == of).map_or("Memcpy", |&(_, name)| name),
            };
            let name = reader.draft.names.id(name);
            let bytes = row.integer(6)?.and_then(|bytes| u64::try_from(bytes).ok());
            let mut kernel = reader.kernel(row, name, kind)?;
            kernel.kernel.bytes = bytes;
            reader.draft.kernels.push(kernel);
            Ok(())
        })
    }

    /// Whole CUDA graphs: what the tool records instead of their kernels unless it is asked for nodes.
    fn graphs(&mut self) -> Result<(), Stop> {
        let columns = ["start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphId"];
        let mut graphs = 0u64;
        self.rows(GRAPHS, &columns, |reader, row| {
            let name = reader.draft.names.id(&format!("CUDA graph {}", row.integer(6)?.unwrap_or(0)));
            let mut kernel = reader.kernel(row, name, Kind::Compute)?;
            kernel.kernel.in_graph = true;
            reader.draft.kernels.push(kernel);
            graphs += 1;
            Ok(())
        })?;
        if graphs > 0 {
            let note = "CUDA graphs were recorded whole, without their kernels: profile with --cuda-graph-trace=node";
            self.draft.note(note.to_owned());
        }
        Ok(())
    }

    fn calls(&mut self) -> Result<(), Stop> {
        self.rows(CALLS, &["start", "end", "globalTid", "correlationId", "nameId"], |reader, row| {
            let name = reader.string(row.integer(4)?)?;
            let kind = match reader.draft.names.get(name) {
                text if text.contains("GraphLaunch") => CallKind::Graph,
                text if text.contains("Synchronize") => CallKind::Wait,
                _ => CallKind::Launch,
            };
            let (start, duration) = row.span(0, 1)?;
            let thread = reader.thread(row.integer(2)?.unwrap_or(0));
            let correlation = row.integer(3)?.and_then(|number| u64::try_from(number).ok());
            reader.draft.calls.push(DraftCall { call: Call { name, kind, thread, start, duration }, correlation });
            Ok(())
        })
    }

    fn ranges(&mut self) -> Result<(), Stop> {
        let columns = ["start", "end", "eventType", "globalTid", "text", "textId"];
        self.rows(RANGES, &columns, |reader, row| {
            // Ranges that are pushed and popped nest; others need not, and name no operator.
            if !matches!(row.integer(2)?, Some(59 | 70)) || row.integer(1)?.is_none() {
                return Ok(());
            }
            let written = match row.text(4)? {
                Some(text) => text,
                None => {
                    let name = reader.string(row.integer(5)?)?;
                    reader.draft.names.get(name).to_owned()
                }
            };
            let (start, duration) = row.span(0, 1)?;
            let range = text::Range::parse(&written);
            let dims = range.sizes.and_then(|sizes| serde_json::from_str(sizes).ok());
            // What stands there without being a list as PyTorch writes it says nothing of shapes.
            let signature = reader.draft.signature(Written { dims, ..Written::default() }).unwrap_or(None);
            let op = Op {
                name: reader.draft.names.id(range.name),
                thread: reader.thread(row.integer(3)?.unwrap_or(0)),
                start,
                duration,
                parent: None,
                scope: if range.is_operator { Scope::Operator } else { Scope::Range },
                signature,
                sequence: range.sequence,
                forward: None,
                module: None,
            };
            reader.draft.ops.push(DraftOp { op, is_backward: range.is_backward, collective: None });
            Ok(())
        })
    }

    fn machine(&mut self) -> Result<(), Stop> {
        let mut gpus = BTreeMap::new();
        self.rows("TARGET_INFO_GPU", &["id", "name", "smCount", "totalMemory"], |_, row| {
            gpus.entry(row.integer(0)?).or_insert((row.text(1)?, row.integer(2)?, row.integer(3)?));
            Ok(())
        })?;
        let mut cuda = vec![];
        self.rows("TARGET_INFO_CUDA_DEVICE", &["gpuId", "cudaId"], |_, row| {
            cuda.push((row.integer(0)?, row.integer(1)?.and_then(|id| u32::try_from(id).ok())));
            Ok(())
        })?;
        cuda.sort_unstable();
        cuda.dedup();
        for (gpu, number) in cuda {
            let (Some(number), Some((name, sms, memory))) = (number, gpus.get(&gpu)) else { continue };
            let positive = |value: &Option<i64>| value.and_then(|value| u64::try_from(value).ok()).filter(|&v| v > 0);
            self.draft.trace.machine.devices.push(Device {
                number,
                name: name.clone(),
                sms: positive(sms).and_then(|sms| u32::try_from(sms).ok()),
                memory: positive(memory),
            });
        }
        if self.draft.trace.machine.devices.is_empty() {
            self.draft.note("the file does not say which GPU it is about".to_owned());
        }
        self.rows("META_DATA_EXPORT", &["name", "value"], |reader, row| {
            if row.text(0)?.as_deref() == Some("EXPORT_PRODUCT_VERSION") {
                let version = row.text(1)?.unwrap_or_default();
                reader.draft.trace.machine.versions.push(("Nsight Systems".to_owned(), version));
            }
            Ok(())
        })?;
        self.rows("TARGET_INFO_SESSION_START_TIME", &["utcEpochNs"], |reader, row| {
            reader.draft.trace.epoch = row.integer(0)?.map(i128::from);
            Ok(())
        })
    }

    /// One process is one rank; which one, the file does not tell.
    fn ranks(&mut self) {
        let mut processes: Vec<i64> = self.draft.kernels.iter().filter_map(|kernel| kernel.pid).collect();
        processes.sort_unstable();
        processes.dedup();
        if processes.len() > 1 {
            let pids: Vec<String> = processes.iter().map(|&pid| short(pid).to_string()).collect();
            self.draft.note(format!("{} processes ran kernels: {}", pids.len(), pids.join(", ")));
        }
        self.draft.note("Nsight Systems does not write ranks, process groups or sizes of collectives".to_owned());
        debug_assert!(self.draft.kernels.iter().all(|kernel| kernel.kernel.start >= ZERO / 2));
    }
}
