//! `zpool rebalance`.

use std::ffi::OsString;

use base::Result;
use cenote::props::nicebytes;
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{Change, RebalanceArgs, RebalancePlan, RebalancedVdev, Reply, Request};
use ui::Exit;

use super::change::request_change;
use super::wait::until_over;
use super::{command, misuse, options};

/// `zpool rebalance [-n] [-w] [--special|--from-special] <pool>`, `zpool rebalance -s|-p <pool>`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("rebalance", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let (stops, pauses) = (parsed.has('s'), parsed.has('p'));
    let (special, back) = (parsed.has('S'), parsed.has('F'));
    let wrong = |text: &str| Ok(misuse("rebalance", Some(text)));
    if stops && pauses {
        return wrong("invalid option combination: -s and -p are mutually exclusive");
    }
    if special && back {
        return wrong(
            "invalid option combination: --special and --from-special are mutually exclusive",
        );
    }
    if (stops || pauses) && (parsed.has('n') || parsed.has('w') || special || back) {
        return wrong("invalid option combination: -s and -p cannot be used with other options");
    }
    if parsed.has('n') && parsed.has('w') {
        return wrong("invalid option combination: -n and -w are mutually exclusive");
    }
    let mut words = parsed.words();
    if words.len() > 1 {
        return wrong("too many arguments");
    }
    let Some(pool) = words.pop() else { return wrong("missing pool name argument") };
    let args = match (special, back) {
        (true, _) => RebalanceArgs::ToSpecial,
        (_, true) => RebalanceArgs::FromSpecial,
        _ => RebalanceArgs::Vdevs,
    };
    if parsed.has('n') {
        return estimate(&pool, args);
    }
    let change = match (stops, pauses) {
        (true, _) => Change::CancelRebalance,
        (_, true) => Change::PauseRebalance,
        _ => Change::Rebalance(args),
    };
    let done = request_change(&pool, change, command("rebalance", argv))?;
    if parsed.has('w') {
        until_over(&pool, &["rebalance"])?;
    }
    Ok(done)
}

/// Prints what would be moved.
fn estimate(pool: &str, args: RebalanceArgs) -> Result<Exit> {
    let request = Request::Change {
        pool: pool.to_owned(),
        change: Change::EstimateRebalance(args),
        command: String::new(),
    };
    match Client::connect(&Runtime::from_env()?)?.request(&request)? {
        Reply::RebalancePlan(plan) => {
            ui::out(&text(&plan));
            Ok(Exit::OK)
        }
        _ => Err(super::unexpected_reply()),
    }
}

fn percent(part: u64, whole: u64) -> u64 {
    let share = u128::from(part) * 100 / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

fn text(plan: &RebalancePlan) -> String {
    match plan {
        RebalancePlan::Vdevs(vdevs) => {
            let line = |vdev: &RebalancedVdev| {
                let (used, after) = (vdev.used, vdev.after);
                let moves = match (used.checked_sub(after), after.checked_sub(used)) {
                    (Some(n), _) if n > 0 => format!(", {} away from it", nicebytes(n)),
                    (_, Some(n)) if n > 0 => format!(", {} to it", nicebytes(n)),
                    _ => String::new(),
                };
                format!(
                    "{}: {}% in use, then {}%{moves}\n",
                    vdev.name,
                    percent(used, vdev.capacity),
                    percent(after, vdev.capacity),
                )
            };
            let moved = vdevs.iter().map(|v| v.used.saturating_sub(v.after)).sum();
            let lines: String = vdevs.iter().map(line).collect();
            format!("{lines}to move: {}\n", nicebytes(moved))
        }
        RebalancePlan::Special { metadata, data, to_move, immovable } => format!(
            "metadata: {}, data: {}, blocks that cannot be moved: {immovable}\n\
             to move, as far as there is room: {}\n",
            nicebytes(*metadata),
            nicebytes(*data),
            nicebytes(*to_move),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_says_what_moves_from_where_to_where() {
        let vdev = |name: &str, used, after| {
            let name = name.to_owned();
            RebalancedVdev { name, capacity: 10 << 30, used, after }
        };
        let vdevs = vec![
            vdev("mirror-0", 8 << 30, 4 << 30),
            vdev("mirror-1", 0, 4 << 30),
            vdev("mirror-2", 4 << 30, 4 << 30),
        ];
        assert_eq!(
            text(&RebalancePlan::Vdevs(vdevs)),
            "mirror-0: 80% in use, then 40%, 4G away from it\n\
             mirror-1: 0% in use, then 40%, 4G to it\n\
             mirror-2: 40% in use, then 40%\n\
             to move: 4G\n"
        );
    }
}
