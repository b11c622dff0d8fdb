//! `HybridZeroOptimizer` (v0.1.0): buckets of gradients reduced beside the last micro-batch's backward, the owner's step,
//! and the broadcasts of what everyone has stepped.

use std::cell::RefCell;
use std::rc::Rc;

use super::owners::Owners;
use crate::plan::internevo::InternEvoPlan;
use crate::program::{
    BufferId, Builder, Category, Collective, Comm, DType, Dispatch, GroupId, MemoryKind, Pass, StreamId, Work,
};
use crate::runtime::eager::COMPUTE;
use crate::runtime::eager::main_gradients::ParamHooks;
use crate::runtime::optimizer::{Asked, Caller, How, Optimizer, Owned};
use crate::units::Bytes;

/// The streams: compute, tensor-parallel collectives, the optimizer's own, on which buckets are packed and reduced, and that
/// of broadcasts.
pub(super) const STREAMS: [&str; 4] = ["compute", "tensor-parallel", "data-parallel", "zero1"];
pub(super) const TENSOR: StreamId = StreamId(1);
const DATA: StreamId = StreamId(2);
const ZERO: StreamId = StreamId(3);

/// Communicators.
#[derive(Clone, Copy, Debug)]
pub(super) struct Groups {
    pub(super) tensor: GroupId,
    data: GroupId,
    zero1: GroupId,
    world: GroupId,
}

impl Groups {
    pub(super) fn new(program: &mut Builder, job: &InternEvoPlan) -> Groups {
        let mesh = job.split.mesh;
        Groups {
            tensor: program.add_group(mesh.tensor()),
            data: program.add_group(mesh.data()),
            zero1: program.add_group(job.owners()),
            world: program.add_group(mesh.world()),
        }
    }
}

/// Gradients on their way to being reduced.
#[derive(Debug)]
pub(super) struct Buckets {
    /// Elements of each parameter.
    sizes: Vec<u64>,
    most: u64,
    dtype: DType,
    data: GroupId,
    several: bool,
    waiting: Vec<usize>,
    elements: u64,
    /// Whether this is the last micro-batch (`skip_grad_reduce`).
    pub(super) reducing: bool,
}

impl Buckets {
    pub(super) fn new(job: &InternEvoPlan, sizes: Vec<u64>, groups: Groups) -> Buckets {
        let (dtype, several) = (job.split.dtype, job.split.mesh.dp > 1);
        let most = job.bucket;
        Buckets { sizes, most, dtype, data: groups.data, several, waiting: vec![], elements: 0, reducing: false }
    }

    /// `_store_and_try_reduce_grads_by_bucket`.
    fn arrived(&mut self, program: &mut Builder, param: usize) {
        if !self.reducing {
            return;
        }
        if self.elements + self.sizes[param] > self.most {
            self.flush(program);
        }
        self.elements += self.sizes[param];
        self.waiting.push(param);
    }

    /// `_reduce_and_copy`: the device is drained; then the gradients are laid side by side, divided, all-reduced and put
    /// back, all on a stream of its own.
    pub(super) fn flush(&mut self, program: &mut Builder) {
        let bytes = Bytes(std::mem::take(&mut self.elements) * self.dtype.bytes());
        let params = std::mem::take(&mut self.waiting);
        if params.is_empty() {
            return;
        }
        drain(program);
        let flat = program.alloc(bytes, DATA, Category::ReduceScatterInput, "aten.cat");
        let moved = |kind| Work::Memory { kind, read: bytes, written: bytes };
        program.launch(DATA, "aten.cat", moved(MemoryKind::Copy), Dispatch::EagerForward);
        program.launch(DATA, "aten.div_", moved(MemoryKind::Elementwise), Dispatch::EagerForward);
        if self.several {
            let comm = Comm { kind: Collective::AllReduce, group: self.data, bytes, dtype: self.dtype };
            program.collective(DATA, comm);
        }
        for param in params {
            let bytes = Bytes(self.sizes[param] * self.dtype.bytes());
            let copy = Work::Memory { kind: MemoryKind::Copy, read: bytes, written: bytes };
            program.launch(DATA, "aten.copy_", copy, Dispatch::EagerForward);
        }
        program.free(flat);
    }
}

/// `torch.cuda.synchronize()`: the host waits for all streams.
pub(super) fn drain(program: &mut Builder) {
    for stream in [COMPUTE, DATA] {
        program.wait_for_host(stream);
    }
}

/// Tells the buckets of gradients that have arrived.
#[derive(Debug)]
pub(super) struct Hooks(pub(super) Rc<RefCell<Buckets>>);

impl ParamHooks for Hooks {
    fn read(&mut self, _program: &mut Builder, _param: usize) {}

    fn arrived(&mut self, program: &mut Builder, param: usize) {
        self.0.borrow_mut().arrived(program, param);
    }
}

