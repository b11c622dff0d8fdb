//! The table `[optimizer]` as understood: which, how it goes through its parameters, and what states it keeps. What a file leaves
//! out is PyTorch's default (`torch/optim/adam.py`, `adamw.py`, `sgd.py`), or Composer's.

use toml::Spanned;

use super::entry::Runtime;
use super::error::ScenarioError;
use super::names::FSDP2;
use super::reader::Reader;
use super::written;
use crate::program::DType;
use crate::runtime::optimizer::{Adam, Composer, Decay, How, Optimizer, Sgd};

/// Optimizers by name, with the weight decay each has by default.
const NAMES: [(&str, f64); 4] = [("adamw", 0.01), ("adam", 0.0), ("sgd", 0.0), ("decoupled_adamw", 1e-5)];

/// The optimizer. Where the file says nothing, Adam goes through its parameters in the way `default`.
pub(super) fn optimizer(
    reader: &mut Reader<'_>,
    written: &written::Optimizer,
    (runtime, default): (Runtime, How),
) -> Result<Optimizer, ScenarioError> {
    let name = match &written.name {
        Some(at) => NAMES.iter().find(|(name, _)| name == at.get_ref()).copied().ok_or_else(|| {
            let problem = format!("there is no optimizer {:?}", at.get_ref());
            reader.plan(at, problem, "write \"adamw\", \"adam\", \"sgd\" or \"decoupled_adamw\"")
        })?,
        None => reader.assume("optimizer.name", NAMES[0], "adamw"),
    };
    let (name, default_decay) = name;
    let how = how(reader, written, name, default)?;
    let momentum = momentum(reader, written, name)?;
    let nesterov = nesterov(reader, written, momentum)?;
    for (key, at, owners) in
        [("step_on_device", &written.step_on_device, "decoupled_adamw"), ("amsgrad", &written.amsgrad, "adam or adamw")]
    {
        if let Some(at) = at.as_ref().filter(|_| !owners.split(" or ").any(|owner| owner == name)) {
            let problem = match key {
                "step_on_device" => format!("{name} keeps its number of steps on the host"),
                _ => format!("{name} has no second moments whose maximum it could keep"),
            };
            let owner = owners.split(" or ").next().unwrap_or(owners);
            let change = match (owner, &written.implementation) {
                ("decoupled_adamw", Some(_)) => format!("name = \"{owner}\" and implementation = \"for_loop\""),
                _ => format!("name = \"{owner}\""),
            };
            return Err(reader.plan(at, problem, format!("remove the key, or write {change}")));
        }
    }
    for (key, at) in [("capturable", &written.capturable), ("maximize", &written.maximize)] {
        if let Some(at) = at.as_ref().filter(|at| *at.get_ref()) {
            let problem = format!("optimizer.{key} = true is not simulated: {name}'s kernels with it are others");
            return Err(reader.plan(at, problem, format!("remove the key, or write {key} = false")));
        }
    }
    if let (Some(at), How::Fused, "sgd", true) = (&written.implementation, how, name, runtime == FSDP2) {
        let problem = "PyTorch refuses a fused SGD of fully_shard's parameters: \"Operator aten._fused_sgd_.default does not \
                       have a sharding strategy registered\"";
        return Err(reader.plan(at, problem, "write implementation = \"foreach\", which is PyTorch's default"));
    }
    let decay = match &written.weight_decay {
        Some(at) => at_least_zero(reader, "weight_decay", at)?,
        None => reader.assume("optimizer.weight_decay", default_decay, default_decay),
    };
    let decays = decay != 0.0;
    let flag = |at: &Option<Spanned<bool>>| at.as_ref().is_some_and(|at| *at.get_ref());
    let decay = match name {
        _ if !decays => Decay::None,
        "adam" => Decay::InGradients,
        _ => Decay::OfWeights,
    };
    Ok(match name {
        "sgd" => Optimizer::Sgd(Sgd { how, decays, momentum, nesterov }),
        "decoupled_adamw" => Optimizer::Composer(Composer { decays, step_on_device: flag(&written.step_on_device) }),
        _ => Optimizer::Adam(Adam { how, decay, amsgrad: flag(&written.amsgrad) }),
    })
}

