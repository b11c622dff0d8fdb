//! What the compiler says that a program needs of a device's memory.

use serde::{Deserialize, Serialize};

/// Bytes of one device, and of its host where arrays are kept there \[B\].
///
/// Arguments, outputs, what of them shares memory, and temporary memory are exact: the program will hold them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryStats {
    /// Parameters, optimizer states, the batch: what is there before.
    pub argument: u64,
    /// What is there after.
    pub output: u64,
    /// Of both, what is the same memory (donated arguments).
    pub alias: u64,
    /// In between; a compiler that counts fast memory here may give more than `peak`.
    pub temp: u64,
    /// The program itself.
    pub generated_code: u64,
    /// The most at one time; zero where the compiler does not say.
    pub peak: u64,
    /// Arguments in host memory.
    pub host_argument: u64,
    /// Results in host memory.
    pub host_output: u64,
    /// Of both, what is the same memory.
    pub host_alias: u64,
    /// Temporary host memory: activations that were offloaded.
    pub host_temp: u64,
}
