//! Kernels: compiled by NVRTC for the device at hand, loaded, launched.

use std::ffi::{CString, c_void};
use std::rc::Rc;

use cudarc::driver::{CudaStream, result, sys};
use cudarc::nvrtc;

use super::Device;
use crate::cuda::error::CudaError;
use crate::cuda::library::Library;

/// A kernel on the device.
#[derive(Clone)]
pub struct Kernel {
    function: sys::CUfunction,
    /// Unloading the module would take the function away.
    _module: Rc<Module>,
}

/// A loaded module, unloaded when dropped.
pub struct Module(sys::CUmodule);

impl Module {
    /// Loads PTX, which the driver compiles.
    pub fn from_ptx(text: &str) -> Result<Rc<Self>, CudaError> {
        let mut image = text.as_bytes().to_vec();
        image.push(0);
        Self::load(&image)
    }

    /// Loads a compiled image; PTX must end in a zero byte.
    #[allow(unsafe_code)]
    pub fn load(image: &[u8]) -> Result<Rc<Self>, CudaError> {
        // SAFETY: the image is whole (a cubin from NVRTC, or zero-terminated PTX) and the driver copies it.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }?;
        Ok(Rc::new(Self(module)))
    }

    /// A kernel in it.
    #[allow(unsafe_code)]
    pub fn kernel(self: &Rc<Self>, name: &str) -> Result<Kernel, CudaError> {
        let text =
            CString::new(name).map_err(|_| CudaError::library(Library::Driver, format!("no kernel {name:?}")))?;
        // SAFETY: the module is loaded for as long as the kernel holds it.
        let function = unsafe { result::module::get_function(self.0, text) }?;
        Ok(Kernel { function, _module: self.clone() })
    }
}

impl Drop for Module {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: nobody holds a kernel of it any more. A failure to unload at the end changes nothing.
        let _ = unsafe { result::module::unload(self.0) };
    }
}

impl Device {
    /// The kernel `name` of `source`, which is compiled with `defines` (as `-DNAME=value`) the first time it is asked for.
    pub fn kernel(&self, source: &'static str, name: &str, defines: &[String]) -> Result<Kernel, CudaError> {
        let key = (source.as_ptr() as usize, defines.join(" "));
        let known = self.modules.borrow().get(&key).cloned();
        let module = match known {
            Some(module) => module,
            None => {
                self.context().bind_to_thread()?;
                let module = Module::load(&compile(source, self.facts().capability, defines)?)?;
                self.modules.borrow_mut().insert(key, module.clone());
                module
            }
        };
        module.kernel(name)
    }

    /// Launches a kernel. Each argument is given in eight bytes, of which the kernel reads as many as its type has:
    /// addresses and 64-bit numbers whole, smaller ones from the low end (little-endian, as every CUDA host is).
    #[allow(unsafe_code)]
    pub fn launch(
        &self,
        stream: &CudaStream,
        kernel: &Kernel,
        grid: u32,
        block: u32,
        shared: u32,
        arguments: &[u64],
    ) -> Result<(), CudaError> {
        let mut pointers: [*mut c_void; 16] = [std::ptr::null_mut(); 16];
        assert!(arguments.len() <= pointers.len(), "{} arguments, 16 at most", arguments.len());
        for (pointer, argument) in pointers.iter_mut().zip(arguments) {
            *pointer = std::ptr::from_ref(argument).cast_mut().cast();
        }
        // SAFETY: the kernel is loaded, the stream is this device's, and callers pass the arguments its source declares;
        // the driver copies them before it returns.
        let launched = unsafe {
            result::launch_kernel(
                kernel.function,
                (grid, 1, 1),
                (block, 1, 1),
                shared,
                stream.cu_stream(),
                &mut pointers[..arguments.len()],
            )
        };
        Ok(launched?)
    }

    /// Lets a kernel ask for more shared memory than 48 KiB a block.
    #[allow(unsafe_code)]
    pub fn allow_shared(&self, kernel: &Kernel, bytes: u32) -> Result<(), CudaError> {
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the kernel is loaded.
        Ok(unsafe { result::function::set_function_attribute(kernel.function, attribute, bytes as i32) }?)
    }
}

/// Compiles CUDA C++ to machine code for one capability. Machine code, not PTX: a driver runs it although the compiler is
/// of a later minor version.
#[allow(unsafe_code)]
pub fn compile(source: &str, capability: (u32, u32), defines: &[String]) -> Result<Vec<u8>, CudaError> {
    let text = CString::new(source).map_err(|_| CudaError::library(Library::Nvrtc, "a zero byte in the source"))?;
    let mut options = vec![
        format!("--gpu-architecture=sm_{}{}", capability.0, capability.1),
        "--std=c++17".to_owned(),
        "--restrict".to_owned(),
    ];
    options.extend(defines.iter().map(|define| format!("-D{define}")));
    let program = nvrtc::result::create_program(&text, None)?;
    // SAFETY: the program is live until it is destroyed below, on every way out.
    let compiled = unsafe { nvrtc::result::compile_program(program, &options) };
    let image = match compiled {
        Ok(()) => image(program),
        Err(error) => {
            // SAFETY: as above.
            let log = unsafe { nvrtc::result::get_program_log(program) }.unwrap_or_default();
            let log: Vec<u8> = log.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
            let log = String::from_utf8_lossy(&log).trim().to_owned();
            Err(CudaError::library(Library::Nvrtc, format!("{:?} with {}\n{log}", error.0, options.join(" "))))
        }
    };
    // SAFETY: destroyed once.
    unsafe { nvrtc::result::destroy_program(program) }?;
    image
}

#[allow(unsafe_code)]
fn image(program: nvrtc::sys::nvrtcProgram) -> Result<Vec<u8>, CudaError> {
    let mut size = 0usize;
    // SAFETY: the program has been compiled; the vector is as long as NVRTC said the image is.
    unsafe {
        nvrtc::sys::nvrtcGetCUBINSize(program, &mut size).result()?;
        let mut image = vec![0u8; size];
        nvrtc::sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()).result()?;
        Ok(image)
    }
}
