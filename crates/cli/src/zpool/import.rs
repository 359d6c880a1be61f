//! `zpool import` (chapter 09 §4.6).

use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;

use base::{Error, Result};
use commands::getopt::Parsed;
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{ImportArgs, ImportCandidate, Reply, Request, Vdev, VdevHealth, VdevRole};
use ui::Exit;
use ui::time::ctime;

use super::status::{CLASSES, Facts};
use super::vdevs::{self, Naming, VdevLine};
use super::{misuse, options, unexpected_reply};

/// `zpool import ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("import", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    let all = parsed.has('a');
    if all && !words.is_empty() {
        return Ok(misuse("import", Some("too many arguments")));
    }
    if words.len() > 2 {
        return Ok(misuse("import", Some("too many arguments")));
    }
    let rewinds = parsed.has('F') || parsed.has('T');
    let tells = parsed.has('n') && !rewinds && !parsed.has('2');
    if tells || parsed.has('X') && !rewinds {
        return Ok(misuse("import", Some("-n or -X only meaningful with -F")));
    }
    // A checkpoint is one state, and these choose another.
    if parsed.has('1') && (rewinds || parsed.has('2')) {
        let text = "--rewind-to-checkpoint cannot be combined with -F, -T or --rebuild-space";
        return Ok(misuse("import", Some(text)));
    }
    if parsed.has('l') {
        ui::err(&ui::not_yet("loading keys"));
    }
    let mut args = match arguments(&parsed) {
        Ok(args) => args,
        Err(message) => return Ok(misuse("import", Some(&message))),
    };
    let runtime = Runtime::from_env()?;
    let mut client = Client::connect(&runtime)?;
    let reply = client.request(&Request::Discover(args.search.clone()))?;
    let Reply::Found(mut found, problems) = reply else { return Err(unexpected_reply()) };
    if !args.search.destroyed {
        found.retain(|p| !p.destroyed);
    }
    if words.is_empty() {
        // Pools that the daemon imported at its start are available already.
        found.retain(|p| p.imported.is_none());
    }
    let complain = || problems.iter().for_each(|p| ui::err(p));
    // An ordinary user may not open many of the system's devices. Such errors matter only if
    // the requested pool may be on them.
    let named = !args.search.paths.is_empty();
    if named || found.is_empty() {
        complain();
    }
    if words.is_empty() && !all {
        list(&found);
        return Ok(Exit::failed_if(!problems.is_empty() && found.is_empty()));
    }
    let chosen = match words.first() {
        None if found.is_empty() => {
            ui::err("no pools available to import");
            return Ok(Exit::OK);
        }
        None => found,
        Some(name) => {
            let others = !found.is_empty();
            match choose(found, name) {
                Ok(chosen) => chosen,
                Err(e) => {
                    if others && !named {
                        complain();
                    }
                    return Err(imported(&mut client, name)?.unwrap_or(e));
                }
            }
        }
    };
    args.new_name = words.get(1).cloned();
    args.temporary_name = parsed.has('t');
    let mut failed = false;
    for pool in &chosen {
        if let Err(e) = import(&mut client, pool, &args) {
            ui::err(e.message());
            if !all_online(&pool.root) && pool.held_up.is_none() && pool.imported.is_none() {
                ui::err(&format!("config:\n\n{}", config(&pool.root, pool.health).trim_end()));
            }
            failed = true;
        }
    }
    Ok(Exit::failed_if(failed || client.failed))
}

/// The arguments from the options, without the pool.
fn arguments(parsed: &Parsed) -> std::result::Result<ImportArgs, String> {
    let mut args = ImportArgs {
        force: parsed.has('f'),
        // With -T the pool is opened as of that txg or not at all.
        rewind: parsed.has('F'),
        dry_run: parsed.has('n'),
        extreme: parsed.has('X'),
        rebuild_space: parsed.has('2'),
        checkpoint: parsed.has('1'),
        missing_log: parsed.has('m'),
        no_mount: parsed.has('N'),
        ..ImportArgs::default()
    };
    args.search.destroyed = parsed.has('D');
    for opt in &parsed.opts {
        match opt.letter {
            'd' => {
                let path = std::path::absolute(PathBuf::from(&opt.arg))
                    .map_err(|e| format!("bad path '{}': {e}", opt.text()))?;
                args.search.paths.push(path);
            }
            'R' => {
                let root = opt.text();
                if !root.starts_with('/') {
                    return Err(format!("bad alternate root '{root}': must be an absolute path"));
                }
                args.altroot = Some(root.into());
            }
            'T' => {
                let txg = opt.text().parse().map_err(|_| "invalid txg value".to_owned())?;
                args.txg = Some(txg);
            }
            'o' => option(&mut args, &opt.text())?,
            _ => {}
        }
    }
    if args.search.paths.is_empty() {
        let list = std::env::var_os("ZPOOL_IMPORT_PATH").unwrap_or_default();
        args.search.paths =
            std::env::split_paths(&list).filter(|p| !p.as_os_str().is_empty()).collect();
    }
    Ok(args)
}

