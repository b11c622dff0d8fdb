//! A program as text, close to what XLA prints: `name = type[dims] opcode(operands), notes`.
//!
//! For reading; layouts, literals and most attributes are left out.

use std::fmt::Write;

use super::{Computation, Instruction, Module, Shape};

/// All functions, those called first.
pub fn text(module: &Module) -> String {
    let mut text = format!("HloModule {}\n", module.name);
    for computation in &module.computations {
        let entry = if computation.id == module.entry { "ENTRY " } else { "" };
        let _ = write!(text, "\n{entry}{} {{\n", computation.name);
        for instruction in ordered(module, computation) {
            let root = if instruction.id == computation.root { "ROOT " } else { "" };
            let _ = writeln!(text, "  {root}{}", line(module, computation, instruction));
        }
        text += "}\n";
    }
    text
}

/// In the order in which they run, where the program says.
fn ordered<'m>(module: &'m Module, computation: &'m Computation) -> Vec<&'m Instruction> {
    let sequence = module.schedule.as_ref().and_then(|schedule| schedule.sequences.get(&computation.id));
    match sequence {
        Some(sequence) => sequence.instructions.iter().filter_map(|id| computation.instruction(*id)).collect(),
        None => computation.instructions.iter().collect(),
    }
}

fn line(module: &Module, computation: &Computation, instruction: &Instruction) -> String {
    let name = |id: &i64| computation.instruction(*id).map_or("?", |operand| operand.name.as_str());
    let operands: Vec<&str> = instruction.operands.iter().map(name).collect();
    let shape = instruction.shape.as_ref().map(shape).unwrap_or_default();
    let mut text = format!("{} = {shape} {}({})", instruction.name, instruction.opcode, operands.join(", "));
    let number = instruction.literal.as_ref().and_then(super::Literal::number);
    match instruction.opcode.as_str() {
        "parameter" => text = format!("{} = {shape} parameter({})", instruction.name, instruction.parameter),
        "constant" => text += &number.map(|number| format!(", value={number}")).unwrap_or_default(),
        "get-tuple-element" => text += &format!(", index={}", instruction.element),
        "compare" => text += &format!(", direction={}", instruction.direction),
        "custom-call" => text += &format!(", target={:?}", instruction.target),
        "fusion" => text += &format!(", kind={}", instruction.fusion),
        _ => {}
    }
    let called = instruction.calls.iter().filter_map(|id| Some(module.computation(*id)?.name.as_str()));
    let called: Vec<&str> = called.collect();
    if !called.is_empty() {
        text += &format!(", calls={{{}}}", called.join(", "));
    }
    let origin = instruction.metadata.as_ref().map(|metadata| metadata.name.as_str()).filter(|name| !name.is_empty());
    if let Some(origin) = origin {
        text += &format!(", op_name={origin:?}");
    }
    if !instruction.backend.is_empty() {
        text += &format!(", backend_config={}", String::from_utf8_lossy(&instruction.backend));
    }
    text
}

fn shape(shape: &Shape) -> String {
    let Some(element) = shape.element_name() else {
        let elements: Vec<String> = shape.tuple.iter().map(self::shape).collect();
        return format!("({})", elements.join(", "));
    };
    let dimensions: Vec<String> = shape.dimensions.iter().map(i64::to_string).collect();
    let memory = shape.layout.as_ref().map_or(0, |layout| layout.memory);
    let memory = if memory == 0 { String::new() } else { format!("{{S({memory})}}") };
    format!("{element}[{}]{memory}", dimensions.join(","))
}
