//! The PJRT C API's layout, as far as it is used: which slot of the table a function has, and what its argument holds.
//!
//! Facts of `pjrt_c_api.h` (OpenXLA, Apache-2.0), API 0.81; the table is only ever appended to, so a slot once given stays.
//! Each function takes one struct, which opens with its size and a list of extensions (none here), and gives an error or null.
//! To add a function: a line in `calls!`, with its slot in the order of `PJRT_Api`.

use std::ffi::{c_char, c_int, c_void};

/// The major version that this layout is of, and the oldest minor version that was tried.
pub const VERSION: (c_int, c_int) = (0, 81);

/// Words of the table before its first function: size, extensions, and the version's size, extensions, two numbers.
pub const FIRST_SLOT: usize = 5;

/// Something that only the plugin knows the inside of.
pub type Opaque = *mut c_void;

/// An argument of a function in the table.
///
/// # Safety
/// The type is `repr(C)`, laid out as the C struct of the function in `SLOT`, and valid when all its bytes are zero.
pub unsafe trait Call: Sized {
    /// The function's place in the table.
    const SLOT: usize;
    /// The function's name.
    const NAME: &'static str;
    /// Sets the size that the struct opens with.
    fn sized(&mut self);
}

macro_rules! calls {
    ($($name:ident = $slot:literal { $($field:ident: $type:ty),* $(,)? })*) => {$(
        #[repr(C)]
        pub struct $name {
            size: usize,
            extensions: Opaque,
            $(pub $field: $type,)*
        }

        // SAFETY: numbers and pointers in the order of the C struct, for which zero is a value.
        unsafe impl Call for $name {
            const SLOT: usize = $slot;
            const NAME: &'static str = concat!("PJRT_", stringify!($name));
            fn sized(&mut self) {
                self.size = size_of::<Self>();
            }
        }
    )*};
}

#[allow(non_camel_case_types)]
mod structs {
    use super::*;

    calls! {
        Error_Destroy = 0 { error: Opaque }
        Error_Message = 1 { error: Opaque, message: *const c_char, message_size: usize }
        Error_GetCode = 2 { error: Opaque, code: c_int }
        Plugin_Initialize = 3 {}
        Event_Destroy = 5 { event: Opaque }
        Event_Await = 8 { event: Opaque }
        Client_Create = 10 {
            options: *const NamedValue, options_count: usize,
            get: Opaque, get_arg: Opaque, put: Opaque, put_arg: Opaque,
            client: Opaque,
            try_get: Opaque, try_get_arg: Opaque,
        }
        Client_Destroy = 11 { client: Opaque }
        Client_PlatformName = 12 { client: Opaque, name: *const c_char, name_size: usize }
        Client_PlatformVersion = 14 { client: Opaque, version: *const c_char, version_size: usize }
        Client_AddressableDevices = 16 { client: Opaque, devices: *const Opaque, devices_count: usize }
        Client_Compile = 20 {
            client: Opaque, program: *const Program, options: *const c_char, options_size: usize, executable: Opaque,
        }
        Client_BufferFromHostBuffer = 22 {
            client: Opaque, data: *const c_void, element: c_int, dims: *const i64, dims_count: usize,
            strides: *const i64, strides_count: usize, semantics: c_int, device: Opaque, memory: Opaque, layout: Opaque,
            done_with_host: Opaque, buffer: Opaque,
        }
        DeviceDescription_Kind = 26 { description: Opaque, kind: *const c_char, kind_size: usize }
        Device_GetDescription = 29 { device: Opaque, description: Opaque }
        Executable_Destroy = 40 { executable: Opaque }
        Executable_NumOutputs = 44 { executable: Opaque, outputs: usize }
        Executable_GetCostAnalysis = 46 { executable: Opaque, properties_count: usize, properties: *const NamedValue }
        Executable_OptimizedProgram = 48 { executable: Opaque, program: *mut Program }
        LoadedExecutable_Destroy = 50 { executable: Opaque }
        LoadedExecutable_GetExecutable = 51 { loaded: Opaque, executable: Opaque }
        LoadedExecutable_Execute = 55 {
            executable: Opaque, options: *mut ExecuteOptions, arguments: *const *const Opaque, devices_count: usize,
            arguments_count: usize, outputs: *const *mut Opaque, complete: *mut Opaque, device: Opaque,
        }
        Buffer_Destroy = 58 { buffer: Opaque }
        Buffer_ToHostBuffer = 70 { buffer: Opaque, layout: Opaque, to: *mut c_void, to_size: usize, event: Opaque }
        Buffer_ReadyEvent = 72 { buffer: Opaque, event: Opaque }
        TopologyDescription_Create = 82 {
            name: *const c_char, name_size: usize, options: *const NamedValue, options_count: usize, topology: Opaque,
        }
        TopologyDescription_Destroy = 83 { topology: Opaque }
        TopologyDescription_PlatformVersion = 85 { topology: Opaque, version: *const c_char, version_size: usize }
        Compile = 89 {
            topology: Opaque, program: *const Program, options: *const c_char, options_size: usize, client: Opaque,
            executable: Opaque,
        }
        Executable_GetCompiledMemoryStats = 96 {
            executable: Opaque, code: i64, argument: i64, output: i64, alias: i64, temp: i64,
            host_code: i64, host_argument: i64, host_output: i64, host_alias: i64, host_temp: i64, peak: i64,
        }
    }
}
pub use structs::*;

/// A program: its bytes, and in which language.
#[repr(C)]
pub struct Program {
    pub size: usize,
    pub extensions: Opaque,
    pub code: *mut c_char,
    pub code_size: usize,
    pub format: *const c_char,
    pub format_size: usize,
}

/// How to execute; all zero but for the size is the default.
#[repr(C)]
pub struct ExecuteOptions {
    pub size: usize,
    pub extensions: Opaque,
    pub send: Opaque,
    pub receive: Opaque,
    pub send_count: usize,
    pub receive_count: usize,
    pub launch: c_int,
    pub kept: *const i64,
    pub kept_count: usize,
    pub context: Opaque,
    pub location: *const c_char,
    pub tasks: usize,
    pub task_ids: Opaque,
    pub incarnations: Opaque,
}

/// What a [`NamedValue`] holds.
pub mod kind {
    use std::ffi::c_int;

    pub const STRING: c_int = 0;
    pub const INT64: c_int = 1;
    pub const INT64_LIST: c_int = 2;
    pub const FLOAT: c_int = 3;
    pub const BOOL: c_int = 4;
}

/// A name with a value: an option, or a property.
#[repr(C)]
pub struct NamedValue {
    pub size: usize,
    pub extensions: Opaque,
    pub name: *const c_char,
    pub name_size: usize,
    pub kind: c_int,
    pub value: Value,
    /// Characters, numbers of a list, or 1.
    pub value_size: usize,
}

/// By the kind of its [`NamedValue`].
#[repr(C)]
#[derive(Clone, Copy)]
pub union Value {
    pub string: *const c_char,
    pub int64: i64,
    pub list: *const i64,
    pub float: f32,
    pub boolean: bool,
}
