//! How often each instruction of a program runs in one step.
//!
//! A loop's body runs as often as the compiler noted (`known_trip_count`), or as its condition says: a counter that starts at
//! a constant, is raised by a constant, and is compared with a constant. Of a conditional each branch is counted once,
//! and the functions that a reduction or a sort applies to elements are not entered. An asynchronous instruction is entered
//! where it starts.

use std::collections::BTreeMap;

use super::{Computation, Instruction, Module};

/// A function of a program and how often it runs.
pub struct Entered<'m> {
    /// The function.
    pub computation: &'m Computation,
    /// How often it runs.
    pub times: u64,
}

/// A loop whose number of turns is not known; its body is counted once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unbounded(pub String);

/// All functions that run, each with how often, and the loops that are not understood.
pub fn entered(module: &Module) -> (Vec<Entered<'_>>, Vec<Unbounded>) {
    let mut times: BTreeMap<i64, u64> = [(module.entry, 1)].into();
    let mut unbounded = vec![];
    let mut all = vec![];
    // Those called come first in the file, so from the back everybody's callers are known.
    for computation in module.computations.iter().rev() {
        let Some(&own) = times.get(&computation.id) else { continue };
        for instruction in &computation.instructions {
            for (called, turns) in calls(module, computation, instruction, &mut unbounded) {
                let all = times.entry(called).or_default();
                *all = all.saturating_add(own.saturating_mul(turns));
            }
        }
        all.push(Entered { computation, times: own });
    }
    (all, unbounded)
}

/// The functions that an instruction runs, and how often each.
fn calls(
    module: &Module,
    within: &Computation,
    instruction: &Instruction,
    unbounded: &mut Vec<Unbounded>,
) -> Vec<(i64, u64)> {
    match instruction.opcode.as_str() {
        "while" => {
            let turns = turns(module, within, instruction).unwrap_or_else(|| {
                unbounded.push(Unbounded(instruction.name.clone()));
                1
            });
            // Body first, then the condition, which also runs once after the last turn.
            instruction.calls.iter().copied().zip([turns, turns + 1]).collect()
        }
        "fusion" | "call" | "conditional" | "async-start" => {
            instruction.calls.iter().map(|called| (*called, 1)).collect()
        }
        _ => vec![],
    }
}

/// How often a loop turns.
pub fn turns(module: &Module, within: &Computation, instruction: &Instruction) -> Option<u64> {
    noted(instruction).or_else(|| {
        let [body, condition] = instruction.calls[..] else { return None };
        let (body, condition) = (module.computation(body)?, module.computation(condition)?);
        counted(module, within, instruction, body, condition)
    })
}

/// The number that the compiler noted.
fn noted(instruction: &Instruction) -> Option<u64> {
    let notes: serde_json::Value = serde_json::from_slice(&instruction.backend).ok()?;
    notes.pointer("/known_trip_count/n")?.as_str()?.parse().ok()
}

/// From the counter: `for (i = start; i < bound; i += step)`.
fn counted(
    module: &Module,
    within: &Computation,
    instruction: &Instruction,
    body: &Computation,
    condition: &Computation,
) -> Option<u64> {
    let (comparison, inside) = comparison(module, condition)?;
    let carried = |at: usize| -> Option<Term> { term(&inside, comparison, at) };
    let (counter, bound) = match (carried(0)?, carried(1)?, comparison.direction.as_str()) {
        (Term::Carried(counter), bound, "LT") | (bound, Term::Carried(counter), "GT") => (counter, bound),
        _ => return None,
    };
    let initial = within.operand(instruction, 0)?;
    let start = constant(within, element(within, initial, counter)?)?;
    let bound = match bound {
        Term::Constant(bound) => bound,
        Term::Carried(at) => constant(within, element(within, initial, at)?)?,
    };
    let step = step(module, body, counter)?;
    u64::try_from(bound - start).ok().map(|far| far.div_ceil(step))
}

/// What is compared.
enum Term {
    /// An element of what the loop carries.
    Carried(i64),
    /// A number.
    Constant(i64),
}

/// Where an instruction stands: its function, and if that is a fusion, the fusion and the function around.
struct Place<'m> {
    computation: &'m Computation,
    fusion: Option<(&'m Instruction, &'m Computation)>,
}

/// The comparison that a condition ends in, perhaps within a fusion.
fn comparison<'m>(module: &'m Module, condition: &'m Computation) -> Option<(&'m Instruction, Place<'m>)> {
    let root = condition.instruction(condition.root)?;
    match root.opcode.as_str() {
        "compare" => Some((root, Place { computation: condition, fusion: None })),
        "fusion" => {
            let inner = module.computation(*root.calls.first()?)?;
            let root_within = inner.instruction(inner.root).filter(|inner| inner.opcode == "compare")?;
            Some((root_within, Place { computation: inner, fusion: Some((root, condition)) }))
        }
        _ => None,
    }
}

/// An operand followed back to the loop's tuple or to a number.
fn term(place: &Place, user: &Instruction, at: usize) -> Option<Term> {
    let source = through(place.computation, place.computation.operand(user, at)?)?;
    match source.opcode.as_str() {
        "constant" => source.literal.as_ref()?.number().map(Term::Constant),
        "get-tuple-element" => Some(Term::Carried(source.element)),
        "parameter" => {
            let (fusion, around) = place.fusion?;
            let outer = Place { computation: around, fusion: None };
            term(&outer, fusion, usize::try_from(source.parameter).ok()?)
        }
        _ => None,
    }
}

/// By how much a loop's body raises its counter.
fn step(module: &Module, body: &Computation, counter: i64) -> Option<u64> {
    let root = body.instruction(body.root)?;
    let raised = through(body, body.operand(root, usize::try_from(counter).ok()?)?)?;
    let (sum, place) = match raised.opcode.as_str() {
        "add" => (raised, Place { computation: body, fusion: None }),
        "fusion" => {
            let inner = module.computation(*raised.calls.first()?)?;
            let sum = inner.instruction(inner.root).filter(|inner| inner.opcode == "add")?;
            (sum, Place { computation: inner, fusion: Some((raised, body)) })
        }
        _ => return None,
    };
    match (term(&place, sum, 0)?, term(&place, sum, 1)?) {
        (Term::Carried(at), Term::Constant(by)) | (Term::Constant(by), Term::Carried(at)) if at == counter => {
            u64::try_from(by).ok().filter(|by| *by > 0)
        }
        _ => None,
    }
}

/// An element of a tuple that is built here.
fn element<'m>(within: &'m Computation, tuple: &'m Instruction, at: i64) -> Option<&'m Instruction> {
    (tuple.opcode == "tuple").then(|| within.operand(tuple, usize::try_from(at).ok()?)).flatten()
}

fn constant(within: &Computation, instruction: &Instruction) -> Option<i64> {
    through(within, instruction)?.literal.as_ref()?.number()
}

/// What a copy or a change of form is of; none where they are copies of one another.
fn through<'m>(within: &'m Computation, mut instruction: &'m Instruction) -> Option<&'m Instruction> {
    const CHANGES: [&str; 6] = ["copy", "bitcast", "convert", "reshape", "copy-done", "copy-start"];
    for _ in 0..=within.instructions.len() {
        if !CHANGES.contains(&instruction.opcode.as_str()) {
            return Some(instruction);
        }
        instruction = within.operand(instruction, 0)?;
    }
    None
}
