//! Compilation for a topology whose devices need not be here, and what the compiler says of the result.

use std::ffi::c_char;

use super::Setting;
use super::abi::{self, NamedValue, Opaque, Value, kind};
use super::plugin::{Plugin, slice, text, zero};
use crate::pjrt::error::PjrtError;
use crate::pjrt::memory::MemoryStats;

/// Devices to compile for.
pub struct Topology {
    plugin: Plugin,
    handle: Opaque,
}

impl Topology {
    /// By the name and the options that the plugin knows.
    ///
    /// # Errors
    /// What the plugin has to say against it.
    pub fn create(plugin: Plugin, name: &str, settings: &[(String, Setting)]) -> Result<Self, PjrtError> {
        let settings = named(settings);
        let mut create = zero::<abi::TopologyDescription_Create>();
        (create.name, create.name_size) = (name.as_ptr().cast(), name.len());
        (create.options, create.options_count) = (settings.as_ptr(), settings.len());
        // SAFETY: the name and the options live until the call has returned.
        unsafe { plugin.call(&mut create) }?;
        Ok(Self { plugin, handle: create.topology })
    }

    /// Which compiler it is, in the plugin's words.
    ///
    /// # Errors
    /// The plugin's.
    pub fn compiler(&self) -> Result<String, PjrtError> {
        let mut asked = zero::<abi::TopologyDescription_PlatformVersion>();
        asked.topology = self.handle;
        // SAFETY: the handle is this plugin's and alive; the text lives as long as the topology and is copied.
        unsafe {
            self.plugin.call(&mut asked)?;
            Ok(text(asked.version, asked.version_size))
        }
    }

    /// Compiles a program, given with its format, with options in the plugin's encoding ([`crate::pjrt::options`]).
    ///
    /// # Errors
    /// What the compiler has to say against the program, that it does not fit into memory, too.
    pub fn compile(&self, program: (&[u8], &str), options: &[u8]) -> Result<Executable, PjrtError> {
        let program = given(program);
        let mut compile = zero::<abi::Compile>();
        (compile.topology, compile.program) = (self.handle, &raw const program);
        (compile.options, compile.options_size) = (options.as_ptr().cast(), options.len());
        // SAFETY: the handle is this plugin's and alive; program and options live until the call has returned.
        unsafe { self.plugin.call(&mut compile) }?;
        Ok(Executable { plugin: self.plugin, handle: compile.executable })
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        let mut gone = zero::<abi::TopologyDescription_Destroy>();
        gone.topology = self.handle;
        // SAFETY: the handle is this plugin's, and nobody has it any more. An error would leak it, no more.
        let _ = unsafe { self.plugin.call(&mut gone) };
    }
}

/// A compiled program.
pub struct Executable {
    plugin: Plugin,
    handle: Opaque,
}

impl Executable {
    /// Takes over a handle of `plugin`.
    pub(super) fn of(plugin: Plugin, handle: Opaque) -> Self {
        Self { plugin, handle }
    }

    /// What one device needs of its memory.
    ///
    /// # Errors
    /// A plugin that does not know.
    pub fn memory(&self) -> Result<MemoryStats, PjrtError> {
        let mut asked = zero::<abi::Executable_GetCompiledMemoryStats>();
        asked.executable = self.handle;
        // SAFETY: the handle is this plugin's and alive.
        unsafe { self.plugin.call(&mut asked) }?;
        let bytes = |signed: i64| u64::try_from(signed).unwrap_or(0);
        Ok(MemoryStats {
            argument: bytes(asked.argument),
            output: bytes(asked.output),
            alias: bytes(asked.alias),
            temp: bytes(asked.temp),
            generated_code: bytes(asked.code),
            peak: bytes(asked.peak),
            host_argument: bytes(asked.host_argument),
            host_output: bytes(asked.host_output),
            host_alias: bytes(asked.host_alias),
            host_temp: bytes(asked.host_temp),
        })
    }

