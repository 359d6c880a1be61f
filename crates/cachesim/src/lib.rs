//! Replays cache traces against the engine's replacement policies and other published ones.
//!
//! # Theory
//! `arc` and `default` are the very state machines of the `arc` crate, driven as by a cache
//! directory: an id for each known block, reused after the block is dropped. A page counts
//! as 8 KiB. The default policy is charged for its own memory, and [`sim::KEY_BYTES`] for each
//! ghost key; both are subtracted from its cache. The published ARC and the rivals are
//! charged nothing.

mod rivals;
mod second;
mod sim;
mod trace;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use base::Result;
use base::rt::{self, Mutex};

pub use l2arc::L2Policy;
pub use second::{SecondResult, SecondRow, run_second, simulate_second};
pub use sim::{PolicyKind, ReplayResult, simulate};
pub use trace::{Format, Trace};

/// Parameters of the replays.
#[derive(Clone, Debug, Default)]
pub struct ReplayOptions {
    /// Files; their formats follow from their names unless `format` is given.
    pub traces: Vec<PathBuf>,
    /// The format of all of them.
    pub format: Option<Format>,
    /// Sizes, in pages.
    pub sizes: Vec<usize>,
    /// Policies.
    pub policies: Vec<PolicyKind>,
}

/// One result.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The trace's file name, without directory and compression.
    pub trace: String,
    /// The policy.
    pub policy: PolicyKind,
    /// Pages.
    pub size: usize,
    /// The result.
    pub outcome: ReplayResult,
}

/// Replays every trace with every policy at every size, on all cores. `progress` is called
/// with each row when it is done, with the number done and the total. The rows are in the
/// order traces, sizes, policies.
///
/// # Errors
/// When a trace cannot be read.
pub fn run(
    options: &ReplayOptions,
    progress: &(dyn Fn(&Row, usize, usize) + Sync),
) -> Result<Vec<Row>> {
    let each = options.sizes.len() * options.policies.len();
    let all = each * options.traces.len();
    let (mut rows, done) = (Vec::new(), AtomicUsize::new(0));
    for path in &options.traces {
        let trace = Trace::read(path, options.format)?;
        let name = trace::stem(path);
        let slots = Mutex::new(vec![None; each]);
        let next = AtomicUsize::new(0);
        rt::fan_out(rt::parallelism().min(each), |_| {
            loop {
                let at = next.fetch_add(1, Relaxed);
                if at >= each {
                    return;
                }
                let size = options.sizes[at / options.policies.len()];
                let policy = options.policies[at % options.policies.len()];
                let outcome = simulate(policy, &trace, size);
                let row = Row { trace: name.clone(), policy, size, outcome };
                progress(&row, done.fetch_add(1, Relaxed) + 1, all);
                slots.lock()[at] = Some(row);
            }
        });
        rows.extend(slots.into_inner().into_iter().flatten());
    }
    Ok(rows)
}
