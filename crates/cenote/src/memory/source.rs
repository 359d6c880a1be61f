//! The system's sources of information about memory.
//!
//! # Theory
//! `/proc/meminfo` describes the machine. A control group limits the processes in it and
//! below. `/proc/self/cgroup` names this process's groups, `/proc/self/mountinfo` the
//! location of their files. In version 2 these are `memory.max`, `memory.high` and
//! `memory.current`; in version 1 `memory.limit_in_bytes` and `memory.usage_in_bytes`.
//! Pages of files that were not used for long (`inactive_file`) count as used there, but
//! can be reclaimed at once. The tightest of all these limits is used.
//!
//! Time lost to memory is in `/proc/pressure/memory`, and for a control group of version 2
//! in `memory.pressure`. These are ascending totals; the one that grows faster is used.
//!
//! A missing file is no source. A file with malformed content is an error.

use std::fs::File;
use std::io::{ErrorKind as IoKind, Read};
use std::path::{Component, Path, PathBuf};

use arc::MemorySample;
use arc::pressure::sys_free;
use base::{Error, Result};

/// Bytes read of one file at most.
pub(super) const FILE_MAX: u64 = 1 << 20;
/// Control groups examined, from the process's own upwards.
const DEPTH_MAX: usize = 64;
/// A limit of version 1 this large is none.
const NO_LIMIT: u64 = 1 << 62;

/// Reads samples; keeps the locations of control groups and the totals of stalls.
#[derive(Debug)]
pub struct Reader {
    root: PathBuf,
    /// The content of `/proc/self/cgroup`, and the groups that it names.
    groups: (String, Vec<ControlGroup>),
    stalls: [Stalls; 2],
    some_us: u64,
    full_us: u64,
}

/// The totals of one file of stalls at the last sample.
#[derive(Clone, Copy, Debug, Default)]
struct Stalls {
    seen: bool,
    some: u64,
    full: u64,
}

/// One limit on this process's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MemoryLimit {
    name: String,
    total: u64,
    available: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A control group of this process: the location of its hierarchy, and its path in that.
#[derive(Debug, PartialEq, Eq)]
struct ControlGroup {
    version: Version,
    mount: PathBuf,
    path: PathBuf,
}

impl Reader {
    /// A reader of the system below `root`.
    pub fn new(root: &Path) -> Reader {
        Reader {
            root: root.to_owned(),
            groups: Default::default(),
            stalls: Default::default(),
            some_us: 0,
            full_us: 0,
        }
    }

    /// Takes a sample of the memory.
    ///
    /// # Errors
    /// `NotFound` when there is no source at all; `Corrupt`, naming the file, when one is
    /// malformed; `Io` when one cannot be read.
    pub fn sample(&mut self) -> Result<MemorySample> {
        let mut sources = Vec::new();
        sources.extend(self.machine()?);
        self.find_groups()?;
        for group in &self.groups.1 {
            self.limits(group, &mut sources)?;
        }
        let total = sources.iter().map(|s| s.total).min();
        let spare = |s: &MemoryLimit| i128::from(s.available) - i128::from(sys_free(s.total));
        let tightest = sources.into_iter().min_by_key(spare);
        let (Some(total), Some(tightest)) = (total, tightest) else {
            return Err(Error::not_found("neither /proc/meminfo nor a control group has a limit"));
        };
        self.count_stalls()?;
        Ok(MemorySample {
            total,
            available: tightest.available,
            scope: tightest.total,
            psi_some_us: self.some_us,
            psi_full_us: self.full_us,
            source: tightest.name,
        })
    }

    /// The file's text; `None` if there is none.
    fn text(&self, path: &Path) -> Result<Option<String>> {
        let full = self.root.join(path.strip_prefix("/").unwrap_or(path));
        let failed = |e| Error::io(format!("cannot read /{}", relative(path).display()), e);
        let file = match File::open(&full) {
            Ok(file) => file,
            Err(e) if absent(&e) => return Ok(None),
            Err(e) => return Err(failed(e)),
        };
        let mut bytes = Vec::new();
        match file.take(FILE_MAX).read_to_end(&mut bytes) {
            Ok(_) => {}
            // A control group that was just removed, or a kernel without stalls.
            Err(e) if absent(&e) => return Ok(None),
            Err(e) => return Err(failed(e)),
        }
        String::from_utf8(bytes).map(Some).map_err(|_| odd(path, "is not text"))
    }