/// What a rank owns, and what it hears from the others.
#[derive(Debug)]
pub(super) struct Zero {
    dtype: DType,
    /// Elements of its parameters.
    own: Vec<u64>,
    total: u64,
    /// Elements that each rank of the group broadcasts.
    shares: Vec<u64>,
    groups: Groups,
    tensor: bool,
    sharded: bool,
    alone: bool,
}

impl Zero {
    pub(super) fn new(job: &InternEvoPlan, sizes: &[u64], owners: &Owners, groups: Groups) -> Zero {
        let own: Vec<u64> = owners.params[owners.largest()].iter().map(|&param| sizes[param]).collect();
        let mesh = job.split.mesh;
        Zero {
            dtype: job.split.dtype,
            total: own.iter().sum(),
            own,
            shares: owners.shares().collect(),
            groups,
            tensor: mesh.tp > 1,
            sharded: job.zero1 > 1,
            alone: mesh.ranks() == 1,
        }
    }

    /// Parameters lie flat, owner by owner; the rank's own also in fp32.
    pub(super) fn setup(&self, program: &mut Builder) {
        for elements in &self.shares {
            program.alloc(Bytes(elements * self.dtype.bytes()), COMPUTE, Category::Parameter, "flat_fp16_param");
        }
        program.alloc(self.wide(), COMPUTE, Category::OptimizerState, "fp32_flat_param");
    }

    fn wide(&self) -> Bytes {
        Bytes(self.total * DType::Fp32.bytes())
    }

    /// An elementwise kernel that makes a block.
    fn made(&self, program: &mut Builder, name: &'static str, read: u64, bytes: u64) -> BufferId {
        let made = program.alloc(Bytes(bytes), COMPUTE, Category::OptimizerTemporary, name);
        launch(program, name, read, bytes);
        made
    }

    /// `_check_overflow`: a sum in fp32 of each gradient, read by the host one after the other; then everyone's.
    fn check_overflow(&self, program: &mut Builder) {
        for elements in &self.own {
            let wide = elements * DType::Fp32.bytes();
            let cast = self.made(program, "aten._to_copy", elements * self.dtype.bytes(), wide);
            launch(program, "aten.sum", wide, 4);
            read_back(program);
            program.free(cast);
        }
        if !self.alone {
            all_reduce(program, self.groups.world);
        }
        read_back(program);
    }

    /// `compute_norm`: a copy in fp32 of all gradients, their norm, everyone's.
    fn norm(&self, program: &mut Builder) {
        let copies: Vec<BufferId> = self
            .own
            .iter()
            .map(|&elements| {
                let wide = elements * DType::Fp32.bytes();
                self.made(program, "aten._to_copy", elements * self.dtype.bytes(), wide)
            })
            .collect();
        let read = self.wide();
        let work = Work::Memory { kind: MemoryKind::Foreach, read, written: Bytes(4) };
        program.launch(COMPUTE, "amp_C.multi_tensor_l2norm", work, Dispatch::EagerForward);
        if self.tensor {
            all_reduce(program, self.groups.tensor);
        }
        if self.sharded {
            all_reduce(program, self.groups.zero1);
        }
        read_back(program);
        for copy in copies {
            program.free(copy);
        }
    }

    /// `_step`, once gradients have been reduced and those of other owners are gone. The rank's own, freed by the caller,
    /// are there until the end.
    pub(super) fn step(&self, program: &mut Builder) {
        let pass = program.set_pass(Pass::Optimizer);
        self.check_overflow(program);
        drain(program);
        self.norm(program);
        // The loss scale.
        read_back(program);
        let narrow = self.total * self.dtype.bytes();
        let flat = self.made(program, "aten.cat", narrow, narrow);
        let gradient = self.made(program, "aten._to_copy", narrow, self.wide().0);
        launch(program, "aten.mul_", self.wide().0, self.wide().0);
        // One timer stops, another starts.
        drain(program);
        drain(program);
        let (element, own) = (DType::Fp32.bytes(), [Owned::flat(self.total)]);
        let optimizer = Optimizer::of(Caller::InternEvo, &Asked::plain(How::ForLoop));
        program.first_only(|program| optimizer.make_state(program, Caller::InternEvo, &own, element));
        optimizer.step(program, Caller::InternEvo, &own, element);
        program.free(gradient);
        launch(program, "aten.copy_", self.wide().0, narrow);
        self.broadcast(program);
        program.free(flat);
        drain(program);
        program.set_pass(pass);
    }

    /// `broadcast_params`: each owner's parameters, one after the other on one communicator.
    fn broadcast(&self, program: &mut Builder) {
        if !self.sharded {
            return;
        }
        program.wait_stream(ZERO, COMPUTE);
        for elements in &self.shares {
            let bytes = Bytes(elements * self.dtype.bytes());
            let comm = Comm { kind: Collective::Broadcast, group: self.groups.zero1, bytes, dtype: self.dtype };
            program.collective(ZERO, comm);
        }
        program.wait_stream(COMPUTE, ZERO);
    }
}

