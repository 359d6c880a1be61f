//! The output of commands for people and scripts: text on standard streams, tables, progress,
//! dates, exit codes; and the signals that end a command.
//!
//! # Theory
//! A command makes lines; this crate writes them. Tables have one form for people and one for
//! scripts ([`table`]). The map of a pool's space is drawn in a terminal and as SVG ([`map`]). A progress line appears only on a terminal, and only for work that
//! takes longer than a second ([`progress`]). Messages go to standard error, without the
//! numbers that the system gives its errors.
//!
//! # Invariants
//! * A reader that closes standard output ends the process without a message.
//!
//! # What it must not know
//! Commands, the daemon, its protocol, open pools. Of the engine it uses only the tables of
//! properties (`cenote::props`): widths of columns and the format of sizes; the plain data
//! of a space map (`cenote::space_map`) and of dedup statistics.

pub mod dedup;
pub mod json;
pub mod map;
pub mod progress;
pub mod signals;
pub mod table;
pub mod terminal;
pub mod time;
pub mod xml;

use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use base::{Error, ErrorKind, rt};

/// The exit code of a command (chapter 09 §1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit(pub u8);

impl Exit {
    /// The command succeeded.
    pub const OK: Exit = Exit(0);
    /// It failed, at least in part.
    pub const FAILURE: Exit = Exit(1);
    /// Its command line was wrong.
    pub const USAGE: Exit = Exit(2);

    /// Failure if `failed`.
    pub fn failed_if(failed: bool) -> Exit {
        if failed { Exit::FAILURE } else { Exit::OK }
    }
}

/// The message about something that Cenote does not have yet.
pub fn not_yet(what: &str) -> String {
    format!("{what} is not supported by this version of Cenote")
}

/// A message about a path that could not be examined.
pub fn problem(path: &Path, e: &Error) -> String {
    match e.kind() {
        ErrorKind::Permission => format!("{}: {}", path.display(), e.message()),
        _ => format!("{}: {e}", path.display()),
    }
}

/// A path that blocks a command for this long is reported as silent.
const SILENT: Duration = Duration::from_secs(2);

/// Examines a path that may be on a device that does not answer; reports that every `SILENT` on
/// standard error. The command can be interrupted meanwhile.
pub fn look_at<T>(path: &Path, look: impl FnOnce() -> T) -> T {
    let (seen, done) = channel::<()>();
    let shown = path.display().to_string();
    let begin = rt::now();
    let watch = rt::spawn("silence", move || {
        while done.recv_timeout(SILENT) == Err(RecvTimeoutError::Timeout) {
            err(&format!("{shown} has not answered for {} s", begin.elapsed().as_secs()));
        }
    });
    let found = look();
    drop(seen);
    // Without a thread nothing is reported.
    if let Ok(watch) = watch {
        watch.join();
    }
    found
}

/// Writes to standard output. A reader that has closed it ends the process silently, as
/// `SIGPIPE` would.
pub fn out(text: &str) {
    out_bytes(text.as_bytes());
}

/// As [`out`], for bytes.
pub fn out_bytes(bytes: &[u8]) {
    let mut stdout = std::io::stdout().lock();
    if stdout.write_all(bytes).and_then(|()| stdout.flush()).is_err() {
        std::process::exit(1);
    }
}

/// Lines of the terminal at standard output; `None` if it is no terminal.
pub fn rows() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_row)).filter(|rows| *rows > 3)
}

/// Writes one line to standard error, the system's errors by their text alone.
pub fn err(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", without_codes(line));
}

/// Drops each ` (os error 2)`: the words before it say the same.
fn without_codes(line: &str) -> String {
    const MARK: &str = " (os error ";
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once(MARK) {
        out.push_str(before);
        rest = match after.split_once(')') {
            Some((code, tail)) if code.bytes().all(|b| b.is_ascii_digit()) => tail,
            _ => {
                out.push_str(MARK);
                after
            }
        };
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::without_codes;

    #[test]
    fn codes_go_and_words_stay() {
        let text = "a: not there (os error 2): b (os error x) (os error 30)";
        assert_eq!(without_codes(text), "a: not there: b (os error x)");
        assert_eq!(without_codes("plain (os error "), "plain (os error ");
    }
}
