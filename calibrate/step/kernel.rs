//! A kernel's stand-in: operands and results of the splash kernel, or of megablox's, and a body that does nothing.
//!
//! XLA sees of a kernel written by hand what goes in and what comes out; its memory and its place in the schedule follow
//! from that alone. The body is a Mosaic module, as text, which the compiler parses and compiles as it would the kernel's;
//! arrays stay where they are (`#tpu.memory_space<any>`).

use crate::stablehlo::{Function, Type, Value};

/// The custom call that runs a Mosaic module.
pub const TARGET: &str = "tpu_custom_call";

/// Calls a kernel of this name that takes `operands` and gives arrays of these types.
pub fn call(main: &mut Function, name: &str, operands: &[&Value], of: Vec<Type>) -> Vec<Value> {
    let types: Vec<&Type> = operands.iter().map(|value| &value.of).chain(&of).collect();
    let config = format!(
        "{{\"custom_call_config\": {{\"body\": \"{}\", \"needs_layout_passes\": true}}}}",
        base64(body(name, &types).as_bytes())
    );
    main.custom_call(TARGET, name, &config, operands, of)
}

/// The module.
fn body(name: &str, arrays: &[&Type]) -> String {
    let array = |(at, of): (usize, &&Type)| {
        let inside = of.to_string();
        let inside = inside.trim_start_matches("tensor<").trim_end_matches('>');
        format!("%arg{at}: memref<{inside}, #tpu.memory_space<any>>")
    };
    let arrays: Vec<String> = arrays.iter().enumerate().map(array).collect();
    format!(
        "module {{\n  func.func @{name}({}) attributes {{dimension_semantics = [], scalar_prefetch = 0 : i64, \
         scratch_operands = 0 : i64, tpu.core_type = #tpu.core_type<tc>}} {{\n    return\n  }}\n}}\n",
        arrays.join(", ")
    )
}

/// RFC 4648's base64.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let number = three.iter().chain([0, 0].iter()).take(3).fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte));
        for place in 0..4 {
            let letter = LETTERS[number >> (18 - 6 * place) & 63];
            text.push(if place <= three.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stablehlo::Element;

    #[test]
    fn base64_is_the_standard_s() {
        // RFC 4648, section 10.
        for (plain, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }

    #[test]
    fn the_body_takes_operands_and_results_as_arrays_in_any_memory() {
        let text = body("nothing", &[&Type::new(Element::Bf16, [4, 8]), &Type::new(Element::I8, [1, 2, 2])]);
        assert!(text.contains("%arg0: memref<4x8xbf16, #tpu.memory_space<any>>"), "{text}");
        assert!(text.contains("%arg1: memref<1x2x2xi8, #tpu.memory_space<any>>"), "{text}");
    }
}
