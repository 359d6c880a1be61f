//! `mount.cenote`: the helper of mount(8) and fstab(5) for file systems of type `cenote`.
//!
//! # Theory
//! mount(8) runs `/sbin/mount.TYPE SOURCE DIRECTORY [-sfnv] [-o OPTIONS]` for types that the
//! kernel does not know. The source is a dataset whose `mountpoint` is `legacy`; all others are
//! mounted where their properties say. Exit codes are those of mount(8). Such a mount is
//! unmounted by umount(8) or `zfs unmount`.

use std::ffi::OsString;

use base::Result;
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{MountArgs, Request};
use ui::Exit;

use super::select;

/// The names that the program can be linked to.
pub(crate) const NAMES: [&str; 2] = ["mount.cenote", "mount.fuse.cenote"];

/// Exit codes of mount(8).
const USAGE: Exit = Exit(1);
const FAILED: Exit = Exit(32);

/// Options that other programs handle: mount(8), the system's start, file systems of other
/// types.
const OTHERS: [&str; 22] = [
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "_netdev",
    "nofail",
    "async",
    "nosync",
    "silent",
    "loud",
    "mand",
    "nomand",
    "lazytime",
    "nolazytime",
    "iversion",
    "noiversion",
    "zfsutil",
    "bg",
    "comment",
];

/// The options for the daemon.
fn for_us(list: &str) -> Vec<String> {
    let other = |word: &&str| {
        let name = word.split('=').next().unwrap_or(word);
        OTHERS.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
    };
    list.split(',').filter(|w| !w.is_empty() && !other(w)).map(str::to_owned).collect()
}

/// `mount.cenote ...`
pub(crate) fn main(argv: &[OsString]) -> Result<Exit> {
    let command = commands::find("cenote", NAMES[0]);
    let misuse = |message: Option<String>| {
        if let Some(message) = message {
            ui::err(&message);
        }
        ui::err(&format!("usage: {}", command.synopsis));
        Ok(USAGE)
    };
    let parsed = match command.parse(argv) {
        Ok(parsed) => parsed,
        Err(bad) => return misuse(bad.message()),
    };
    let words = parsed.words();
    let [source, at] = words.as_slice() else {
        return misuse(Some("a dataset and a directory are needed".to_owned()));
    };
    if let Err(message) = select::check_name(source) {
        ui::err(&message);
        return Ok(FAILED);
    }
    let mut options = Vec::new();
    for o in &parsed.opts {
        match o.letter {
            'o' => options.extend(for_us(&o.text())),
            'r' => options.push("ro".to_owned()),
            'w' => options.push("rw".to_owned()),
            'N' => {
                ui::err("-N is not supported: the daemon mounts in its own namespace");
                return Ok(FAILED);
            }
            _ => {}
        }
    }
    if options.iter().any(|o| o == "remount") {
        ui::err(&format!(
            "cannot remount '{source}': use 'zfs set', or unmount it and mount it again"
        ));
        return Ok(FAILED);
    }
    let at = match std::fs::canonicalize(at) {
        Ok(at) if at.is_dir() => at,
        Ok(_) => {
            ui::err(&format!("{at}: not a directory"));
            return Ok(FAILED);
        }
        Err(e) => {
            ui::err(&format!("{at}: {e}"));
            return Ok(FAILED);
        }
    };
    if parsed.has('f') {
        return Ok(Exit::OK);
    }
    let Some(mut client) = Client::connect_for_query(&Runtime::from_env()?)? else {
        ui::err(&format!("cannot open '{source}': dataset does not exist"));
        return Ok(FAILED);
    };
    let args = MountArgs {
        target: Some(source.clone()),
        at: Some(at),
        options,
        lax: parsed.has('s'),
        ..MountArgs::default()
    };
    match client.request(&Request::Mount(args)) {
        Ok(_) if !client.failed => Ok(Exit::OK),
        Ok(_) => Ok(FAILED),
        Err(e) => {
            ui::err(e.message());
            Ok(FAILED)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_for_others_are_left_out() {
        let list =
            "rw,noauto,x-systemd.requires=cenote.service,_netdev,noexec,,comment=x,direct_io";
        assert_eq!(for_us(list), ["rw", "noexec", "direct_io"]);
        assert_eq!(for_us("defaults,nofail"), ["defaults"]);
    }
}
