//! Topologies and profiles as text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use windtunnel::cost::Profile;
use windtunnel::hardware::{Size, Topology};

fuzz_target!(|text: &str| {
    let _ = Topology::parse("own.toml", text, &Size::Smallest);
    let _ = Profile::parse("own.toml", text);
});
