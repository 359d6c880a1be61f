//! `zfs mount` and `zfs unmount` (chapter 09 §3).

use std::ffi::OsString;

use base::Result;
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{MountArgs, Mounted, Reply, Request};
use ui::Exit;
use ui::json::Json;

use super::{misuse, options, select};

/// `zfs mount ...`
pub(super) fn mount(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("mount", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    let (all, below) = (parsed.has('a'), parsed.last('R'));
    let recursive = below.is_some();
    if (all || recursive) && !words.is_empty() || words.len() > 1 {
        return Ok(misuse("mount", Some("too many arguments")));
    }
    let target = below.or_else(|| words.first().cloned());
    if !all && target.is_none() {
        if parsed.opts.iter().any(|o| o.letter != 'j') {
            return Ok(misuse("mount", Some("missing dataset argument")));
        }
        return table(parsed.has('j'));
    }
    if let Some(Err(message)) = target.as_deref().map(select::check_name) {
        ui::err(&message);
        return Ok(Exit::FAILURE);
    }
    if parsed.has('j') {
        return Ok(misuse("mount", Some("too many arguments")));
    }
    let options = parsed.opts.iter().filter(|o| o.letter == 'o').map(|o| o.text()).collect();
    let args = MountArgs {
        target,
        recursive,
        force: parsed.has('O'),
        redacted: parsed.has('f'),
        options,
        ..MountArgs::default()
    };
    request(Request::Mount(args))
}

/// `zfs unmount ...`
pub(super) fn unmount(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("unmount", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    let all = parsed.has('a');
    if all && !words.is_empty() || words.len() > 1 {
        return Ok(misuse("unmount", Some("too many arguments")));
    }
    let mut target = words.first().cloned();
    match &mut target {
        None if !all => return Ok(misuse("unmount", Some("missing filesystem argument"))),
        Some(path) if path.starts_with('/') || path.starts_with("./") => {
            // Not canonicalised, because a dead mount could block that.
            let absolute = std::path::absolute(&*path).ok();
            if let Some(absolute) = absolute.as_ref().and_then(|p| p.to_str()) {
                *path = absolute.trim_end_matches('/').to_owned();
            }
        }
        Some(name) => {
            if let Err(message) = select::check_name(name) {
                ui::err(&message);
                return Ok(Exit::FAILURE);
            }
        }
        None => {}
    }
    let args = MountArgs { target, force: parsed.has('f'), ..MountArgs::default() };
    request(Request::Unmount(args))
}

fn request(request: Request) -> Result<Exit> {
    let Some(mut client) = Client::connect_for_query(&Runtime::from_env()?)? else {
        return Ok(nothing_imported(&request));
    };
    client.request(&request)?;
    Ok(Exit::failed_if(client.failed))
}

fn nothing_imported(request: &Request) -> Exit {
    let (Request::Mount(a) | Request::Unmount(a)) = request else { return Exit::OK };
    match &a.target {
        Some(path) if path.starts_with('/') => {
            ui::err(&format!("cannot unmount '{path}': not a mountpoint"));
        }
        Some(name) => ui::err(&format!("cannot open '{name}': dataset does not exist")),
        None => return Exit::OK,
    }
    Exit::FAILURE
}

fn table(as_json: bool) -> Result<Exit> {
    let mounts = match Client::connect_for_query(&Runtime::from_env()?)? {
        Some(mut client) => match client.request(&Request::Mounts)? {
            Reply::Mounts(mounts) => mounts,
            _ => return Err(crate::zpool::unexpected_reply()),
        },
        None => Vec::new(),
    };
    ui::out(&if as_json { json(&mounts) } else { render(&mounts) });
    Ok(Exit::OK)
}

fn render(mounts: &[Mounted]) -> String {
    mounts.iter().map(|m| format!("{:<30}  {}\n", m.dataset, m.mountpoint)).collect()
}

/// As JSON (chapter 09 §1.6); nothing if nothing is mounted.
fn json(mounts: &[Mounted]) -> String {
    if mounts.is_empty() {
        return String::new();
    }
    let one = |m: &Mounted| {
        let members =
            [("filesystem", Json::str(&m.dataset)), ("mountpoint", Json::str(&m.mountpoint))];
        (m.dataset.clone(), Json::object(members))
    };
    let all = Json::object(mounts.iter().map(one));
    format!("{}\n", Json::output("zfs mount", [("datasets", all)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_mounts() {
        let m = Mounted { dataset: "tank/home".into(), mountpoint: "/mnt/tank/home".into() };
        assert_eq!(
            json(std::slice::from_ref(&m)),
            "{\"output_version\":{\"command\":\"zfs mount\",\"vers_major\":0,\"vers_minor\":1},\
             \"datasets\":{\"tank/home\":{\"filesystem\":\"tank/home\",\"mountpoint\":\
             \"/mnt/tank/home\"}}}\n"
        );
        assert_eq!(json(&[]), "");
        assert_eq!(render(&[m]), "tank/home                       /mnt/tank/home\n");
    }
}