/// One `-o`: a property, or mount options.
fn option(args: &mut ImportArgs, text: &str) -> std::result::Result<(), String> {
    match text.split_once('=') {
        Some(("readonly", "on")) => args.readonly = true,
        Some(("readonly", "off")) => args.readonly = false,
        Some(("readonly", _)) => return Err("property 'readonly' must be one of 'on | off'".into()),
        Some(("altroot", root)) if root.starts_with('/') => args.altroot = Some(root.into()),
        // There is no cache file, which is what "none" means.
        Some(("cachefile", "" | "none")) => {}
        Some(("cachefile", _)) => return Err(ui::not_yet("the use of cache files")),
        Some((name, _)) => return Err(format!("property '{name}' is not valid at import")),
        None => {
            args.readonly |= text.split(',').any(|o| o == "ro");
            args.mount_options.push(text.to_owned());
        }
    }
    Ok(())
}

fn choose(found: Vec<ImportCandidate>, name: &str) -> Result<Vec<ImportCandidate>> {
    let guid: Option<u64> = name.parse().ok().filter(|g| *g != 0);
    let mut chosen: Vec<ImportCandidate> =
        found.into_iter().filter(|p| p.name == name || Some(p.guid) == guid).collect();
    if let Some(at) = chosen.iter().position(|p| Some(p.guid) == guid) {
        chosen = vec![chosen.swap_remove(at)];
    }
    match chosen.len() {
        0 => Err(Error::not_found(format!("cannot import '{name}': no such pool available"))),
        1 => Ok(chosen),
        _ => Err(Error::invalid(format!(
            "cannot import '{name}': more than one matching pool\nimport by numeric ID instead"
        ))),
    }
}

/// The complaint about a pool that is imported already, which discovery does not find.
fn imported(client: &mut Client, name: &str) -> Result<Option<Error>> {
    let Reply::Names(names) = client.request(&Request::PoolNames)? else {
        return Err(unexpected_reply());
    };
    Ok(names.iter().any(|n| n == name).then(|| {
        Error::invalid(format!(
            "cannot import '{name}': a pool with that name already exists\nuse the form 'zpool \
             import <pool | id> <newpool>' to give it a new name"
        ))
    }))
}

fn all_online(v: &Vdev) -> bool {
    v.state == VdevHealth::Online && v.children.iter().all(all_online)
}

fn import(client: &mut Client, pool: &ImportCandidate, args: &ImportArgs) -> Result<()> {
    if let Some(name) = &pool.imported {
        let wanted = args.new_name.as_ref().unwrap_or(&pool.name);
        if name == wanted {
            ui::err(&format!("'{name}' is imported: the daemon did so when it started"));
            return Ok(());
        }
        return Err(Error::invalid(format!(
            "cannot import '{}': the daemon imported it as '{name}' when it started",
            pool.name
        )));
    }
    if let Some(why) = &pool.held_up {
        return Err(Error::busy(format!("cannot import '{}': {why}", pool.name)));
    }
    if pool.foreign && !args.force {
        return Err(Error::busy(foreign(pool)));
    }
    let args = ImportArgs { guid: pool.guid, name: pool.name.clone(), ..args.clone() };
    let reply = client.request(&Request::Import(Box::new(args)))?;
    let Reply::Imported(_, lines) = reply else { return Err(unexpected_reply()) };
    lines.iter().for_each(|line| ui::out(&format!("{line}\n")));
    Ok(())
}