fn how(reader: &mut Reader<'_>, written: &written::Optimizer, name: &str, default: How) -> Result<How, ScenarioError> {
    let composers = name == "decoupled_adamw";
    let Some(at) = &written.implementation else {
        let key = "optimizer.implementation";
        return Ok(match name {
            "decoupled_adamw" => How::ForLoop,
            "adam" | "adamw" if default == How::Fused => reader.assume(key, default, "fused"),
            _ => reader.assume(key, How::Foreach, "foreach"),
        });
    };
    match at.get_ref().as_str() {
        "for_loop" => Ok(How::ForLoop),
        "foreach" if !composers => Ok(How::Foreach),
        "fused" if !composers => Ok(How::Fused),
        other => {
            let problem = format!("{name} has no implementation {other:?}");
            let remedy = match composers {
                true => "write \"for_loop\", or name = \"adamw\"",
                false => "write \"fused\", \"foreach\" or \"for_loop\"",
            };
            Err(reader.plan(at, problem, remedy))
        }
    }
}

fn at_least_zero(reader: &Reader<'_>, key: &str, at: &Spanned<f64>) -> Result<f64, ScenarioError> {
    let value = *at.get_ref();
    if value.is_finite() && value >= 0.0 {
        return Ok(value);
    }
    Err(reader.plan(at, format!("optimizer.{key} = {value} is out of range"), "write 0.0 (none) or more"))
}

/// Whether there is momentum.
fn momentum(reader: &mut Reader<'_>, written: &written::Optimizer, name: &str) -> Result<bool, ScenarioError> {
    match &written.momentum {
        Some(at) if name != "sgd" => {
            let problem = format!("momentum is a setting of sgd, and {name} has moments of its own");
            Err(reader.plan(at, problem, "remove optimizer.momentum, or write name = \"sgd\""))
        }
        Some(at) => Ok(at_least_zero(reader, "momentum", at)? > 0.0),
        None if name == "sgd" => Ok(reader.assume("optimizer.momentum", false, 0.0)),
        None => Ok(false),
    }
}

/// Whether the momentum is Nesterov's.
fn nesterov(reader: &Reader<'_>, written: &written::Optimizer, momentum: bool) -> Result<bool, ScenarioError> {
    match &written.nesterov {
        Some(at) if *at.get_ref() && !momentum => {
            let problem = "Nesterov's momentum needs a momentum, and there is none";
            Err(reader.plan(at, problem, "write name = \"sgd\" and momentum = 0.9, or remove optimizer.nesterov"))
        }
        written => Ok(written.as_ref().is_some_and(|at| *at.get_ref())),
    }
}

/// Whether the optimizer steps copies of the parameters in fp32.
pub(super) fn master_weights(
    reader: &Reader<'_>,
    written: &written::Optimizer,
    (runtime, storage, on_host): (Runtime, DType, bool),
) -> Result<bool, ScenarioError> {
    let Some(at) = written.master_weights.as_ref().filter(|at| *at.get_ref()) else { return Ok(false) };
    let no = |problem: String, remedy: &str| Err(reader.plan(at, problem, remedy));
    if storage == DType::Fp32 {
        let problem = "parameters are stored in fp32, so the optimizer steps them as they are".to_owned();
        let remedy = reader.remedy(&[
            ("optimizer.master_weights", "remove optimizer.master_weights"),
            ("precision.storage = \"bf16\"", "write precision.storage = \"bf16\""),
        ]);
        return no(problem, &remedy);
    }
    if on_host {
        let problem = "copies of parameters that live on the host are not simulated".to_owned();
        return no(problem, "write fsdp.cpu_offload = false, or precision.storage = \"fp32\"");
    }
    if written.in_backward.as_ref().is_some_and(|at| *at.get_ref()) {
        let problem = "a step inside backward steps the parameters themselves".to_owned();
        return no(problem, "remove optimizer.in_backward, or optimizer.master_weights");
    }
    if runtime == super::names::FSDP1 {
        let problem = "copies of flat parameters are not simulated".to_owned();
        return no(problem, "write runtime = \"fsdp2\", or precision.storage = \"fp32\"");
    }
    Ok(true)
}
