//! Mismatched redundancy, which OpenZFS refuses without `-f` (chapter 09 §1.2; the messages
//! are those of its version 2.3.2).
//!
//! # Theory
//! Each top-level vdev for data, metadata or dedup tables is compared with the one before
//! it: mirrors with mirrors by the number of copies, parity vdevs with parity vdevs and
//! with mirrors by the number of devices that may fail. Inside a vdev, all devices should
//! be of one kind and, within 16 MiB of the one before, of one size. Logs, spares and cache
//! devices are not compared.

use base::Result;
use ondisk::config::{VdevConfig, VdevType};

use super::topology::{FactsOf, NewKind, NewVdev, Role};

/// The difference in bytes between neighbours of a vdev that still counts as equal size.
const SIZE_SLACK: u64 = 16 << 20;

/// The redundancy of a top-level vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    word: &'static str,
    /// Children of a mirror; parity of a RAID-Z or dRAID.
    count: u32,
    /// Devices.
    children: usize,
}

#[derive(PartialEq, Eq)]
enum Family {
    Plain,
    Copies,
    Parity,
}

impl Level {
    fn of_new(vdev: &NewVdev) -> Level {
        let count = match vdev.kind {
            NewKind::Raidz { nparity } | NewKind::Draid { nparity, .. } => nparity,
            _ => u32::try_from(vdev.children.len()).unwrap_or(u32::MAX),
        };
        Level { word: vdev.kind.word(), count, children: vdev.children.len() }
    }

    /// The level of an existing vdev; `None` for logs and vdevs without data.
    pub(crate) fn of_config(top: &VdevConfig) -> Option<Level> {
        let is_log = top.top.as_ref().is_some_and(|t| t.is_log);
        if is_log || !top.kind.is_concrete() {
            return None;
        }
        let children = u32::try_from(top.children.len()).unwrap_or(u32::MAX);
        let count = if top.kind == VdevType::Mirror { children } else { top.nparity() };
        Some(Level { word: top.kind.name(), count, children: top.children.len() })
    }

    fn family(self) -> Family {
        match self.word {
            "mirror" => Family::Copies,
            "raidz" | "draid" => Family::Parity,
            _ => Family::Plain,
        }
    }

    /// Devices that may fail.
    fn redundancy(self) -> u32 {
        match self.family() {
            Family::Plain => 0,
            Family::Copies => self.count.saturating_sub(1),
            Family::Parity => self.count,
        }
    }

    fn mismatch(self, next: Level) -> Option<String> {
        let (a, b) = (self, next);
        let text = match (a.family(), b.family()) {
            (Family::Parity, Family::Parity) if a.count != b.count => format!(
                "{} and {} vdevs with different redundancy, {} vs. {} are present",
                a.word, b.word, a.count, b.count
            ),
            (Family::Parity, Family::Copies) if a.redundancy() != b.redundancy() => copies(a, b),
            (Family::Copies, Family::Parity) if a.redundancy() != b.redundancy() => copies(b, a),
            (Family::Copies, Family::Copies) if a.count != b.count => {
                format!("both {}-way and {}-way mirror vdevs are present", a.count, b.count)
            }
            (x, y) if (x == Family::Plain || y == Family::Plain) && a.word != b.word => {
                format!("both {} and {} vdevs are present", a.word, b.word)
            }
            _ => return None,
        };
        Some(format!("mismatched replication level: {text}"))
    }
}

impl Level {
    /// Compares a pool's level with that of an added vdev.
    fn against(self, new: Level) -> Option<String> {
        let (pool, new) = (self, new);
        let mixed = |parity: Level, mirror: Level| {
            (parity.redundancy() != mirror.redundancy()).then(|| {
                format!(
                    "pool and new vdev with different redundancy, {} and {} vdevs, {} vs. {} \
                     ({}-way)",
                    parity.word,
                    mirror.word,
                    parity.count,
                    mirror.redundancy(),
                    mirror.count
                )
            })
        };
        let text = match (pool.family(), new.family()) {
            (Family::Parity, Family::Copies) => mixed(pool, new)?,
            (Family::Copies, Family::Parity) => mixed(new, pool)?,
            _ if pool.word != new.word => {
                format!("pool uses {} and new vdev is {}", pool.word, new.word)
            }
            (Family::Parity, _) if pool.count != new.count => {
                format!("pool uses {} device parity and new vdev uses {}", pool.count, new.count)
            }
            _ if pool.children != new.children => format!(
                "pool uses {}-way {} and new vdev uses {}-way {}",
                pool.children, pool.word, new.children, new.word
            ),
            _ => return None,
        };
        Some(format!("mismatched replication level: {text}"))
    }
}

