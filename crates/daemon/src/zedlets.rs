//! Zedlets: programs that an administrator wants to run on events (chapter 09 §5).
//!
//! # Theory
//! A thread follows the log of events. For each event it runs the executables of one directory
//! whose names begin with the event's class, its subclass or `all`, followed by a character
//! that is no letter: `scrub_finish-notify.sh`, `all-syslog.sh`. They run in the order of their
//! names, [`JOBS_MAX`] at once, with the event's values in `ZEVENT_*`, without input, and with
//! their output dropped. One that runs longer than [`TIME_MAX`] is killed. So a zedlet delays
//! neither a pool nor the daemon, only later zedlets; events that fall off the log meanwhile
//! are reported in the daemon's log.
//!
//! # Invariants
//! * Only files that belong to root (or to the daemon's user), that nobody else can write, in a
//!   directory for which the same is true, are run.
//! * A zedlet's environment has nothing of the daemon's.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base::rt;
use base::{Error, Result};
use cenote::zevent::{self, EventLog, PoolEvent, Value};

/// Where zedlets lie, unless `CENOTE_ZEDLETS` says otherwise.
pub(crate) const DIRECTORY: &str = "/etc/cenote/zed.d";
/// Zedlets that run at once.
const JOBS_MAX: usize = 16;
/// How long a zedlet may run.
const TIME_MAX: Duration = Duration::from_secs(10);
/// How often running zedlets are looked at.
const POLL: Duration = Duration::from_millis(20);
/// How long a wait for events takes before the end of the log is noticed.
const WAIT: Duration = Duration::from_secs(60);
const SEARCH_PATH: &str = "/sbin:/bin:/usr/sbin:/usr/bin";

/// The directory to use.
pub(crate) fn directory() -> PathBuf {
    std::env::var_os("CENOTE_ZEDLETS").map_or_else(|| PathBuf::from(DIRECTORY), PathBuf::from)
}

/// Starts the thread that runs zedlets until the log is closed.
///
/// # Errors
/// When no thread can be started.
pub(crate) fn start(log: Arc<EventLog>, dir: PathBuf, program: PathBuf) -> Result<()> {
    let start = log.read(u64::MAX).last;
    rt::spawn("zedlets", move || follow(&log, &dir, &program, start)).map(drop)
}

fn follow(log: &EventLog, dir: &Path, program: &Path, mut last: u64) {
    loop {
        let batch = log.wait(last, WAIT);
        last = batch.last;
        if batch.dropped > 0 {
            ui::err(&format!("zedlets: {} events were dropped", batch.dropped));
        }
        for event in &batch.events {
            match zedlets(dir, event) {
                Ok(paths) => run(&paths, &environment(event, dir, program), TIME_MAX),
                Err(e) => ui::err(&format!("zedlets: {e}")),
            }
        }
        if log.is_closed() {
            return;
        }
    }
}

/// Whether a zedlet of this file name wants an event.
fn wants(name: &str, event: &PoolEvent) -> bool {
    let starts = |word: &str| {
        let rest = name.strip_prefix(word);
        rest.is_some_and(|r| r.starts_with(|c: char| !c.is_ascii_alphabetic()))
    };
    starts("all") || starts(&event.class) || starts(event.subclass())
}

/// Whether a file or directory is safe from other users.
fn trusted(meta: &Metadata) -> bool {
    let own = rustix::process::geteuid().as_raw();
    (meta.uid() == 0 || meta.uid() == own) && meta.mode() & 0o022 == 0
}

