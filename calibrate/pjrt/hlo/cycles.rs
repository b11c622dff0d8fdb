//! The compiler's own estimates of how long fusions take.
//!
//! TPU's compiler notes `estimated_cycles` where it chose a fusion's window, and by which model it came to them. Where it had
//! none (`COST_MODEL_TYPE_INVALID`: copies, most of what memory bounds) the number is left out. It has nothing to say of
//! collectives, gathers and kernels written by hand.

use super::flow::{Entered, entered};
use super::{Instruction, Module};

/// Of a whole step, each as often as it runs \[cycles\]; none if no instruction has one.
pub fn cycles(module: &Module) -> Option<u64> {
    let mut sum = None;
    for Entered { computation, times } in entered(module).0 {
        for cycles in computation.instructions.iter().filter_map(noted) {
            let all = sum.get_or_insert(0_u64);
            *all = all.saturating_add(times.saturating_mul(cycles));
        }
    }
    sum
}

/// What the compiler notes for an instruction.
fn noted(instruction: &Instruction) -> Option<u64> {
    let notes: serde_json::Value = serde_json::from_slice(&instruction.backend).ok()?;
    let window = notes.get("window_config")?;
    let none = window.get("cost_model_type").is_some_and(|model| model == "COST_MODEL_TYPE_INVALID");
    if none { None } else { window.get("estimated_cycles")?.as_str()?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_without_a_model_is_none() {
        let noted = |notes: &str| noted(&Instruction { backend: notes.into(), ..Instruction::default() });
        let of = |model: &str| format!("{{\"window_config\":{{\"estimated_cycles\":\"52564\"{model}}}}}");
        assert_eq!(noted(&of(",\"cost_model_type\":\"COST_MODEL_TYPE_CLASSIC\"")), Some(52564));
        assert_eq!(noted(&of("")), Some(52564));
        assert_eq!(noted(&of(",\"cost_model_type\":\"COST_MODEL_TYPE_INVALID\"")), None);
        assert_eq!(noted("{}"), None);
        assert_eq!(noted("not JSON"), None);
    }
}
