//! `zpool attach`, `replace`, `detach` and `reopen` (chapter 09 §4).

use std::ffi::OsString;

use base::{Error, Result};
use proto::{AttachArgs, AttachDevice, Change, NewKind, NewVdev, Pool};
use ui::Exit;

use super::change::{change_each, one_pool, request_change};
use super::create::complain;
use super::{Pools, add, command, misuse, no_such_pool, options, spec};

/// `zpool attach [-fsw] [-o property=value] <pool> <device> <new-device>`
pub(super) fn attach(argv: &[OsString]) -> Result<Exit> {
    join("attach", argv)
}

/// `zpool replace [-fsw] [-o property=value] <pool> <device> [new-device]`
pub(super) fn replace(argv: &[OsString]) -> Result<Exit> {
    join("replace", argv)
}

fn join(what: &str, argv: &[OsString]) -> Result<Exit> {
    let parsed = match options(what, argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let replace = what == "replace";
    let ashift = match add::ashift(&parsed) {
        Ok(ashift) => ashift,
        Err(wrong) => return Ok(complain(what, wrong)),
    };
    let words = parsed.words();
    let (pool, old, new) = match words.as_slice() {
        [] => return Ok(misuse(what, Some("missing pool name argument"))),
        [_] => return Ok(misuse(what, Some("missing <device> specification"))),
        [_, _] if !replace => {
            return Ok(misuse(what, Some("missing <new_device> specification")));
        }
        [pool, old] => (pool, old, None),
        [pool, old, new] => (pool, old, Some(new)),
        _ => return Ok(misuse(what, Some("too many arguments"))),
    };
    let mut pools = Pools::connect()?;
    if pools.select(std::slice::from_ref(pool), no_such_pool)?.is_empty() {
        return Ok(Exit::FAILURE);
    }
    let new = match new {
        Some(new) => Some(new_device(&pools.status(pool)?, new)?),
        None => None,
    };
    let force = parsed.has('f');
    let sequential = parsed.has('s');
    let args = AttachArgs { old: old.clone(), new, replace, sequential, force, ashift };
    let exit = request_change(pool, Change::Attach(Box::new(args)), command(what, argv))?;
    if exit == Exit::OK && parsed.has('w') {
        super::wait::until_over(pool, &["replace", "resilver", "raidz_expand"])?;
    }
    Ok(exit)
}

/// A spare of the pool of this name, or else a device.
fn new_device(pool: &Pool, name: &str) -> Result<AttachDevice> {
    let is_spare = |spare: &proto::Vdev| {
        let path = spare.path.as_ref().and_then(|p| p.to_str());
        let short = path.and_then(|p| p.rsplit('/').next());
        spare.class == proto::VdevRole::Spare
            && (spare.name == name || path == Some(name) || short == Some(name))
    };
    if pool.root.children.iter().any(is_spare) {
        return Ok(AttachDevice::Spare(name.to_owned()));
    }
    let vdevs = spec::parse(&[name.to_owned()], &spec::resolve).map_err(Error::invalid)?;
    match vdevs.as_slice() {
        [NewVdev { kind: kind @ (NewKind::File(_) | NewKind::Disk(_)), .. }] => {
            Ok(AttachDevice::Path(kind.clone()))
        }
        _ => Err(Error::invalid("new device must be a single disk")),
    }
}

/// `zpool detach <pool> <device>`
pub(super) fn detach(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("detach", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    let (pool, device) = match words.as_slice() {
        [] => return Ok(misuse("detach", Some("missing pool name argument"))),
        [_] => return Ok(misuse("detach", Some("missing <device> specification"))),
        [pool, device] => (pool.clone(), device.clone()),
        _ => return Ok(misuse("detach", Some("too many arguments"))),
    };
    match one_pool("detach", vec![pool], "missing pool name argument")? {
        Ok(name) => request_change(&name, Change::Detach(device), command("detach", argv)),
        Err(exit) => Ok(exit),
    }
}

/// `zpool reopen [-n] [pool] ...`
pub(super) fn reopen(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("reopen", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    change_each(&parsed.words(), &Change::Reopen, &command("reopen", argv))
}
