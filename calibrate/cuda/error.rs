//! What goes wrong on a CUDA machine, each kind with its exit code.

use std::process::ExitCode;

use cudarc::cublaslt::result::CublasError;
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use cudarc::nvrtc::result::NvrtcError;

use super::library::Library;
use crate::journal::Refused;

/// A call into one of NVIDIA's libraries that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The device has no memory left for it.
    #[error("out of device memory: {0} were asked for")]
    OutOfMemory(String),
    /// The driver refused.
    #[error("the CUDA driver: {0}")]
    Driver(DriverError),
    /// A library refused.
    #[error("{}: {why}", library.name())]
    Library {
        /// Which.
        library: Library,
        /// The call and its status.
        why: String,
    },
}

impl CudaError {
    /// A library's refusal.
    pub fn library(library: Library, why: impl Into<String>) -> Self {
        Self::Library { library, why: why.into() }
    }
}

impl From<DriverError> for CudaError {
    fn from(error: DriverError) -> Self {
        match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Self::OutOfMemory("bytes of unknown number".to_owned()),
            _ => Self::Driver(error),
        }
    }
}

impl From<CublasError> for CudaError {
    fn from(error: CublasError) -> Self {
        Self::library(Library::CublasLt, format!("{:?}", error.0))
    }
}

impl From<NvrtcError> for CudaError {
    fn from(error: NvrtcError) -> Self {
        Self::library(Library::Nvrtc, format!("{:?}", error.0))
    }
}

/// Why the command ended without having measured what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An argument or a file that cannot be used.
    #[error("{0}")]
    Input(String),
    /// Nothing here can be measured.
    #[error("{0}")]
    NoDevice(String),
    /// A library is newer than the driver can run.
    #[error("{0}")]
    DriverTooOld(String),
    /// Somebody else uses the device.
    #[error("{0}")]
    Busy(String),
    /// The device or its driver failed while measuring.
    #[error("{0}")]
    Device(String),
    /// Kernels ran and computed something else; the rest was measured.
    #[error("{0}")]
    Wrong(String),
    /// A sweep was asked for by name, and its library is not here.
    #[error("{0}")]
    MissingLibrary(String),
    /// Not even the buffers that every measurement needs fit.
    #[error("{0}")]
    OutOfMemory(String),
    /// The user or the machine asked it to stop.
    #[error("{0}")]
    Interrupted(String),
}

impl Failure {
    /// The exit code, as `calibrate cuda --help` lists them.
    pub fn code(&self) -> u8 {
        match self {
            Self::Input(_) => 2,
            Self::NoDevice(_) => 3,
            Self::DriverTooOld(_) => 4,
            Self::Busy(_) => 5,
            Self::Device(_) | Self::Wrong(_) => 6,
            Self::MissingLibrary(_) => 7,
            Self::OutOfMemory(_) => 8,
            Self::Interrupted(_) => 130,
        }
    }

    /// The same, for `main`.
    pub fn exit(&self) -> ExitCode {
        ExitCode::from(self.code())
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Input(why) => Self::Input(why),
            Refused::Busy(why) => Self::Busy(why),
        }
    }
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::OutOfMemory(_) => Self::OutOfMemory(format!("{error}\nfree the device, or choose another")),
            _ => Self::Device(error.to_string()),
        }
    }
}
