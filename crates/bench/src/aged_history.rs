//! Histories of a source tree: what each commit writes, removes and renames.
//!
//! # Theory
//! A history is a sequence of commits, each a list of changes of files. A synthetic one is drawn
//! from a seed: sizes have a median of 4 KiB and a tail up to 1 MiB, as source trees do; a commit
//! edits one file in a hundred, and adds, removes and renames a few. An edited file is removed
//! and written anew with a size that differs by up to a tenth, as a checkout does. The other
//! kind of history is that of a git repository: the program `git` checks commits out into a
//! temporary clone, and the differences between two of them are the changes.
//!
//! The tree that a history leaves is known without reading it back ([`AgedTreeModel`]), so that
//! a fresh copy does not depend on the aged one.
//!
//! # Invariants
//! * Equal seeds give equal histories, byte for byte.
//! * Each change is possible when its turn comes: what is removed or renamed exists, what is
//!   written or renamed to does not.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use base::{Error, ErrorKind, Result};

use super::sample::{SampleContent, XorShift};

/// Files of a directory of a synthetic tree, on average.
const PER_DIR: u64 = 24;
/// Directories below the root of a synthetic tree: packages.
const PACKAGES: u64 = 40;
/// Largest file of a git repository that is copied.
const GIT_FILE_MAX: u64 = 256 << 20;

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AgedContent {
    /// So many bytes of the sample, from a position that the seed gives.
    Sample { size: u64, seed: u64 },
    /// The content of a file outside of the bench's target.
    Host(PathBuf),
}

impl AgedContent {
    /// Bytes.
    ///
    /// # Errors
    /// The other file is gone.
    pub(super) fn size(&self) -> Result<u64> {
        match self {
            AgedContent::Sample { size, .. } => Ok(*size),
            AgedContent::Host(path) => {
                let failed = |e| Error::io("cannot look at", e).on_path(path.to_string_lossy());
                Ok(std::fs::metadata(path).map_err(failed)?.len())
            }
        }
    }

