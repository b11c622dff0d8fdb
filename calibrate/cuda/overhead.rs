//! What calls cost that do nothing: what the host pays to issue, and what the device pays between kernels.
//!
//! | call | clock | is |
//! |---|---|---|
//! | `launch` | host | `cuLaunchKernel` of an empty kernel, until it returns |
//! | `launch_rate` | both | one of many empty kernels, until all have run: the host-bound rate |
//! | `event_record` | host | `cuEventRecord` without timing, as caching allocators and FSDP record |
//! | `stream_wait` | host | `cuStreamWaitEvent` on an event that has passed |
//! | `graph_launch` | host | `cuGraphLaunch` of one empty kernel |
//! | `graph_node` | device | one of a thousand empty kernels of a graph |
//! | `kernel` | device | one of many empty kernels of a stream, issued beforehand |
//! | `hop` | device | the same, each on the other of two streams than the one before, which it waits for by an event |

use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaGraph, CudaStream, sys};

use super::device::Device;
use super::error::CudaError;
use super::library::Library;
use super::sweep::{Prepared, Skip, Sweep, Watch};
use crate::plan::Job;
use crate::points::{Machine, What};

/// Calls that do nothing.
pub struct Overheads;

/// Their share of a step, assumed; it orders the measuring.
const SHARE: f64 = 0.03;

/// Nodes of the graph whose nodes are timed.
const NODES: u32 = 1000;

const CALLS: [&str; 8] =
    ["launch", "launch_rate", "event_record", "stream_wait", "graph_launch", "graph_node", "kernel", "hop"];

impl Sweep for Overheads {
    fn name(&self) -> &'static str {
        "overhead"
    }

    fn needs(&self) -> &'static [Library] {
        &[Library::Driver]
    }

    fn plan(&self, _: &Machine) -> Vec<Job> {
        let job =
            |call: &str| Job { what: What::Overhead { call: call.to_owned() }, value: SHARE / CALLS.len() as f64 };
        CALLS.into_iter().map(job).collect()
    }

    fn measures(&self, what: &What) -> bool {
        matches!(what, What::Overhead { .. })
    }

    fn prepare<'d>(&self, device: &'d Device, what: &What) -> Result<Box<dyn Prepared + 'd>, Skip> {
        let What::Overhead { call } = what else { return Err(Skip::because("not an overhead")) };
        let event = || -> Result<CudaEvent, CudaError> {
            let event = device.context().new_event(Some(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING))?;
            event.record(device.stream())?;
            Ok(event)
        };
        let (call, watch) = match call.as_str() {
            "launch" => (Call::Launch, Watch::Host),
            "launch_rate" => (Call::Launch, Watch::Both),
            "event_record" => (Call::Record(event()?), Watch::Host),
            "stream_wait" => (Call::Wait(event()?), Watch::Host),
            "graph_launch" => (Call::Graph(graph(device, 1)?, 1), Watch::Host),
            "graph_node" => (Call::Graph(graph(device, NODES)?, NODES), Watch::Device),
            "kernel" => (Call::Launch, Watch::Device),
            "hop" => (Call::Hop([event()?, event()?]), Watch::Device),
            _ => return Err(Skip::because(format!("no call {call:?}"))),
        };
        Ok(Box::new(Ready { device, call, watch }))
    }
}

enum Call {
    Launch,
    Record(CudaEvent),
    Wait(CudaEvent),
    /// To the stream beside and back.
    Hop([CudaEvent; 2]),
    Graph(CudaGraph, u32),
}

struct Ready<'d> {
    device: &'d Device,
    call: Call,
    watch: Watch,
}

impl Prepared for Ready<'_> {
    fn launch(&mut self, _: usize) -> Result<(), CudaError> {
        match &self.call {
            Call::Launch => empty(self.device, self.device.stream())?,
            Call::Record(event) => event.record(self.device.stream())?,
            Call::Wait(event) => self.device.stream().wait(event)?,
            Call::Hop([there, back]) => {
                let (stream, beside) = (self.device.stream(), self.device.beside());
                for (from, to, event) in [(stream, beside, there), (beside, stream, back)] {
                    empty(self.device, from)?;
                    event.record(from)?;
                    to.wait(event)?;
                }
            }
            Call::Graph(graph, _) => graph.launch()?,
        }
        Ok(())
    }

    fn watch(&self) -> Watch {
        self.watch
    }

    fn per_launch(&self) -> u32 {
        match self.call {
            Call::Graph(_, nodes) => nodes,
            Call::Hop(_) => 2,
            _ => 1,
        }
    }
}

fn empty(device: &Device, stream: &Arc<CudaStream>) -> Result<(), CudaError> {
    device.launch(stream, device.empty(), 1, 32, 0, &[])
}

/// A chain of empty kernels.
fn graph(device: &Device, nodes: u32) -> Result<CudaGraph, CudaError> {
    let stream = device.stream();
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let issued = (0..nodes).try_for_each(|_| empty(device, stream));
    // The capture is ended whatever happened in it, or the stream would be lost.
    let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0));
    issued?;
    graph?.ok_or_else(|| CudaError::library(Library::Driver, "a captured graph is empty"))
}