fn copies(parity: Level, mirror: Level) -> String {
    format!(
        "{} and {} vdevs with different redundancy, {} vs. {} ({}-way) are present",
        parity.word,
        mirror.word,
        parity.count,
        mirror.redundancy(),
        mirror.count
    )
}

/// The mismatches, one line each; empty if there are none. `pool` are the existing
/// top-level vdevs of the pool: the new ones are compared with the last of them, unless
/// these differ among themselves.
///
/// # Errors
/// Those of `facts`.
pub fn check(vdevs: &[NewVdev], pool: &[VdevConfig], facts: FactsOf<'_>) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut last: Option<Level> = None;
    for vdev in vdevs.iter().filter(|v| matters(v)) {
        if let Some(line) = inside(vdev, facts)? {
            lines.push(line);
        }
        let level = Level::of_new(vdev);
        lines.extend(last.and_then(|l| l.mismatch(level)));
        last = Some(level);
    }
    let levels: Vec<Level> = pool.iter().filter_map(Level::of_config).collect();
    let alike = levels.windows(2).all(|w| w[0].mismatch(w[1]).is_none());
    if let (true, true, Some(&old), Some(new)) = (lines.is_empty(), alike, levels.last(), last) {
        lines.extend(old.against(new));
    }
    Ok(lines)
}

fn matters(vdev: &NewVdev) -> bool {
    matches!(vdev.role, Role::Data | Role::Special | Role::Dedup)
}

