//! The table `[optimizer]` as understood: which, how it goes through its parameters, and what states it keeps. What a file leaves
//! out is PyTorch's default (`torch/optim/adam.py`, `adamw.py`, `sgd.py`), or Composer's.

use toml::Spanned;

use super::change::Change;
use super::entry::Runtime;
use super::error::ScenarioError;
use super::reader::Reader;
use super::written;
use crate::program::DType;
use crate::runtime::optimizer::{Asked, Caller, Facts, How, OptaxOf, Optimizer, Row, Setting, TABLE, rows};

/// What is said of a setting to somebody who has named an optimizer without it.
type Words = fn(&str) -> String;

/// Settings that are on or off, and what is wrong with each for an optimizer that has it not.
const SWITCHES: [(Setting, Words); 2] = [
    (Setting::StepOnDevice, |name| format!("{name} keeps its number of steps on the host")),
    (Setting::Amsgrad, |name| format!("{name} has no second moments whose maximum it could keep")),
];

/// The name of an optimizer that has a setting: of several the last in the table, which is the plainest.
fn owner(caller: Caller, setting: Setting) -> Option<&'static Row> {
    rows(caller).filter(|row| row.facts.settings.contains(&setting)).last()
}

/// Words in a row, with `or` before the last.
fn any_of(words: impl Iterator<Item = &'static str>) -> String {
    let mut words: Vec<String> = words.map(|word| format!("{word:?}")).collect();
    let last = words.pop().unwrap_or_default();
    if words.is_empty() { last } else { format!("{} or {last}", words.join(", ")) }
}

/// The optimizer of a framework, which steps it on the host or on the device.
pub(super) fn optimizer(
    reader: &mut Reader<'_>,
    written: &written::Optimizer,
    (runtime, caller, on_host): (Runtime, Caller, bool),
) -> Result<Optimizer, ScenarioError> {
    let Row { facts, make } = row(reader, written, (runtime, caller, on_host))?;
    let how = how(reader, written, (caller, facts))?;
    let momentum = momentum(reader, written, (caller, facts))?;
    let nesterov = nesterov(reader, written, (facts, momentum))?;
    let keys = [&written.step_on_device, &written.amsgrad];
    for ((setting, lacks), at) in SWITCHES.into_iter().zip(keys) {
        if let Some(at) = at.as_ref().filter(|_| !facts.settings.contains(&setting)) {
            let remedy = match (owner(caller, setting).map(|row| &row.facts), &written.implementation) {
                (None, _) => "remove the key".to_owned(),
                // One with a single implementation does not have another's.
                (Some(Facts { name, implementations: [how], .. }), Some(_)) => {
                    format!("remove the key, or write name = {name:?} and implementation = {:?}", how.written())
                }
                (Some(Facts { name, .. }), _) => format!("remove the key, or write name = {name:?}"),
            };
            return Err(reader.plan(at, lacks(facts.name), remedy));
        }
    }
    for (key, at) in [("capturable", &written.capturable), ("maximize", &written.maximize)] {
        if let Some(at) = at.as_ref().filter(|at| *at.get_ref()) {
            let problem =
                format!("optimizer.{key} = true is not simulated: {}'s kernels with it are others", facts.name);
            return Err(reader.plan(at, problem, format!("remove the key, or write {key} = false")));
        }
    }
    let refused = facts.refusals.iter().find(|refusal| (refusal.caller, refusal.how) == (caller, how));
    if let (Some(at), Some(refusal)) = (&written.implementation, refused) {
        return Err(reader.plan(at, refusal.problem, refusal.remedy));
    }
    let decay = match (&written.weight_decay, facts.weight_decay.unwrap_or_default()) {
        (Some(at), _) => at_least_zero(reader, "weight_decay", at)?,
        (None, default) => reader.assume("optimizer.weight_decay", default, default),
    };
    let [step_on_device, amsgrad] = keys.map(|at| at.as_ref().is_some_and(|at| *at.get_ref()));
    let decays = decay != 0.0;
    Ok(make(&Asked { decays, momentum, nesterov, amsgrad, step_on_device, ..Asked::plain(how) }))
}

/// Which of optax's steps on XLA.
pub(super) fn optax(
    reader: &mut Reader<'_>,
    written: &written::Optimizer,
    runtime: Runtime,
) -> Result<OptaxOf, ScenarioError> {
    let row = row(reader, written, (runtime, Caller::Xla, false))?;
    match (row.make)(&Asked::plain(How::Fused)) {
        Optimizer::Optax(optax) => Ok(optax.which),
        _ => unreachable!("XLA's rows are optax's: a test says so"),
    }
}

