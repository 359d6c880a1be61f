//! What `zpool status` says about a pool with a problem (chapter 09 §4.3).

use proto::{Pool, Vdev, VdevHealth};

/// The status of a pool with a problem: text for `status:` and `action:`, and the message id.
pub(super) struct StatusAdvice {
    pub(super) status: &'static str,
    pub(super) action: &'static str,
    pub(super) id: Option<&'static str>,
}

pub(super) fn any(v: &Vdev, f: &impl Fn(&Vdev) -> bool) -> bool {
    f(v) || v.children.iter().any(|c| any(c, f))
}

/// Facts about a tree that decide a pool's status.
pub(in super::super) struct Facts {
    unavailable: bool,
    whole_gone: bool,
    missing: bool,
    corrupt: bool,
    faulted: bool,
    errors: bool,
    offline: bool,
    removed: bool,
}

impl Facts {
    /// Collects them from the leaves; a spare or cache device counts as much as in OpenZFS.
    pub(in super::super) fn of(root: &Vdev, health: VdevHealth) -> Facts {
        let leaf = |v: &Vdev| v.children.is_empty() && v.kind != "root";
        let aux = |v: &Vdev, words: &[&str]| v.aux.as_deref().is_some_and(|a| words.contains(&a));
        Facts {
            unavailable: matches!(health, VdevHealth::Unavail | VdevHealth::Faulted),
            whole_gone: any(root, &|v| !leaf(v) && aux(v, &["insufficient replicas"])),
            missing: any(root, &|v| {
                leaf(v)
                    && v.state == VdevHealth::Unavail
                    && !aux(v, &["corrupted data", "invalid label"])
            }),
            corrupt: any(root, &|v| leaf(v) && aux(v, &["corrupted data", "invalid label"])),
            faulted: any(root, &|v| leaf(v) && v.state == VdevHealth::Faulted),
            errors: any(root, &|v| {
                leaf(v) && v.read_errors + v.write_errors + v.checksum_errors > 0
            }),
            offline: any(root, &|v| v.state == VdevHealth::Offline),
            removed: any(root, &|v| v.state == VdevHealth::Removed),
        }
    }

    /// The text for a pool that is not imported.
    pub(in super::super) fn import_status(&self) -> &'static str {
        if self.missing {
            "One or more devices are missing from the system."
        } else if self.corrupt {
            "One or more devices contains corrupted data."
        } else if self.faulted {
            "One or more devices were being resilvered or are faulted."
        } else if self.offline {
            "One or more devices are offlined."
        } else {
            "The pool metadata is corrupted."
        }
    }
}

/// The first problem that applies, in OpenZFS's order, or a remark on disabled features.
pub(super) fn status_of(p: &Pool) -> Option<StatusAdvice> {
    let features = || StatusAdvice {
        status: "Some supported and requested features are not enabled on the pool.\n\tThe pool \
                 can still be used, but some features are unavailable.",
        action: "Enable all features using 'zpool upgrade'. Once this is done,\n\tthe pool may no \
                 longer be accessible by software that does not support\n\tthe features. See \
                 zpool-features(7) for details.",
        id: None,
    };
    problem_of(p).or_else(|| p.disabled_features.then(features))
}

/// The first problem that applies, in OpenZFS's order: what `-x` shows a pool for.
pub(super) fn problem_of(p: &Pool) -> Option<StatusAdvice> {
    let f = Facts::of(&p.root, p.health);
    let t = |status, action, id| Some(StatusAdvice { status, action, id });
    let rebuilding = p.rebuilds.iter().any(|r| r.state == 1);
    if rebuilding || p.scan.as_ref().is_some_and(|s| s.resilver && s.state == 1) {
        return t(
            "One or more devices is currently being resilvered.  The pool will\n\tcontinue to \
             function, possibly in a degraded state.",
            "Wait for the resilver to complete.",
            None,
        );
    }
    if is_scrub_recommended(p) {
        return t(
            "One or more devices have been sequentially resilvered, scrubbing\n\tthe pool is \
             recommended.",
            "Use 'zpool scrub' to verify all data checksums.",
            None,
        );
    }
    if p.suspended {
        return t(
            "One or more devices are faulted in response to IO failures.",
            "Make sure the affected devices are connected, then run 'zpool clear'.",
            Some("HC"),
        );
    }
    if let Some(trouble) = device_trouble(&f) {
        return Some(trouble);
    }
    if p.error_count > 0 {
        return t(
            "One or more devices has experienced an error resulting in data\n\tcorruption.  \
             Applications may be affected.",
            "Restore the file in question if possible.  Otherwise restore the\n\tentire pool from \
             backup.",
            Some("8A"),
        );
    }
    minor_trouble(&f)
}

