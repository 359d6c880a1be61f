//! Scripts that add columns to the vdevs of `zpool status` (option `-c`, chapter 09 §4.5;
//! zpool-iostat(8)).
//!
//! # Theory
//! A script is an executable in `~/.zpool.d` or `/etc/zfs/zpool.d`, or in one of the directories of
//! `ZPOOL_SCRIPTS_PATH`. It runs once for each leaf, with the leaf's path in its environment, and
//! prints lines `name=value`: each is a column. Text that has another form is a value without
//! a heading, and ends the output. All scripts of one leaf run one after the other; several
//! leaves have theirs at the same time.
//!
//! # Invariants
//! * A script runs as the user of the command, never in the daemon.
//! * Root runs scripts only if `ZPOOL_SCRIPTS_AS_ROOT` is set.
//! * A name is no path, so only files of the search path run.
//! * Of each script's output at most [`OUTPUT_MAX`] bytes are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base::rt::Mutex;
use proto::Vdev;
use rustix::process::geteuid;

/// The system's directory of scripts.
const SYSTEM_DIR: &str = "/etc/zfs/zpool.d";
/// Bytes of the output of one script that are kept.
const OUTPUT_MAX: u64 = 64 << 10;
/// Leaves whose scripts run at the same time.
const LEAVES_AT_ONCE: usize = 16;

/// The scripts to run, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Scripts(Vec<PathBuf>);

/// A column of a leaf: the heading, which may be empty, and the value.
type Cell = (String, String);

/// The columns of the leaves of one pool.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ScriptColumns {
    /// Headings, in the order in which scripts first named them.
    headings: Vec<String>,
    /// The cells of a leaf, by its guid and name.
    cells: BTreeMap<(u64, String), Vec<Cell>>,
}

fn key(vdev: &Vdev) -> (u64, String) {
    (vdev.guid, vdev.name.clone())
}

impl ScriptColumns {
    fn of(cells: BTreeMap<(u64, String), Vec<Cell>>, order: &[(u64, String)]) -> ScriptColumns {
        let mut headings: Vec<String> = Vec::new();
        for (heading, _) in order.iter().filter_map(|key| cells.get(key)).flatten() {
            if !headings.contains(heading) {
                headings.push(heading.clone());
            }
        }
        ScriptColumns { headings, cells }
    }

    /// The columns of one leaf, with their headings; those that its scripts did not print are left
    /// out. Empty for vdevs that are no leaves.
    pub(super) fn cells(&self, vdev: &Vdev) -> &[Cell] {
        self.cells.get(&key(vdev)).map_or(&[], Vec::as_slice)
    }

    fn value(&self, cells: &[Cell], heading: &str) -> String {
        let found = cells.iter().find(|cell| cell.0 == heading).map(|cell| cell.1.as_str());
        found.filter(|v| !v.is_empty()).unwrap_or("-").to_owned()
    }

    /// Each column has the width of its longest entry; numbers are at its right side.
    fn line(&self, cells: &[String]) -> String {
        let mut out = String::new();
        for (i, (heading, cell)) in self.headings.iter().zip(cells).enumerate() {
            let values = || self.cells.values().map(|cells| self.value(cells, heading));
            let width = values().map(|v| v.chars().count()).max().unwrap_or(0);
            let width = width.max(heading.chars().count());
            let is_number =
                |v: &String| v == "-" || v.chars().all(|c| c.is_ascii_digit() || c == '.');
            out.push_str("  ");
            if values().all(|v| is_number(&v)) {
                out.push_str(&format!("{cell:>width$}"));
            } else if i + 1 < self.headings.len() {
                out.push_str(&format!("{cell:width$}"));
            } else {
                out.push_str(cell);
            }
        }
        out
    }

    /// The headings, behind those of the other columns.
    pub(super) fn heading_line(&self) -> String {
        self.line(&self.headings)
    }

    /// The values of a vdev, behind its remark; empty for vdevs that are no leaves.
    pub(super) fn row(&self, vdev: &Vdev) -> String {
        let Some(cells) = self.cells.get(&key(vdev)) else { return String::new() };
        let values: Vec<String> = self.headings.iter().map(|h| self.value(cells, h)).collect();
        self.line(&values)
    }
}

/// The directories to search, in order.
fn directories(path: Option<&str>, home: Option<&Path>) -> Vec<PathBuf> {
    match path {
        Some(path) => path.split(':').filter(|p| !p.is_empty()).map(PathBuf::from).collect(),
        None => {
            let own = home.map(|home| home.join(".zpool.d"));
            own.into_iter().chain([PathBuf::from(SYSTEM_DIR)]).collect()
        }
    }
}

