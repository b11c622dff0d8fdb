//! `windtunnel-calibrate`: see the library.

fn main() -> std::process::ExitCode {
    windtunnel_calibrate::run()
}
