//! A plugin in this process: loaded, its version checked, initialised; and the one way to call it.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

use super::super::error::{Code, PjrtError};
use super::abi::{self, Call, Opaque};

/// A plugin's table of functions. Copies are of the same plugin, which stays loaded until the process ends.
#[derive(Clone, Copy)]
pub struct Plugin {
    table: *const usize,
    words: usize,
    version: (c_int, c_int),
}

// SAFETY: the table is written before `GetPjrtApi` returns and never again, and PJRT's functions may be called from any thread.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

impl Plugin {
    /// Loads a plugin and initialises it.
    ///
    /// # Errors
    /// A file that is not there, is no plugin, is of another API version, or does not initialise.
    pub fn load(path: &Path) -> Result<Self, PjrtError> {
        let at: PathBuf = path.to_owned();
        if !path.is_file() {
            return Err(PjrtError::Missing { path: at });
        }
        // SAFETY: loading runs the plugin's initialisers, which is what the user asked for by naming the file.
        let library = unsafe { libloading::Library::new(path) };
        let library = library.map_err(|why| PjrtError::Unloadable { path: at.clone(), why: why.to_string() })?;
        // A plugin starts threads that outlive every call, so it is never unloaded.
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        // SAFETY: every PJRT plugin declares `const PJRT_Api* GetPjrtApi(void)`.
        let get = unsafe { library.get::<unsafe extern "C" fn() -> *const usize>(b"GetPjrtApi") };
        let get = get.map_err(|_| PjrtError::NoPlugin { path: at.clone() })?;
        // SAFETY: as above.
        let table = unsafe { get() };
        if table.is_null() {
            return Err(PjrtError::NoPlugin { path: at });
        }
        // SAFETY: the table opens with its size in bytes; version words come before all functions.
        let (words, version) = unsafe { (*table / size_of::<usize>(), *table.add(4).cast::<[c_int; 2]>()) };
        let plugin = Self { table, words, version: (version[0], version[1]) };
        if version[0] != abi::VERSION.0 || version[1] < abi::VERSION.1 {
            return Err(PjrtError::Version { path: at, found: plugin.version, needed: abi::VERSION });
        }
        // SAFETY: it takes nothing.
        unsafe { plugin.call(&mut zero::<abi::Plugin_Initialize>()) }?;
        Ok(plugin)
    }

    /// The API version, major and minor.
    pub fn version(self) -> (c_int, c_int) {
        self.version
    }

    /// Calls the function that `argument` belongs to.
    ///
    /// # Safety
    /// Pointers in `argument` are null where the function allows it, else valid for as long as the function needs them, and
    /// handles come from this plugin.
    pub(super) unsafe fn call<C: Call>(self, argument: &mut C) -> Result<(), PjrtError> {
        argument.sized();
        let function = self.function(C::SLOT).ok_or(PjrtError::Lacks { call: C::NAME })?;
        // SAFETY: a non-null word of the table is a function of this type; the caller vouches for the argument.
        let error = unsafe {
            std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void) -> Opaque>(function)(
                std::ptr::from_mut(argument).cast(),
            )
        };
        if error.is_null() { Ok(()) } else { Err(self.taken(error, C::NAME)) }
    }

    fn function(self, slot: usize) -> Option<usize> {
        let at = abi::FIRST_SLOT + slot;
        // SAFETY: within the table's own size.
        (at < self.words).then(|| unsafe { *self.table.add(at) }).filter(|function| *function != 0)
    }

    /// Reads an error and frees it.
    fn taken(self, error: Opaque, call: &'static str) -> PjrtError {
        let (mut said, mut coded) = (zero::<abi::Error_Message>(), zero::<abi::Error_GetCode>());
        (said.error, coded.error) = (error, error);
        // SAFETY: `error` was just given by this plugin and is freed once, after its text has been copied. Reading a message
        // and freeing return nothing, so that what stands in the register of a result is not looked at.
        let message = unsafe {
            self.tell(&mut said);
            let message = text(said.message, said.message_size);
            let _ = self.call(&mut coded);
            let mut gone = zero::<abi::Error_Destroy>();
            gone.error = error;
            self.tell(&mut gone);
            message
        };
        PjrtError::Refused { call: call.to_owned(), code: Code(coded.code), message }
    }

    /// Calls a function that gives nothing back.
    unsafe fn tell<C: Call>(self, argument: &mut C) {
        argument.sized();
        let Some(function) = self.function(C::SLOT) else { return };
        // SAFETY: the two functions of this kind are declared `void f(Args*)`; the caller vouches for the argument.
        unsafe {
            std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void)>(function)(
                std::ptr::from_mut(argument).cast(),
            );
        }
    }
}

/// An argument with nothing in it.
pub(super) fn zero<C: Call>() -> C {
    // SAFETY: `Call` promises that zero is a value.
    unsafe { MaybeUninit::<C>::zeroed().assume_init() }
}

/// A copy of characters that the plugin holds.
///
/// # Safety
/// `from` is null, or has `size` characters.
pub(super) unsafe fn text(from: *const c_char, size: usize) -> String {
    // SAFETY: as the caller vouches.
    String::from_utf8_lossy(unsafe { slice(from.cast::<u8>(), size) }).into_owned()
}

/// What the plugin holds, for as long as it does; empty for null.
///
/// # Safety
/// `from` is null, or has `count` values that live as long as `'a`.
pub(super) unsafe fn slice<'a, T>(from: *const T, count: usize) -> &'a [T] {
    if from.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: as the caller vouches.
    unsafe { std::slice::from_raw_parts(from, count) }
}
