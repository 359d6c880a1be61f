//! `cenote tune`: the tunables of the running daemon.

use std::ffi::OsString;

use base::{Error, Result};
use commands::getopt::Bad;
use proto::{Reply, Request, TunableInfo};
use ui::Exit;
use ui::table::{self, Column};

use super::source;

const USAGE: &str = "\
usage:
	tune [-aH] [NAME[=VALUE]] ...   show tunables, or set them
	tune list                       all of them, with what they do
	 -a : all of them, with what they do
	 -H : name, TAB, number; nothing else
Names are Linux's (zfs_arc_max) or FreeBSD's (vfs.zfs.arc.max, vfs.zfs.arc_max).
Sizes take suffixes (512M). A change takes effect at once and lasts as long as
the daemon.
";

fn fetch_tunables(
    client: &mut proto::client::Client,
    request: &Request,
) -> Result<Vec<TunableInfo>> {
    match client.request(request)? {
        Reply::Tunables(list) => Ok(list),
        _ => Err(Error::corrupt("the daemon answered something else")),
    }
}

/// The value; for a value that depends on the machine, also the one in effect.
fn value(t: &TunableInfo) -> String {
    if t.automatic && t.value == 0 && t.in_effect != 0 {
        return format!("0 (automatic: {})", t.in_effect_shown);
    }
    t.shown.clone()
}

fn short(list: &[TunableInfo]) -> String {
    let columns = ["NAME", "VALUE", "DEFAULT", "RANGE"].map(Column::text);
    let row = |t: &TunableInfo| vec![t.name.clone(), value(t), t.default.clone(), t.range.clone()];
    table::render(&columns, &list.iter().map(row).collect::<Vec<_>>(), false)
}

fn long_form(list: &[TunableInfo]) -> String {
    let mut out = String::new();
    for t in list {
        let mut line = |key: &str, text: &str| out.push_str(&format!("{key:>10}  {text}\n"));
        line("name", &format!("{}, {}", t.name, t.freebsd.join(", ")));
        line("does", &t.what);
        line("value", &value(t));
        line("default", &t.default);
        line("range", &t.range);
        out.push('\n');
    }
    out
}

fn scripted(list: &[TunableInfo]) -> String {
    list.iter().map(|t| format!("{}\t{}\n", t.name, t.value)).collect()
}

/// `cenote tune`.
///
/// # Errors
/// No daemon runs.
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match commands::find("cenote", "tune").parse(argv) {
        Ok(parsed) if !parsed.has('h') => parsed,
        Ok(_) => return Ok(super::usage(&Bad::Help, USAGE, Exit::OK)),
        Err(bad) => return Ok(super::usage(&bad, USAGE, Exit::USAGE)),
    };
    let words = parsed.words();
    let mut client = source::daemon()?;
    let show = |list: &[TunableInfo], all: bool| match (parsed.has('H'), all) {
        (true, _) => scripted(list),
        (_, true) => long_form(list),
        _ => short(list),
    };
    let listing = words.is_empty() || words == ["list"];
    if listing {
        let all = parsed.has('a') || !words.is_empty();
        let list = fetch_tunables(&mut client, &Request::Tunables { names: Vec::new() })?;
        ui::out(&show(&list, all));
        return Ok(Exit::OK);
    }
    let mut shown = Vec::new();
    let mut failed = false;
    for word in words {
        let request = match word.split_once('=') {
            Some((name, value)) => Request::Tune { name: name.into(), value: value.into() },
            None => Request::Tunables { names: vec![word] },
        };
        match fetch_tunables(&mut client, &request) {
            Ok(list) => shown.extend(list),
            Err(e) => {
                ui::err(e.message());
                failed = true;
            }
        }
    }
    if !shown.is_empty() {
        ui::out(&show(&shown, parsed.has('a') || !parsed.has('H') && shown.len() == 1));
    }
    Ok(Exit::failed_if(failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<TunableInfo> {
        let t = |name: &str, value, shown: &str, automatic, in_effect: (u64, &str)| TunableInfo {
            name: name.to_owned(),
            freebsd: cenote::tune::freebsd_names(name),
            what: "something".to_owned(),
            value,
            shown: shown.to_owned(),
            automatic,
            in_effect: in_effect.0,
            in_effect_shown: in_effect.1.to_owned(),
            default: "5".to_owned(),
            range: "1 to 16".to_owned(),
        };
        vec![
            t("zfs_arc_max", 0, "0 (automatic)", true, (1 << 30, "1G")),
            t("zfs_arc_shrink_shift", 5, "5", false, (5, "5")),
        ]
    }

    #[test]
    fn three_forms() {
        let list = sample();
        assert_eq!(
            short(&list),
            "NAME                  VALUE              DEFAULT  RANGE\n\
             zfs_arc_max           0 (automatic: 1G)  5        1 to 16\n\
             zfs_arc_shrink_shift  5                  5        1 to 16\n"
        );
        assert_eq!(scripted(&list), "zfs_arc_max\t0\nzfs_arc_shrink_shift\t5\n");
        assert_eq!(
            long_form(&list[..1]),
            "      name  zfs_arc_max, vfs.zfs.arc.max, vfs.zfs.arc_max\n      does  something\n     \
             value  0 (automatic: 1G)\n   default  5\n     range  1 to 16\n\n"
        );
    }
}
