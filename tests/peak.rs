//! The most memory that a command holds while it reads a file, whole and damaged, against the budget of `docs/how/reading.md`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What reading may take: so many bytes for each of the file, and so many besides.
pub const MOST: (u64, u64) = (10, 64 << 20);

/// The most memory that a command held \[B\], as the system counts it.
pub fn peak(mut command: Command) -> u64 {
    command.env("RAYON_NUM_THREADS", "2").stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0;
    loop {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        if let Some(line) = text.lines().find_map(|line| line.strip_prefix("VmHWM:")) {
            most = most.max(line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10);
        }
        if let Some(ended) = child.try_wait().unwrap() {
            let code = ended.code();
            assert!(code.is_some_and(|code| code <= 2), "{command:?}: {ended}");
            return most;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Which of two readings take more than they may: of the file as it is, and of it with a byte changed in its middle.
pub fn over(command: impl Fn() -> Command, file: &Path, bytes: &[u8]) -> Vec<String> {
    let mut damaged = bytes.to_vec();
    damaged[bytes.len() / 2] = 0;
    let mut over = vec![];
    for (how, bytes) in [("whole", bytes), ("damaged", &damaged)] {
        std::fs::write(file, bytes).unwrap();
        let took = peak(command());
        let name = file.file_name().unwrap().to_string_lossy();
        let said = format!("{name}, {how}: {} MiB for {} MiB", took >> 20, bytes.len() >> 20);
        println!("{said}");
        if took > MOST.0 * bytes.len() as u64 + MOST.1 {
            over.push(said);
        }
    }
    over
}
