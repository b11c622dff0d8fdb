//! What the user is told when the program panics: that it is a bug, where it is, and what to report.

use std::panic::{PanicHookInfo, set_hook, take_hook};

/// The exit code of a bug, which Rust gives a panic.
pub const CODE: u8 = 101;

/// From here on a panic names its place and the command, so the files in it. A backtrace is printed where somebody asks for one
/// (`RUST_BACKTRACE`).
pub fn report_panics() {
    let usual = take_hook();
    set_hook(Box::new(move |info| {
        windtunnel::files::complain(&message(info));
        if std::env::var_os("RUST_BACKTRACE").is_some_and(|asked| asked != "0") {
            usual(info);
        }
    }));
}

fn message(info: &PanicHookInfo<'_>) -> String {
    let what = match (info.payload().downcast_ref::<&str>(), info.payload().downcast_ref::<String>()) {
        (Some(text), _) => *text,
        (None, Some(text)) => text.as_str(),
        (None, None) => "no message",
    };
    let place = info.location().map_or("an unknown place".to_owned(), ToString::to_string);
    let command: Vec<String> = std::env::args().collect();
    format!(
        "error: windtunnel met a bug at {place}: {what}\n  please report it with this command and the files it names: {}",
        command.join(" ")
    )
}
