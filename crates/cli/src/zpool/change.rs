//! `zpool destroy`, `clear`, `remove`, `labelclear`, `reguid`, `sync` and `set` (chapter 09 §4; the
//! words as OpenZFS 2.3.2 prints them).

use std::ffi::OsString;

use base::{Error, Result};
use cenote::create::{When, feature_set, pool_setting};
use cenote::props::nicenum;
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{Change, Pool, Reply, Request, VdevHealth};
use ui::Exit;

use super::{Pools, command, misuse, no_such_pool, options, unexpected_reply};

/// The exit code for OpenZFS's functions that return -1.
const MINUS_ONE: Exit = Exit(255);
/// EINVAL, the exit code of `zpool set` for a name that is not a pool's.
const NOT_A_POOL: Exit = Exit(22);

/// Requests a change; the daemon's error is the whole message.
pub(super) fn request_change(pool: &str, change: Change, command: String) -> Result<Exit> {
    let runtime = Runtime::from_env()?;
    let mut client = match Client::connect_for_query(&runtime)? {
        Some(client) => client,
        None => Client::connect(&runtime)?,
    };
    let request = Request::Change { pool: pool.to_owned(), change, command };
    let Reply::Done = client.request(&request)? else { return Err(unexpected_reply()) };
    Ok(Exit::failed_if(client.failed))
}

/// Requests the change of each of these pools, or of all if none is named; goes on behind one that
/// fails.
pub(super) fn change_each(names: &[String], change: &Change, command: &str) -> Result<Exit> {
    let mut pools = Pools::connect()?;
    let found = pools.select(names, no_such_pool)?;
    let mut failed = pools.failed;
    for name in found {
        if let Err(e) = request_change(&name, change.clone(), command.to_owned()) {
            ui::err(e.message());
            failed = true;
        }
    }
    Ok(Exit::failed_if(failed))
}

/// The name of an existing pool; `missing` names the operand.
pub(super) fn one_pool(
    what: &str,
    words: Vec<String>,
    missing: &str,
) -> Result<std::result::Result<String, Exit>> {
    let mut words = words.into_iter();
    let Some(name) = words.next() else { return Ok(Err(misuse(what, Some(missing)))) };
    if words.next().is_some() {
        return Ok(Err(misuse(what, Some("too many arguments"))));
    }
    let mut pools = Pools::connect()?;
    let found = pools.select(std::slice::from_ref(&name), no_such_pool)?;
    Ok(if found.is_empty() { Err(Exit::FAILURE) } else { Ok(name) })
}

