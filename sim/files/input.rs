//! Reading: a file that is longer than anything that belongs there is refused before it fills memory.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// The longest file that is read \[B\]: ten times the largest collection of receipts, a third of a day of points.
pub const LONGEST: u64 = 256 << 20;

/// All of a file, a pipe or a device, if it ends within [`LONGEST`].
pub fn bytes(path: &Path) -> Result<Vec<u8>> {
    let mut read = vec![];
    File::open(path)?.take(LONGEST + 1).read_to_end(&mut read)?;
    within_limit(read.len() as u64)?;
    Ok(read)
}

/// An error if so many bytes are more than is read of one file.
pub fn within_limit(length: u64) -> Result<()> {
    match length > LONGEST {
        true => Err(Error::new(
            ErrorKind::FileTooLarge,
            format!("longer than {} MiB, the most that is read", LONGEST >> 20),
        )),
        false => Ok(()),
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
