//! What happens when the program panics: the user is told that it is a bug, where it is, and what to report; a row among others
//! ends alone.

use std::any::Any;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};

/// The exit code of a bug, which Rust gives a panic.
pub const CODE: u8 = 101;

/// From here on a panic names its place and the command, so the files in it. A backtrace is printed where somebody asks for one
/// (`RUST_BACKTRACE`).
pub fn report_panics() {
    let usual = take_hook();
    set_hook(Box::new(move |info| {
        crate::files::complain(&message(info));
        if std::env::var_os("RUST_BACKTRACE").is_some_and(|asked| asked != "0") {
            usual(info);
        }
    }));
}

/// One row's answer, or the first line of what it panicked with, so that it ends no other row.
pub fn caught<T>(row: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(row)).map_err(|panic| words(&*panic).lines().next().unwrap_or_default().to_owned())
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

fn message(info: &PanicHookInfo<'_>) -> String {
    let what = words(info.payload());
    let place = info.location().map_or("an unknown place".to_owned(), ToString::to_string);
    let command: Vec<String> = std::env::args().collect();
    format!(
        "error: windtunnel met a bug at {place}: {what}\n  please report it with this command and the files it names: {}",
        command.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::caught;

    #[test]
    fn a_panic_ends_its_row_alone() {
        let row = |row: u32| caught(|| if row == 1 { panic!("row {row} broke\nmore") } else { row });
        assert_eq!([row(0), row(1), row(2)], [Ok(0), Err("row 1 broke".to_owned()), Ok(2)]);
    }
}