    /// The machine's own memory.
    fn machine(&self) -> Result<Option<MemoryLimit>> {
        let path = Path::new("/proc/meminfo");
        let Some(text) = self.text(path)? else { return Ok(None) };
        let value = |key: &str| -> Result<Option<u64>> {
            let Some(line) = text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))
            else {
                return Ok(None);
            };
            let kib = line.trim().strip_suffix("kB").and_then(|n| n.trim().parse::<u64>().ok());
            let bytes = kib.and_then(|n| n.checked_mul(1024)).filter(|n| *n < NO_LIMIT);
            bytes.map(Some).ok_or_else(|| odd(path, &format!("has an odd {key}")))
        };
        let Some(total) = value("MemTotal")?.filter(|n| *n > 0) else {
            return Err(odd(path, "has no MemTotal"));
        };
        // Kernels before 3.14 have no estimate of their own.
        let available = match value("MemAvailable")? {
            Some(n) => n,
            None => {
                let free = value("MemFree")?.ok_or_else(|| odd(path, "has no MemFree"))?;
                free.saturating_add(value("Inactive(file)")?.unwrap_or(0))
            }
        };
        let available = signed(available.min(total));
        Ok(Some(MemoryLimit { name: "/proc/meminfo".to_owned(), total, available }))
    }

    /// Finds the control groups that may limit this process's memory, if they changed.
    fn find_groups(&mut self) -> Result<()> {
        let path = Path::new("/proc/self/cgroup");
        let text = self.text(path)?.unwrap_or_default();
        if text == self.groups.0 {
            return Ok(());
        }
        let mounts = self.text(Path::new("/proc/self/mountinfo"))?.unwrap_or_default();
        let mut groups = Vec::new();
        for line in text.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(id), Some(controllers), Some(at)) =
                (parts.next(), parts.next(), parts.next())
            else {
                return Err(odd(path, "has a line that names no group"));
            };
            let version = match controllers {
                "" if id == "0" => Version::Two,
                list if list.split(',').any(|c| c == "memory") => Version::One,
                _ => continue,
            };
            groups.push(locate(version, Path::new(at), &mounts));
            if groups.len() > 2 {
                return Err(odd(path, "names too many groups"));
            }
        }
        self.groups = (text, groups);
        Ok(())
    }

    fn limits(&self, group: &ControlGroup, sources: &mut Vec<MemoryLimit>) -> Result<()> {
        for path in group.path.ancestors().take(DEPTH_MAX) {
            let dir = group.mount.join(path);
            sources.extend(match group.version {
                Version::One => self.limit_v1(&dir)?,
                Version::Two => self.limit_v2(&dir)?,
            });
        }
        Ok(())
    }

    fn limit_v2(&self, dir: &Path) -> Result<Option<MemoryLimit>> {
        let max = self.number(&dir.join("memory.max"))?;
        let high = self.number(&dir.join("memory.high"))?;
        let limit = max.unwrap_or(u64::MAX).min(high.unwrap_or(u64::MAX));
        let name = if limit == high.unwrap_or(u64::MAX) { "memory.high" } else { "memory.max" };
        self.limit(dir, limit, name, "memory.current", "inactive_file")
    }

    fn limit_v1(&self, dir: &Path) -> Result<Option<MemoryLimit>> {
        let name = "memory.limit_in_bytes";
        let limit = self.number(&dir.join(name))?.unwrap_or(u64::MAX);
        self.limit(dir, limit, name, "memory.usage_in_bytes", "total_inactive_file")
    }

    fn limit(
        &self,
        dir: &Path,
        limit: u64,
        name: &str,
        usage: &str,
        inactive: &str,
    ) -> Result<Option<MemoryLimit>> {
        if limit >= NO_LIMIT {
            return Ok(None);
        }
        let Some(used) = self.number(&dir.join(usage))? else { return Ok(None) };
        let stat = dir.join("memory.stat");
        let text = self.text(&stat)?.unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix(inactive)?.strip_prefix(' '));
        let files = match line {
            Some(n) => n.trim().parse().map_err(|_| odd(&stat, "has an odd number"))?,
            None => 0u64,
        };
        let available = i128::from(limit) - i128::from(used.saturating_sub(files));
        Ok(Some(MemoryLimit {
            name: format!("/{}", relative(&dir.join(name)).display()),
            total: limit,
            available: i64::try_from(available).unwrap_or(i64::MIN),
        }))
    }

    /// A file of one number; `u64::MAX` for `max`, `None` without a file.
    fn number(&self, path: &Path) -> Result<Option<u64>> {
        let Some(text) = self.text(path)? else { return Ok(None) };
        match text.trim() {
            "max" => Ok(Some(u64::MAX)),
            n => n.parse().map(Some).map_err(|_| odd(path, "is no number")),
        }
    }

    fn count_stalls(&mut self) -> Result<()> {
        let own = self.groups.1.iter().find(|g| g.version == Version::Two);
        let own = own.map(|g| g.mount.join(&g.path).join("memory.pressure"));
        let machine = Some(PathBuf::from("/proc/pressure/memory"));
        let (mut some, mut full) = (0, 0);
        for (i, path) in [machine, own].into_iter().enumerate() {
            let Some(path) = path else { continue };
            let Some(text) = self.text(&path)? else { continue };
            let now = stalls(&path, &text)?;
            let before = self.stalls[i];
            if before.seen {
                some = some.max(now.some.saturating_sub(before.some));
                full = full.max(now.full.saturating_sub(before.full));
            }
            self.stalls[i] = now;
        }
        self.some_us = self.some_us.saturating_add(some);
        self.full_us = self.full_us.saturating_add(full);
        Ok(())
    }
}

