//! A PJRT plugin that does nothing well. Which way it fails is chosen when it is built: `--cfg old`, `crashes`, `hangs`,
//! `empty`, `full` (no program fits its memory); else it refuses every call with an error of its own.

use std::ffi::{c_char, c_int, c_void};

const SLOTS: usize = 118;

#[repr(C)]
struct Table {
    size: usize,
    extensions: *mut c_void,
    version_size: usize,
    version_extensions: *mut c_void,
    version: [c_int; 2],
    slots: [usize; SLOTS],
}

#[repr(C)]
struct Message {
    size: usize,
    extensions: *mut c_void,
    error: *mut c_void,
    text: *const c_char,
    length: usize,
}

#[repr(C)]
struct GetCode {
    size: usize,
    extensions: *mut c_void,
    error: *mut c_void,
    code: c_int,
}

const WORDS: &str = if cfg!(full) { "Ran out of memory: used 40.50G of 31.25G hbm." } else { "the stub says no" };

extern "C" fn destroy(_: *mut c_void) {}

extern "C" fn message(argument: *mut Message) {
    unsafe {
        (*argument).text = WORDS.as_ptr().cast();
        (*argument).length = WORDS.len();
    }
}

extern "C" fn code(argument: *mut GetCode) -> *mut c_void {
    unsafe { (*argument).code = if cfg!(full) { 8 } else { 13 } };
    std::ptr::null_mut()
}

extern "C" fn agree(_: *mut c_void) -> *mut c_void {
    std::ptr::null_mut()
}

extern "C" fn refuse(argument: *mut c_void) -> *mut c_void {
    // Any address will do for an error that nobody looks into.
    argument
}

#[unsafe(no_mangle)]
pub extern "C" fn GetPjrtApi() -> *const c_void {
    if cfg!(crashes) {
        eprintln!("the stub is about to crash");
        std::process::abort();
    }
    while cfg!(hangs) {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    let mut slots = [refuse as *const () as usize; SLOTS];
    slots[0] = destroy as *const () as usize;
    slots[1] = message as *const () as usize;
    slots[2] = code as *const () as usize;
    slots[3] = agree as *const () as usize;
    // One that ends after its first functions.
    let words = if cfg!(empty) { 10 } else { 5 + SLOTS };
    let table = Table {
        size: words * 8,
        extensions: std::ptr::null_mut(),
        version_size: 24,
        version_extensions: std::ptr::null_mut(),
        version: [0, if cfg!(old) { 54 } else { 112 }],
        slots,
    };
    Box::leak(Box::new(table)) as *const Table as *const c_void
}
