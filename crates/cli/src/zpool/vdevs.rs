//! The vdev tree in the output of commands: names, depth, class headings (chapter 09 §4.1,
//! §4.2, §4.3).

use std::path::Path;

use proto::{Vdev, VdevHealth, VdevIoCounts, VdevRole};

/// How vdevs are named.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Naming {
    /// `-g`: by guid.
    pub(super) guid: bool,
    /// `-P`: full paths.
    pub(super) path: bool,
    /// `-L`: with symbolic links resolved.
    pub(super) links: bool,
}

/// The word for the state of a spare that works; `None` for other vdevs.
pub(super) fn spare_word(v: &Vdev) -> Option<&'static str> {
    let works = v.class == VdevRole::Spare && v.state == VdevHealth::Online;
    let used = |aux: &String| aux == "currently in use" || aux.starts_with("in use by pool ");
    works.then(|| if v.aux.as_ref().is_some_and(used) { "INUSE" } else { "AVAIL" })
}

impl Naming {
    /// Adds what the environment requires.
    pub(super) fn with_env(self) -> Naming {
        let on = |name: &str| {
            std::env::var(name)
                .is_ok_and(|v| matches!(v.as_str(), "1" | "yes" | "YES" | "on" | "ON"))
        };
        Naming {
            guid: self.guid || on("ZPOOL_VDEV_NAME_GUID"),
            path: self.path || on("ZPOOL_VDEV_NAME_PATH"),
            links: self.links || on("ZPOOL_VDEV_NAME_FOLLOW_LINKS"),
        }
    }

    /// The name shown for a vdev.
    pub(super) fn of(self, v: &Vdev) -> String {
        if self.guid && v.kind != "root" {
            return v.guid.to_string();
        }
        let Some(path) = v.path.as_deref().filter(|_| v.children.is_empty()) else {
            return v.name.clone();
        };
        let resolved = if self.links { std::fs::canonicalize(path).ok() } else { None };
        let path = resolved.as_deref().unwrap_or(path);
        if self.path || v.kind != "disk" {
            return path.display().to_string();
        }
        short_device(path)
    }
}

/// A device's name without its directory, if that is one of the system's device directories.
fn short_device(path: &Path) -> String {
    const DIRS: [&str; 4] = ["/dev/disk", "/dev/mapper", "/dev/zvol", "/dev"];
    for dir in DIRS {
        let Ok(rest) = path.strip_prefix(dir) else { continue };
        // /dev/disk/by-id/NAME: the directory of the kind of name is omitted, too.
        let parts: Vec<_> = rest.components().collect();
        let skip = usize::from(dir == "/dev/disk" && parts.len() > 1);
        let short: std::path::PathBuf = parts.into_iter().skip(skip).collect();
        return short.display().to_string();
    }
    path.display().to_string()
}