fn foreign(pool: &ImportCandidate) -> String {
    let host = pool.hostname.as_deref().unwrap_or("<unknown>");
    let when = pool.last_accessed.map_or_else(|| "an unknown time".to_owned(), ctime);
    format!(
        "cannot import '{}': pool was previously in use from another system.\nLast accessed by \
         {host} (hostid={:x}) at {when}\nThe pool can be imported, use 'zpool import -f' to \
         import the pool.",
        pool.name,
        pool.hostid.unwrap_or(0)
    )
}

fn list(found: &[ImportCandidate]) {
    if found.is_empty() {
        ui::err("no pools available to import");
        return;
    }
    let texts: Vec<String> = found.iter().map(candidate).collect();
    ui::out(&texts.join("\n"));
}

/// Text for `status:` and `action:`.
fn verdict(p: &ImportCandidate) -> (Option<&'static str>, &'static str) {
    let f = Facts::of(&p.root, p.health);
    let dead = matches!(p.health, VdevHealth::Unavail | VdevHealth::Faulted);
    if p.unsupported.iter().any(|u| !u.2) {
        return (
            Some("The pool uses the following feature(s) not supported on this system:"),
            "The pool cannot be imported. Access the pool on a system that supports\n\tthe \
             required feature(s), or recreate the pool from backup.",
        );
    }
    if !p.unsupported.is_empty() {
        return (
            Some(
                "The pool can only be accessed in read-only mode on this system. It\n\tcannot be \
                 accessed in read-write mode because it uses the following\n\tfeature(s) not \
                 supported on this system:",
            ),
            "The pool cannot be imported in read-write mode. Import the pool with\n\t\"-o \
             readonly=on\", access the pool on a system that supports the\n\trequired feature(s), \
             or recreate the pool from backup.",
        );
    }
    if dead {
        return (
            Some(f.import_status()),
            "The pool cannot be imported. Attach the missing\n\tdevices and try again.",
        );
    }
    if p.foreign {
        return (
            Some("The pool was last accessed by another system."),
            "The pool can be imported using its name or numeric identifier and\n\tthe '-f' flag.",
        );
    }
    if p.health != VdevHealth::Online {
        return (
            Some(f.import_status()),
            "The pool can be imported despite missing or damaged devices.  The\n\tfault tolerance \
             of the pool may be compromised if imported.",
        );
    }
    (None, "The pool can be imported using its name or numeric identifier.")
}

fn candidate(p: &ImportCandidate) -> String {
    let mut out = String::new();
    let wide = if p.comment.is_some() { " " } else { "" };
    let destroyed = if p.destroyed { " (DESTROYED)" } else { "" };
    let _ = write!(
        out,
        "{wide}  pool: {}\n{wide}    id: {}\n{wide} state: {}{destroyed}\n",
        p.name,
        p.guid,
        if p.held_up.is_some() { "BUSY" } else { p.health.word() }
    );
    if let Some(why) = &p.held_up {
        let _ = writeln!(out, "{wide}status: The pool cannot be looked at: {why}.");
        let action = match why.starts_with("it is in use") {
            true => "Nothing is wrong with the pool. Export it there to import it here.",
            false => "Make its devices answer and try again. Nothing else is known of it.",
        };
        let _ = writeln!(out, "{wide}action: {action}");
        return out;
    }
    let (status, action) = verdict(p);
    if let Some(status) = status {
        let _ = writeln!(out, "{wide}status: {status}");
        for (name, description, _) in &p.unsupported {
            let _ = writeln!(out, "\t{name} ({description})");
        }
    }
    let _ = writeln!(out, "{wide}action: {action}");
    if let Some(comment) = &p.comment {
        let _ = writeln!(out, "comment: {comment}");
    }
    let _ = write!(out, "{wide}config:\n\n{}", config(&p.root, p.health));
    out
}

