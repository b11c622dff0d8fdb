//! Starts the process that holds a plugin, in an environment of its own, with a limit on its memory and on what it may print, and ends it
//! when its time is up.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
#[cfg(target_os = "linux")]
use rustix::process::{Resource, Rlimit, prlimit};

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// It could not be started.
    #[error("cannot start the process that holds the plugin: {0}")]
    Start(String),
    /// It died.
    #[error(
        "the plugin died: {how}{said}\nif it does so again, try another version (`windtunnel calibrate plugins list`)"
    )]
    Died {
        /// Of what.
        how: String,
        /// What it printed last.
        said: String,
    },
    /// It took too long.
    #[error("the plugin was ended after {} s without an answer: give it longer by --timeout{said}", limit.as_secs_f64())]
    Late {
        /// How long it had.
        limit: Duration,
        /// What it printed last.
        said: String,
    },
    /// It answers without end.
    #[error("the plugin's answer is longer than {} MiB: it was ended{said}", ANSWER >> 20)]
    Long {
        /// What it printed last.
        said: String,
    },
}

/// The longest answer \[B\]: a compiled program of a thousand layers has a tenth of it.
const ANSWER: u64 = 256 << 20;
/// How much is kept of what it says besides, the end of it \[B\].
const SAID: usize = 1 << 16;

/// Lines of what a plugin printed that are shown.
const LINES: usize = 12;

/// Runs `program` with `arguments`, `environment` and nothing else, writes `input` to it, and gives what it printed, how it ended
/// and what it said. If `done` says so it is ended early, and there is no status. However that ends, nothing of it is left running.
pub fn run(
    program: &Path,
    arguments: &[&str],
    environment: &[(OsString, OsString)],
    input: Vec<u8>,
    (limit, done): (Duration, impl FnMut() -> bool),
) -> Result<(Vec<u8>, Option<ExitStatus>, String), Lost> {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(environment.iter().cloned()).process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Group(command.spawn().map_err(|why| Lost::Start(why.to_string()))?);
    // Before its input is written: until then it waits for it.
    child.may_hold(memory()).map_err(|why| Lost::Start(format!("its memory cannot be limited: {why}")))?;
    let writer = child.0.stdin.take().map(|mut pipe| {
        // A child that does not read its input says why by other means.
        std::thread::spawn(move || drop(pipe.write_all(&input)))
    });
    let (out, err) = (child.0.stdout.take().map(answer), child.0.stderr.take().map(end_of));
    let end = Instant::now() + limit;
    let status = child.wait(end, done);
    drop(child);
    let all = |thread: Option<JoinHandle<Vec<u8>>>| thread.and_then(|thread| thread.join().ok()).unwrap_or_default();
    let (out, err) = (all(out), all(err));
    writer.map(JoinHandle::join);
    let said = last(&err);
    if out.len() as u64 > ANSWER {
        return Err(Lost::Long { said });
    }
    match status {
        Ok(End::Itself(status)) => Ok((out, Some(status), said)),
        Ok(End::Done) => Ok((out, None, said)),
        Ok(End::Late) => Err(Lost::Late { limit, said }),
        Err(why) => Err(Lost::Start(why.to_string())),
    }
}

/// How waiting ended.
enum End {
    /// The child ended.
    Itself(ExitStatus),
    /// It has done what it was started for.
    Done,
    /// Its time is up.
    Late,
}

/// Signals that end what goes wrong, by number.
const SIGNALS: [(i32, &str); 6] = [
    (4, "illegal instruction"),
    (6, "abort; perhaps it wanted more than three quarters of the memory that there is"),
    (7, "bus error"),
    (9, "killed; perhaps there was no memory left"),
    (11, "segmentation fault"),
    (15, "terminated"),
];

/// How a process ended that gave no answer.
pub fn died(status: Option<ExitStatus>, said: String) -> Lost {
    let how = match status.map_or((None, None), |status| (status.signal(), status.code())) {
        (Some(signal), _) => match SIGNALS.iter().find(|(number, _)| *number == signal) {
            Some((_, name)) => format!("signal {signal} ({name})"),
            None => format!("signal {signal}"),
        },
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => "for unknown reasons".to_owned(),
    };
    Lost::Died { how, said }
}

/// A child and all that it started, ended when this goes.
pub struct Group(pub Child);

