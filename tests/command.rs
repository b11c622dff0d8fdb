//! The real binary, run as a user runs it: in a folder of its own, with files beside it.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::followed;

/// A folder with files in it, fresh for each test.
pub struct Folder {
    pub path: PathBuf,
}

impl Folder {
    /// A folder named after the test, with the tiny model in it.
    pub fn new(test: &str) -> Folder {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        let folder = Folder { path };
        folder.write("config.json", include_str!("tiny/config.json"));
        folder
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path.join(name), text).unwrap();
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path.join(name)).unwrap()
    }

    /// Runs `windtunnel` here.
    pub fn windtunnel(&self, arguments: &[&str]) -> Output {
        self.command().args(arguments).output().unwrap()
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windtunnel"));
        command.current_dir(&self.path).env("RUST_BACKTRACE", "0");
        command
    }

    /// Runs `windtunnel` on input that is wrong, follows what it proposes ([`followed`]), and returns what it says.
    pub fn refuses(&self, arguments: &[&str]) -> String {
        let output = self.windtunnel(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!said.contains("panicked"), "{said}");
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "nothing is printed beside an error: {said}");
        if let ["run", scenario] = arguments {
            let path = self.path.join(scenario);
            if let Ok(text) = std::fs::read_to_string(&path) {
                followed::remedy(&path.display().to_string(), &text);
            }
        }
        said
    }
}
