//! A program as a user has it: StableHLO as text or as bytecode, or HLO as a protocol buffer.
//!
//! Text is searched for what a compiler must be told: devices, the partitioner, the mesh. Bytecode and protocol buffers say
//! the partitioner alone in a way that can be read here; their devices are the slice's.

use std::path::Path;

use prost::Message;

use super::hlo::Module;

/// A program, and the form that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    bytes: Vec<u8>,
    form: Form,
}

/// A form that plugins take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// MLIR as text.
    Text,
    /// MLIR as bytecode.
    Bytecode,
    /// `HloModuleProto`.
    Proto,
}

/// MLIR, as text or bytecode, among PJRT's formats.
pub const MLIR: &str = "mlir";

/// What MLIR's bytecode begins with (`mlir/include/mlir/Bytecode/Encoding.h`).
const BYTECODE: &[u8] = b"ML\xefR";

/// How the three lines of Python that write a program go on after `lowered`.
const EXPORT: &str =
    "write `jax.jit(step).lower(…).as_text()`, or its `.compiler_ir(\"hlo\").as_serialized_hlo_module_proto()`";

impl Source {
    /// StableHLO that was written here.
    pub fn written(text: String) -> Self {
        Self { bytes: text.into_bytes(), form: Form::Text }
    }

    /// A program of a file.
    ///
    /// # Errors
    /// A file that cannot be read, or holds no program that a plugin takes.
    pub fn read(path: &Path) -> Result<Self, String> {
        let bytes = windtunnel::files::bytes(path).map_err(|why| format!("{}: {why}", path.display()))?;
        Self::of(bytes).map_err(|why| format!("{}: {why}", path.display()))
    }

    fn of(bytes: Vec<u8>) -> Result<Self, String> {
        if bytes.starts_with(BYTECODE) {
            return Ok(Self { bytes, form: Form::Bytecode });
        }
        match std::str::from_utf8(&bytes).map(str::trim_start) {
            Ok("") => Err(format!("the file is empty: {EXPORT}")),
            Ok(text) if text.starts_with("HloModule") => {
                Err(format!("is HLO as text, which the compilers do not read: {EXPORT}"))
            }
            Ok(text) if text.contains("func.func") || text.contains("\"func.func\"") => {
                Ok(Self { bytes, form: Form::Text })
            }
            _ if Module::decode(&bytes[..]).is_ok_and(|module| module.computation(module.entry).is_some()) => {
                Ok(Self { bytes, form: Form::Proto })
            }
            Ok(_) => Err(format!("is text without a function (`func.func`), no program in StableHLO: {EXPORT}")),
            Err(_) => Err(format!("is neither MLIR as text or bytecode nor an HloModuleProto: {EXPORT}")),
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its format, as PJRT calls it.
    pub fn format(&self) -> &'static str {
        match self.form {
            Form::Text | Form::Bytecode => MLIR,
            Form::Proto => "hlo",
        }
    }

    /// The text, where it is some.
    pub fn text(&self) -> Option<&str> {
        match self.form {
            Form::Text => std::str::from_utf8(&self.bytes).ok(),
            Form::Bytecode | Form::Proto => None,
        }
    }

    /// Devices that it says it is partitioned over.
    pub fn partitions(&self) -> Option<u32> {
        let (_, rest) = self.text()?.split_once("mhlo.num_partitions = ")?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    }

    /// Whether it carries Shardy's annotations.
    pub fn shardy(&self) -> bool {
        let mark: &[u8] = match self.form {
            Form::Text => b"sdy.",
            Form::Bytecode => b"sdy",
            Form::Proto => b"xla.sdy",
        };
        self.bytes.windows(mark.len()).any(|window| window == mark)
    }

    /// Whether GSPMD's annotations are on the arguments of the function that runs, and on none of its results.
    pub fn leaves_results(&self) -> bool {
        let Some(text) = self.text() else { return false };
        let main = text.split("@main(").nth(1).and_then(|main| main.lines().next()).unwrap_or_default();
        let (arguments, results) = main.split_once(" -> ").unwrap_or((main, ""));
        arguments.contains("mhlo.sharding") && !results.contains("mhlo.sharding")
    }

    /// Names and sizes of its mesh's axes, the slowest first; none where it names no mesh, or its devices are in another order.
    pub fn axes(&self) -> Vec<(String, u32)> {
        let mesh = || {
            let (_, rest) = self.text()?.split_once("sdy.mesh @")?;
            let (_, rest) = rest.split_once("= <[")?;
            let (axes, behind) = rest.split_once(']')?;
            (!behind.trim_start().starts_with(", device_ids")).then_some(axes)
        };
        let axis = |text: &str| {
            let (name, size) = text.split_once('=')?;
            Some((name.trim().trim_matches('"').to_owned(), size.trim().parse().ok()?))
        };
        mesh().and_then(|axes| axes.split(',').map(axis).collect()).unwrap_or_default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const STEP: &str = "module @jit_step attributes {mhlo.num_partitions = 8 : i32} {\n  sdy.mesh @mesh = <[\"data\"=4, \"model\"=2]>\n  \
                        func.func public @main(%arg0: tensor<8xf32>) -> (tensor<8xf32>) {\n    return %arg0 : tensor<8xf32>\n  }\n}\n";

    #[test]
    fn a_program_says_its_devices_its_mesh_and_its_partitioner() {
        let step = Source::of(STEP.as_bytes().to_vec()).unwrap();
        assert_eq!((step.partitions(), step.shardy(), step.format()), (Some(8), true, "mlir"));
        assert_eq!(step.axes(), [("data".to_owned(), 4), ("model".to_owned(), 2)]);
        let reordered = STEP.replace("]>", "], device_ids=[1, 0, 2, 3, 4, 5, 6, 7]>");
        assert!(Source::written(reordered).axes().is_empty());
    }

    #[test]
    fn results_without_a_sharding_are_left_to_the_compiler() {
        let (cut, plain) = ("tensor<8xf32> {mhlo.sharding = \"{devices=[8]<=[8]}\"}", "tensor<8xf32>");
        let main = |argument: &str, result: &str| {
            Source::written(format!("module {{\n  func.func @main(%arg0: {argument}) -> ({result}) {{\n"))
        };
        assert!(main(cut, plain).leaves_results());
        assert!(!main(cut, cut).leaves_results() && !main(plain, plain).leaves_results());
    }

    #[test]
    fn what_no_plugin_takes_is_refused_with_what_to_write() {
        for (bytes, said) in [
            (&b"HloModule jit_step\n"[..], "HLO as text"),
            (b" \n", "the file is empty"),
            (b"hello\n", "no program in StableHLO"),
            (b"\xff\xfe\x00", "neither MLIR"),
        ] {
            let why = Source::of(bytes.to_vec()).unwrap_err();
            assert!(why.contains(said) && why.contains("as_text()"), "{why}");
        }
        assert_eq!(Source::of(b"ML\xefR\x01sdy".to_vec()).unwrap().format(), "mlir");
    }
}
