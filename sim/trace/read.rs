//! The one entry: what a file is, told by its content, and the table of formats.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::ops::ControlFlow;
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::error::{Error, Interrupted, Stop};
use super::parts::Trace;
use super::xla::{viewer, xplane};
use super::{kineto, nsight};
use crate::files;

/// Told how much of how much was read: bytes, or rows of tables. It may end the reading.
pub type Progress<'a> = &'a dyn Fn(u64, u64) -> ControlFlow<()>;

/// A program's format.
struct Reader {
    /// Its name for users.
    name: &'static str,
    /// Whether a file that begins like this is one.
    is_it: fn(&[u8]) -> bool,
    /// Reads one.
    read: fn(Source<'_>) -> Result<Trace, Stop>,
}

/// All formats, in the order in which they are tried.
const READERS: [Reader; 4] = [
    Reader { name: "PyTorch's profiler (Kineto JSON)", is_it: is_kineto, read: |source| kineto::read(source.content) },
    Reader { name: "Nsight Systems' export (SQLite)", is_it: is_sqlite, read: read_sqlite },
    Reader { name: "XLA's profiler (xplane.pb)", is_it: is_xplane, read: |source| xplane::read(source.content) },
    Reader {
        name: "XLA's profiler (trace viewer JSON)",
        is_it: is_viewer,
        read: |source| viewer::read(source.content),
    },
];

/// What a reader reads.
pub(super) struct Source<'a> {
    /// The content, unpacked.
    pub content: Box<dyn BufRead + 'a>,
    /// The file itself, for a library that opens it.
    pub path: &'a Path,
    /// Whether the content is the file's own, not packed.
    pub is_plain: bool,
    /// Told how far such a library is.
    pub progress: Progress<'a>,
}

/// How much of a file tells what it is \[B\].
const BEGIN: u64 = 1 << 18;

/// Reads a trace.
pub fn read(path: &Path, progress: Progress<'_>) -> Result<Trace, Error> {
    let file = path.display().to_string();
    let of = |stop: Stop| stop.of(&file);
    let (opened, length) = files::open(path).map_err(|error| of(error.into()))?;
    let counted = BufReader::with_capacity(1 << 17, Counted { file: opened, read: 0, length, progress });
    let (mut content, is_plain) = unpacked(counted).map_err(of)?;
    let mut begin = vec![];
    content.by_ref().take(BEGIN).read_to_end(&mut begin).map_err(|error| of(broken_packing(error)))?;
    let Some(reader) = READERS.iter().find(|reader| (reader.is_it)(&begin)) else {
        return Err(Error::Unknown { file, found: looks_like(&begin), known: known() });
    };
    let content = Box::new(BufReader::with_capacity(1 << 17, Cursor::new(begin).chain(content)));
    (reader.read)(Source { content, path, is_plain, progress }).map_err(|stop| match stop {
        Stop::Io(error) => of(broken_packing(error)),
        other => of(other),
    })
}

fn known() -> String {
    let names: Vec<&str> = READERS.iter().map(|reader| reader.name).collect();
    names.join("; ")
}

/// A file that tells how far it was read.
struct Counted<'a> {
    file: File,
    read: u64,
    length: u64,
    progress: Progress<'a>,
}

impl Read for Counted<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if (self.progress)(self.read, self.length).is_break() {
            return Err(std::io::Error::other(Interrupted));
        }
        let read = self.file.read(into)?;
        self.read += read as u64;
        Ok(read)
    }
}

/// The content, which may be packed by gzip whatever the file's name says.
fn unpacked<'a>(mut file: impl BufRead + 'a) -> Result<(Box<dyn Read + 'a>, bool), Stop> {
    let is_packed = file.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    Ok(if is_packed { (Box::new(MultiGzDecoder::new(file)), false) } else { (Box::new(file), true) })
}

/// What gzip says of a broken file, with what to try.
fn broken_packing(error: std::io::Error) -> Stop {
    let what = match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "the packed content ends early".to_owned(),
        std::io::ErrorKind::InvalidData | std::io::ErrorKind::InvalidInput => {
            format!("the packed content is broken ({error})")
        }
        _ => return Stop::Io(error),
    };
    Stop::Broken { place: "gzip".to_owned(), what, remedy: super::error::CUT }
}

/// The first field of an XSpace is a plane, and names of planes are paths.
fn is_xplane(begin: &[u8]) -> bool {
    let names = ["/host:", "/device:", "Task Environment"];
    begin.starts_with(&[0x0a]) && names.iter().any(|name| has(begin, name))
}

fn is_viewer(begin: &[u8]) -> bool {
    is_json(begin) && (has(begin, "\"/host:") || has(begin, "\"/device:"))
}

fn is_sqlite(begin: &[u8]) -> bool {
    begin.starts_with(b"SQLite format 3\0")
}

fn read_sqlite(source: Source<'_>) -> Result<Trace, Stop> {
    if !source.is_plain {
        let what = "a packed SQLite file cannot be read in place".to_owned();
        return Err(Stop::Broken { place: "gzip".to_owned(), what, remedy: "Unpack it: gunzip FILE" });
    }
    nsight::read(source.path, source.progress)
}

fn has(begin: &[u8], word: &str) -> bool {
    memchr::memmem::find(begin, word.as_bytes()).is_some()
}

/// An object, or a list of objects: a table of TOML begins with a bracket, too.
fn is_json(begin: &[u8]) -> bool {
    let mut bytes = begin.iter().filter(|byte| !byte.is_ascii_whitespace());
    match bytes.next() {
        Some(b'{') => true,
        Some(b'[') => matches!(bytes.next(), None | Some(b'{' | b']')),
        _ => false,
    }
}

fn is_kineto(begin: &[u8]) -> bool {
    is_json(begin)
        && (has(begin, "\"deviceProperties\"") || has(begin, "\"cat\"") || has(begin, "\"baseTimeNanoseconds\""))
        && !has(begin, "\"nodes\"")
}

/// What a file that is not known looks like, and what to do with it.
fn looks_like(begin: &[u8]) -> String {
    match begin {
        [] => "it is empty".to_owned(),
        _ if is_json(begin) && has(begin, "\"nodes\"") && has(begin, "\"schema\"") => {
            "it is an execution trace (Chakra), which has shapes and no times: profile with torch.profiler.profile"
                .to_owned()
        }
        _ if is_json(begin) => "it is JSON without events of a profiler that is known".to_owned(),
        _ if begin.starts_with(b"NSYS") || begin.starts_with(b"QDSTRM") || has(begin, "QuadD") => {
            "it is a report of Nsight Systems: export it with nsys export --type sqlite FILE.nsys-rep".to_owned()
        }
        _ if begin.starts_with(b"PK") => "it is a zip archive: unpack it".to_owned(),
        _ if begin.iter().take(32).all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) => {
            format!("it is text that begins with {:?}", String::from_utf8_lossy(&begin[..begin.len().min(32)]))
        }
        _ => {
            let first: Vec<String> = begin.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
            format!("it begins with the bytes {}", first.join(" "))
        }
    }
}
