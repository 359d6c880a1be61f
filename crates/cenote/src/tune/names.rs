//! FreeBSD's names of tunables.

/// Prefixes of Linux's names that became groups in FreeBSD's.
const GROUPS: [(&str, &str); 7] = [
    ("zfs_arc_", "arc."),
    ("zfs_vdev_", "vdev."),
    ("l2arc_", "l2arc."),
    ("zfs_txg_", "txg."),
    ("zfetch_", "prefetch."),
    ("zil_", "zil."),
    ("metaslab_", "metaslab."),
];

/// FreeBSD's names of a Linux tunable: the present one, and the previous one where it
/// differs.
pub fn freebsd_names(linux: &str) -> Vec<String> {
    let bare = linux.strip_prefix("zfs_").unwrap_or(linux);
    let old = match linux.strip_prefix("zfetch_") {
        Some(rest) => format!("vfs.zfs.zfetch.{rest}"),
        None => format!("vfs.zfs.{bare}"),
    };
    let group = GROUPS.iter().find_map(|(prefix, group)| {
        Some(format!("vfs.zfs.{group}{}", linux.strip_prefix(prefix)?))
    });
    match (group, linux) {
        (Some(new), _) => vec![new, old],
        (None, "zfs_prefetch_disable") => vec!["vfs.zfs.prefetch.disable".to_owned(), old],
        (None, _) => vec![old],
    }
}