    /// Fills `out` with the content.
    ///
    /// # Errors
    /// Those of reading the other file.
    pub(super) fn load(&self, sample: &SampleContent, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        match self {
            AgedContent::Sample { size, seed } => {
                out.resize(usize::try_from(*size).unwrap_or(usize::MAX), 0);
                sample.fill((seed % (1 << 20)) * 512, out);
            }
            AgedContent::Host(path) => {
                let failed = |e| Error::io("cannot read", e).on_path(path.to_string_lossy());
                *out = std::fs::read(path).map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// One change of a file. Paths are relative and have no empty parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AgedChange {
    /// A new file.
    Write(String, AgedContent),
    Remove(String),
    Rename(String, String),
}

/// The files of a tree by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AgedTreeModel(pub(super) BTreeMap<String, AgedContent>);

impl AgedTreeModel {
    /// Applies a change; false if it is not possible.
    pub(super) fn apply(&mut self, change: &AgedChange) -> bool {
        match change {
            AgedChange::Write(path, content) => {
                self.0.insert(path.clone(), content.clone()).is_none()
            }
            AgedChange::Remove(path) => self.0.remove(path).is_some(),
            AgedChange::Rename(from, to) => match self.0.remove(from) {
                Some(content) => self.0.insert(to.clone(), content).is_none(),
                None => false,
            },
        }
    }
}

/// The size of a file: 1 KiB to 1 MiB, the median near 4 KiB.
fn file_size(rng: &mut XorShift) -> u64 {
    (10.0 + 10.0 * rng.share() * rng.share()).exp2() as u64
}

/// A history that is drawn from a seed.
pub(super) struct SyntheticHistory {
    rng: XorShift,
    /// Paths and sizes of the files that exist.
    files: Vec<(String, u64)>,
    /// Files of the first commit; their number stays near it.
    wanted: u64,
    made: u64,
}

impl SyntheticHistory {
    /// A history of a tree with so many files.
    pub(super) fn new(seed: u64, files: u64) -> SyntheticHistory {
        let wanted = files.max(1);
        SyntheticHistory { rng: XorShift::new(seed), files: Vec::new(), wanted, made: 0 }
    }

    /// A path that was never used before.
    fn new_path(&mut self) -> String {
        let package = self.rng.below(PACKAGES.min(self.wanted.div_ceil(PER_DIR)));
        let dirs = self.wanted.div_ceil(PACKAGES * PER_DIR);
        let dir = self.rng.below(dirs);
        self.made += 1;
        format!("package{package}/dir{dir}/file{}.c", self.made)
    }

    fn content(&mut self, size: u64) -> AgedContent {
        AgedContent::Sample { size, seed: self.rng.next() }
    }

    /// A new file.
    pub(super) fn add(&mut self) -> AgedChange {
        let (path, size) = (self.new_path(), file_size(&mut self.rng));
        self.files.push((path.clone(), size));
        AgedChange::Write(path, self.content(size))
    }

    fn remove(&mut self) -> Option<AgedChange> {
        // The last file stays, so that each commit has something to edit.
        let live = (self.files.len() as u64).checked_sub(2)? + 2;
        let at = self.rng.below(live) as usize;
        Some(AgedChange::Remove(self.files.swap_remove(at).0))
    }

    /// The changes of the next commit; the first one makes the tree.
    pub(super) fn commit(&mut self) -> Vec<AgedChange> {
        if self.files.is_empty() {
            return (0..self.wanted).map(|_| self.add()).collect();
        }
        let mut out = Vec::new();
        let few = 1 + self.files.len() as u64 / 500;
        for _ in 0..1 + self.files.len() as u64 / 100 {
            let at = self.rng.below(self.files.len() as u64) as usize;
            let (path, size) = self.files[at].clone();
            let size = (size as f64 * (0.9 + 0.2 * self.rng.share())) as u64;
            self.files[at].1 = size.clamp(1, 1 << 20);
            let content = self.content(self.files[at].1);
            out.extend([AgedChange::Remove(path.clone()), AgedChange::Write(path, content)]);
        }
        for _ in 0..1 + self.rng.below(few) {
            // The number of files drifts back to that of the first commit.
            match self.files.len() as u64 {
                n if n < self.wanted => out.push(self.add()),
                n if n > self.wanted => out.extend(self.remove()),
                _ => {
                    let added = self.add();
                    out.extend(self.remove());
                    // A file that is removed in the commit that adds it was never there.
                    match out.last() {
                        Some(AgedChange::Remove(gone)) if added.path() == gone => drop(out.pop()),
                        _ => out.push(added),
                    }
                }
            }
        }
        for _ in 0..self.rng.below(few + 1) {
            let at = self.rng.below(self.files.len() as u64) as usize;
            let to = self.new_path();
            let from = std::mem::replace(&mut self.files[at].0, to.clone());
            out.push(AgedChange::Rename(from, to));
        }
        out
    }

    /// Replaces a share of the packages by new versions, as an upgrade does: each of their files
    /// is removed, and one of another size is written.
    pub(super) fn upgrade(&mut self, share: f64) -> Vec<AgedChange> {
        let mut out = Vec::new();
        let chosen: Vec<bool> = (0..PACKAGES).map(|_| self.rng.share() < share).collect();
        let package = |path: &str| path.strip_prefix("package")?.split('/').next()?.parse().ok();
        for at in 0..self.files.len() {
            let (path, old) = self.files[at].clone();
            let number: Option<usize> = package(&path);
            if !number.and_then(|n| chosen.get(n)).is_some_and(|c| *c) {
                continue;
            }
            // The total stays what it is: a nearly full pool must not overflow.
            let size = (old as f64 * (0.9 + 0.2 * self.rng.share())) as u64;
            self.files[at].1 = size.clamp(1, 1 << 20);
            let content = self.content(self.files[at].1);
            out.extend([AgedChange::Remove(path.clone()), AgedChange::Write(path, content)]);
        }
        out
    }
}

impl AgedChange {
    /// The path that the change makes or removes.
    fn path(&self) -> &str {
        match self {
            AgedChange::Write(path, _) | AgedChange::Remove(path) => path,
            AgedChange::Rename(_, to) => to,
        }
    }
}

/// The history of a git repository.
pub(super) struct GitHistory {
    /// A clone of the bench's own, whose working tree is a commit.
    clone: PathBuf,
    commits: Vec<String>,
    done: usize,
}

/// Runs git in a directory and returns its output.
fn git(dir: &Path, words: &[&str]) -> Result<Vec<u8>> {
    let failed = |e| Error::io("cannot run git", e);
    let out = Command::new("git").arg("-C").arg(dir).args(words).output().map_err(failed)?;
    if out.status.success() {
        return Ok(out.stdout);
    }
    let text = String::from_utf8_lossy(&out.stderr);
    let line = text.lines().last().unwrap_or("no message").to_owned();
    Err(Error::new(ErrorKind::Io, format!("git {}: {line}", words.join(" "))))
}

impl GitHistory {
    /// The first-parent history of a repository's HEAD: so many commits at regular distances,
    /// the last among them. `clone` is a directory to be made.
    ///
    /// # Errors
    /// Those of git.
    pub(super) fn new(repo: &Path, clone: &Path, commits: u64) -> Result<GitHistory> {
        let path = |p: &Path| p.to_string_lossy().into_owned();
        let words = ["clone", "--quiet", "--shared", "--no-checkout", "--", &path(repo)];
        git(Path::new("."), &[&words[..], &[&path(clone)]].concat())?;
        let list = git(clone, &["rev-list", "--first-parent", "--reverse", "HEAD"])?;
        let text = String::from_utf8_lossy(&list);
        let all: Vec<&str> = text.lines().collect();
        let commits = regular(&all, commits).into_iter().map(str::to_owned).collect();
        Ok(GitHistory { clone: clone.to_owned(), commits, done: 0 })
    }

    /// Number of commits.
    pub(super) fn len(&self) -> u64 {
        self.commits.len() as u64
    }

    /// Checks the next commit out and returns the differences from the one before; `None` at
    /// the end. Symbolic links, submodules and files above 256 MiB are left out.
    ///
    /// # Errors
    /// Those of git.
    pub(super) fn commit(&mut self, tree: &AgedTreeModel) -> Result<Option<Vec<AgedChange>>> {
        let Some(next) = self.commits.get(self.done) else { return Ok(None) };
        git(&self.clone, &["checkout", "--quiet", "--force", "--detach", next])?;
        // Against the empty tree at first.
        const EMPTY: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
        let last = self.done.checked_sub(1).map_or(EMPTY, |n| self.commits[n].as_str());
        let words = ["diff-tree", "-r", "-z", "--no-renames", "--name-only", last, next];
        let out = git(&self.clone, &words)?;
        self.done += 1;
        let mut changes = Vec::new();
        for name in out.split(|b| *b == 0).filter(|name| !name.is_empty()) {
            let Ok(path) = std::str::from_utf8(name) else { continue };
            let host = self.clone.join(OsStr::from_bytes(name));
            if tree.0.contains_key(path) {
                changes.push(AgedChange::Remove(path.to_owned()));
            }
            let meta = std::fs::symlink_metadata(&host);
            if meta.is_ok_and(|m| m.is_file() && m.len() <= GIT_FILE_MAX) {
                changes.push(AgedChange::Write(path.to_owned(), AgedContent::Host(host)));
            }
        }
        // A file may become a directory: what goes, goes first.
        changes.sort_by_key(|change| matches!(change, AgedChange::Write(..)));
        Ok(Some(changes))
    }
}

/// So many elements at regular distances, the last among them.
fn regular<'a>(all: &[&'a str], wanted: u64) -> Vec<&'a str> {
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX).min(all.len());
    (1..=wanted).map(|n| all[n * all.len() / wanted - 1]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_repeats_itself_and_is_possible() {
        for files in [1, 2, 50, 1000] {
            let mut history = SyntheticHistory::new(7, files);
            let mut again = SyntheticHistory::new(7, files);
            let mut tree = AgedTreeModel::default();
            let mut renames = 0;
            for n in 0..200 {
                let changes = history.commit();
                assert_eq!(changes, again.commit());
                assert!(!changes.is_empty());
                for change in &changes {
                    assert!(tree.apply(change), "{files} files, commit {n}: {change:?}");
                    renames += usize::from(matches!(change, AgedChange::Rename(..)));
                }
                let sizes: Vec<_> = history.files.iter().map(|f| f.0.clone()).collect();
                assert_eq!(sizes.len(), tree.0.len());
                assert!(sizes.iter().all(|path| tree.0.contains_key(path)));
            }
            let live = tree.0.len() as u64;
            assert!(live >= files.div_ceil(2) && live <= files + files / 50 + 3, "{live}");
            assert!(renames > 20);
        }
    }

    #[test]
    fn an_upgrade_replaces_packages_and_keeps_the_total() {
        let mut history = SyntheticHistory::new(1, 2000);
        let mut tree = AgedTreeModel::default();
        assert!(history.commit().iter().all(|change| tree.apply(change)));
        let total = |history: &SyntheticHistory| history.files.iter().map(|f| f.1).sum::<u64>();
        let before = total(&history);
        for _ in 0..12 {
            let changes = history.upgrade(0.33);
            assert!(changes.iter().all(|change| tree.apply(change)));
            let writes = changes.len() / 2;
            assert!((200..1200).contains(&writes), "{writes}");
        }
        let after = total(&history);
        assert!(after > before * 9 / 10 && after < before * 11 / 10, "{before} {after}");
        assert!(history.upgrade(0.0).is_empty());
    }

    #[test]
    fn sizes_of_files() {
        let mut rng = XorShift::new(3);
        let mut sizes: Vec<u64> = (0..10_000).map(|_| file_size(&mut rng)).collect();
        sizes.sort_unstable();
        assert!(sizes[0] >= 1024 && sizes[9_999] <= 1 << 20);
        assert!((3000..5000).contains(&sizes[5_000]), "{}", sizes[5_000]);
    }

    #[test]
    fn elements_at_regular_distances() {
        let all = ["a", "b", "c", "d", "e"];
        assert_eq!(regular(&all, 2), ["b", "e"]);
        assert_eq!(regular(&all, 9), all);
        assert_eq!(regular(&all, 1), ["e"]);
        assert!(regular(&[], 3).is_empty());
    }

    #[test]
    fn a_git_repository() {
        let scratch = testkit::Scratch::new("aged-git");
        let repo = scratch.path().join("repo");
        std::fs::create_dir_all(repo.join("dir")).unwrap();
        if git(&repo, &["init", "--quiet"]).is_err() {
            testkit::skip(testkit::Need::Programs, "git is not installed");
            return;
        }
        let commit = |name: &str| {
            git(&repo, &["add", "--all"]).unwrap();
            let who = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"];
            let words = ["commit", "--quiet", "--no-gpg-sign", "--message", name];
            git(&repo, &[&who[..], &words].concat()).unwrap();
        };
        std::fs::write(repo.join("dir/a"), "one").unwrap();
        std::fs::write(repo.join("b"), "two").unwrap();
        commit("first");
        std::fs::remove_file(repo.join("b")).unwrap();
        std::fs::write(repo.join("dir/a"), "three").unwrap();
        std::fs::create_dir(repo.join("b")).unwrap();
        std::fs::write(repo.join("b/c"), "four").unwrap();
        commit("second");
        let clone = scratch.path().join("clone");
        let mut history = GitHistory::new(&repo, &clone, 10).unwrap();
        assert_eq!(history.len(), 2);
        let mut tree = AgedTreeModel::default();
        while let Some(changes) = history.commit(&tree).unwrap() {
            assert!(changes.iter().all(|change| tree.apply(change)), "{changes:?}");
        }
        let files: Vec<_> = tree.0.keys().map(String::as_str).collect();
        assert_eq!(files, ["b/c", "dir/a"]);
        let mut content = Vec::new();
        tree.0["dir/a"].load(&SampleContent::noise(1), &mut content).unwrap();
        assert_eq!(content, b"three");
        assert!(GitHistory::new(&scratch.path().join("none"), &clone, 1).is_err());
    }
}