fn launch(program: &mut Builder, name: &'static str, read: u64, written: u64) {
    let work = Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(read), written: Bytes(written) };
    program.launch(COMPUTE, name, work, Dispatch::EagerForward);
}

/// The host waits for a number.
pub(super) fn read_back(program: &mut Builder) {
    let copy = Work::HostCopy { bytes: Bytes(4), to_host: true };
    program.launch(COMPUTE, "aten._local_scalar_dense", copy, Dispatch::EagerForward);
    program.wait_for_host(COMPUTE);
}

/// One number of several ranks.
fn all_reduce(program: &mut Builder, group: GroupId) {
    program.wait_stream(DATA, COMPUTE);
    program.collective(DATA, Comm { kind: Collective::AllReduce, group, bytes: Bytes(4), dtype: DType::Fp32 });
    program.wait_stream(COMPUTE, DATA);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::program::builder::Section;
    use crate::program::{Group, Instr, Program};

    /// What the optimizer itself issues, in words; `tests/oracles/internevo_zero.py` wrote it down.
    fn cases() -> Vec<Value> {
        let text = include_str!("../../../tests/oracles/internevo-zero.json");
        serde_json::from_str(text).expect("the oracle's file is JSON")
    }

    fn number(value: &Value) -> u64 {
        value.as_u64().expect("a number")
    }

    fn numbers(value: &Value) -> Vec<u64> {
        value.as_array().expect("a list").iter().map(number).collect()
    }

    /// The step of one rank for parameters of these sizes, whose gradients arrive in reverse.
    fn program(case: &Value) -> Program {
        let sizes = numbers(&case["sizes"]);
        let [data, zero1] = ["data", "zero1"].map(|key| number(&case[key]) as u32);
        let mut program = Builder::new(data, &STREAMS);
        let mut group = |name: &str, size| program.add_group(Group::new(name, size, 1));
        let groups = Groups {
            tensor: group("model", 1),
            data: group("data", data),
            zero1: group("zero1", zero1),
            world: group("global", data),
        };
        let owners = Owners::of(&sizes, zero1);
        assert_eq!(owners.elements, numbers(&case["owned"]));
        let own: Vec<u64> = owners.params[number(&case["rank"]) as usize].iter().map(|&param| sizes[param]).collect();
        let zero = Zero {
            dtype: DType::Bf16,
            total: own.iter().sum(),
            own,
            shares: owners.shares().collect(),
            groups,
            tensor: false,
            sharded: zero1 > 1,
            alone: false,
        };
        let most = number(&case["bucket"]);
        let params = sizes.len();
        let mut buckets = Buckets {
            sizes,
            most,
            dtype: DType::Bf16,
            data: groups.data,
            several: true,
            waiting: vec![],
            elements: 0,
            reducing: true,
        };
        program.section(Section::Step);
        (0..params).rev().for_each(|param| buckets.arrived(&mut program, param));
        // `step` begins: a timer starts.
        drain(&mut program);
        buckets.flush(&mut program);
        // The device is drained once more, and the timer stops.
        drain(&mut program);
        drain(&mut program);
        zero.step(&mut program);
        program.finish()
    }

    /// Events of a program: a wait for all streams, a number read back, a collective.
    fn events(program: &Program) -> Vec<String> {
        let mut said = vec![];
        let mut read = false;
        let mut waits = BTreeSet::new();
        for instr in &program.step {
            match *instr {
                Instr::Launch { kernel, .. } => read = matches!(program.kernel(kernel).work, Work::HostCopy { .. }),
                Instr::HostWait { .. } if read => {
                    said.push("item".to_owned());
                    read = false;
                }
                Instr::HostWait { event } => {
                    waits.insert(event.0);
                    if waits.len() == 2 {
                        said.push("synchronize".to_owned());
                        waits.clear();
                    }
                }
                Instr::Collective { comm, .. } => {
                    let comm = program.comm(comm);
                    let kind = if comm.kind == Collective::Broadcast { "broadcast" } else { "all_reduce" };
                    said.push(format!("{kind} {} {}", program.group(comm.group).name, comm.bytes.0));
                }
                _ => {}
            }
        }
        said
    }

    #[test]
    fn a_step_issues_what_hybrid_zero_optimizer_does() {
        for case in cases() {
            let alone = |group: &str| group == "model" || (group == "zero1" && number(&case["zero1"]) == 1);
            let word = |event: &Value| {
                let parts: Vec<String> =
                    event.as_array().expect("a list").iter().map(|part| part.to_string().replace('"', "")).collect();
                parts.join(" ")
            };
            let all = case["events"].as_array().expect("a list").iter();
            // A collective of one rank moves nothing.
            let expected: Vec<String> = all.filter(|event| !event[1].as_str().is_some_and(alone)).map(word).collect();
            assert_eq!(events(&program(&case)), expected, "{} of {}", case["rank"], case["zero1"]);
        }
    }
}
