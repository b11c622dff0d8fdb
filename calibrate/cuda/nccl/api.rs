//! NCCL's functions, by name, with results as numbers.
//!
//! `cudarc` asks the loader for `libnccl.so`, which only development packages have; `libnccl.so.2` is what programs find.
//! Types and numbers are `cudarc`'s bindings of `nccl.h`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::rc::Rc;

use cudarc::driver::CudaStream;
use cudarc::nccl::sys;
use libloading::Library as Shared;

use super::kind::Kind;
use crate::cuda::error::CudaError;
use crate::cuda::library::Library;

type Comm = *mut c_void;
type Stream = *mut c_void;
type Gather = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> c_int;
type Reduce = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
type Send = unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
type Receive = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int;

const BF16: c_int = sys::ncclDataType_t::ncclBfloat16 as c_int;
const SUM: c_int = sys::ncclRedOp_t::ncclSum as c_int;

/// NCCL's functions.
pub struct Nccl {
    init_all: unsafe extern "C" fn(*mut Comm, c_int, *const c_int) -> c_int,
    destroy: unsafe extern "C" fn(Comm) -> c_int,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    all_gather: Gather,
    all_reduce: Reduce,
    reduce_scatter: Reduce,
    send: Send,
    receive: Receive,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
    last_error: unsafe extern "C" fn(Comm) -> *const c_char,
}

impl Nccl {
    /// NCCL as it lies in this process, or as the loader finds it.
    #[allow(unsafe_code)]
    pub fn load() -> Result<Rc<Self>, CudaError> {
        let name = Library::Nccl.files()[0];
        // SAFETY: loading runs the initialisers of NVIDIA's library; it stays loaded, so its functions stay valid.
        let library = unsafe { Shared::new(name) }.map_err(|error| refused(format!("{name}: {error}")))?;
        let library: &'static Shared = Box::leak(Box::new(library));
        // SAFETY: each type is the one that nccl.h declares, enums as the integers they are.
        unsafe {
            Ok(Rc::new(Self {
                init_all: symbol(library, "ncclCommInitAll")?,
                destroy: symbol(library, "ncclCommDestroy")?,
                group_start: symbol(library, "ncclGroupStart")?,
                group_end: symbol(library, "ncclGroupEnd")?,
                all_gather: symbol(library, "ncclAllGather")?,
                all_reduce: symbol(library, "ncclAllReduce")?,
                reduce_scatter: symbol(library, "ncclReduceScatter")?,
                send: symbol(library, "ncclSend")?,
                receive: symbol(library, "ncclRecv")?,
                error: symbol(library, "ncclGetErrorString")?,
                last_error: symbol(library, "ncclGetLastError")?,
            }))
        }
    }

    #[allow(unsafe_code)]
    fn check(&self, result: c_int, what: &str) -> Result<(), CudaError> {
        if result == 0 {
            return Ok(());
        }
        // SAFETY: both are static strings of NCCL's; the last error belongs to no communicator.
        let (name, last) = unsafe { (text((self.error)(result)), text((self.last_error)(std::ptr::null_mut()))) };
        Err(refused(format!("{what}: {name}{}{last}", if last.is_empty() { "" } else { ": " })))
    }
}

#[allow(unsafe_code)]
unsafe fn text(at: *const c_char) -> String {
    if at.is_null() {
        return String::new();
    }
    // SAFETY: the caller has a string that ends in zero.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().trim().to_owned()
}

fn refused(why: impl Into<String>) -> CudaError {
    CudaError::library(Library::Nccl, why)
}

#[allow(unsafe_code)]
unsafe fn symbol<T: Copy>(library: &'static Shared, name: &str) -> Result<T, CudaError> {
    // SAFETY: the caller names the type that the header declares.
    match unsafe { library.get::<T>(name.as_bytes()) } {
        Ok(symbol) => Ok(*symbol),
        Err(error) => Err(refused(format!("no {name}: {error}"))),
    }
}

/// Communicators of all ranks, which are GPUs of this process.
pub struct Communicators {
    nccl: Rc<Nccl>,
    all: Vec<Comm>,
}

impl Communicators {
    /// One for each device, the first being rank 0.
    #[allow(unsafe_code)]
    pub fn new(nccl: &Rc<Nccl>, devices: &[usize]) -> Result<Self, CudaError> {
        let ordinals: Vec<c_int> = devices.iter().map(|ordinal| *ordinal as c_int).collect();
        let mut all: Vec<Comm> = vec![std::ptr::null_mut(); ordinals.len()];
        // SAFETY: both lists are as long as NCCL is told.
        let result = unsafe { (nccl.init_all)(all.as_mut_ptr(), ordinals.len() as c_int, ordinals.as_ptr()) };
        nccl.check(result, &format!("communicators of {} GPUs", devices.len()))?;
        Ok(Self { nccl: nccl.clone(), all })
    }

    /// Issues a collective on every rank's stream; `ends` are the addresses that each rank sends from and receives at.
    #[allow(unsafe_code)]
    pub fn issue(&self, kind: Kind, count: u64, ends: &[(u64, u64)], streams: &[&CudaStream]) -> Result<(), CudaError> {
        let (nccl, ranks, count) = (&self.nccl, self.all.len(), count as usize);
        assert!(ends.len() == ranks && streams.len() == ranks, "{ranks} ranks, {} buffers", ends.len());
        // SAFETY: the group is closed on every way out, and the communicators are alive.
        nccl.check(unsafe { (nccl.group_start)() }, "a group")?;
        let mut result = 0;
        for (rank, (comm, ((send, receive), stream))) in self.all.iter().zip(ends.iter().zip(streams)).enumerate() {
            let (from, to) = (*send as *const c_void, *receive as *mut c_void);
            let stream: Stream = stream.cu_stream().cast();
            let peer = |away: usize| ((rank + away) % ranks) as c_int;
            // SAFETY: callers pass buffers on each rank's device that hold what the collective sends and receives.
            let mut call = |one: c_int| result = if result == 0 { one } else { result };
            unsafe {
                match kind {
                    Kind::AllGather => call((nccl.all_gather)(from, to, count, BF16, *comm, stream)),
                    Kind::ReduceScatter => call((nccl.reduce_scatter)(from, to, count, BF16, SUM, *comm, stream)),
                    Kind::AllReduce => call((nccl.all_reduce)(from, to, count, BF16, SUM, *comm, stream)),
                    Kind::SendRecv => {
                        call((nccl.send)(from, count, BF16, peer(1), *comm, stream));
                        call((nccl.receive)(to, count, BF16, peer(ranks - 1), *comm, stream));
                    }
                    Kind::AllToAll => {
                        for other in 0..ranks {
                            let skip = other * count * super::kind::WIDTH as usize;
                            call((nccl.send)(from.byte_add(skip), count, BF16, other as c_int, *comm, stream));
                            call((nccl.receive)(to.byte_add(skip), count, BF16, other as c_int, *comm, stream));
                        }
                    }
                }
            }
        }
        // SAFETY: closes the group that was opened above.
        let ended = unsafe { (nccl.group_end)() };
        nccl.check(if result == 0 { ended } else { result }, kind.name())
    }
}

impl Drop for Communicators {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        for comm in &self.all {
            // SAFETY: created in `new` and destroyed once.
            unsafe { (self.nccl.destroy)(*comm) };
        }
    }
}