/// The optimizer's row in the table.
fn row(
    reader: &mut Reader<'_>,
    written: &written::Optimizer,
    (runtime, caller, on_host): (Runtime, Caller, bool),
) -> Result<&'static Row, ScenarioError> {
    let names = || any_of(rows(caller).map(|row| row.facts.name));
    let Some(at) = &written.name else {
        let first = rows(caller).next().expect("every framework has a row: a test says so");
        return Ok(reader.assume("optimizer.name", first, first.facts.name));
    };
    let name = at.get_ref();
    let Some(row) = rows(caller).find(|row| row.facts.name == name) else {
        let problem = match TABLE.iter().any(|row| row.facts.name == name) {
            true => format!("{name} has no rules under runtime = {:?}", runtime.written()),
            false => format!("there is no optimizer {name:?}"),
        };
        let remedy = format!("write {}", names());
        return Err(match TABLE.iter().any(|row| row.facts.name == name) {
            true => reader.plan(at, problem, remedy),
            false => reader.unknown(at, problem, remedy),
        });
    };
    if on_host && !row.facts.on_host.contains(&caller) {
        let problem = format!("{name} on the host has no rules");
        return Err(reader.plan(at, problem, "write fsdp.cpu_offload = false, or name = \"adamw\""));
    }
    Ok(row)
}

fn how(
    reader: &mut Reader<'_>,
    written: &written::Optimizer,
    (caller, facts): (Caller, &Facts),
) -> Result<How, ScenarioError> {
    let Some(at) = &written.implementation else {
        let how = facts.default(caller).expect("the row is one that the framework takes");
        // Where there is one, nothing was left out.
        let only = facts.implementations.len() == 1;
        return Ok(match only {
            true => how,
            false => reader.assume("optimizer.implementation", how, how.written()),
        });
    };
    let known = facts.implementations.iter().find(|how| how.written() == at.get_ref());
    known.copied().ok_or_else(|| {
        let problem = format!("{} has no implementation {:?}", facts.name, at.get_ref());
        let all = any_of(facts.implementations.iter().map(|how| how.written()));
        let remedy = match facts.implementations {
            [_] => format!("write {all}, or name = \"adamw\""),
            _ => format!("write {all}"),
        };
        reader.plan(at, problem, remedy)
    })
}

fn at_least_zero(reader: &Reader<'_>, key: &str, at: &Spanned<f64>) -> Result<f64, ScenarioError> {
    let value = *at.get_ref();
    if value.is_finite() && value >= 0.0 {
        return Ok(value);
    }
    Err(reader.plan(at, format!("optimizer.{key} = {value} is out of range"), "write 0.0 (none) or more"))
}

/// Whether there is momentum.
fn momentum(
    reader: &mut Reader<'_>,
    written: &written::Optimizer,
    (caller, facts): (Caller, &Facts),
) -> Result<bool, ScenarioError> {
    let has = facts.settings.contains(&Setting::Momentum);
    match &written.momentum {
        Some(at) if !has => {
            let owner = owner(caller, Setting::Momentum).map_or("sgd", |row| row.facts.name);
            let problem = format!("momentum is a setting of {owner}, and {} has moments of its own", facts.name);
            Err(reader.plan(at, problem, format!("remove optimizer.momentum, or write name = {owner:?}")))
        }
        Some(at) => Ok(at_least_zero(reader, "momentum", at)? > 0.0),
        None if has => Ok(reader.assume("optimizer.momentum", false, 0.0)),
        None => Ok(false),
    }
}

/// Whether the momentum is Nesterov's.
fn nesterov(
    reader: &mut Reader<'_>,
    written: &written::Optimizer,
    (facts, momentum): (&Facts, bool),
) -> Result<bool, ScenarioError> {
    if facts.settings.contains(&Setting::Nesterov) {
        let said = written.nesterov.as_ref().map(|at| *at.get_ref());
        return Ok(reader.flag_or("optimizer.nesterov", said, true));
    }
    match &written.nesterov {
        Some(at) if *at.get_ref() && !momentum => {
            let problem = "Nesterov's momentum needs a momentum, and there is none";
            Err(reader.plan(at, problem, "write name = \"sgd\" and momentum = 0.9, or remove optimizer.nesterov"))
        }
        written => Ok(written.as_ref().is_some_and(|at| *at.get_ref())),
    }
}

/// Muon needs whole matrices: how DTensor moves them over two dimensions of a mesh is not simulated.
pub(super) fn whole_matrices(
    reader: &Reader<'_>,
    written: &written::Optimizer,
    (optimizer, tensor): (&Optimizer, u64),
) -> Result<(), ScenarioError> {
    match (&written.name, optimizer) {
        (Some(at), Optimizer::Muon(_)) if tensor > 1 => {
            let problem = "Muon of matrices that tensor-parallel ranks split is not simulated";
            Err(reader.plan(at, problem, "write mesh.tp = 1, or optimizer.name = \"adamw\""))
        }
        _ => Ok(()),
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
            (Change::remove("optimizer.master_weights"), "remove optimizer.master_weights"),
            (Change::set("precision.storage", "bf16"), "write precision.storage = \"bf16\""),
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
