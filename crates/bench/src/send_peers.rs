//! What other programs move: a tree of small files and a large one, first whole, then after a
//! part of the large one was overwritten.
//!
//! # Theory
//! Each program copies an ordinary directory twice, to a copy, an archive or a repository beside
//! it. The bytes are those that it would send to another machine, as far as it says: rsync's
//! protocol (without its shortcut for local copies), the size of tar's archives, what restic adds
//! to its repository, the stream of `btrfs send`. A program that is absent, or that cannot be
//! used here, is left out with a note.

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base::{Error, ErrorKind, Result, rt};

use super::frame::{Cell, ReportTable};
use super::sample::{SampleContent, XorShift};
use super::{BenchResult, Run};

/// Files of a directory.
const PER_DIR: u64 = 200;
/// The largest small file, bytes.
const SMALL_MAX: u64 = 16 << 10;
/// Bytes of a record that is overwritten.
const RECORD: u64 = 128 << 10;

/// What a program moved: everything, then what changed.
#[derive(Clone, Debug)]
pub(super) struct MovedBytes {
    pub(super) program: String,
    pub(super) first_bytes: u64,
    pub(super) first_seconds: f64,
    pub(super) then_bytes: u64,
    pub(super) then_seconds: f64,
}

impl MovedBytes {
    pub(super) fn new(program: &str) -> MovedBytes {
        let program = program.to_owned();
        MovedBytes { program, first_bytes: 0, first_seconds: 0.0, then_bytes: 0, then_seconds: 0.0 }
    }
}

/// The table of what was moved.
pub(super) fn report(run: &mut Run, all: &[MovedBytes]) {
    let columns = [
        ("program", "PROGRAM"),
        ("first_bytes", "FIRST BYTES"),
        ("first_s", "FIRST s"),
        ("then_bytes", "THEN BYTES"),
        ("then_s", "THEN s"),
    ];
    let mut table = ReportTable::new("moved", &columns);
    for of in all {
        table.rows.push(vec![
            of.program.as_str().into(),
            Cell::Bytes(of.first_bytes),
            Cell::Real(of.first_seconds),
            Cell::Bytes(of.then_bytes),
            Cell::Real(of.then_seconds),
        ]);
    }
    run.report.tables.push(table);
}

/// A program's run: its output, if it succeeded.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.output().map_err(|e| Error::io(format!("cannot run {name}"), e))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&out.stderr);
    let line = text.lines().last().unwrap_or("no message").to_owned();
    Err(Error::new(ErrorKind::Io, format!("{name}: {line}")))
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error {
    let path = path.to_string_lossy().into_owned();
    move |e| Error::io("cannot write the peers' files", e).on_path(path.clone())
}

/// The directory that programs copy.
struct PeerTree {
    dir: PathBuf,
    size: u64,
    files: u64,
    changed: u64,
}

impl PeerTree {
    fn large(&self) -> PathBuf {
        self.dir.join("large")
    }

    fn fill(&self, run: &mut Run) -> BenchResult<()> {
        let fail = failed(&self.dir);
        std::fs::create_dir_all(&self.dir).map_err(&fail)?;
        let (mut random, mut content) = (XorShift::new(7), vec![0; 1 << 20]);
        SampleContent::half().fill(0, &mut content);
        for n in 0..self.files {
            let dir = self.dir.join(format!("d{}", n / PER_DIR));
            if n % PER_DIR == 0 {
                run.step("making the peers' files", n, self.files)?;
                std::fs::create_dir(&dir).map_err(&fail)?;
            }
            let len = random.below(SMALL_MAX) + 1;
            let at = random.below(content.len() as u64 - len) as usize;
            std::fs::write(dir.join(format!("f{n}")), &content[at..at + len as usize])
                .map_err(&fail)?;
        }
        let large = std::fs::File::create(self.large()).map_err(&fail)?;
        for at in (0..self.size).step_by(content.len()) {
            run.step("making the peers' large file", at, self.size)?;
            let part = &mut content[..(self.size - at).min(1 << 20) as usize];
            SampleContent::noise(1).fill(at, part);
            large.write_all_at(part, at).map_err(&fail)?;
        }
        large.sync_all().map_err(&fail)?;
        Ok(())
    }

    /// Overwrites one record in so many.
    fn overwrite(&self, seed: u64) -> Result<()> {
        let fail = failed(&self.dir);
        let file = std::fs::OpenOptions::new().write(true).open(self.large()).map_err(&fail)?;
        let (mut random, mut part) = (XorShift::new(seed), vec![0; RECORD as usize]);
        for at in (0..self.size / RECORD).map(|record| record * RECORD) {
            if random.below(self.changed) == 0 {
                SampleContent::noise(seed + 2).fill(at, &mut part);
                file.write_all_at(&part, at).map_err(&fail)?;
            }
        }
        file.sync_all().map_err(&fail)
    }
}

/// Copies the tree once; returns the bytes moved. The number says which copy it is.
type PeerCopy<'a> = &'a dyn Fn(u64) -> Result<u64>;

fn twice(tree: &PeerTree, program: &str, seed: u64, copy: PeerCopy<'_>) -> Result<MovedBytes> {
    let mut moved = MovedBytes::new(program);
    let began = rt::now();
    moved.first_bytes = copy(0)?;
    moved.first_seconds = began.elapsed().as_secs_f64();
    tree.overwrite(seed)?;
    let began = rt::now();
    moved.then_bytes = copy(1)?;
    moved.then_seconds = began.elapsed().as_secs_f64();
    Ok(moved)
}

