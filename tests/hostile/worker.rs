//! Workers: this binary again, told by the environment which cases to take. It says when it begins and ends each.

use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::panic::catch_unwind;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::cases::Ground;
use super::invariants::examine;

/// What a case may take: milliseconds of its processors, and KiB of memory.
const MILLISECONDS: u64 = 5_000;
const KIB: u64 = 1 << 20;
/// Address space of a worker \[KiB\]: an allocation without bound ends it, not the machine.
const ADDRESSES: u64 = 6 << 20;
/// How long a worker may say nothing, whatever else the machine does.
const SILENCE: Duration = Duration::from_secs(180);
const CASES: &str = "HOSTILE_WORKER";
const MARK: &str = "@@ ";

/// What becomes of a case.
pub enum End {
    Answered,
    Refused,
    Wrong(String),
}

/// A case and what it took.
pub struct Found {
    pub number: u64,
    pub milliseconds: u64,
    pub kib: u64,
    pub end: End,
}

/// Has workers take cases, until all are taken.
pub fn take(seed: u64, mut cases: Range<u64>, found: &mut dyn FnMut(Found)) {
    while !cases.is_empty() {
        let mut worker = start(seed, &cases);
        let lines = lines(&mut worker);
        let mut begun = cases.start;
        let why = loop {
            match lines.recv_timeout(SILENCE) {
                Ok(line) => match line.strip_prefix("begin ") {
                    Some(number) => begun = number.parse().unwrap(),
                    None => {
                        found(read(line.strip_prefix("end ").unwrap()));
                        cases.start = begun + 1;
                    }
                },
                Err(RecvTimeoutError::Timeout) => break format!("no end within {} s", SILENCE.as_secs()),
                Err(RecvTimeoutError::Disconnected) => break "its process died".to_owned(),
            }
        };
        let _ = worker.kill();
        let status = worker.wait().unwrap();
        if !cases.is_empty() {
            let end = End::Wrong(format!("{why} ({status})"));
            found(Found { number: begun, milliseconds: 0, kib: 0, end });
            cases.start = begun + 1;
        }
    }
}

fn start(seed: u64, cases: &Range<u64>) -> Child {
    let limited = format!("ulimit -v {ADDRESSES}; exec \"$0\" --exact hostile::worker::work --ignored --nocapture");
    Command::new("bash")
        .args(["-c", &limited])
        .arg(std::env::current_exe().unwrap())
        .env(CASES, format!("{seed} {} {}", cases.start, cases.end))
        .envs([("RAYON_NUM_THREADS", "1"), ("MALLOC_ARENA_MAX", "1")])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// What a worker says, as it says it.
fn lines(worker: &mut Child) -> Receiver<String> {
    let (send, receive) = channel();
    let out = BufReader::new(worker.stdout.take().unwrap());
    std::thread::spawn(move || {
        // What is no UTF-8 is a report that is not ours to read.
        for line in out.lines().map_while(Result::ok) {
            if let Some(said) = line.split_once(MARK).map(|(_, said)| said.to_owned())
                && send.send(said).is_err()
            {
                break;
            }
        }
    });
    receive
}

fn read(line: &str) -> Found {
    let mut words = line.splitn(5, ' ');
    let mut number = || words.next().unwrap().parse().unwrap();
    let (case, milliseconds, kib) = (number(), number(), number());
    let end = match words.next().unwrap() {
        "answered" => End::Answered,
        "refused" => End::Refused,
        _ => End::Wrong(words.next().unwrap_or_default().to_owned()),
    };
    Found { number: case, milliseconds, kib, end }
}

/// Processor time of this process so far \[ms\], of all its threads.
fn processors() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // Fields 14 and 15 in hundredths of a second; the name before them may hold anything.
    let after = stat.rsplit_once(") ").unwrap().1;
    after.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap() * 10).sum()
}

/// The most memory that this process has held since [`forget`] \[KiB\].
fn most() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn forget() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{line}").and_then(|()| out.flush()).unwrap();
}

#[test]
#[ignore = "what a worker does; others start it"]
fn work() {
    let Ok(asked) = std::env::var(CASES) else { return };
    let numbers: Vec<u64> = asked.split(' ').map(|word| word.parse().unwrap()).collect();
    let ground = Ground::new();
    println!();
    for number in numbers[1]..numbers[2] {
        say(&format!("begin {number}"));
        let text = ground.case(numbers[0], number);
        forget();
        let before = processors();
        let end = catch_unwind(|| examine(&text)).unwrap_or_else(|panic| {
            let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            End::Wrong(format!("a panic: {}", words.unwrap_or("no message")))
        });
        let (took, most) = (processors() - before, most());
        let end = match end {
            End::Wrong(why) => format!("wrong {}", why.replace('\n', " ")),
            _ if took > MILLISECONDS => format!("wrong it took {took} ms of its processors"),
            _ if most > KIB => format!("wrong it took {} MiB", most >> 10),
            End::Answered => "answered".to_owned(),
            End::Refused => "refused".to_owned(),
        };
        say(&format!("end {number} {took} {most} {end}"));
    }
}
