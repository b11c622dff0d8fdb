//! Devices that are here: programs are loaded onto them, buffers moved, and programs run.

use std::ffi::{c_int, c_void};

use super::Setting;
use super::abi::{self, Opaque};
use super::compiler::{Executable, given, named};
use super::plugin::{Plugin, slice, text, zero};
use crate::pjrt::error::PjrtError;

/// The types of elements that are moved to devices, with their numbers in the C interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// 8 bits, signed.
    S8 = 2,
    /// 32 bits, signed.
    S32 = 4,
    /// IEEE single.
    F32 = 11,
    /// Brain float.
    Bf16 = 13,
    /// 8-bit float of 4 exponent bits.
    F8E4M3Fn = 17,
}

impl Element {
    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Self::S8 | Self::F8E4M3Fn => 1,
            Self::Bf16 => 2,
            Self::S32 | Self::F32 => 4,
        }
    }
}

/// The devices of this process.
pub struct Client {
    plugin: Plugin,
    handle: Opaque,
}

impl Client {
    /// Opens them.
    ///
    /// # Errors
    /// No devices, or what the plugin has to say.
    pub fn create(plugin: Plugin, settings: &[(String, Setting)]) -> Result<Self, PjrtError> {
        let settings = named(settings);
        let mut create = zero::<abi::Client_Create>();
        (create.options, create.options_count) = (settings.as_ptr(), settings.len());
        // SAFETY: the options live until the call has returned; there is no store of keys and values.
        unsafe { plugin.call(&mut create) }?;
        Ok(Self { plugin, handle: create.client })
    }

    /// The platform's name, and the version of its compiler.
    ///
    /// # Errors
    /// The plugin's.
    pub fn platform(&self) -> Result<(String, String), PjrtError> {
        let (mut name, mut version) = (zero::<abi::Client_PlatformName>(), zero::<abi::Client_PlatformVersion>());
        (name.client, version.client) = (self.handle, self.handle);
        // SAFETY: the handle is this plugin's and alive; the texts live as long as the client and are copied.
        unsafe {
            self.plugin.call(&mut name)?;
            self.plugin.call(&mut version)?;
            Ok((text(name.name, name.name_size), text(version.version, version.version_size)))
        }
    }

    /// The devices that can be used from here, by number; each with its kind.
    ///
    /// # Errors
    /// The plugin's.
    pub fn devices(&self) -> Result<Vec<String>, PjrtError> {
        let kind = |device: &Opaque| {
            let mut described = zero::<abi::Device_GetDescription>();
            described.device = *device;
            // SAFETY: the client's devices live as long as the client; the text is copied.
            unsafe {
                self.plugin.call(&mut described)?;
                let mut kind = zero::<abi::DeviceDescription_Kind>();
                kind.description = described.description;
                self.plugin.call(&mut kind)?;
                Ok(text(kind.kind, kind.kind_size))
            }
        };
        self.handles()?.iter().map(kind).collect()
    }

    fn handles(&self) -> Result<&[Opaque], PjrtError> {
        let mut asked = zero::<abi::Client_AddressableDevices>();
        asked.client = self.handle;
        // SAFETY: the handle is this plugin's and alive, and the list lives as long as it.
        unsafe {
            self.plugin.call(&mut asked)?;
            Ok(slice(asked.devices, asked.devices_count))
        }
    }

    /// Compiles a program, given with its format, and loads it onto the devices.
    ///
    /// # Errors
    /// What the compiler has to say against the program.
    pub fn compile(&self, program: (&[u8], &str), options: &[u8]) -> Result<Loaded<'_>, PjrtError> {
        let program = given(program);
        let mut compile = zero::<abi::Client_Compile>();
        (compile.client, compile.program) = (self.handle, &raw const program);
        (compile.options, compile.options_size) = (options.as_ptr().cast(), options.len());
        // SAFETY: the handle is this plugin's and alive; program and options live until the call has returned.
        unsafe { self.plugin.call(&mut compile) }?;
        let mut loaded = Loaded { client: self, handle: compile.executable, outputs: 0 };
        loaded.outputs = loaded.executable()?.outputs()?;
        Ok(loaded)
    }

    /// Copies an array to a device.
    ///
    /// # Errors
    /// A size that is not that of the array, a device that is not there, or what the plugin has to say.
    pub fn buffer(&self, data: &[u8], element: Element, dims: &[i64], device: usize) -> Result<Buffer<'_>, PjrtError> {
        let elements: i64 = dims.iter().product();
        if data.len() as i64 != elements * element.bytes() as i64 {
            let bytes = data.len();
            return Err(PjrtError::Nonsense(format!("an array {dims:?} of {element:?} is not {bytes} bytes long")));
        }
        let devices = self.handles()?;
        let device = devices.get(device).ok_or_else(|| {
            PjrtError::Nonsense(format!("device {device} was asked for, and there are {}", devices.len()))
        })?;
        let mut copy = zero::<abi::Client_BufferFromHostBuffer>();
        (copy.client, copy.data, copy.element) = (self.handle, data.as_ptr().cast::<c_void>(), element as c_int);
        (copy.dims, copy.dims_count, copy.device) = (dims.as_ptr(), dims.len(), *device);
        // SAFETY: the array is as long as its shape says, in C's order; by the semantics that zero stands for, the plugin has
        // copied it when the call returns.
        unsafe { self.plugin.call(&mut copy) }?;
        let buffer = Buffer { client: self, handle: copy.buffer };
        self.await_event(copy.done_with_host)?;
        Ok(buffer)
    }

    /// Waits for an event and frees it.
    fn await_event(&self, event: Opaque) -> Result<(), PjrtError> {
        if event.is_null() {
            return Ok(());
        }
        let (mut wait, mut gone) = (zero::<abi::Event_Await>(), zero::<abi::Event_Destroy>());
        (wait.event, gone.event) = (event, event);
        // SAFETY: the event was given by this plugin to whoever calls this, and is freed here and nowhere else.
        unsafe {
            let waited = self.plugin.call(&mut wait);
            self.plugin.call(&mut gone)?;
            waited
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut gone = zero::<abi::Client_Destroy>();
        gone.client = self.handle;
        // SAFETY: the handle is this plugin's; buffers and programs borrow the client, so none is left.
        let _ = unsafe { self.plugin.call(&mut gone) };
    }
}