/// One line of a vdev table.
pub(super) enum VdevLine<'a> {
    /// The heading of a class.
    Class(&'static str),
    /// A vdev with its indentation, in blanks.
    Vdev(&'a Vdev, usize),
}

/// Whether listings leave the vdev out.
pub(super) fn hidden(v: &Vdev) -> bool {
    matches!(v.kind.as_str(), "indirect" | "hole")
}

/// A tree in the order of all listings: normal vdevs, then each class under its
/// heading. The root itself is not among the lines.
pub(super) fn walk<'a>(root: &'a Vdev, order: &[(VdevRole, &'static str)]) -> Vec<VdevLine<'a>> {
    let mut out = Vec::new();
    let mut of_class = |class: VdevRole, heading: Option<&'static str>| {
        let tops: Vec<&Vdev> =
            root.children.iter().filter(|v| v.class == class && !hidden(v)).collect();
        if tops.is_empty() {
            return;
        }
        if let Some(heading) = heading {
            out.push(VdevLine::Class(heading));
        }
        for top in tops {
            subtree(top, 2, &mut out);
        }
    };
    of_class(VdevRole::Normal, None);
    for (class, heading) in order {
        of_class(*class, Some(heading));
    }
    out
}

/// Limit of the nesting of trees from the socket; the reader of labels has its own
/// (`VDEV_DEPTH_MAX`).
pub(super) const DEPTH_MAX: usize = 64;

fn subtree<'a>(v: &'a Vdev, depth: usize, out: &mut Vec<VdevLine<'a>>) {
    out.push(VdevLine::Vdev(v, depth));
    if depth < DEPTH_MAX {
        v.children.iter().for_each(|c| subtree(c, depth + 2, out));
    }
}

/// The width of the name column: the longest name with its indentation, at least `min`.
pub(super) fn name_width(root: &Vdev, lines: &[VdevLine<'_>], naming: Naming, min: usize) -> usize {
    let one = |l: &VdevLine<'_>| match l {
        VdevLine::Class(_) => 0,
        VdevLine::Vdev(v, depth) => naming.of(v).chars().count() + depth,
    };
    lines.iter().map(one).chain([root.name.chars().count(), min]).max().unwrap_or(min)
}

/// A vdev with zero counters and sizes.
pub(super) fn blank(kind: &str, name: &str, class: VdevRole, children: Vec<Vdev>) -> Vdev {
    Vdev {
        guid: 0,
        kind: kind.to_owned(),
        name: name.to_owned(),
        path: None,
        id: 0,
        class,
        state: VdevHealth::Online,
        aux: None,
        read_errors: 0,
        write_errors: 0,
        checksum_errors: 0,
        slow_ios: 0,
        sits_out: false,
        io: VdevIoCounts::default(),
        io_classes: Vec::new(),
        direct_io: false,
        size: 0,
        allocated: 0,
        def_space: 0,
        fragmentation: None,
        expandsize: 0,
        checkpoint: 0,
        can_discard: false,
        deferred: false,
        trim: None,
        initialize: None,
        psize: 0,
        asize: 0,
        ashift: 0,
        nparity: 0,
        children,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proto::Pool;

    /// A pool for tests.
    pub(crate) fn pool(root: Vdev) -> Pool {
        Pool {
            name: root.name.clone(),
            guid: 1,
            txg: 0,
            health: VdevHealth::Online,
            suspended: false,
            doing: None,
            root,
            error_count: 0,
            errors: vec![],
            scan: None,
            resilver_pending: false,
            rebuilds: Vec::new(),
            error_scrub: None,
            removal: None,
            expand: None,
            defrag: None,
            checkpoint: None,
            disabled_features: false,
        }
    }

    /// A vdev for tests.
    pub(crate) fn vdev(kind: &str, name: &str, class: VdevRole, children: Vec<Vdev>) -> Vdev {
        let leaf = children.is_empty() && kind != "root";
        Vdev { guid: 7, path: leaf.then(|| name.into()), ..blank(kind, name, class, children) }
    }

    #[test]
    fn names_are_short_for_disks_only() {
        let n = Naming::default();
        let name = |kind: &str, path: &str| n.of(&vdev(kind, path, VdevRole::Normal, vec![]));
        assert_eq!(name("disk", "/dev/sda1"), "sda1");
        assert_eq!(name("disk", "/dev/disk/by-id/ata-XYZ"), "ata-XYZ");
        assert_eq!(name("disk", "/dev/mapper/crypt"), "crypt");
        assert_eq!(name("file", "/var/f0"), "/var/f0");
        let full = Naming { path: true, ..n };
        assert_eq!(full.of(&vdev("disk", "/dev/sda1", VdevRole::Normal, vec![])), "/dev/sda1");
        let guid = Naming { guid: true, ..n };
        assert_eq!(guid.of(&vdev("disk", "/dev/sda1", VdevRole::Normal, vec![])), "7");
    }

    #[test]
    fn indirect_vdevs_do_not_show() {
        let root = vdev(
            "root",
            "p",
            VdevRole::Normal,
            vec![
                vdev("indirect", "indirect-0", VdevRole::Normal, vec![]),
                vdev("file", "/a", VdevRole::Normal, vec![]),
            ],
        );
        assert_eq!(walk(&root, &[]).len(), 1);
    }
}