/// Whether the last scrub ended before the last rebuild.
fn is_scrub_recommended(p: &Pool) -> bool {
    let complete = p.rebuilds.iter().filter(|r| r.state == 3);
    let scrubbed_before =
        |end: u64| p.scan.as_ref().is_none_or(|s| s.state == 2 && !s.resilver && end > s.end);
    complete.map(|r| r.end).max().is_some_and(scrubbed_before)
}

/// Problems of devices that make the pool unavailable.
fn device_trouble(f: &Facts) -> Option<StatusAdvice> {
    if !f.unavailable && !f.whole_gone {
        return None;
    }
    Some(if f.missing {
        StatusAdvice {
            status: "One or more devices could not be opened.  There are insufficient\n\treplicas \
                     for the pool to continue functioning.",
            action: "Attach the missing device and online it using 'zpool online'.",
            id: Some("3C"),
        }
    } else if f.corrupt {
        StatusAdvice {
            status: "One or more devices could not be used because the label is missing\n\tor \
                     invalid.  There are insufficient replicas for the pool to \
                     continue\n\tfunctioning.",
            action: "Destroy and re-create the pool from\n\ta backup source.",
            id: Some("5E"),
        }
    } else {
        StatusAdvice {
            status: "The pool metadata is corrupted and the pool cannot be opened.",
            action: "Destroy and re-create the pool from\n\ta backup source.",
            id: Some("72"),
        }
    })
}

/// Problems of devices that the pool tolerates.
fn minor_trouble(f: &Facts) -> Option<StatusAdvice> {
    let t = |status, action, id| Some(StatusAdvice { status, action, id });
    if f.faulted {
        return t(
            "One or more devices are faulted in response to persistent errors.\n\tSufficient \
             replicas exist for the pool to continue functioning in a\n\tdegraded state.",
            "Replace the faulted device, or use 'zpool clear' to mark the device\n\trepaired.",
            None,
        );
    }
    if f.missing {
        return t(
            "One or more devices could not be opened.  Sufficient replicas exist for\n\tthe pool \
             to continue functioning in a degraded state.",
            "Attach the missing device and online it using 'zpool online'.",
            Some("2Q"),
        );
    }
    if f.corrupt {
        return t(
            "One or more devices could not be used because the label is missing or\n\tinvalid.  \
             Sufficient replicas exist for the pool to continue\n\tfunctioning in a degraded state.",
            "Replace the device using 'zpool replace'.",
            Some("4J"),
        );
    }
    if f.errors {
        return t(
            "One or more devices has experienced an unrecoverable error.  An\n\tattempt was made \
             to correct the error.  Applications are unaffected.",
            "Determine if the device needs to be replaced, and clear the errors\n\tusing 'zpool \
             clear' or replace the device with 'zpool replace'.",
            Some("9P"),
        );
    }
    if f.offline {
        return t(
            "One or more devices has been taken offline by the administrator.\n\tSufficient \
             replicas exist for the pool to continue functioning in a\n\tdegraded state.",
            "Online the device using 'zpool online' or replace the device with\n\t'zpool replace'.",
            None,
        );
    }
    if f.removed {
        return t(
            "One or more devices have been removed.\n\tSufficient replicas exist for the pool to \
             continue functioning in a\n\tdegraded state.",
            "Online the device using zpool online' or replace the device with\n\t'zpool replace'.",
            None,
        );
    }
    None
}