/// An array on a device.
pub struct Buffer<'c> {
    client: &'c Client,
    handle: Opaque,
}

impl Buffer<'_> {
    /// Waits until it holds what it shall.
    ///
    /// # Errors
    /// That of the program that was to write it.
    pub fn ready(&self) -> Result<(), PjrtError> {
        let mut asked = zero::<abi::Buffer_ReadyEvent>();
        asked.buffer = self.handle;
        // SAFETY: the handle is this plugin's and alive.
        unsafe { self.client.plugin.call(&mut asked) }?;
        self.client.await_event(asked.event)
    }

    /// Copies it to the host, in C's order.
    ///
    /// # Errors
    /// That of the program that was to write it.
    pub fn read(&self) -> Result<Vec<u8>, PjrtError> {
        let mut bytes: Vec<u8> = vec![];
        // Without a place to write to, the first call says how long it is.
        for turn in 0..2 {
            let mut copy = zero::<abi::Buffer_ToHostBuffer>();
            copy.buffer = self.handle;
            if turn == 1 {
                (copy.to, copy.to_size) = (bytes.as_mut_ptr().cast(), bytes.len());
            }
            // SAFETY: the handle is this plugin's and alive; the place has as many bytes as the plugin has asked for, and
            // lives until the event has come.
            unsafe { self.client.plugin.call(&mut copy) }?;
            self.client.await_event(copy.event)?;
            bytes.resize(copy.to_size, 0);
        }
        Ok(bytes)
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        let mut gone = zero::<abi::Buffer_Destroy>();
        gone.buffer = self.handle;
        // SAFETY: the handle is this plugin's, and nobody has it any more.
        let _ = unsafe { self.client.plugin.call(&mut gone) };
    }
}

/// A program on its devices.
pub struct Loaded<'c> {
    client: &'c Client,
    handle: Opaque,
    outputs: usize,
}

impl<'c> Loaded<'c> {
    /// What the compiler says of it.
    ///
    /// # Errors
    /// The plugin's.
    pub fn executable(&self) -> Result<Executable, PjrtError> {
        let mut asked = zero::<abi::LoadedExecutable_GetExecutable>();
        asked.loaded = self.handle;
        // SAFETY: the handle is this plugin's and alive; what is given is the caller's to free.
        unsafe { self.client.plugin.call(&mut asked) }?;
        Ok(Executable::of(self.client.plugin, asked.executable))
    }

    /// Starts it: `arguments` for each device, results for each device. They are there when they are ready.
    ///
    /// # Errors
    /// Devices with unlike numbers of arguments, or what the plugin has to say.
    pub fn execute(&self, arguments: &[Vec<&Buffer<'c>>]) -> Result<Vec<Vec<Buffer<'c>>>, PjrtError> {
        let count = arguments.first().map_or(0, Vec::len);
        if arguments.is_empty() || arguments.iter().any(|one| one.len() != count) {
            return Err(PjrtError::Nonsense("every device takes the same number of arguments".to_owned()));
        }
        let inputs: Vec<Vec<Opaque>> =
            arguments.iter().map(|one| one.iter().map(|buffer| buffer.handle).collect()).collect();
        let inputs: Vec<*const Opaque> = inputs.iter().map(Vec::as_ptr).collect();
        let mut outputs = vec![vec![std::ptr::null_mut(); self.outputs]; arguments.len()];
        let places: Vec<*mut Opaque> = outputs.iter_mut().map(Vec::as_mut_ptr).collect();
        // SAFETY: for this struct of numbers and pointers zero is a value.
        let mut options: abi::ExecuteOptions = unsafe { std::mem::zeroed() };
        options.size = size_of::<abi::ExecuteOptions>();
        // Arguments are used again in the next run, so none is donated.
        let kept: Vec<i64> = (0..count as i64).collect();
        (options.kept, options.kept_count) = (kept.as_ptr(), kept.len());
        let mut run = zero::<abi::LoadedExecutable_Execute>();
        (run.executable, run.options, run.arguments) = (self.handle, &raw mut options, inputs.as_ptr());
        (run.devices_count, run.arguments_count, run.outputs) = (arguments.len(), count, places.as_ptr());
        // SAFETY: lists of lists as long as the counts say, which live until the call has returned; as many places for
        // results as the program has.
        unsafe { self.client.plugin.call(&mut run) }?;
        let owned = |list: Vec<Opaque>| list.into_iter().map(|handle| Buffer { client: self.client, handle }).collect();
        Ok(outputs.into_iter().map(owned).collect())
    }
}

impl Drop for Loaded<'_> {
    fn drop(&mut self) {
        let mut gone = zero::<abi::LoadedExecutable_Destroy>();
        gone.executable = self.handle;
        // SAFETY: the handle is this plugin's, and nobody has it any more.
        let _ = unsafe { self.client.plugin.call(&mut gone) };
    }
}
