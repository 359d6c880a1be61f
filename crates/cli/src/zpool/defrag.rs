//! `zpool defrag`.

use std::ffi::OsString;

use base::Result;
use cenote::props::nicebytes;
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{Change, DefragArgs, DefragPlan, Reply, Request};
use ui::Exit;

use super::change::request_change;
use super::status::score;
use super::wait::until_over;
use super::{command, misuse, options};

/// A layout score, 0 to 1, in thousandths.
fn thousandths(text: &str) -> Option<u64> {
    let score: f64 = text.parse().ok()?;
    (0.0..=1.0).contains(&score).then(|| (score * 1000.0).round() as u64)
}

/// `zpool defrag [-n] [-w] [-l score] <pool> [dataset] ...`, `zpool defrag --unmap [-n] [-w] <pool>`,
/// `zpool defrag -s|-p <pool>`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("defrag", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let (stops, pauses) = (parsed.has('s'), parsed.has('p'));
    let wrong = |text: &str| Ok(misuse("defrag", Some(text)));
    if stops && pauses {
        return wrong("invalid option combination: -s and -p are mutually exclusive");
    }
    if (stops || pauses) && (parsed.has('n') || parsed.has('w') || parsed.has('l')) {
        return wrong("invalid option combination: -n, -w and -l cannot be used with -s or -p");
    }
    if parsed.has('n') && parsed.has('w') {
        return wrong("invalid option combination: -n and -w are mutually exclusive");
    }
    let target = match parsed.last('l') {
        None => None,
        Some(text) => match thousandths(&text) {
            Some(target) => Some(target),
            None => return wrong(&format!("invalid layout score '{text}'")),
        },
    };
    let mut words = parsed.words();
    if words.is_empty() {
        return wrong("missing pool name argument");
    }
    let datasets = words.split_off(1);
    let Some(pool) = words.pop() else { return wrong("missing pool name argument") };
    if (stops || pauses) && !datasets.is_empty() {
        return wrong("too many arguments");
    }
    if parsed.has('U') {
        if stops || pauses || parsed.has('l') {
            return wrong("invalid option combination: --unmap goes with -n or -w alone");
        }
        if !datasets.is_empty() {
            return wrong("too many arguments");
        }
        return unmap(&pool, parsed.has('n'), parsed.has('w'), command("defrag", argv));
    }
    let below = |name: &&String| {
        name.strip_prefix(&*pool).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if let Some(other) = datasets.iter().find(|name| !below(name)) {
        return wrong(&format!("'{other}' is not a dataset of pool '{pool}'"));
    }
    let args = DefragArgs { target, datasets };
    if parsed.has('n') {
        return estimate(&pool, args);
    }
    let change = match (stops, pauses) {
        (true, _) => Change::CancelDefrag,
        (_, true) => Change::PauseDefrag,
        _ => Change::Defrag(args),
    };
    let done = request_change(&pool, change, command("defrag", argv))?;
    if parsed.has('w') {
        until_over(&pool, &["defrag"])?;
    }
    Ok(done)
}

/// `zpool defrag --unmap`
fn unmap(pool: &str, estimates: bool, waits: bool, command: String) -> Result<Exit> {
    if !estimates {
        let done = request_change(pool, Change::Unmap, command)?;
        if waits {
            until_over(pool, &["defrag"])?;
        }
        return Ok(done);
    }
    let request = Request::Change {
        pool: pool.to_owned(),
        change: Change::EstimateUnmap,
        command: String::new(),
    };
    match Client::connect(&Runtime::from_env()?)?.request(&request)? {
        Reply::ToMove(bytes) => {
            let size = nicebytes(bytes);
            let what = "Data that will be moved to erase the mappings of removed devices";
            ui::out(&format!("{what}: {size}\n"));
            Ok(Exit::OK)
        }
        _ => Err(super::unexpected_reply()),
    }
}

/// Prints what would be moved.
fn estimate(pool: &str, args: DefragArgs) -> Result<Exit> {
    let request = Request::Change {
        pool: pool.to_owned(),
        change: Change::EstimateDefrag(args),
        command: String::new(),
    };
    match Client::connect(&Runtime::from_env()?)?.request(&request)? {
        Reply::DefragPlan(plan) => {
            ui::out(&text(&plan));
            Ok(Exit::OK)
        }
        _ => Err(super::unexpected_reply()),
    }
}

fn text(plan: &DefragPlan) -> String {
    format!(
        "layout score of all files: {}\n\
         files to lay out: {}, with {} and a layout score of {}\n\
         metaslabs to empty: {}, with {} and {} of scattered free space\n",
        score(plan.score),
        plan.files,
        nicebytes(plan.file_bytes),
        score(plan.file_score),
        plan.metaslabs,
        nicebytes(plan.metaslab_bytes),
        nicebytes(plan.scattered),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_shares() {
        for (text, score) in [("0", Some(0)), ("0.95", Some(950)), ("1", Some(1000))] {
            assert_eq!(thousandths(text), score, "{text}");
        }
        for text in ["", "x", "1.1", "-0.1", "95", "nan"] {
            assert_eq!(thousandths(text), None, "{text}");
        }
    }
}
