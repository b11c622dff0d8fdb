//! Reading: a file that is longer than anything that belongs there is refused before it fills memory.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

use super::claims;

/// The longest file that is read \[B\]: ten times the largest collection of receipts, a third of a day of points.
pub const LONGEST: u64 = 256 << 20;

/// All of a file, a pipe or a device, if it ends within [`LONGEST`] and this command does not write it.
pub fn bytes(path: &Path) -> Result<Vec<u8>> {
    not_written(path)?;
    all(File::open(path)?)
}

/// A file of any length that is read piece by piece, and how long it is, if this command does not write it.
pub fn open(path: &Path) -> Result<(File, u64)> {
    not_written(path)?;
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    Ok((file, length))
}

fn not_written(path: &Path) -> Result<()> {
    if claims::is_open(path) {
        let why = "this command reads it and would write it, too: name another file for what is written";
        return Err(Error::new(ErrorKind::ResourceBusy, why));
    }
    Ok(())
}

/// All that there is to read, if it ends within [`LONGEST`].
pub fn all(from: impl Read) -> Result<Vec<u8>> {
    let mut read = vec![];
    from.take(LONGEST + 1).read_to_end(&mut read)?;
    match read.len() as u64 > LONGEST {
        true => Err(Error::new(
            ErrorKind::FileTooLarge,
            format!("longer than {} MiB, the most that is read", LONGEST >> 20),
        )),
        false => Ok(read),
    }
}

/// The same of text.
pub fn text(path: &Path) -> Result<String> {
    String::from_utf8(bytes(path)?).map_err(|_| Error::new(ErrorKind::InvalidData, "no text in UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_device_that_never_ends_is_not_read_to_its_end() {
        let why = text(Path::new("/dev/zero")).expect_err("it fails");
        assert!(why.to_string().contains("longer than 256 MiB"), "{why}");
    }
}
