//! Replays cache traces against the engine's replacement policies and those of
//! others.
//!
//! # Theory
//! `arc` and `default` are the very state machines of the `arc` crate, driven as a
//! cache directory drives them: a number for each known block, used again once it
//! is forgotten. A page counts as 8 KiB. The default policy pays for what it
//! remembers: its own memory, and [`KEY_BYTES`] for each block that it remembers
//! without holding it, come off its cache. The published ARC and the rivals
//! are charged nothing.

mod rivals;
mod sim;
mod trace;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use base::Result;
use base::rt::{self, Mutex};

pub use sim::{KEY_BYTES, PAGE_BYTES, PolicyKind, ReplayResult, simulate};
pub use trace::{Format, REQUESTS_MAX, Trace};

/// What to replay.
#[derive(Clone, Debug, Default)]
pub struct ReplayOptions {
    /// Files; their formats are told by their names unless `format` is given.
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
    /// What came out.
    pub outcome: ReplayResult,
}

/// Replays every trace with every policy at every size, on all cores. `progress`
/// hears of each row as it is done, with the number done and the number of all.
/// The rows are in the order traces, sizes, policies.
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
