//! What happens when the program panics: the user is told that it is a bug, where it is, and what to report; a row among others
//! ends alone.

use std::any::Any;
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};

/// The exit code of a bug, which Rust gives a panic.
pub const CODE: u8 = 101;

/// From here on a panic names its place and the command, so the files in it. A backtrace is printed where somebody asks for one
/// (the variable `RUST_BACKTRACE`).
pub fn report_panics(command: impl Iterator<Item = String>, backtrace: Option<OsString>) {
    let usual = take_hook();
    let command = command.collect::<Vec<_>>().join(" ");
    let asked = backtrace.is_some_and(|asked| asked != "0");
    set_hook(Box::new(move |info| {
        crate::files::complain(&message(info, &command));
        if asked {
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

fn message(info: &PanicHookInfo<'_>, command: &str) -> String {
    let what = words(info.payload());
    let place = info.location().map_or("an unknown place".to_owned(), ToString::to_string);
    format!(
        "error: windtunnel met a bug at {place}: {what}\n  please report it with this command and the files it names: {command}"
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
