//! `zfs project`: the projects of files (chapter 09 §3).
//!
//! # Theory
//! The command opens each file and asks its file system, so the kernel decides who may set
//! what. Only regular files and directories have projects that can be set; others are left
//! out, symbolic links are not followed below a directory.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use base::Result;
use commands::getopt::Parsed;
use mount::projects::{FileProject, project_of, set_project};
use ui::Exit;

use super::{misuse, options};

/// What is done with each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProjectAction {
    List,
    /// Report what differs from this id, or from that of the operand.
    Check(Option<u32>),
    /// Set the id, or that of the operand; and the flag.
    Set {
        id: Option<u32>,
        inherit: bool,
    },
    /// Clear the flag, and the id unless it is kept.
    Clear {
        keep: bool,
    },
}

struct ProjectJob {
    action: ProjectAction,
    recursive: bool,
    /// A directory itself, not what is in it.
    itself: bool,
    /// Names end with NUL, without words.
    nul: bool,
    failed: bool,
    out: Vec<u8>,
}

/// The action of a command line; an error is the message before the usage.
fn action(parsed: &Parsed) -> std::result::Result<ProjectAction, String> {
    let has = |letter| parsed.has(letter);
    let id = match parsed.last('p') {
        None => None,
        Some(text) => match text.parse::<u32>() {
            Ok(id) if id != u32::MAX => Some(id),
            _ => return Err(format!("invalid project id '{text}'")),
        },
    };
    let together = |a: char, b: char| Err(format!("-{a} and -{b} cannot be used together"));
    let chosen = match (has('C'), has('c'), has('s') || id.is_some()) {
        (true, true, _) => return together('C', 'c'),
        (true, _, true) => return together('C', if has('s') { 's' } else { 'p' }),
        (true, ..) => ProjectAction::Clear { keep: has('k') },
        (_, true, _) if has('s') => return together('c', 's'),
        (_, true, _) => ProjectAction::Check(id),
        (_, _, true) => ProjectAction::Set { id, inherit: has('s') },
        _ => ProjectAction::List,
    };
    if has('d') && has('r') {
        return together('d', 'r');
    }
    let wrong = [
        ('0', !matches!(chosen, ProjectAction::Check(_))),
        ('k', !matches!(chosen, ProjectAction::Clear { .. })),
        ('d', matches!(chosen, ProjectAction::Clear { .. } | ProjectAction::Set { .. })),
    ];
    match wrong.into_iter().find(|(letter, wrong)| *wrong && has(*letter)) {
        Some((letter, _)) => Err(format!("-{letter} does not go with this")),
        None => Ok(chosen),
    }
}

/// `zfs project ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("project", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let action = match action(&parsed) {
        Ok(action) => action,
        Err(why) => return Ok(misuse("project", Some(&why))),
    };
    if parsed.args.is_empty() {
        return Ok(misuse("project", Some("missing file or directory target(s)")));
    }
    let mut job = ProjectJob {
        action,
        recursive: parsed.has('r'),
        itself: parsed.has('d'),
        nul: parsed.has('0'),
        failed: false,
        out: Vec::new(),
    };
    for path in &parsed.args {
        job.operand(Path::new(path));
    }
    Ok(Exit::failed_if(job.failed))
}

fn open(path: &Path, follow: bool) -> io::Result<File> {
    let no_follow = if follow { 0 } else { rustix::fs::OFlags::NOFOLLOW.bits() };
    let flags = no_follow | (rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::NONBLOCK).bits();
    File::options().read(true).custom_flags(flags.cast_signed()).open(path)
}

fn text(e: &io::Error) -> String {
    let full = e.to_string();
    full.split(" (os error").next().unwrap_or(&full).to_owned()
}

impl ProjectJob {
    fn complain(&mut self, what: &str, path: &Path, e: &io::Error) {
        ui::err(&format!("failed to {what} '{}': {}", path.display(), text(e)));
        self.failed = true;
    }

    /// Prints what was gathered.
    fn flush(&mut self) {
        ui::out_bytes(&std::mem::take(&mut self.out));
    }