fn search_path() -> Vec<PathBuf> {
    let path = std::env::var("ZPOOL_SCRIPTS_PATH").ok();
    let home = std::env::var_os("HOME").map(PathBuf::from);
    directories(path.as_deref(), home.as_deref())
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// The complaint about a user who may not run scripts; the variables are
/// `ZPOOL_SCRIPTS_AS_ROOT` and `ZPOOL_SCRIPTS_ENABLED`.
fn refusal(root: bool, as_root: Option<&str>, enabled: Option<&str>) -> Option<&'static str> {
    let on = |v: &str| matches!(v, "1" | "yes" | "YES" | "on" | "ON");
    if root && !as_root.is_some_and(on) {
        return Some("Can't run -c with root privileges unless ZPOOL_SCRIPTS_AS_ROOT is set.");
    }
    let off = enabled.is_some_and(|v| !on(v));
    off.then_some("Can't run -c, disabled by ZPOOL_SCRIPTS_ENABLED.")
}

/// Whether this user may run scripts.
///
/// # Errors
/// The complaint.
pub(super) fn permitted() -> Result<(), String> {
    let variable = |name: &str| std::env::var(name).ok();
    let (as_root, enabled) = (variable("ZPOOL_SCRIPTS_AS_ROOT"), variable("ZPOOL_SCRIPTS_ENABLED"));
    let why = refusal(geteuid().is_root(), as_root.as_deref(), enabled.as_deref());
    why.map_or(Ok(()), |why| Err(why.to_owned()))
}

/// The scripts that there are, for `-c` without an argument.
pub(super) fn list() -> String {
    let mut out = "Available 'zpool status -c' commands:\n".to_owned();
    for dir in search_path() {
        let names = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        let names: BTreeSet<String> = names
            .filter(|entry| is_executable(&entry.path()))
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        for name in names {
            out.push_str(&format!("\t{name}\n"));
        }
    }
    out
}

impl Scripts {
    /// The scripts of the option's argument: names with commas between them.
    ///
    /// # Errors
    /// The complaint about a name that is a path, or that is not found.
    pub(super) fn find(argument: &str) -> Result<Scripts, String> {
        Scripts::find_in(argument, &search_path())
    }

    fn find_in(argument: &str, path: &[PathBuf]) -> Result<Scripts, String> {
        let one = |name: &str| {
            if name.contains('/') || matches!(name, "" | "." | "..") {
                return Err(format!("can't run script '{name}': not the name of a script"));
            }
            let found = path.iter().map(|dir| dir.join(name)).find(|file| is_executable(file));
            found.ok_or_else(|| format!("can't run script '{name}': it is not in the search path"))
        };
        argument.split(',').map(one).collect::<Result<_, _>>().map(Scripts)
    }

    /// Runs the scripts for each leaf of a pool that has a path.
    pub(super) fn run(&self, pool: &str, root: &Vdev) -> ScriptColumns {
        let mut leaves = Vec::new();
        leaves_of(root, &mut leaves);
        let cells = Mutex::new(BTreeMap::new());
        let threads = leaves.len().min(LEAVES_AT_ONCE);
        base::rt::fan_out(threads, |first| {
            for leaf in leaves.iter().skip(first).step_by(threads) {
                let Some(path) = &leaf.path else { continue };
                let mut of_leaf: Vec<Cell> = Vec::new();
                for cell in self.0.iter().flat_map(|script| run_one(script, pool, path)) {
                    if !of_leaf.iter().any(|known| known.0 == cell.0) {
                        of_leaf.push(cell);
                    }
                }
                cells.lock().insert(key(leaf), of_leaf);
            }
        });
        let order: Vec<(u64, String)> = leaves.iter().map(|leaf| key(leaf)).collect();
        ScriptColumns::of(cells.into_inner(), &order)
    }
}

fn leaves_of<'a>(vdev: &'a Vdev, out: &mut Vec<&'a Vdev>) {
    if vdev.children.is_empty() && vdev.path.is_some() {
        out.push(vdev);
    }
    vdev.children.iter().for_each(|child| leaves_of(child, out));
}

/// The cells that a script prints for a leaf; none if it cannot be run.
fn run_one(script: &Path, pool: &str, leaf: &Path) -> Vec<Cell> {
    let below = std::fs::canonicalize(leaf).unwrap_or_else(|_| leaf.to_owned());
    let child = Command::new(script)
        .env("VDEV_PATH", leaf)
        .env("VDEV_UPATH", below)
        .env("POOL_NAME", pool)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return Vec::new() };
    let mut bytes = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        // What was read before an error is shown.
        let _ = stdout.take(OUTPUT_MAX).read_to_end(&mut bytes);
    }
    let _ = child.wait();
    cells_of(&String::from_utf8_lossy(&bytes))
}

