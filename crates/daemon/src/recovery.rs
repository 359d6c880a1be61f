//! Reports on damaged pools: the text about a rewind and about space maps that were rebuilt.

use cenote::Pool;
use cenote::Rebuilt;
use cenote::props::nicebytes;
use proto::ImportArgs;
use ui::time;

/// Lines for standard output, in OpenZFS's words where it has some. `dry`: a trial run.
pub(super) fn report(pool: &Pool, dry: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let name = pool.name();
    match pool.spa().rewind() {
        None if dry && pool.spa().rebuilt().is_none() => {
            lines.push(format!("Would be able to return {name} to its last consistent state."));
        }
        None => {}
        Some(rewind) => {
            let when = time::ctime(rewind.to_time);
            let (what, discard) = if dry {
                ("Would be able to return", "Would discard")
            } else {
                ("Returned", "Discarded")
            };
            lines.push(format!("{what} {name} to its state as of {when}."));
            let seconds = rewind.seconds();
            let span = match seconds {
                0..120 => format!("{seconds} seconds"),
                _ => format!("{} minutes", seconds.div_ceil(60)),
            };
            let bytes = match rewind.lost {
                Some(bytes) => format!(": {} written to files and volumes", nicebytes(bytes)),
                None => String::new(),
            };
            lines.push(format!("{discard} approximately {span} of transactions{bytes}."));
            if rewind.damaged > 0 {
                let n = rewind.damaged;
                lines.push(format!("{n} blocks of files and volumes of that time are gone."));
            }
        }
    }
    if let Some(found) = pool.spa().rebuilt() {
        lines.extend(report_rebuilt(name, &found, dry));
    }
    lines
}

/// The report on rebuilt space maps: findings, and what was or would be done.
fn report_rebuilt(name: &str, found: &Rebuilt, dry: bool) -> Vec<String> {
    let would = if dry { "would be" } else { "were" };
    let mut lines = vec![format!(
        "The space maps of {name} {would} made anew: {} are in use.",
        nicebytes(found.used)
    )];
    match (&found.unreadable, found.leaked, found.unprotected) {
        (None, Some(leaked), Some(unprotected)) => {
            lines.push(format!("{} were leaked and {would} returned.", nicebytes(leaked)));
            lines.push(format!(
                "{} were in use and not protected by the old maps.",
                nicebytes(unprotected)
            ));
        }
        (why, ..) => {
            let why = why.as_deref().unwrap_or("unknown");
            lines.push(format!("The old maps cannot be read: {why}"));
        }
    }
    if found.given_up > 0 {
        lines.push(format!(
            "{} blocks of metadata cannot be read; what is below them {would} given up.",
            found.given_up
        ));
    }
    lines
}

/// The arguments for a pool's next import, after a restart of the daemon. A state that was
/// rewound to for writing is the newest state now, so the rewind must not be repeated.
pub(super) fn later(args: &ImportArgs, readonly: bool) -> ImportArgs {
    let mut later = args.clone();
    if !readonly {
        (later.txg, later.rewind, later.extreme) = (None, false, false);
        (later.rebuild_space, later.checkpoint) = (false, false);
    }
    later
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pool is rewound and used for a day; then the daemon restarts and imports it. It must
    /// not be rewound once more.
    #[test]
    fn a_rewind_for_writing_is_not_done_again() {
        let args = ImportArgs {
            txg: Some(7),
            rewind: true,
            extreme: true,
            rebuild_space: true,
            checkpoint: true,
            ..ImportArgs::default()
        };
        assert_eq!(later(&args, false), ImportArgs::default());
        assert_eq!(later(&args, true), args);
    }
}