    fn operand(&mut self, path: &Path) {
        let opened = open(path, true).and_then(|f| Ok((f.metadata()?, f)));
        let (found, file) = match opened {
            Ok(opened) => opened,
            Err(e) => return self.complain("open", path, &e),
        };
        let own = match project_of(&file) {
            Ok(own) => own,
            Err(e) => return self.complain("get xattr for", path, &e),
        };
        let is_dir = found.is_dir();
        // A listing of a directory shows what is in it, as ls(1) does.
        let shows_itself = !is_dir || self.itself || self.action != ProjectAction::List;
        if shows_itself {
            self.one(path, &file, own, own);
        }
        let looks_inside = match self.action {
            ProjectAction::List | ProjectAction::Check(_) => !self.itself,
            ProjectAction::Set { .. } | ProjectAction::Clear { .. } => self.recursive,
        };
        if is_dir && looks_inside {
            self.below(path, own);
        }
        self.flush();
    }

    /// What is in a directory, and with `-r` everything below.
    fn below(&mut self, top: &Path, operand: FileProject) {
        let mut todo = vec![top.to_owned()];
        while let Some(dir) = todo.pop() {
            let entries = std::fs::read_dir(&dir)
                .and_then(|list| list.map(|e| Ok(e?.path())).collect::<io::Result<Vec<_>>>());
            let mut entries = match entries {
                Ok(entries) => entries,
                Err(e) => {
                    self.complain("open dir", &dir, &e);
                    continue;
                }
            };
            entries.sort();
            let mut dirs: Vec<PathBuf> = Vec::new();
            for path in entries {
                let found = match std::fs::symlink_metadata(&path) {
                    Ok(found) => found,
                    // It went meanwhile.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                    Err(e) => {
                        self.complain("open", &path, &e);
                        continue;
                    }
                };
                if !found.is_file() && !found.is_dir() {
                    continue;
                }
                let opened = open(&path, false).and_then(|f| Ok((project_of(&f)?, f)));
                match opened {
                    Ok((now, file)) => self.one(&path, &file, now, operand),
                    Err(e) => self.complain("open", &path, &e),
                }
                if found.is_dir() && self.recursive {
                    dirs.push(path);
                }
            }
            dirs.reverse();
            todo.extend(dirs);
            self.flush();
        }
    }

    /// One file that has project `now`, of an operand that had `operand`.
    fn one(&mut self, path: &Path, file: &File, now: FileProject, operand: FileProject) {
        let wanted = match self.action {
            ProjectAction::List => {
                let flag = if now.inherits { 'P' } else { '-' };
                self.out.extend(format!("{:5} {flag} ", now.id).into_bytes());
                self.out.extend(path.as_os_str().as_bytes());
                self.out.push(b'\n');
                return;
            }
            ProjectAction::Check(id) => return self.check(path, now, id.unwrap_or(operand.id)),
            ProjectAction::Set { id, inherit } => FileProject {
                id: id.unwrap_or(if inherit { operand.id } else { now.id }),
                inherits: inherit || now.inherits,
            },
            ProjectAction::Clear { keep } => {
                FileProject { id: if keep { now.id } else { 0 }, inherits: false }
            }
        };
        if wanted != now
            && let Err(e) = set_project(file, wanted)
        {
            self.complain("set xattr for", path, &e);
        }
    }

    fn check(&mut self, path: &Path, now: FileProject, wanted: u32) {
        let mut say = |why: Option<String>| {
            self.out.extend(path.as_os_str().as_bytes());
            match (self.nul, why) {
                (false, Some(why)) => self.out.extend(format!(" - {why}\n").into_bytes()),
                _ => self.out.push(0),
            }
        };
        let other = now.id != wanted;
        if self.nul {
            if other || !now.inherits {
                say(None);
            }
            return;
        }
        if other {
            say(Some(format!("project ID is not set properly ({}/{wanted})", now.id)));
        }
        if !now.inherits {
            say(Some("project inherit flag is not set".to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_choose_what_is_done() {
        let of = |line: &str| {
            let argv: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            action(&commands::find("zfs", "project").parse(&argv).unwrap())
        };
        assert_eq!(of("-r x"), Ok(ProjectAction::List));
        assert_eq!(of("-C -k x"), Ok(ProjectAction::Clear { keep: true }));
        assert_eq!(of("-c0p 7 x"), Ok(ProjectAction::Check(Some(7))));
        assert_eq!(of("-s x"), Ok(ProjectAction::Set { id: None, inherit: true }));
        assert_eq!(of("-rp 5 x"), Ok(ProjectAction::Set { id: Some(5), inherit: false }));
        for wrong in
            ["-Cc x", "-Cs x", "-C -p 1 x", "-cs x", "-dr x", "-0 x", "-k x", "-ds x", "-p x y"]
        {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        assert_eq!(of("-p 4294967295 x"), Err("invalid project id '4294967295'".to_owned()));
    }
}
