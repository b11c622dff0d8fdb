//! NVIDIA's libraries, looked for when the program runs: it starts without any of them.
//!
//! Each is searched in the folders that the user names, then where the loader looks (`LD_LIBRARY_PATH`, `ld.so.cache`),
//! then below `CUDA_HOME`, `CUDA_PATH`, the active Python environment and `/usr/local/cuda`. What is found stays loaded: `cudarc` asks the
//! loader for a library by its bare name and gets the one already in the process. Where the loader would give it
//! another one, [`Libraries::look`] says so.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// One of NVIDIA's libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Library {
    /// The CUDA driver: nothing works without it.
    Driver,
    /// Matrix multiplications.
    CublasLt,
    /// The compiler of kernels.
    Nvrtc,
    /// Fused attention.
    Cudnn,
    /// Collectives.
    Nccl,
    /// Power, clocks, temperature, and who else uses the device.
    Nvml,
}

impl Library {
    /// All, in the order in which they are reported.
    pub const ALL: [Self; 6] = [Self::Driver, Self::CublasLt, Self::Nvrtc, Self::Cudnn, Self::Nccl, Self::Nvml];

    /// Its name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "CUDA driver",
            Self::CublasLt => "cuBLASLt",
            Self::Nvrtc => "NVRTC",
            Self::Cudnn => "cuDNN",
            Self::Nccl => "NCCL",
            Self::Nvml => "NVML",
        }
    }

    /// How to get it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Driver | Self::Nvml => {
                "install NVIDIA's driver; in a container, start it with the GPU (`--gpus all`)"
            }
            Self::CublasLt | Self::Nvrtc => "install the CUDA toolkit, or name a folder that has it by --libraries",
            Self::Cudnn | Self::Nccl => {
                "install it (the Python packages that PyTorch brings will do), or name its folder by --libraries"
            }
        }
    }

    /// The names of its file, best first.
    pub fn files(self) -> &'static [&'static str] {
        match self {
            Self::Driver => &["libcuda.so.1"],
            Self::CublasLt => &["libcublasLt.so.13", "libcublasLt.so.12"],
            Self::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12"],
            Self::Cudnn => &["libcudnn.so.9"],
            Self::Nccl => &["libnccl.so.2"],
            Self::Nvml => &["libnvidia-ml.so.1"],
        }
    }
}

/// A library in this process, and where it came from.
pub struct Loaded {
    /// The path or name it was opened by.
    pub from: String,
    handle: &'static libloading::Library,
}

/// What was found.
#[derive(Default)]
pub struct Libraries {
    found: BTreeMap<Library, Loaded>,
}

impl Libraries {
    /// Looks for all of them, first in `folders`. Fails if the loader would give `cudarc` another one than was found.
    pub fn look(folders: &[PathBuf]) -> Result<Self, String> {
        let first: Vec<PathBuf> = folders.iter().flat_map(|folder| places(folder)).collect();
        let last: Vec<PathBuf> = environment().iter().flat_map(|folder| places(folder)).collect();
        let mut found = BTreeMap::new();
        for library in Library::ALL {
            let names = library.files();
            let beside = |folders: &[PathBuf]| -> Vec<PathBuf> {
                folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name))).collect()
            };
            let by_loader = names.iter().map(PathBuf::from);
            let mut tries = beside(&first).into_iter().chain(by_loader).chain(beside(&last));
            if let Some(loaded) = tries.find_map(|path| open(&path)) {
                agrees(library, &loaded)?;
                found.insert(library, loaded);
            }
        }
        Ok(Self { found })
    }

    /// Whether it is here.
    pub fn has(&self, library: Library) -> bool {
        self.found.contains_key(&library)
    }

    /// Those of `needs` that are not here.
    pub fn missing(&self, needs: &[Library]) -> Vec<Library> {
        needs.iter().copied().filter(|library| !self.has(*library)).collect()
    }

    /// Where it was found.
    pub fn from(&self, library: Library) -> Option<&str> {
        self.found.get(&library).map(|loaded| loaded.from.as_str())
    }

    /// The library itself, for functions that `cudarc` does not reach.
    pub fn handle(&self, library: Library) -> Option<&'static libloading::Library> {
        self.found.get(&library).map(|loaded| loaded.handle)
    }
}

/// Folders that an installation below `folder` keeps libraries in: as CUDA's installer lays them out, and as Python's
/// packages do (`nvidia/*/lib`).
fn places(folder: &Path) -> Vec<PathBuf> {
    let mut places = vec![folder.to_owned(), folder.join("lib64"), folder.join("lib")];
    for parent in [folder.to_owned(), folder.join("nvidia")] {
        let Ok(entries) = std::fs::read_dir(&parent) else { continue };
        let mut packages: Vec<PathBuf> = entries.flatten().map(|entry| entry.path().join("lib")).collect();
        packages.sort();
        places.extend(packages);
    }
    places.retain(|place| place.is_dir());
    places
}

/// Folders that the environment names.
fn environment() -> Vec<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut folders: Vec<PathBuf> = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(named).collect();
    if let Some(python) = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().find_map(named)
        && let Ok(versions) = std::fs::read_dir(python.join("lib"))
    {
        let mut packages: Vec<PathBuf> =
            versions.flatten().map(|version| version.path().join("site-packages/nvidia")).collect();
        packages.sort();
        folders.extend(packages);
    }
    folders.push(PathBuf::from("/usr/local/cuda"));
    folders
}

/// Opens a library for good; none if it is not there or cannot be loaded.
#[allow(unsafe_code)]
fn open(path: &Path) -> Option<Loaded> {
    if path.components().count() > 1 && !path.is_file() {
        return None;
    }
    // SAFETY: loading runs the initialisers of NVIDIA's libraries, which every CUDA program runs.
    let library = unsafe { libloading::Library::new(path) }.ok()?;
    Some(Loaded { from: path.display().to_string(), handle: Box::leak(Box::new(library)) })
}

/// `cudarc` opens libraries by bare names of its own. It must get the one that was found, or it would measure another
/// version than was asked for, or stop the program.
#[allow(unsafe_code)]
fn agrees(library: Library, loaded: &Loaded) -> Result<(), String> {
    let (stem, symbol) = match library {
        Library::Driver => ("cuda", "cuInit"),
        Library::CublasLt => ("cublasLt", "cublasLtGetVersion"),
        Library::Nvrtc => ("nvrtc", "nvrtcVersion"),
        Library::Cudnn => ("cudnn", "cudnnGetVersion"),
        // Not reached through cudarc: NVML has its own crate, and cudarc knows no `libnccl.so.2`.
        Library::Nccl | Library::Nvml => return Ok(()),
    };
    let address = |library: &libloading::Library| {
        // SAFETY: the symbol's address is compared and never called.
        unsafe { library.get::<*const ()>(symbol.as_bytes()).map(|symbol| symbol.try_as_raw_ptr()) }
    };
    let ours = address(loaded.handle)
        .map_err(|error| format!("{} at {} has no {symbol}: {error}", library.name(), loaded.from))?;
    let names = cudarc::get_lib_name_candidates(stem);
    // SAFETY: as in `open`.
    let theirs = names.iter().find_map(|name| unsafe { libloading::Library::new(name) }.ok());
    match theirs.as_ref().map(address) {
        Some(Ok(theirs)) if theirs == ours => Ok(()),
        _ => Err(format!(
            "{} was found at {}, but the loader gives programs another one: put its folder first in LD_LIBRARY_PATH",
            library.name(),
            loaded.from
        )),
    }
}
