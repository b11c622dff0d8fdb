//! Calls of what is not StableHLO: kernels written by hand, in a part of a function that each device runs on its own piece
//! (`shard_map`), and where an array is kept.

use super::function::{Function, Value, list};
use super::{Mesh, Spec, Type};

/// Where an array is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The device's.
    Device,
    /// The host's, where the device can reach it.
    Host,
}

impl Function {
    /// A part that every device runs on its own pieces: `inputs` lie as said, and so do the results, whose pieces `body`
    /// gives. A single device has the whole, and no part of its own.
    pub fn manual(
        &mut self,
        mesh: &Mesh,
        inputs: &[(&Value, &Spec)],
        outputs: &[Spec],
        body: impl FnOnce(&mut Self, &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        if mesh.devices() == 1 {
            let whole: Vec<Value> = inputs.iter().map(|(value, _)| (*value).clone()).collect();
            return body(self, &whole);
        }
        let specs = |specs: &mut dyn Iterator<Item = &Spec>| specs.map(Spec::text).collect::<Vec<_>>().join(", ");
        let names: Vec<String> = inputs.iter().map(|(value, _)| value.to_string()).collect();
        let pieces: Vec<Type> = inputs.iter().map(|(value, spec)| spec.piece(&value.of, mesh)).collect();
        let own = self.names(&pieces);
        let given: Vec<String> = own.iter().map(|piece| format!("{piece}: {}", piece.of)).collect();
        let axes: Vec<String> = mesh.names().map(|name| format!("{name:?}")).collect();
        let head = format!(
            "sdy.manual_computation({}) in_shardings=[{}] out_shardings=[{}] manual_axes={{{}}} ({}) {{",
            names.join(", "),
            specs(&mut inputs.iter().map(|(_, spec)| *spec)),
            specs(&mut outputs.iter()),
            axes.join(", "),
            given.join(", ")
        );
        let takes: Vec<String> = inputs.iter().map(|(value, _)| value.of.to_string()).collect();
        self.region(&head, "sdy.return", |main| {
            let made = body(main, &own);
            assert_eq!(made.len(), outputs.len(), "a spec for every result");
            let whole: Vec<Type> = made.iter().zip(outputs).map(|(piece, spec)| spec.whole(&piece.of, mesh)).collect();
            let gives: Vec<String> = whole.iter().map(ToString::to_string).collect();
            let types = format!("({}) -> {}", takes.join(", "), tuple(&gives));
            (made, whole, types)
        })
    }

    /// Calls `target` with a configuration of its own; arrays lie with the last axis fastest.
    pub fn custom_call(
        &mut self,
        target: &str,
        name: &str,
        config: &str,
        operands: &[&Value],
        of: Vec<Type>,
    ) -> Vec<Value> {
        let layout = |of: &Type| {
            let order: Vec<usize> = (0..of.dims.len()).rev().collect();
            format!("dense<{}> : tensor<{}xindex>", list(&order), order.len())
        };
        let takes: Vec<String> = operands.iter().map(|value| layout(&value.of)).collect();
        let gives: Vec<String> = of.iter().map(layout).collect();
        let names: Vec<String> = operands.iter().map(ToString::to_string).collect();
        let after = format!(
            "stablehlo.custom_call @{target}({}) {{backend_config = \"{}\", kernel_name = {name:?}, operand_layouts = [{}], result_layouts = [{}]}}",
            names.join(", "),
            config.replace('"', "\\22"),
            takes.join(", "),
            gives.join(", ")
        );
        let types: Vec<String> = operands.iter().map(|value| value.of.to_string()).collect();
        let results: Vec<String> = of.iter().map(ToString::to_string).collect();
        self.lines(of, &after, &format!("({}) -> {}", types.join(", "), tuple(&results)))
    }

    /// The same array, kept elsewhere.
    pub fn place(&mut self, value: &Value, memory: Memory) -> Value {
        let kind = match memory {
            Memory::Device => "device",
            Memory::Host => "pinned_host",
        };
        let after = format!(
            "stablehlo.custom_call @annotate_device_placement({value}) {{backend_config = \"\", has_side_effect = true, mhlo.frontend_attributes = {{_xla_buffer_placement = {kind:?}}}}}"
        );
        let types = format!("({0}) -> {0}", value.of);
        self.line(value.of.clone(), &after, &types)
    }
}

/// Types of results, in brackets if they are not one.
fn tuple(types: &[String]) -> String {
    match types {
        [one] => one.clone(),
        many => format!("({})", many.join(", ")),
    }
}
