//! From a graph to something that runs: descriptors, the heuristic's choice, and the addresses of one call.

use std::ffi::c_void;
use std::rc::Rc;

use cudarc::cudnn::sys::cudnnBackendHeurMode_t as Heuristic;

use super::api::{Api, Handle, refused};
use super::descriptor::{Class, Descriptor, Kind, Name};
use super::graph::{Described, Graph, Mode, Operation, Role, Tensor, Type};
use crate::cuda::error::CudaError;

/// Bytes that every address is a multiple of; the driver's memory is, and so are parts of a ring.
const ALIGNMENT: i64 = 16;

/// Engines that the heuristic is asked for; the first that can be planned is taken, as frameworks do.
const ENGINES: usize = 16;

/// What a graph is planned for.
#[derive(Clone)]
pub enum Target {
    /// A device of this machine.
    Handle(Rc<Handle>),
    /// A device as cuDNN describes it in JSON (from 9.8 on): plans for it can be made, and not run, where it is not.
    #[cfg(test)]
    Device(Device),
}

impl Target {
    /// A device in cuDNN's own words.
    #[cfg(test)]
    pub fn device(api: &Rc<Api>, json: &str) -> Result<Self, CudaError> {
        let empty = Descriptor::new(api, Class::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?;
        let device = empty.text(Name::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, json)?.finalize("the device")?;
        Ok(Self::Device(Device(device)))
    }

    /// The descriptor of a device that is not here.
    fn described(&self) -> Option<&Rc<Descriptor>> {
        match self {
            Self::Handle(_) => None,
            #[cfg(test)]
            Self::Device(device) => Some(&device.0),
        }
    }

    /// The library's handle, of a device that is here.
    fn handle(&self) -> Option<*mut c_void> {
        match self {
            Self::Handle(handle) => Some(handle.raw),
            #[cfg(test)]
            Self::Device(_) => None,
        }
    }
}

/// A device that is not here.
#[cfg(test)]
#[derive(Clone)]
pub struct Device(Rc<Descriptor>);

/// A graph that cuDNN has planned.
pub struct Plan {
    target: Target,
    plan: Rc<Descriptor>,
    constants: Constants,
    /// The engine and its knobs, as `engine 5: 12=3 …`.
    pub algorithm: String,
    /// Scratch memory that a call needs \[B\].
    pub workspace: u64,
}

/// A call: a plan with the addresses of its tensors.
pub struct Call {
    pack: Rc<Descriptor>,
    _constants: Constants,
}

/// Numbers that travel with each call, where they stay put: calls hold their addresses.
type Constants = Rc<Vec<(Tensor, f32)>>;

impl Plan {
    /// Plans `graph` with the first engine that the heuristic names and that can be planned.
    pub fn new(api: &Rc<Api>, target: &Target, graph: &Graph) -> Result<Self, CudaError> {
        let device = target.described();
        let whole = lower_graph(api, target, graph)?;
        let engines = engines(api, &whole, device)?;
        let mut last = refused(format!("no engine for this graph{}", api.last()));
        for engine in engines {
            let mut plan = Descriptor::new(api, Class::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
            if let Some(handle) = target.handle() {
                plan = plan.handle(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle)?;
            }
            if let Some(device) = device {
                plan = plan.descriptors(Name::CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, &[device])?;
            }
            let plan = plan.descriptors(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[&engine])?;
            match plan.finalize("an engine") {
                Ok(plan) => {
                    let workspace = plan.number(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?.max(0) as u64;
                    let (target, constants) = (target.clone(), constants(graph));
                    return Ok(Self { target, plan, constants, algorithm: describe(&engine)?, workspace });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The plan with the addresses of its tensors and of `workspace` bytes of scratch memory.
    pub fn bind(&self, addresses: &[(Tensor, u64)], workspace: u64) -> Result<Call, CudaError> {
        let bound = addresses.iter().map(|(tensor, address)| (tensor.uid(), *address as *mut c_void));
        let constants =
            self.constants.iter().map(|(tensor, value)| (tensor.uid(), std::ptr::from_ref(value).cast_mut().cast()));
        let (uids, pointers): (Vec<i64>, Vec<*mut c_void>) = bound.chain(constants).unzip();
        let pack = Descriptor::new(self.plan.api(), Class::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?
            .numbers(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &uids)?
            .pointers(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &pointers)?
            .pointers(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[workspace as *mut c_void])?
            .finalize("a call")?;
        Ok(Call { pack, _constants: self.constants.clone() })
    }

    /// Issues one call on the handle's stream.
    #[allow(unsafe_code)]
    pub fn run(&self, call: &Call) -> Result<(), CudaError> {
        let Some(handle) = self.target.handle() else {
            return Err(refused("the plan is for a device that is not here"));
        };
        let api = self.plan.api();
        // SAFETY: the handle, the plan and the call's addresses are alive; callers bind buffers of the graph's sizes.
        let status = unsafe { (api.execute)(handle, self.plan.raw(), call.pack.raw()) };
        api.check(status, "a call")
    }
}

/// The descriptor of a graph, finalized: every operation and all of them together are such as cuDNN knows.
pub(super) fn lower_graph(api: &Rc<Api>, target: &Target, graph: &Graph) -> Result<Rc<Descriptor>, CudaError> {
    let operations = operations(api, graph)?;
    let mut whole = Descriptor::new(api, Class::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
    if let Some(handle) = target.handle() {
        whole = whole.handle(Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle)?;
    }
    let list: Vec<&Rc<Descriptor>> = operations.iter().collect();
    whole.descriptors(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &list)?.finalize("the graph")
}

/// Engines with their knobs, best first, as the heuristic that frameworks ask has them.
fn engines(
    api: &Rc<Api>,
    graph: &Rc<Descriptor>,
    device: Option<&Rc<Descriptor>>,
) -> Result<Vec<Rc<Descriptor>>, CudaError> {
    let mut heuristic = Descriptor::new(api, Class::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?
        .descriptors(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[graph])?
        .choice(Name::CUDNN_ATTR_ENGINEHEUR_MODE, Kind::CUDNN_TYPE_HEUR_MODE, Heuristic::CUDNN_HEUR_MODE_A as u32)?;
    if let Some(device) = device {
        heuristic = heuristic.descriptors(Name::CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, &[device])?;
    }
    let class = Class::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
    heuristic.finalize("the heuristic")?.list(Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, class, ENGINES)
}

/// The graph's constants.
fn constants(graph: &Graph) -> Constants {
    let constant = |(at, tensor): (usize, &Described)| match tensor.role {
        Role::Constant(value) => Some((Tensor(at), value)),
        Role::Bound | Role::Virtual => None,
    };
    Rc::new(graph.tensors.iter().enumerate().filter_map(constant).collect())
}

/// The descriptors of a graph's operations.
fn operations(api: &Rc<Api>, graph: &Graph) -> Result<Vec<Rc<Descriptor>>, CudaError> {
    let tensors: Result<Vec<Rc<Descriptor>>, CudaError> = graph
        .tensors
        .iter()
        .enumerate()
        .map(|(at, tensor)| {
            Descriptor::new(api, Class::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
                .numbers(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[Tensor(at).uid()])?
                .choice(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, Kind::CUDNN_TYPE_DATA_TYPE, tensor.dtype.code())?
                .numbers(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, &tensor.dims)?
                .numbers(Name::CUDNN_ATTR_TENSOR_STRIDES, &tensor.strides)?
                .numbers(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[ALIGNMENT])?
                .flag(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, tensor.role == Role::Virtual)?
                .flag(Name::CUDNN_ATTR_TENSOR_IS_BY_VALUE, matches!(tensor.role, Role::Constant(_)))?
                .finalize(tensor.name)
        })
        .collect();
    let tensors = tensors?;
    graph.operations.iter().map(|operation| lower(api, graph, &tensors, operation)).collect()
}

/// The descriptor of one operation.
fn lower(
    api: &Rc<Api>,
    graph: &Graph,
    tensors: &[Rc<Descriptor>],
    operation: &Operation,
) -> Result<Rc<Descriptor>, CudaError> {
    let of = |tensor: Tensor| &tensors[tensor.0];
    let name = |tensor: Tensor| graph.tensors[tensor.0].name;
    let number = Kind::CUDNN_TYPE_DATA_TYPE;
    match *operation {
        Operation::Matmul { a, b, c } => {
            let how = Descriptor::new(api, Class::CUDNN_BACKEND_MATMUL_DESCRIPTOR)?
                .choice(Name::CUDNN_ATTR_MATMUL_COMP_TYPE, number, Type::Fp32.code())?
                .finalize(name(c))?;
            Descriptor::new(api, Class::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)?
                .descriptors(Name::CUDNN_ATTR_OPERATION_MATMUL_ADESC, &[of(a)])?
                .descriptors(Name::CUDNN_ATTR_OPERATION_MATMUL_BDESC, &[of(b)])?
                .descriptors(Name::CUDNN_ATTR_OPERATION_MATMUL_CDESC, &[of(c)])?
                .descriptors(Name::CUDNN_ATTR_OPERATION_MATMUL_DESC, &[&how])?
                .finalize(name(c))
        }
        Operation::Pointwise { mode, x, b, t, y } => {
            let mut how = Descriptor::new(api, Class::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?
                .choice(Name::CUDNN_ATTR_POINTWISE_MODE, Kind::CUDNN_TYPE_POINTWISE_MODE, mode.code())?
                .choice(Name::CUDNN_ATTR_POINTWISE_MATH_PREC, number, mode.precision().code())?;
            if let Mode::Index(axis) = mode {
                how = how.numbers(Name::CUDNN_ATTR_POINTWISE_AXIS, &[i64::from(axis)])?;
            }
            let how = how.finalize(name(y))?;
            let mut whole = Descriptor::new(api, Class::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?
                .descriptors(Name::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &[&how])?
                .descriptors(Name::CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &[of(x)])?;
            if let Some(b) = b {
                whole = whole.descriptors(Name::CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &[of(b)])?;
            }
            if let Some(t) = t {
                whole = whole.descriptors(Name::CUDNN_ATTR_OPERATION_POINTWISE_TDESC, &[of(t)])?;
            }
            whole.descriptors(Name::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &[of(y)])?.finalize(name(y))
        }
        Operation::Reduce { how, x, y } => {
            let how = Descriptor::new(api, Class::CUDNN_BACKEND_REDUCTION_DESCRIPTOR)?
                .choice(Name::CUDNN_ATTR_REDUCTION_COMP_TYPE, number, Type::Fp32.code())?
                .choice(Name::CUDNN_ATTR_REDUCTION_OPERATOR, Kind::CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, how.code())?
                .finalize(name(y))?;
            Descriptor::new(api, Class::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)?
                .descriptors(Name::CUDNN_ATTR_OPERATION_REDUCTION_DESC, &[&how])?
                .descriptors(Name::CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &[of(x)])?
                .descriptors(Name::CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &[of(y)])?
                .finalize(name(y))
        }
        Operation::Reshape { x, y } => Descriptor::new(api, Class::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)?
            .descriptors(Name::CUDNN_ATTR_OPERATION_RESHAPE_XDESC, &[of(x)])?
            .descriptors(Name::CUDNN_ATTR_OPERATION_RESHAPE_YDESC, &[of(y)])?
            .finalize(name(y)),
    }
}

/// The engine and the values of its knobs.
fn describe(config: &Descriptor) -> Result<String, CudaError> {
    let engine = config.list(Name::CUDNN_ATTR_ENGINECFG_ENGINE, Class::CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1)?;
    let index = match engine.first() {
        Some(engine) => engine.number(Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX)?,
        None => return Err(refused("an engine's configuration without an engine")),
    };
    let class = Class::CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR;
    let mut knobs: Vec<(u32, i64)> = vec![];
    for knob in config.list(Name::CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, class, 64)? {
        let kind = knob.chosen(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, Kind::CUDNN_TYPE_KNOB_TYPE)?;
        knobs.push((kind, knob.number(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE)?));
    }
    knobs.sort_unstable();
    let knobs: Vec<String> = knobs.iter().map(|(kind, value)| format!("{kind}={value}")).collect();
    Ok(format!("engine {index}: {}", knobs.join(" ")))
}
