//! `ls` and `tree`.

use std::fmt::Write;

use base::{ObjectId, Result};
use cenote::files::{Attrs, FileType as FileKind};
use cenote::props::nicebytes;
use cenote::{FileSystem, Io};
use ui::time;

use super::{DEPTH_MAX, Operand, OperandTarget, entries, is_dir, too_deep};

/// A name without characters that a terminal would interpret.
fn shown(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn mode_text(mode: u32, kind: FileKind) -> String {
    let mut out = String::new();
    out.push(match kind {
        FileKind::Dir => 'd',
        FileKind::Symlink => 'l',
        FileKind::Char => 'c',
        FileKind::Block => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::Regular => '-',
        FileKind::Unknown => '?',
    });
    for shift in [6, 3, 0] {
        let bits = mode >> shift;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        let special = match shift {
            6 => (mode & 0o4000 != 0, 's', 'S'),
            3 => (mode & 0o2000 != 0, 's', 'S'),
            _ => (mode & 0o1000 != 0, 't', 'T'),
        };
        out.push(match (special.0, bits & 1 != 0) {
            (true, true) => special.1,
            (true, false) => special.2,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    out
}

fn line(fs: &FileSystem, name: &[u8], a: &Attrs, long: bool) -> String {
    let name = shown(name);
    if !long {
        return format!("{name}\n");
    }
    let size = match a.device {
        Some(d) => format!("{}, {}", d.major, d.minor),
        None => a.size.to_string(),
    };
    let date = u64::try_from(a.mtime.seconds)
        .map_or_else(|_| a.mtime.seconds.to_string(), |s| time::strftime("%Y-%m-%d %H:%M", s));
    let mut out = format!(
        "{} {:>3} {:>6} {:>6} {size:>12} {date} {name}",
        mode_text(a.mode, a.kind),
        a.nlink,
        a.uid,
        a.gid
    );
    if a.kind == FileKind::Symlink {
        match fs.readlink(a.id, Io::WAIT) {
            Ok(target) => {
                let _ = write!(out, " -> {}", shown(&target));
            }
            Err(e) => {
                let _ = write!(out, " -> ? ({e})");
            }
        }
    }
    out.push('\n');
    out
}

/// `ls`; false if something could not be read.
pub(super) fn ls(
    source: &Operand,
    operand: &str,
    long: bool,
    recursive: bool,
    many: bool,
) -> Result<bool> {
    let (fs, id) = match &source.content {
        OperandTarget::File(fs, id) => (fs, *id),
        OperandTarget::Volume(volume) => {
            let name = shown(&source.name);
            ui::out(&if long {
                format!("{:>12} {name}\n", volume.size())
            } else {
                format!("{name}\n")
            });
            return Ok(true);
        }
    };
    let attrs = fs.attrs(id, Io::WAIT)?;
    if !is_dir(&attrs) {
        ui::out(&line(fs, &source.name, &attrs, long));
        return Ok(true);
    }
    let mut todo = vec![(operand.trim_end_matches('/').to_owned(), id, 0)];
    let mut fine = true;
    let mut first = true;
    while let Some((path, dir, depth)) = todo.pop() {
        if recursive || many {
            ui::out(&format!("{}{path}:\n", if first { "" } else { "\n" }));
        }
        first = false;
        let mut below = Vec::new();
        for (name, id) in entries(fs, dir)? {
            let attrs = match fs.attrs(id, Io::WAIT) {
                Ok(attrs) => attrs,
                Err(e) => {
                    ui::err(&format!("ls: {path}/{}: {e}", shown(&name)));
                    fine = false;
                    continue;
                }
            };
            ui::out(&line(fs, &name, &attrs, long));
            if recursive && is_dir(&attrs) {
                if depth >= DEPTH_MAX {
                    return Err(too_deep());
                }
                let sep = if path.contains(":/") || path.ends_with(':') { "/" } else { ":/" };
                below.push((format!("{path}{sep}{}", shown(&name)), id, depth + 1));
            }
        }
        todo.extend(below.into_iter().rev());
    }
    Ok(fine)
}

/// `tree`; false if something could not be read.
pub(super) fn tree(source: &Operand, operand: &str) -> Result<bool> {
    let OperandTarget::File(fs, id) = &source.content else {
        ui::out(&format!("{operand}\n"));
        return Ok(true);
    };
    ui::out(&format!("{operand}\n"));
    let mut walk = Walk { fs, dirs: 0, files: 0, bytes: 0, fine: true };
    if is_dir(&fs.attrs(*id, Io::WAIT)?) {
        walk.run(*id)?;
    }
    ui::out(&format!(
        "\n{} directories, {} files, {}\n",
        walk.dirs,
        walk.files,
        nicebytes(walk.bytes)
    ));
    Ok(walk.fine)
}

struct Walk<'a> {
    fs: &'a FileSystem,
    dirs: u64,
    files: u64,
    bytes: u64,
    fine: bool,
}

impl Walk<'_> {
    fn run(&mut self, root: ObjectId) -> Result<()> {
        // An explicit stack, because the disk determines the depth.
        let mut stack = vec![(String::new(), entries(self.fs, root)?.into_iter().peekable())];
        while let Some((indent, list)) = stack.last_mut() {
            let Some((name, id)) = list.next() else {
                stack.pop();
                continue;
            };
            let last = list.peek().is_none();
            let (branch, deeper) =
                if last { ("└── ", "    ") } else { ("├── ", "│   ") };
            let deeper = format!("{indent}{deeper}");
            let mut text = format!("{indent}{branch}{}", shown(&name));
            let attrs = match self.fs.attrs(id, Io::WAIT) {
                Ok(attrs) => attrs,
                Err(e) => {
                    self.fine = false;
                    ui::out(&format!("{text} [{e}]\n"));
                    continue;
                }
            };
            if attrs.kind == FileKind::Symlink {
                let target = self.fs.readlink(id, Io::WAIT).unwrap_or_default();
                let _ = write!(text, " -> {}", shown(&target));
            }
            ui::out(&format!("{text}\n"));
            if !is_dir(&attrs) {
                self.files += 1;
                self.bytes = self.bytes.saturating_add(attrs.size);
                continue;
            }
            self.dirs += 1;
            if stack.len() >= DEPTH_MAX {
                return Err(too_deep());
            }
            match entries(self.fs, id) {
                Ok(list) => stack.push((deeper, list.into_iter().peekable())),
                Err(e) => {
                    self.fine = false;
                    ui::out(&format!("{deeper}[{e}]\n"));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_read_like_ls() {
        assert_eq!(mode_text(0o100_644, FileKind::Regular), "-rw-r--r--");
        assert_eq!(mode_text(0o041_777, FileKind::Dir), "drwxrwxrwt");
        assert_eq!(mode_text(0o104_655, FileKind::Regular), "-rwSr-xr-x");
        assert_eq!(shown(b"a\x1b[2J"), "a?[2J");
    }
}
