//! PJRT: XLA's compilers and devices behind one C interface, from plugins that are loaded at run time.
//!
//! [`compile`] asks a compiler about a program, in a process of its own; [`buffers`] reads its account of what that holds; [`ffi`] is the interface itself, and the only place
//! here with `unsafe`; [`hlo`] reads what was compiled; [`plugins`] are fetched from PyPI and never come with this program.

pub mod buffers;
pub mod cache;
pub mod child;
pub mod compile;
pub mod error;
pub mod ffi;
pub mod hlo;
pub mod memory;
pub mod message;
pub mod options;
pub mod plugins;
pub mod refused;
pub mod slice;
pub mod source;
pub mod worker;