fn rsync(tree: &PeerTree, to: &Path) -> Result<u64> {
    let from = format!("{}/", tree.dir.display());
    let mut command = Command::new("rsync");
    command.args(["-a", "--no-whole-file", "--inplace", "--stats", &from]).arg(to);
    let text = output(command.env("LC_ALL", "C"))?;
    let number = |label: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(label))?;
        line.chars().filter(char::is_ascii_digit).collect::<String>().parse::<u64>().ok()
    };
    let sum = number("Total bytes sent: ").zip(number("Total bytes received: "));
    let none = || Error::new(ErrorKind::Io, "rsync does not say what it moved");
    sum.map(|(sent, received)| sent + received).ok_or_else(none)
}

fn tar(tree: &PeerTree, work: &Path, number: u64) -> Result<u64> {
    let archive = work.join(format!("tree{number}.tar"));
    let mut command = Command::new("tar");
    command.arg("-C").arg(&tree.dir).arg("--listed-incremental").arg(work.join("tar.list"));
    output(command.arg("-cf").arg(&archive).arg("."))?;
    let size = std::fs::metadata(&archive).map_err(failed(&archive))?.len();
    std::fs::remove_file(&archive).map_err(failed(&archive))?;
    Ok(size)
}

fn restic(tree: &PeerTree, work: &Path, number: u64) -> Result<u64> {
    let command = |words: &[&str]| {
        let mut command = Command::new("restic");
        command.env("RESTIC_PASSWORD", "bench").env("RESTIC_CACHE_DIR", work.join("restic-cache"));
        command.arg("-r").arg(work.join("restic")).args(words);
        output(&mut command)
    };
    if number == 0 {
        command(&["init"])?;
    }
    let text = command(&["backup", "--json", &tree.dir.to_string_lossy()])?;
    let summary = text.lines().rev().find(|line| line.contains("\"summary\""));
    let summary = summary.and_then(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let added = summary
        .and_then(|of| of["data_added_packed"].as_u64().or_else(|| of["data_added"].as_u64()));
    added.ok_or_else(|| Error::new(ErrorKind::Io, "restic does not say what it added"))
}

/// Bytes that a command writes to its standard output.
fn piped(command: &mut Command) -> Result<u64> {
    let fail = |e| Error::io("cannot run btrfs", e);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map_err(fail)?;
    let (mut bytes, mut part) = (0, vec![0; 1 << 20]);
    if let Some(mut out) = child.stdout.take() {
        loop {
            match out.read(&mut part).map_err(fail)? {
                0 => break,
                n => bytes += n as u64,
            }
        }
    }
    match child.wait().map_err(fail)?.success() {
        true => Ok(bytes),
        false => Err(Error::new(ErrorKind::Io, "btrfs send failed")),
    }
}

fn btrfs(tree: &PeerTree, number: u64) -> Result<u64> {
    let above = tree.dir.parent().unwrap_or(Path::new("/"));
    let snap = |n: u64| above.join(format!("snap{n}"));
    let mut command = Command::new("btrfs");
    output(command.args(["subvolume", "snapshot", "-r"]).arg(&tree.dir).arg(snap(number)))?;
    let mut send = Command::new("btrfs");
    send.arg("send");
    if number > 0 {
        send.arg("-p").arg(snap(number - 1));
    }
    piped(send.arg(snap(number)))
}

/// A mounted btrfs of the bench's own.
struct BtrfsMount(PathBuf);

impl BtrfsMount {
    fn new(work: &Path, size: u64) -> Result<BtrfsMount> {
        let (image, at) = (work.join("btrfs.img"), work.join("btrfs"));
        let file = std::fs::File::create(&image).map_err(failed(&image))?;
        file.set_len(size).map_err(failed(&image))?;
        std::fs::create_dir(&at).map_err(failed(&at))?;
        output(Command::new("mkfs.btrfs").arg("-q").arg(&image))?;
        output(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at))?;
        Ok(BtrfsMount(at))
    }
}

impl Drop for BtrfsMount {
    fn drop(&mut self) {
        let _left = output(Command::new("umount").arg(&self.0));
    }
}

fn on_btrfs(run: &mut Run, tree: &PeerTree, work: &Path) -> BenchResult<MovedBytes> {
    let size = tree.size * 2 + tree.files * 24_000 + (1 << 30);
    let mounted = BtrfsMount::new(work, size)?;
    let dir = mounted.0.join("tree");
    output(Command::new("btrfs").args(["subvolume", "create"]).arg(&dir))?;
    let tree = PeerTree { dir, ..*tree };
    tree.fill(run)?;
    Ok(twice(&tree, "btrfs send", 40, &|n| btrfs(&tree, n))?)
}

/// Lets each program that is there copy a tree in the directory `work`.
///
/// # Errors
/// Those of the files; an interruption.
pub(super) fn measure(
    run: &mut Run,
    work: &Path,
    size: u64,
    files: u64,
    changed: u64,
) -> BenchResult<Vec<MovedBytes>> {
    let tree = PeerTree { dir: work.join("tree"), size, files, changed };
    tree.fill(run)?;
    let mut out = Vec::new();
    let rsync_to = work.join("rsync");
    let copies: [(&str, PeerCopy<'_>); 3] = [
        ("rsync -a", &|_| rsync(&tree, &rsync_to)),
        ("tar", &|n| tar(&tree, work, n)),
        ("restic", &|n| restic(&tree, work, n)),
    ];
    for (seed, (program, copy)) in (10..).zip(copies) {
        run.step(program, 0, 0)?;
        match twice(&tree, program, seed, copy) {
            Ok(moved) => out.push(moved),
            Err(e) => run.report.notes.push(format!("{program}: {e}")),
        }
    }
    match on_btrfs(run, &tree, work) {
        Ok(moved) => out.push(moved),
        Err(super::Stop::Failed(e)) => run.report.notes.push(format!("btrfs send: {e}")),
        Err(stop) => return Err(stop),
    }
    Ok(out)
}