/// The zedlets that want an event, in order.
fn zedlets(dir: &Path, event: &PoolEvent) -> Result<Vec<PathBuf>> {
    let io = |e| Error::io("the directory of zedlets cannot be read", e);
    let meta = match std::fs::metadata(dir) {
        Ok(meta) => meta,
        // No directory, no zedlets.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(io(e).on_path(dir.display().to_string())),
    };
    if !trusted(&meta) {
        let why = "the directory of zedlets belongs to another user or can be written by others";
        return Err(Error::invalid(why).on_path(dir.display().to_string()));
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let entry = entry.map_err(io)?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|n| !n.starts_with('.') && wants(n, event)) else {
            continue;
        };
        // Links are followed: administrators enable zedlets by them.
        let Ok(meta) = std::fs::metadata(entry.path()) else { continue };
        if meta.is_file() && meta.mode() & 0o100 != 0 {
            if trusted(&meta) {
                found.push(entry.path());
            } else {
                ui::err(&format!("zedlets: {name} is ignored: other users could change it"));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The environment of a zedlet.
fn environment(event: &PoolEvent, dir: &Path, program: &Path) -> BTreeMap<String, OsString> {
    let mut all = BTreeMap::new();
    for (name, value) in event.values.iter() {
        let name = String::from_utf8_lossy(name.as_bytes()).to_uppercase();
        let name: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let name = format!("ZEVENT_{name}");
        if let Some(text) = value_text(&name, value) {
            if let (Value::Uint64(n), true) = (value, name.ends_with("STATE")) {
                all.insert(format!("{name}_STR"), zevent::text::state_word(*n).into());
            }
            all.insert(name, text.into());
        }
    }
    let (seconds, nanoseconds) = event.time;
    let text = ui::time::strftime("%F %T%z", seconds.max(0) as u64);
    for (name, value) in [
        ("EID", event.eid.to_string()),
        ("CLASS", event.class.clone()),
        ("SUBCLASS", event.subclass().to_owned()),
        ("TIME", format!("{seconds} {nanoseconds}")),
        ("TIME_SECS", seconds.to_string()),
        ("TIME_NSECS", nanoseconds.to_string()),
        ("TIME_STRING", text),
    ] {
        all.insert(format!("ZEVENT_{name}"), value.into());
    }
    all.insert("PATH".to_owned(), SEARCH_PATH.into());
    all.insert("ZED_PID".to_owned(), std::process::id().to_string().into());
    all.insert("ZED_ZEDLET_DIR".to_owned(), dir.into());
    let version = env!("CARGO_PKG_VERSION");
    all.insert("ZFS_ALIAS".to_owned(), format!("cenote-{version}").into());
    all.insert("ZFS_VERSION".to_owned(), version.into());
    all.insert("ZFS_RELEASE".to_owned(), "1".into());
    // One program has all commands; it is found by the names of its links, or by its own.
    for name in ["zpool", "zfs", "zdb"] {
        let link = program.with_file_name(name);
        let command = if link.exists() { link } else { program.to_owned() };
        all.insert(name.to_uppercase(), command.into());
    }
    all.insert("CENOTE".to_owned(), program.into());
    all
}

/// A value as `ZEVENT_*` has it; `None` for lists.
fn value_text(name: &str, value: &Value) -> Option<String> {
    fn joined<T: ToString>(all: &[T]) -> String {
        all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }
    Some(match value {
        Value::Boolean => "1".to_owned(),
        Value::BooleanValue(b) => u8::from(*b).to_string(),
        Value::Byte(n) | Value::Uint8(n) => n.to_string(),
        Value::Int8(n) => n.to_string(),
        Value::Int16(n) => n.to_string(),
        Value::Uint16(n) => n.to_string(),
        Value::Int32(n) => n.to_string(),
        Value::Uint32(n) => n.to_string(),
        Value::Int64(n) | Value::Hrtime(n) => n.to_string(),
        Value::Uint64(n) if name.ends_with("GUID") => format!("0x{n:016X}"),
        Value::Uint64(n) => n.to_string(),
        Value::Double(n) => n.to_string(),
        // An environment cannot hold a zero byte; an NvStr has none.
        Value::String(s) => String::from_utf8_lossy(s.as_bytes()).into_owned(),
        Value::ByteArray(all) | Value::Uint8Array(all) => joined(all),
        Value::Int8Array(all) => joined(all),
        Value::Int16Array(all) => joined(all),
        Value::Uint16Array(all) => joined(all),
        Value::Int32Array(all) => joined(all),
        Value::Uint32Array(all) => joined(all),
        Value::Int64Array(all) => joined(all),
        Value::Uint64Array(all) => joined(all),
        Value::BooleanArray(all) => joined(&all.iter().map(|&b| u8::from(b)).collect::<Vec<_>>()),
        Value::StringArray(all) => {
            let texts: Vec<_> =
                all.iter().map(|s| String::from_utf8_lossy(s.as_bytes()).into_owned()).collect();
            texts.join(" ")
        }
        Value::List(_) | Value::ListArray(_) => return None,
    })
}

/// Runs programs and waits for them, each for at most `most`.
fn run(paths: &[PathBuf], environment: &BTreeMap<String, OsString>, most: Duration) {
    for batch in paths.chunks(JOBS_MAX) {
        let mut running: Vec<(&PathBuf, Child)> = Vec::new();
        for path in batch {
            let mut command = Command::new(path);
            command.env_clear().envs(environment).current_dir("/").process_group(0);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            match command.spawn() {
                Ok(child) => running.push((path, child)),
                Err(e) => ui::err(&format!("zedlets: {} cannot run: {e}", path.display())),
            }
        }
        let begin = rt::now();
        while !running.is_empty() {
            running.retain_mut(|(path, child)| match child.try_wait() {
                Ok(None) if begin.elapsed() < most => true,
                Ok(None) => {
                    ui::err(&format!("zedlets: {} ran too long and is killed", path.display()));
                    kill(child);
                    false
                }
                Ok(Some(status)) if !status.success() => {
                    ui::err(&format!("zedlets: {}: {status}", path.display()));
                    false
                }
                Ok(Some(_)) | Err(_) => false,
            });
            if !running.is_empty() {
                rt::sleep(POLL);
            }
        }
    }
}

/// Kills a zedlet and everything that it started.
fn kill(child: &mut Child) {
    let group = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(group) = group {
        let _gone = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _status = child.wait();
}

#[cfg(test)]
#[path = "zedlets_tests.rs"]
mod tests;