/// The totals in a file of stalls; kernels before 5.13 have no line `full` for some.
fn stalls(path: &Path, text: &str) -> Result<Stalls> {
    let total = |kind: &str| -> Result<Option<u64>> {
        let Some(line) = text.lines().find_map(|l| l.strip_prefix(kind)?.strip_prefix(' ')) else {
            return Ok(None);
        };
        let total = line.split_whitespace().find_map(|w| w.strip_prefix("total="));
        let total = total.and_then(|n| n.parse().ok());
        total.map(Some).ok_or_else(|| odd(path, "has no total"))
    };
    let some = total("some")?.ok_or_else(|| odd(path, "has no line of stalls"))?;
    Ok(Stalls { seen: true, some, full: total("full")?.unwrap_or(0) })
}

/// The location of a control group's files: the mount of its hierarchy, or the usual path.
fn locate(version: Version, at: &Path, mounts: &str) -> ControlGroup {
    let mut mount = PathBuf::from(match version {
        Version::One => "/sys/fs/cgroup/memory",
        Version::Two => "/sys/fs/cgroup",
    });
    let mut path = inside(at);
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let mut kind = right.split(' ');
        let is_ours = match (version, kind.next(), kind.nth(1)) {
            (Version::Two, Some("cgroup2"), _) => true,
            (Version::One, Some("cgroup"), Some(options)) => {
                options.split(',').any(|o| o == "memory")
            }
            _ => false,
        };
        let mut fields = left.split(' ').skip(3);
        if let (true, Some(root), Some(point)) = (is_ours, fields.next(), fields.next()) {
            mount = Path::new("/").join(inside(Path::new(point)));
            // A container may see only a part of the hierarchy.
            if let Ok(below) = at.strip_prefix(root) {
                path = inside(below);
            }
            break;
        }
    }
    ControlGroup { version, mount, path }
}

/// The path without a root and without steps upwards.
fn inside(path: &Path) -> PathBuf {
    let parts = path.components().filter(|c| matches!(c, Component::Normal(_)));
    parts.take(DEPTH_MAX).collect()
}

fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

fn absent(e: &std::io::Error) -> bool {
    // ENODEV: a control group that is being removed; EOPNOTSUPP: stalls are not counted.
    matches!(e.kind(), IoKind::NotFound | IoKind::NotADirectory | IoKind::Unsupported)
        || e.raw_os_error() == Some(19)
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn odd(path: &Path, what: &str) -> Error {
    Error::corrupt(format!("/{} {what}", relative(path).display()))
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