/// `zpool destroy [-f] <pool>`
pub(super) fn destroy(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("destroy", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    if let [name] = words.as_slice()
        && name.contains('/')
    {
        return Err(Error::invalid(format!(
            "cannot open '{name}': invalid character '/' in pool name\nuse 'zfs destroy' to \
             destroy a dataset"
        )));
    }
    match one_pool("destroy", words, "missing pool argument")? {
        Ok(name) => request_change(
            &name,
            Change::Destroy { force: parsed.has('f') },
            command("destroy", argv),
        ),
        Err(exit) => Ok(exit),
    }
}

/// `zpool reguid [-g guid] <pool>`
pub(super) fn reguid(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("reguid", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let guid = match parsed.last('g').map(|g| g.parse::<u64>().map_err(|_| g)) {
        Some(Err(text)) => return Ok(misuse("reguid", Some(&format!("invalid GUID: {text}")))),
        Some(Ok(guid)) => Some(guid),
        None => None,
    };
    match one_pool("reguid", parsed.words(), "missing pool name")? {
        Ok(name) => request_change(&name, Change::Reguid(guid), command("reguid", argv)),
        Err(exit) => Ok(exit),
    }
}

/// `zpool sync [pool] ...`
pub(super) fn sync(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("sync", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    change_each(&parsed.words(), &Change::Sync, "")
}

/// The memory that the mappings of these devices would take.
fn estimate_removal(pool: &str, devices: Vec<String>, exact: bool) -> Result<Exit> {
    let mut failed = false;
    for device in devices {
        let request = Request::Change {
            pool: pool.to_owned(),
            change: Change::EstimateRemoval(device.clone()),
            command: String::new(),
        };
        match Client::connect(&Runtime::from_env()?)?.request(&request) {
            Ok(Reply::RemovalMemory(bytes)) => {
                let size = if exact { bytes.to_string() } else { nicenum(bytes) };
                ui::out(&format!("Memory that will be used after removing {device}: {size}\n"));
            }
            Ok(_) => return Err(unexpected_reply()),
            Err(e) => {
                ui::err(e.message());
                failed = true;
            }
        }
    }
    Ok(Exit::failed_if(failed))
}

/// `zpool remove [-npw] <pool> <device> ...`, `zpool remove -s <pool>`
pub(super) fn remove(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("remove", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let mut words = parsed.words();
    if words.is_empty() {
        return Ok(misuse("remove", Some("missing pool name argument")));
    }
    let devices = words.split_off(1);
    let stop = parsed.has('s');
    if stop && (parsed.has('n') || parsed.has('w')) {
        return Ok(misuse("remove", Some("-s is exclusive of -n and -w")));
    }
    if stop && !devices.is_empty() {
        return Ok(misuse("remove", Some("too many arguments")));
    }
    if !stop && devices.is_empty() {
        return Ok(misuse("remove", Some("missing device")));
    }
    let name = match one_pool("remove", words, "missing pool name argument")? {
        Ok(name) => name,
        Err(exit) => return Ok(exit),
    };
    if stop {
        return request_change(&name, Change::CancelRemoval, command("remove", argv));
    }
    if parsed.has('n') {
        return estimate_removal(&name, devices, parsed.has('p'));
    }
    let mut failed = false;
    for device in devices {
        if let Err(e) = request_change(&name, Change::Remove(device), command("remove", argv)) {
            ui::err(e.message());
            failed = true;
        }
    }
    if parsed.has('w') {
        super::wait::until_over(&name, &["remove"])?;
    }
    Ok(Exit::failed_if(failed))
}

/// `zpool clear <pool> [device]`
pub(super) fn clear(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("clear", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let mut words = parsed.words();
    let device = match words.len() {
        0 => return Ok(misuse("clear", Some("missing pool name"))),
        1 => None,
        2 => words.pop(),
        _ => return Ok(misuse("clear", Some("too many arguments"))),
    };
    match one_pool("clear", words, "missing pool name")? {
        Ok(name) => request_change(&name, Change::Clear(device), command("clear", argv)),
        Err(exit) => Ok(exit),
    }
}

/// `zpool offline [-f] [-t] <pool> <device> ...`
pub(super) fn offline(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("offline", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let mut words = parsed.words();
    if words.len() < 2 {
        let text = if words.is_empty() { "missing pool name" } else { "missing device name" };
        return Ok(misuse("offline", Some(text)));
    }
    let devices = words.split_off(1);
    let name = match one_pool("offline", words, "missing pool name")? {
        Ok(name) => name,
        Err(exit) => return Ok(exit),
    };
    let mut failed = false;
    for device in devices {
        let (temporary, fault) = (parsed.has('t'), parsed.has('f'));
        let wish = Change::Offline { device, temporary, fault };
        if let Err(e) = request_change(&name, wish, command("offline", argv)) {
            ui::err(e.message());
            failed = true;
        }
    }
    Ok(Exit::failed_if(failed))
}

/// `zpool online [-e] <pool> <device> ...`
pub(super) fn online(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("online", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let mut words = parsed.words();
    if words.len() < 2 {
        let text = if words.is_empty() { "missing pool name" } else { "missing device name" };
        return Ok(misuse("online", Some(text)));
    }
    let devices = words.split_off(1);
    let name = match one_pool("online", words, "missing pool name")? {
        Ok(name) => name,
        Err(exit) => return Ok(exit),
    };
    let mut failed = false;
    let mut pools = Pools::connect()?;
    for device in devices {
        let wish = Change::Online { device: device.clone(), expand: parsed.has('e') };
        let done = request_change(&name, wish, command("online", argv));
        if done.is_ok()
            && let Some(warning) = health_warning(&pools.status(&name)?, &device)
        {
            // OpenZFS's exit code is 0 all the same.
            ui::out(&warning);
        }
        if let Err(e) = done {
            ui::err(e.message());
            failed = true;
        }
    }
    Ok(Exit::failed_if(failed))
}

/// The warning for a device that is not healthy although it is online.
fn health_warning(pool: &Pool, device: &str) -> Option<String> {
    let state = super::vdev_props::find(pool, device)?.state;
    let hint = match state {
        VdevHealth::Online | VdevHealth::Degraded => return None,
        VdevHealth::Faulted => "use 'zpool clear' to restore a faulted device",
        _ => "use 'zpool replace' to replace devices that are no longer present",
    };
    Some(format!("warning: device '{device}' onlined, but remains in faulted state\n{hint}\n"))
}

/// `zpool labelclear [-f] <vdev>`
pub(super) fn labelclear(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("labelclear", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    let [name] = words.as_slice() else {
        let text = if words.is_empty() { "missing vdev name" } else { "too many arguments" };
        return Ok(misuse("labelclear", Some(text)));
    };
    let path = match super::spec::resolve(name) {
        Ok(proto::NewKind::File(path) | proto::NewKind::Disk(path)) => path,
        _ if name.starts_with('/') => {
            return Err(Error::invalid(format!(
                "failed to open {name}: {}",
                open_error_text(name)
            )));
        }
        _ => {
            return Err(Error::invalid(format!(
                "failed to find device {name}, try specifying absolute path instead"
            )));
        }
    };
    let mut client = Client::connect(&Runtime::from_env()?)?;
    let request = Request::LabelClear { path: path.clone(), force: parsed.has('f') };
    match client.request(&request)? {
        Reply::Truth(true) => Ok(Exit::OK),
        Reply::Truth(false) => {
            ui::err(&format!("failed to clear label for {}", path.display()));
            Ok(MINUS_ONE)
        }
        _ => Err(unexpected_reply()),
    }
}

/// The reason why a path cannot be opened for writing as a device.
fn open_error_text(path: &str) -> &'static str {
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => "Is a directory",
        Ok(_) => "Invalid argument",
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => "Permission denied",
        Err(_) => "No such file or directory",
    }
}

/// What `zpool set` shall set.
#[derive(Debug, PartialEq, Eq)]
struct Setting {
    name: String,
    value: String,
    pool: String,
    vdev: Option<String>,
}

fn setting(words: &[String]) -> std::result::Result<Setting, &'static str> {
    let (assignment, pool, vdev) = match words {
        [] => return Err("missing property=value argument"),
        [_] => return Err("missing pool name"),
        [assignment, pool] => (assignment, pool, None),
        [assignment, pool, vdev] => (assignment, pool, Some(vdev.clone())),
        _ => return Err("too many pool names"),
    };
    let Some((name, value)) = assignment.split_once('=') else {
        return Err("missing value in property=value argument");
    };
    Ok(Setting { name: name.to_owned(), value: value.to_owned(), pool: pool.clone(), vdev })
}

fn check(name: &str, value: &str, pool: &str) -> std::result::Result<(), String> {
    if name == "compatibility" {
        feature_set(value).map_err(|bad| {
            format!("Error: could not read/parse feature file(s): {} ", bad.join(", "))
        })?;
    }
    let cannot = |why| format!("cannot set property for '{pool}': {why}");
    pool_setting(name, value, When::Set).map(drop).map_err(cannot)
}

/// `zpool set <property=value> <pool> [vdev]`
pub(super) fn set(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("set", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let Setting { name, value, pool, vdev } = match setting(&parsed.words()) {
        Ok(setting) => setting,
        Err(text) => return Ok(misuse("set", Some(text))),
    };
    let mut pools = Pools::connect()?;
    let missing = |name: &str| format!("cannot open '{name}': is not a pool");
    if pools.select(std::slice::from_ref(&pool), missing)?.is_empty() {
        return Ok(NOT_A_POOL);
    }
    if let Some(vdev) = vdev {
        return request_change(&pool, Change::SetVdev(vdev, name, value), command("set", argv));
    }
    check(&name, &value, &pool).map_err(Error::invalid)?;
    request_change(&pool, Change::Set(name, value), command("set", argv))
}

/// The table in the usage of `set`.
pub(super) fn properties() -> String {
    use cenote::props::{Attr, pool_props};
    let mut rows: Vec<(bool, &str, &str)> = pool_props()
        .iter()
        .filter(|p| p.visible)
        .map(|p| (p.attr != Attr::ReadOnly, p.name, p.values))
        .collect();
    rows.sort_unstable();
    rows.push((true, "feature@...", "disabled | enabled | active"));
    let mut out = format!(
        "\nthe following properties are supported:\n\n\t{:<19}  {:<4}   VALUES\n\n",
        "PROPERTY", "EDIT"
    );
    for (editable, name, values) in rows {
        let edit = if editable { "YES" } else { "NO" };
        out.push_str(&format!("\t{name:<19}  {edit:>4}   {values}\n"));
    }
    out.push_str(
        "\nThe feature@ properties must be appended with a feature name.\nSee zpool-features(7).",
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// Recorded from OpenZFS 2.3.2.
    #[test]
    fn lines_of_set() {
        let wrong = |line: &str| setting(&words(line)).unwrap_err();
        assert_eq!(wrong(""), "missing property=value argument");
        assert_eq!(wrong("comment=x"), "missing pool name");
        assert_eq!(wrong("comment live"), "missing value in property=value argument");
        assert_eq!(wrong("comment=x live a b"), "too many pool names");
        let of = |vdev: Option<&str>| Setting {
            name: "a:b".into(),
            value: "c=d".into(),
            pool: "live".into(),
            vdev: vdev.map(str::to_owned),
        };
        assert_eq!(setting(&words("a:b=c=d live")), Ok(of(None)));
        assert_eq!(setting(&words("a:b=c=d live root")), Ok(of(Some("root"))));
        let check = |name: &str, value: &str| check(name, value, "live");
        assert_eq!(check("comment", "x"), Ok(()));
        assert_eq!(
            check("size", "5"),
            Err("cannot set property for 'live': 'size' is readonly".into())
        );
        assert_eq!(
            check("compatibility", "nope"),
            Err("Error: could not read/parse feature file(s): nope ".into())
        );
    }

    /// Recorded likewise: the first and last lines, and one with the widest name.
    #[test]
    fn the_table_of_properties() {
        let table = properties();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[1], "the following properties are supported:");
        assert_eq!(lines[3], "\tPROPERTY             EDIT   VALUES");
        assert_eq!(lines[5], "\tallocated              NO   <size>");
        assert!(lines.contains(&"\tdedup_table_quota     YES   <size>"));
        assert!(lines.contains(&"\taltroot               YES   <path>"));
        assert_eq!(lines.len(), 43);
    }
}