/// Three quarters of the memory that is available to whoever asks \[B\]; none where the system does not say.
fn memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    let own = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|most| most.trim().parse().ok());
    Some(own.map_or(kib << 10, |own: u64| own.min(kib << 10)) / 4 * 3)
}

impl Group {
    /// Limits what the child, and whatever it starts, may hold: what is mapped to be written, whether touched or not.
    fn may_hold(&self, most: Option<u64>) -> std::io::Result<()> {
        #[cfg(target_os = "linux")]
        if let (Some(most), Some(child)) = (most, i32::try_from(self.0.id()).ok().and_then(Pid::from_raw)) {
            let limit = Rlimit { current: Some(most), maximum: Some(most) };
            prlimit(Some(child), Resource::Data, limit)?;
        }
        Ok(())
    }

    /// Waits for the child until `end`, or until it is `done`.
    fn wait(&mut self, end: Instant, mut done: impl FnMut() -> bool) -> std::io::Result<End> {
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(End::Itself(status));
            }
            if done() {
                return Ok(End::Done);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(End::Late);
            }
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            // There is nobody left to end if all went well.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// All that a pipe gives, up to a byte more than an answer has.
fn answer(pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = vec![];
        let _ = pipe.take(ANSWER + 1).read_to_end(&mut all);
        all
    })
}

/// The end of what a pipe gives.
fn end_of(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let (mut all, mut more) = (vec![], [0; 1 << 12]);
        while let Ok(read @ 1..) = pipe.read(&mut more) {
            all.extend_from_slice(&more[..read]);
            if all.len() > 2 * SAID {
                all.drain(..all.len() - SAID);
            }
        }
        all
    })
}

/// The last lines, on lines of their own.
fn last(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LINES)..].iter().map(|line| format!("\n  {line}")).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<(Vec<u8>, Option<ExitStatus>, String), Lost> {
        let only = [("ONLY".into(), "this".into())];
        run(Path::new("/bin/sh"), &["-c", script], &only, b"in".to_vec(), (limit, || false))
    }

    #[test]
    fn a_process_sees_its_own_environment_and_no_other() {
        let (out, status, _) = shell("/usr/bin/env; /bin/cat", Duration::from_secs(20)).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(status.unwrap().success());
        assert!(text.contains("ONLY=this\n") && text.ends_with("in"), "{text}");
        assert!(!text.contains("HOME="), "{text}");
    }

    #[test]
    fn what_hangs_is_ended_with_all_that_it_started() {
        let late = shell("/bin/sleep 1000 & echo waiting >&2; echo $!; wait", Duration::from_millis(300)).unwrap_err();
        // What still ran would hold the pipe open, and this line would not be reached for 1000 s.
        let Lost::Late { said, .. } = late else { panic!("{late}") };
        assert_eq!(said, "\n  waiting");
    }

    #[test]
    fn what_has_done_its_work_is_ended_before_its_time() {
        let script = ["-c", "echo enough; /bin/sleep 1000"];
        let (out, status, _) =
            run(Path::new("/bin/sh"), &script, &[], vec![], (Duration::from_secs(20), || true)).unwrap();
        assert!(status.is_none() && out.len() <= "enough\n".len());
    }

    #[test]
    fn an_answer_without_end_is_ended_and_of_chatter_the_end_is_kept() {
        let long = shell("exec /usr/bin/yes", Duration::from_secs(60)).unwrap_err();
        assert!(matches!(long, Lost::Long { .. }), "{long}");
        let (_, _, said) = shell("/usr/bin/seq 1 200000 >&2", Duration::from_secs(60)).unwrap();
        assert!(said.len() < SAID && said.ends_with("\n  200000"), "{said}");
    }

    #[test]
    fn a_plugin_may_not_hold_more_than_is_there() {
        let most = memory().unwrap();
        // In KiB, as a shell counts.
        let (out, _, _) = shell("/bin/cat >/dev/null; ulimit -d", Duration::from_secs(20)).unwrap();
        let said: u64 = String::from_utf8(out).unwrap().trim().parse().unwrap();
        assert!(said << 10 >= most / 2 && said << 10 <= most * 2, "{said} KiB of {most}");
    }

    #[test]
    fn how_something_died_is_said() {
        let (_, status, said) = shell("echo because >&2; kill -SEGV $$", Duration::from_secs(20)).unwrap();
        assert_eq!(
            died(status, said).to_string().lines().next(),
            Some("the plugin died: signal 11 (segmentation fault)")
        );
    }
}