/// Devices of one vdev that differ among themselves.
fn inside(vdev: &NewVdev, facts: FactsOf<'_>) -> Result<Option<String>> {
    let word = vdev.kind.word();
    let mut last: Option<(&NewVdev, u64)> = None;
    for child in &vdev.children {
        let Some(path) = child.kind.path() else { continue };
        let size = facts(path)?.size;
        if let Some((before, size_before)) = last {
            if before.kind.word() != child.kind.word() {
                return Ok(Some(format!(
                    "mismatched replication level: {word} contains both files and devices"
                )));
            }
            if size.abs_diff(size_before) > SIZE_SLACK {
                return Ok(Some(format!("{word} contains devices of different sizes")));
            }
        }
        last = Some((child, size));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::super::topology::{LeafFacts, NewKind as K, plain_node};
    use super::*;
    use base::{Guid, Txg};
    use std::path::Path;

    const MIB: u64 = 1 << 20;

    /// Sizes depend on the name: `a144` has 144 MiB; others have 128.
    fn facts(path: &Path) -> Result<LeafFacts> {
        let digits: String = path.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
        let size = digits.parse::<u64>().unwrap_or(128) * MIB;
        Ok(LeafFacts { size, logical_shift: 9, physical_shift: 9 })
    }

    fn file(name: &str) -> NewVdev {
        let path = Path::new("/f").join(name);
        NewVdev::new(if name.starts_with("sd") { K::Disk(path) } else { K::File(path) })
    }

    /// `mirror a b` and the like; `word@role` for another role.
    fn parse(text: &str) -> NewVdev {
        let mut words = text.split(' ');
        let (word, role) = match words.clone().next().and_then(|w| w.split_once('@')) {
            Some((word, "special")) => (word, Role::Special),
            Some((word, "log")) => (word, Role::Log),
            Some((word, _)) => (word, Role::Dedup),
            None => (words.clone().next().unwrap(), Role::Data),
        };
        let kind = match word {
            "mirror" => K::Mirror,
            "raidz1" => K::Raidz { nparity: 1 },
            "raidz2" => K::Raidz { nparity: 2 },
            "raidz3" => K::Raidz { nparity: 3 },
            "draid1" => K::Draid { nparity: 1, ndata: None, nspares: 0 },
            "draid2" => K::Draid { nparity: 2, ndata: None, nspares: 0 },
            leaf => return file(leaf).for_role(role),
        };
        words.next();
        NewVdev::new(kind).with_children(words.map(file).collect()).for_role(role)
    }

    fn lines(vdevs: &[&str], pool: &[VdevConfig]) -> String {
        let vdevs: Vec<NewVdev> = vdevs.iter().map(|v| parse(v)).collect();
        check(&vdevs, pool, &facts)
            .unwrap()
            .join("; ")
            .replace("mismatched replication level: ", "")
    }

    /// Recorded from OpenZFS 2.3.2's `zpool create -n`.
    #[test]
    fn among_new_ones() {
        for (vdevs, want) in [
            (&["a", "b", "c256"][..], ""),
            (&["a", "mirror b c"], "both file and mirror vdevs are present"),
            (&["mirror a b", "c@special"], "both mirror and file vdevs are present"),
            (&["mirror a b", "c@log"], ""),
            (&["raidz2 a b c d", "e@dedup"], "both raidz and file vdevs are present"),
            (&["mirror a b c", "mirror d e"], "both 3-way and 2-way mirror vdevs are present"),
            (&["mirror a b", "raidz1 c d"], ""),
            (&["mirror a b c", "raidz2 c d e"], ""),
            (&["raidz1 a b c", "raidz1 c d"], ""),
            (
                &["raidz1 a b", "raidz2 c d e"],
                "raidz and raidz vdevs with different redundancy, 1 vs. 2 are present",
            ),
            (
                &["mirror a b", "raidz2 c d e"],
                "raidz and mirror vdevs with different redundancy, 2 vs. 1 (2-way) are present",
            ),
            (
                &["draid1 a b c", "mirror d e f"],
                "draid and mirror vdevs with different redundancy, 1 vs. 2 (3-way) are present",
            ),
            (
                &["raidz2 a b c d", "draid1 e f g"],
                "raidz and draid vdevs with different redundancy, 2 vs. 1 are present",
            ),
            (&["draid1 a b c", "raidz1 d e f"], ""),
            (
                &["a", "mirror e g", "raidz2 h i j"],
                "both file and mirror vdevs are present; raidz and mirror vdevs with different \
                 redundancy, 2 vs. 1 (2-way) are present",
            ),
        ] {
            assert_eq!(lines(vdevs, &[]), want, "{vdevs:?}");
        }
    }

    /// Recorded likewise.
    #[test]
    fn sizes_are_compared_with_the_neighbour() {
        let differ = "mirror contains devices of different sizes";
        assert_eq!(lines(&["mirror a144 b160"], &[]), "");
        assert_eq!(lines(&["mirror a128 b145"], &[]), differ);
        assert_eq!(lines(&["mirror a128 b144 c160"], &[]), "");
        assert_eq!(lines(&["mirror a128 b160 c144"], &[]), differ);
        assert_eq!(lines(&["raidz1 a b256 c"], &[]), "raidz contains devices of different sizes");
        assert_eq!(lines(&["mirror sda b"], &[]), "mirror contains both files and devices");
    }

    fn top(kind: VdevType, children: u64, nparity: u32) -> VdevConfig {
        let mut top = plain_node(kind, Guid(9), Txg(4));
        top.children =
            (0..children).map(|g| plain_node(VdevType::File, Guid(10 + g), Txg(4))).collect();
        if kind == VdevType::Raidz {
            top.raidz =
                Some(ondisk::config::Raidz { nparity, expanding: false, expand_txgs: Vec::new() });
        }
        top
    }

    /// Recorded from OpenZFS 2.3.2's `zpool add -n`.
    #[test]
    fn against_the_pool() {
        let slice = std::slice::from_ref::<VdevConfig>;
        let mirror = top(VdevType::Mirror, 2, 0);
        let raidz2 = top(VdevType::Raidz, 4, 2);
        let file = top(VdevType::File, 0, 0);
        for (pool, vdevs, want) in [
            (slice(&mirror), &["a"][..], "pool uses mirror and new vdev is file"),
            (slice(&mirror), &["mirror a b"], ""),
            (
                slice(&mirror),
                &["mirror a b c"],
                "pool uses 2-way mirror and new vdev uses 3-way mirror",
            ),
            (slice(&mirror), &["raidz1 a b c"], ""),
            (
                slice(&mirror),
                &["raidz2 a b c"],
                "pool and new vdev with different redundancy, raidz and mirror vdevs, 2 vs. 1 \
                 (2-way)",
            ),
            (slice(&mirror), &["a@special"], "pool uses mirror and new vdev is file"),
            (slice(&mirror), &["a@log"], ""),
            (
                slice(&mirror),
                &["mirror a b", "mirror c d e"],
                "both 2-way and 3-way mirror vdevs are present",
            ),
            (slice(&raidz2), &["raidz1 a b"], "pool uses 2 device parity and new vdev uses 1"),
            (
                slice(&raidz2),
                &["raidz2 a b c"],
                "pool uses 4-way raidz and new vdev uses 3-way raidz",
            ),
            (
                slice(&raidz2),
                &["mirror a b"],
                "pool and new vdev with different redundancy, raidz and mirror vdevs, 2 vs. 1 \
                 (2-way)",
            ),
            (slice(&raidz2), &["mirror a b c"], ""),
            (slice(&raidz2), &["draid1 a b c"], "pool uses raidz and new vdev is draid"),
            (slice(&file), &["mirror a b"], "pool uses file and new vdev is mirror"),
            (slice(&file), &["a"], ""),
            (&[mirror.clone(), file.clone()], &["a"], ""),
        ] {
            assert_eq!(lines(vdevs, pool), want, "{vdevs:?}");
        }
    }
}
