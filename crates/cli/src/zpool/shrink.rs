//! `zpool shrink`.

use std::ffi::OsString;

use base::Result;
use cenote::props::{nicebytes, parse_size};
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{Change, Reply, Request, ShrinkArgs};
use ui::Exit;

use super::change::request_change;
use super::wait::until_over;
use super::{command, misuse, options};

/// `zpool shrink [-n] [-w] <pool> <vdev> <size>`, `zpool shrink -s <pool>`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("shrink", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let wrong = |text: &str| Ok(misuse("shrink", Some(text)));
    let words = parsed.words();
    if parsed.has('s') {
        if parsed.has('n') || parsed.has('w') {
            return wrong("-s is exclusive of -n and -w");
        }
        return match words.as_slice() {
            [pool] => request_change(pool, Change::CancelShrink, command("shrink", argv)),
            [] => wrong("missing pool name argument"),
            _ => wrong("too many arguments"),
        };
    }
    if parsed.has('n') && parsed.has('w') {
        return wrong("invalid option combination: -n and -w are mutually exclusive");
    }
    let (pool, vdev, size) = match words.as_slice() {
        [pool, vdev, size] => (pool, vdev, size),
        [] => return wrong("missing pool name argument"),
        [_] => return wrong("missing device"),
        [_, _] => return wrong("missing size"),
        _ => return wrong("too many arguments"),
    };
    let args = match parse_size(size) {
        Ok(size) => ShrinkArgs { vdev: vdev.clone(), size },
        Err(why) => return wrong(&format!("invalid size '{size}': {why}")),
    };
    if parsed.has('n') {
        return estimate(pool, args);
    }
    let done = request_change(pool, Change::Shrink(args), command("shrink", argv))?;
    if parsed.has('w') {
        until_over(pool, &["remove"])?;
    }
    Ok(done)
}

/// Prints what would be moved.
fn estimate(pool: &str, args: ShrinkArgs) -> Result<Exit> {
    let vdev = args.vdev.clone();
    let request = Request::Change {
        pool: pool.to_owned(),
        change: Change::EstimateShrink(args),
        command: String::new(),
    };
    match Client::connect(&Runtime::from_env()?)?.request(&request)? {
        Reply::ToMove(bytes) => {
            let size = nicebytes(bytes);
            ui::out(&format!("Data that will be moved to shrink {vdev}: {size}\n"));
            Ok(Exit::OK)
        }
        _ => Err(super::unexpected_reply()),
    }
}