/// The cells of a script's output. Control characters would break the table.
fn cells_of(output: &str) -> Vec<Cell> {
    let plain = |text: &str| -> String {
        text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    };
    let mut out = Vec::new();
    for line in output.lines() {
        match line.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => out.push((plain(name), plain(value))),
            _ => {
                if !line.trim().is_empty() {
                    out.push((String::new(), plain(line)));
                }
                break;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::vdevs::tests::vdev;
    use super::*;
    use proto::VdevRole;

    fn cells(text: &str) -> Vec<(String, String)> {
        cells_of(text)
    }
    fn cell(name: &str, value: &str) -> Cell {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn output_of_scripts() {
        assert_eq!(cells("a=1\nb= x y \n"), [cell("a", "1"), cell("b", "x y")]);
        assert_eq!(cells("a=\n"), [cell("a", "")]);
        assert_eq!(
            cells("a=b=c\nno such device\nb=2\n"),
            [cell("a", "b=c"), cell("", "no such device")]
        );
        assert_eq!(cells("=3\na=1"), [cell("", "=3")], "a column needs a name");
        assert_eq!(cells("a=\u{1b}[31mx\n"), [cell("a", " [31mx")]);
        assert_eq!(cells(""), []);
    }

    #[test]
    fn who_may_run_scripts() {
        let root = "Can't run -c with root privileges unless ZPOOL_SCRIPTS_AS_ROOT is set.";
        assert_eq!(refusal(true, None, None), Some(root));
        assert_eq!(refusal(true, Some("0"), None), Some(root));
        assert_eq!(refusal(true, Some("1"), None), None);
        assert_eq!(refusal(false, None, None), None);
        assert!(refusal(false, None, Some("0")).is_some_and(|w| w.contains("disabled")));
        assert_eq!(refusal(false, None, Some("yes")), None);
    }

    #[test]
    fn where_scripts_are() {
        let text = |path, home: Option<&str>| -> Vec<String> {
            let dirs = directories(path, home.map(Path::new));
            dirs.iter().map(|d| d.display().to_string()).collect()
        };
        assert_eq!(text(None, Some("/home/u")), ["/home/u/.zpool.d", SYSTEM_DIR]);
        assert_eq!(text(None, None), [SYSTEM_DIR]);
        assert_eq!(text(Some("/a::/b"), Some("/home/u")), ["/a", "/b"]);
    }

    #[test]
    fn columns_are_aligned() {
        let leaf = |name: &str| vdev("file", name, VdevRole::Normal, vec![]);
        let (a, b) = (leaf("/a"), leaf("/b"));
        let of = |list: &[(&Vdev, &str)]| {
            let order: Vec<_> = list.iter().map(|(v, _)| key(v)).collect();
            let cells = list.iter().map(|(v, text)| (key(v), cells_of(text))).collect();
            ScriptColumns::of(cells, &order)
        };
        let columns = of(&[(&a, "n=5\nvendor=SEAGATE\nsize=7.3T"), (&b, "n=123\nsize=\nhot=1")]);
        assert_eq!(columns.heading_line(), "    n  vendor   size  hot");
        assert_eq!(columns.row(&a), "    5  SEAGATE  7.3T    -");
        assert_eq!(columns.row(&b), "  123  -        -       1");
        let top = vdev("mirror", "mirror-0", VdevRole::Normal, vec![a, b]);
        assert_eq!((columns.row(&top).as_str(), columns.cells(&top)), ("", &[][..]));
    }

    /// Scripts of a directory run for each leaf, and see its path.
    #[test]
    fn scripts_run() {
        let dir = testkit::Scratch::new("scripts");
        let script = |name: &str, mode: u32, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        };
        script("where", 0o755, "echo at=$VDEV_PATH in=$POOL_NAME; echo up=$VDEV_UPATH");
        script("much", 0o755, "yes much=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
        script("plain", 0o644, "echo no=1");
        let path = [dir.path().to_owned()];
        for bad in ["plain", "nosuch", "../where", "where,", ""] {
            assert!(Scripts::find_in(bad, &path).is_err(), "{bad}");
        }
        let scripts = Scripts::find_in("where,much", &path).unwrap();
        let leaves: Vec<Vdev> =
            (0..40).map(|n| vdev("file", &format!("/d{n}"), VdevRole::Normal, vec![])).collect();
        let root = vdev("root", "tank", VdevRole::Normal, leaves);
        let columns = scripts.run("tank", &root);
        assert_eq!(columns.headings, ["at", "up", "much"]);
        for leaf in &root.children {
            let at = format!("{} in=tank", leaf.name);
            let much = "x".repeat(31);
            let wanted = [cell("at", &at), cell("up", &leaf.name), cell("much", &much)];
            assert_eq!(columns.cells(leaf), wanted);
        }
    }
}
