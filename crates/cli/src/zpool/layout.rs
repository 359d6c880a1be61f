//! The trees that `zpool create -n` and `zpool add -n` show.

use proto::{NewKind, NewVdev, Vdev, VdevRole};

use super::vdevs::{self, Naming, VdevLine};

/// Classes after the normal vdevs, in order.
const CLASSES: [(VdevRole, &str); 5] = [
    (VdevRole::Dedup, "dedup"),
    (VdevRole::Special, "special"),
    (VdevRole::Log, "logs"),
    (VdevRole::Cache, "cache"),
    (VdevRole::Spare, "spares"),
];

fn word(kind: &NewKind) -> &'static str {
    match kind {
        NewKind::File(_) => "file",
        NewKind::Disk(_) => "disk",
        NewKind::Mirror => "mirror",
        NewKind::Raidz(_) => "raidz",
        NewKind::Draid(..) => "draid",
    }
}

/// The vdev as shown: without an id, which it does not have yet.
pub(super) fn shown(new: &NewVdev) -> Vdev {
    let children: Vec<Vdev> = new.children.iter().map(shown).collect();
    let count = children.len();
    let (name, path) = match &new.kind {
        NewKind::File(path) | NewKind::Disk(path) => {
            (path.display().to_string(), Some(path.clone()))
        }
        NewKind::Mirror => ("mirror".to_owned(), None),
        NewKind::Raidz(parity) => (format!("raidz{parity}"), None),
        NewKind::Draid(parity, ndata, spares) => {
            (format!("draid{parity}:{}d:{count}c:{spares}s", ndata.unwrap_or(0)), None)
        }
    };
    Vdev { path, ..vdevs::blank(word(&new.kind), &name, new.class, children) }
}

fn lines(pool: &str, root: &Vdev, naming: Naming) -> String {
    let mut out = format!("\t{pool}\n");
    for line in vdevs::walk(root, &CLASSES) {
        out.push_str(&match line {
            VdevLine::Class(name) => format!("\t{name}\n"),
            VdevLine::Vdev(v, depth) => format!("\t{:depth$}{}\n", "", naming.of(v)),
        });
    }
    out
}

/// A new pool.
pub(super) fn of_new(pool: &str, new: &[NewVdev]) -> String {
    let root = vdevs::blank("root", pool, VdevRole::Normal, new.iter().map(shown).collect());
    lines(pool, &root, Naming::default())
}

/// A pool with these top-level vdevs.
pub(super) fn of(pool: &str, tops: Vec<Vdev>, naming: Naming) -> String {
    lines(pool, &vdevs::blank("root", pool, VdevRole::Normal, tops), naming)
}

/// A pool with more vdevs. Those have no guid yet, so they are shown by name even with `-g`.
pub(super) fn with_new(pool: &str, root: &Vdev, vdevs: &[NewVdev], naming: Naming) -> String {
    let mut root = root.clone();
    let mut named = |v: &mut Vdev| v.name = naming.of(v);
    rename(&mut root, &mut named);
    root.children.extend(vdevs.iter().map(shown));
    let plain = Naming { guid: false, ..naming };
    lines(pool, &root, plain)
}

/// Fixes the names of vdevs that have guids, before those that have none are added.
fn rename(v: &mut Vdev, named: &mut dyn FnMut(&mut Vdev)) {
    named(v);
    v.path = None;
    v.children.iter_mut().for_each(|c| rename(c, named));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, class: VdevRole) -> NewVdev {
        NewVdev { kind: NewKind::File(path.into()), class, children: Vec::new() }
    }

    fn leaf(path: &str, guid: u64, class: VdevRole) -> Vdev {
        Vdev { path: Some(path.into()), guid, ..vdevs::blank("file", path, class, Vec::new()) }
    }

    /// Recorded from OpenZFS 2.3.2's `zpool add -n`.
    #[test]
    fn added_to_a_pool() {
        let mirror = vec![leaf("/x/0", 6, VdevRole::Normal), leaf("/x/1", 7, VdevRole::Normal)];
        let tops = vec![
            Vdev { guid: 5, ..vdevs::blank("mirror", "mirror-0", VdevRole::Normal, mirror) },
            leaf("/x/s", 9, VdevRole::Special),
            leaf("/x/c", 10, VdevRole::Cache),
        ];
        let root = vdevs::blank("root", "live", VdevRole::Normal, tops);
        let new = [
            file("/f/a", VdevRole::Log),
            file("/f/b", VdevRole::Spare),
            file("/f/c", VdevRole::Cache),
            file("/f/d", VdevRole::Dedup),
            file("/f/e", VdevRole::Special),
        ];
        assert_eq!(
            with_new("live", &root, &new, Naming::default()),
            "\tlive\n\t  mirror-0\n\t    /x/0\n\t    /x/1\n\tdedup\n\t  /f/d\n\tspecial\n\t  \
             /x/s\n\t  /f/e\n\tlogs\n\t  /f/a\n\tcache\n\t  /x/c\n\t  /f/c\n\tspares\n\t  /f/b\n"
        );
        let guids = Naming { guid: true, ..Naming::default() };
        let text = with_new("live", &root, &new[..1], guids);
        assert!(text.starts_with("\tlive\n\t  5\n\t    6\n\t    7\n") && text.contains("/f/a"));
    }

    #[test]
    fn disks_are_short() {
        let disk = NewVdev {
            kind: NewKind::Disk("/dev/disk/by-id/ata-X".into()),
            class: VdevRole::Normal,
            children: Vec::new(),
        };
        assert_eq!(of_new("tank", &[disk]), "\ttank\n\t  ata-X\n");
    }
}
