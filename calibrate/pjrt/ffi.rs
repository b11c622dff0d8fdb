//! The PJRT C API, made safe: everything `unsafe` about it is in this folder.
//!
//! `abi` holds the layout, `plugin` loads and calls, `compiler` is ahead-of-time compilation for a topology, `client` runs
//! programs on devices. A handle is freed when its owner goes; owners keep what they depend on.

#![allow(unsafe_code)]

mod abi;
mod client;
mod compiler;
mod plugin;

pub use client::{Buffer, Client, Element, Loaded};
pub use compiler::{Executable, Topology};
pub use plugin::Plugin;

/// An option of a topology or a client, by name.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum Setting {
    /// Yes or no.
    Bool(bool),
    /// A number.
    Int(i64),
    /// Several.
    List(Vec<i64>),
    /// A text.
    Text(String),
}