fn config(root: &Vdev, health: VdevHealth) -> String {
    let naming = Naming::default().with_env();
    let lines = vdevs::walk(root, &CLASSES);
    let w = vdevs::name_width(root, &lines, naming, 10);
    let mut out = String::new();
    let _ = writeln!(out, "\t{:w$}  {}", root.name, health.word());
    for line in &lines {
        match line {
            VdevLine::Class(heading) => {
                let _ = writeln!(out, "\t{heading}");
            }
            VdevLine::Vdev(v, depth) if matches!(v.class, VdevRole::Cache | VdevRole::Spare) => {
                let _ = writeln!(out, "\t{:depth$}{}", "", naming.of(v));
            }
            VdevLine::Vdev(v, depth) => {
                let pad = w.saturating_sub(*depth);
                let _ = write!(out, "\t{:depth$}{:pad$}  {}", "", naming.of(v), v.state.word());
                if let Some(aux) = &v.aux {
                    let _ = write!(out, "  {aux}");
                }
                out.push('\n');
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::vdevs::tests::vdev;
    use super::*;

    fn found() -> ImportCandidate {
        let mirror = vdev(
            "mirror",
            "mirror-0",
            VdevRole::Normal,
            vec![
                vdev("disk", "/dev/sda1", VdevRole::Normal, vec![]),
                vdev("disk", "/dev/sdb1", VdevRole::Normal, vec![]),
            ],
        );
        let log = vdev("disk", "/dev/sdc1", VdevRole::Log, vec![]);
        ImportCandidate {
            name: "tank".into(),
            guid: 12_345_678_901_234_567,
            destroyed: false,
            foreign: false,
            hostname: None,
            hostid: None,
            last_accessed: None,
            comment: None,
            health: VdevHealth::Online,
            unsupported: vec![],
            held_up: None,
            imported: None,
            root: vdev("root", "tank", VdevRole::Normal, vec![mirror, log]),
        }
    }

    /// Chapter 09 §4.6.
    #[test]
    fn candidates() {
        let text = "  pool: tank\n    id: 12345678901234567\n state: ONLINE\naction: The pool can \
            be imported using its name or numeric identifier.\nconfig:\n\n\ttank        \
            ONLINE\n\t  mirror-0  ONLINE\n\t    sda1    ONLINE\n\t    sdb1    \
            ONLINE\n\tlogs\t\n\t  sdc1      ONLINE\n";
        assert_eq!(candidate(&found()), text);
        let odd = ImportCandidate { comment: Some("mine".into()), destroyed: true, ..found() };
        let text = candidate(&odd);
        assert!(text.starts_with(
            "   pool: tank\n     id: 12345678901234567\n  state: ONLINE (DESTROYED)\n"
        ));
        assert!(text.contains("\ncomment: mine\n"));
    }

    #[test]
    fn names_and_ids_choose() {
        let other = ImportCandidate { guid: 5, ..found() };
        let both = || vec![found(), other.clone()];
        let e = choose(both(), "tank").unwrap_err();
        assert_eq!(
            e.message(),
            "cannot import 'tank': more than one matching pool\nimport by numeric ID instead"
        );
        assert_eq!(choose(both(), "5").unwrap()[0].guid, 5);
        let e = choose(both(), "x").unwrap_err();
        assert_eq!(e.message(), "cannot import 'x': no such pool available");
    }

    #[test]
    fn foreign_pools_say_whose() {
        let p = ImportCandidate {
            hostname: Some("h".into()),
            hostid: Some(0xabc),
            last_accessed: Some(0),
            ..found()
        };
        assert!(foreign(&p).starts_with(
            "cannot import 'tank': pool was previously in use from another system.\nLast accessed \
             by h (hostid=abc) at "
        ));
    }

    #[test]
    fn options_become_arguments() {
        let args = |words: &[&str]| {
            let argv: Vec<OsString> = words.iter().map(|w| (*w).into()).collect();
            arguments(&options("import", &argv).unwrap())
        };
        let a = args(&["-d", "/x", "-oreadonly=on", "-R/mnt", "-NfT", "12"]).unwrap();
        assert!(a.readonly && a.force && a.no_mount && !a.rewind && !a.rebuild_space);
        assert!(args(&["--rebuild-space"]).unwrap().rebuild_space);
        assert_eq!((a.txg, a.altroot), (Some(12), Some("/mnt".into())));
        assert_eq!(a.search.paths, [PathBuf::from("/x")]);
        assert!(args(&["-o", "ro,noatime"]).unwrap().readonly);
        assert_eq!(
            args(&["-R", "mnt"]).unwrap_err(),
            "bad alternate root 'mnt': must be an absolute path"
        );
        assert!(args(&["-o", "size=3"]).is_err() && args(&["-T", "x"]).is_err());
    }
}
