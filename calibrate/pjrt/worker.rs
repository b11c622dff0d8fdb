//! The process that holds a plugin: reads a request from its input, compiles, and answers on its output.
//!
//! libtpu reads variables, installs signal handlers, starts threads and may crash or never come back; all of that ends
//! with this process. It dies with whoever started it.

use std::io::{Read, Write};
use std::time::Instant;

use super::error::PjrtError;
use super::ffi::{Client, Executable, Plugin, Topology};
use super::message::{Answer, Facts, Request, framed};

/// Serves one request. The error is for whoever started this by hand.
pub fn serve() -> Result<(), String> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|why| format!("cannot ask to die with the parent: {why}"))?;
    let mut input = vec![];
    std::io::stdin().read_to_end(&mut input).map_err(|why| why.to_string())?;
    let line = input.iter().position(|byte| *byte == b'\n').ok_or("this is started by other commands, not by hand")?;
    let request: Request = serde_json::from_slice(&input[..line]).map_err(|why| why.to_string())?;
    let program = &input[line + 1..];
    let began = Instant::now();
    let (answer, compiled) = match compile(&request, program, began) {
        Ok((facts, compiled)) => (Answer::Compiled(facts), compiled),
        Err(PjrtError::Refused { call, code, message }) => {
            let seconds = began.elapsed().as_secs_f64();
            (Answer::Refused { code: code.0, call, message, seconds, account: None }, vec![])
        }
        Err(other) => (Answer::Unusable(other.to_string()), vec![]),
    };
    let mut out = std::io::stdout().lock();
    out.write_all(&framed(&answer, &compiled)).and_then(|()| out.flush()).map_err(|why| why.to_string())?;
    drop(out);
    // The plugin's threads and exit handlers are not waited for: they have hung before.
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
        .map_err(|why| why.to_string())
}

fn compile(request: &Request, program: &[u8], began: Instant) -> Result<(Facts, Vec<u8>), PjrtError> {
    let plugin = Plugin::load(&request.plugin)?;
    match &request.topology {
        Some((name, settings)) => {
            let topology = Topology::create(plugin, name, settings)?;
            let executable = topology.compile((program, &request.format), &request.options)?;
            facts(&executable, topology.compiler()?, began)
        }
        None => {
            let client = Client::create(plugin, &request.client)?;
            let loaded = client.compile((program, &request.format), &request.options)?;
            facts(&loaded.executable()?, client.platform()?.1, began)
        }
    }
}

fn facts(executable: &Executable, compiler: String, began: Instant) -> Result<(Facts, Vec<u8>), PjrtError> {
    let seconds = began.elapsed().as_secs_f64();
    let (program, format) = executable.program()?;
    // The analysis is an extra, and knows no program with kernels of unknown insides.
    let (memory, cost) = (executable.memory()?, executable.cost().unwrap_or_default());
    Ok((Facts { memory, cost, seconds, compiler, format, bytes: program.len(), account: None }, program))
}