    /// What the compiler thinks that it costs, by the plugin's names; only numbers, and those finite.
    ///
    /// # Errors
    /// A plugin that does not know.
    pub fn cost(&self) -> Result<Vec<(String, f64)>, PjrtError> {
        let mut asked = zero::<abi::Executable_GetCostAnalysis>();
        asked.executable = self.handle;
        // SAFETY: the handle is this plugin's and alive; the properties live as long as the executable and are copied, each
        // by the member of the union that its kind says.
        unsafe {
            self.plugin.call(&mut asked)?;
            let number = |property: &NamedValue| match property.kind {
                kind::FLOAT => Some(f64::from(property.value.float)).filter(|number| number.is_finite()),
                kind::INT64 => Some(property.value.int64 as f64),
                _ => None,
            };
            let properties = slice(asked.properties, asked.properties_count).iter();
            Ok(properties.filter_map(|one| Some((text(one.name, one.name_size), number(one)?))).collect())
        }
    }

    /// The program as it will run: its bytes, and the name of their format.
    ///
    /// # Errors
    /// A plugin that does not know.
    pub fn program(&self) -> Result<(Vec<u8>, String), PjrtError> {
        let mut program = abi::Program { size: size_of::<abi::Program>(), ..empty() };
        let mut bytes: Vec<u8> = vec![];
        // The first call says how long it is, the second writes it.
        for _ in 0..2 {
            let mut asked = zero::<abi::Executable_OptimizedProgram>();
            (asked.executable, asked.program) = (self.handle, &raw mut program);
            // SAFETY: the handle is this plugin's and alive; the buffer has as many bytes as the plugin has asked for.
            unsafe { self.plugin.call(&mut asked) }?;
            if bytes.is_empty() {
                bytes = vec![0; program.code_size];
                program.code = bytes.as_mut_ptr().cast();
            }
        }
        // SAFETY: the format is a constant of the plugin.
        let format = unsafe { text(program.format, program.format_size) };
        Ok((bytes, format))
    }

    /// How many results it has.
    pub(super) fn outputs(&self) -> Result<usize, PjrtError> {
        let mut asked = zero::<abi::Executable_NumOutputs>();
        asked.executable = self.handle;
        // SAFETY: the handle is this plugin's and alive.
        unsafe { self.plugin.call(&mut asked) }?;
        Ok(asked.outputs)
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        let mut gone = zero::<abi::Executable_Destroy>();
        gone.executable = self.handle;
        // SAFETY: the handle is this plugin's, and nobody has it any more. An error would leak it, no more.
        let _ = unsafe { self.plugin.call(&mut gone) };
    }
}

fn empty() -> abi::Program {
    abi::Program {
        size: 0,
        extensions: std::ptr::null_mut(),
        code: std::ptr::null_mut(),
        code_size: 0,
        format: std::ptr::null(),
        format_size: 0,
    }
}

/// A program and its format; borrows both. The plugin does not write to what it is given to compile.
pub(super) fn given((program, format): (&[u8], &str)) -> abi::Program {
    abi::Program {
        size: size_of::<abi::Program>(),
        code: program.as_ptr().cast::<c_char>().cast_mut(),
        code_size: program.len(),
        format: format.as_ptr().cast(),
        format_size: format.len(),
        ..empty()
    }
}

/// Options as the plugin reads them; borrows `settings`.
pub(super) fn named(settings: &[(String, Setting)]) -> Vec<NamedValue> {
    let one = |(name, setting): &(String, Setting)| {
        let (kind, value, value_size) = match setting {
            Setting::Bool(boolean) => (kind::BOOL, Value { boolean: *boolean }, 1),
            Setting::Int(int64) => (kind::INT64, Value { int64: *int64 }, 1),
            Setting::List(list) => (kind::INT64_LIST, Value { list: list.as_ptr() }, list.len()),
            Setting::Text(text) => (kind::STRING, Value { string: text.as_ptr().cast() }, text.len()),
        };
        NamedValue {
            size: size_of::<NamedValue>(),
            extensions: std::ptr::null_mut(),
            name: name.as_ptr().cast(),
            name_size: name.len(),
            kind,
            value,
            value_size,
        }
    };
    settings.iter().map(one).collect()
}
