//! The functions of cuDNN's backend, by name, with statuses as numbers.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::rc::Rc;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use libloading::Library as Shared;

use crate::cuda::error::CudaError;
use crate::cuda::library::Library;

/// Below it, kernels of attention were wrong (9.10.0 and 9.10.1) or wanted their scratch memory cleared.
const OLDEST: usize = 91_002;

/// A descriptor as cuDNN holds it.
pub(super) type Raw = *mut c_void;

type Create = unsafe extern "C" fn(c_int, *mut Raw) -> c_int;
type OnDescriptor = unsafe extern "C" fn(Raw) -> c_int;
type Set = unsafe extern "C" fn(Raw, c_int, c_int, i64, *const c_void) -> c_int;
type Get = unsafe extern "C" fn(Raw, c_int, c_int, i64, *mut i64, *mut c_void) -> c_int;
type Execute = unsafe extern "C" fn(*mut c_void, Raw, Raw) -> c_int;
type SetStream = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;

/// cuDNN's functions.
pub struct Api {
    pub(super) create: Create,
    pub(super) destroy: OnDescriptor,
    pub(super) finalize: OnDescriptor,
    pub(super) set: Set,
    pub(super) get: Get,
    pub(super) execute: Execute,
    create_handle: unsafe extern "C" fn(*mut *mut c_void) -> c_int,
    destroy_handle: OnDescriptor,
    set_stream: SetStream,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
    last_error: unsafe extern "C" fn(*mut c_char, usize),
    /// As `cudnnGetVersion` writes it: 91002 is 9.10.2.
    pub version: usize,
}

impl Api {
    /// cuDNN as it lies in this process, or as the loader finds it.
    #[allow(unsafe_code)]
    pub fn load() -> Result<Rc<Self>, CudaError> {
        let name = Library::Cudnn.files()[0];
        // SAFETY: loading runs the initialisers of NVIDIA's library; it stays loaded, so its functions stay valid.
        let library = unsafe { Shared::new(name) }.map_err(|error| refused(format!("{name}: {error}")))?;
        let library: &'static Shared = Box::leak(Box::new(library));
        // SAFETY: each type is the one that cudnn_backend.h and cudnn_graph.h declare, enums as the integers they are.
        let api = unsafe {
            Self {
                create: symbol(library, "cudnnBackendCreateDescriptor")?,
                destroy: symbol(library, "cudnnBackendDestroyDescriptor")?,
                finalize: symbol(library, "cudnnBackendFinalize")?,
                set: symbol(library, "cudnnBackendSetAttribute")?,
                get: symbol(library, "cudnnBackendGetAttribute")?,
                execute: symbol(library, "cudnnBackendExecute")?,
                create_handle: symbol(library, "cudnnCreate")?,
                destroy_handle: symbol(library, "cudnnDestroy")?,
                set_stream: symbol(library, "cudnnSetStream")?,
                error: symbol(library, "cudnnGetErrorString")?,
                last_error: symbol(library, "cudnnGetLastErrorString")?,
                version: symbol::<unsafe extern "C" fn() -> usize>(library, "cudnnGetVersion")?(),
            }
        };
        if api.version < OLDEST {
            let version = api.version;
            return Err(refused(format!("version {version} is older than {OLDEST}, from which on attention is sound")));
        }
        Ok(Rc::new(api))
    }

    /// An error unless `status` is success; `what` was being done.
    #[allow(unsafe_code)]
    pub(super) fn check(&self, status: c_int, what: &str) -> Result<(), CudaError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the name of a status is a static string.
        let name = unsafe { CStr::from_ptr((self.error)(status)) }.to_string_lossy();
        Err(refused(format!("{what}: {name}{}", self.last())))
    }

    /// What cuDNN said last, after a colon, if it said anything: of a stack of reasons the innermost.
    #[allow(unsafe_code)]
    pub(super) fn last(&self) -> String {
        let mut text: [c_char; 2048] = [0; 2048];
        // SAFETY: the buffer is as long as it is said to be, and its last byte stays zero.
        let said = unsafe {
            (self.last_error)(text.as_mut_ptr(), text.len() - 1);
            CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned()
        };
        let reason = said.lines().find_map(|line| line.split_once("Reason: "));
        let said = reason.map_or(said.as_str(), |(_, reason)| reason).trim();
        if said.is_empty() { String::new() } else { format!(": {}", said.chars().take(300).collect::<String>()) }
    }
}

/// cuDNN's refusal.
pub(super) fn refused(why: impl Into<String>) -> CudaError {
    CudaError::library(Library::Cudnn, why)
}

#[allow(unsafe_code)]
unsafe fn symbol<T: Copy>(library: &'static Shared, name: &str) -> Result<T, CudaError> {
    // SAFETY: the caller names the type that the header declares.
    match unsafe { library.get::<T>(name.as_bytes()) } {
        Ok(symbol) => Ok(*symbol),
        Err(error) => Err(refused(format!("no {name}: {error}"))),
    }
}

/// cuDNN on one stream of one device, whose context is current.
pub struct Handle {
    api: Rc<Api>,
    pub(super) raw: *mut c_void,
    _stream: Arc<CudaStream>,
}

impl Handle {
    /// A handle on a stream.
    #[allow(unsafe_code)]
    pub fn new(api: &Rc<Api>, stream: &Arc<CudaStream>) -> Result<Self, CudaError> {
        stream.context().bind_to_thread()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the handle is written before it is read, and destroyed once.
        api.check(unsafe { (api.create_handle)(&mut raw) }, "a handle")?;
        let handle = Self { api: api.clone(), raw, _stream: stream.clone() };
        // SAFETY: both are alive; the stream is kept as long as the handle.
        api.check(unsafe { (api.set_stream)(raw, stream.cu_stream().cast()) }, "the handle's stream")?;
        Ok(handle)
    }
}

impl Drop for Handle {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: created in `new` and destroyed once; cuDNN waits for what it has issued.
        unsafe { (self.api.destroy_handle)(self.raw) };
    }
}
