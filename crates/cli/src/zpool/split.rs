//! `zpool split` (chapter 09 §4).

use std::ffi::OsString;

use base::Result;
use cenote::props::pool_column;
use commands::getopt::Parsed;
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{Change, NewKind, NewVdev, Reply, Request, SplitArgs, Vdev, VdevRole};
use ui::Exit;

use super::create::{CommandLineError, complain};
use super::vdevs::Naming;
use super::{Pools, command, layout, misuse, no_such_pool, options, unexpected_reply};

/// The request, and the pool.
fn parse_options(parsed: &Parsed) -> std::result::Result<(String, SplitArgs), CommandLineError> {
    let plain = |text: String| Err(CommandLineError::Plain(text));
    let mut args = SplitArgs { dry_run: parsed.has('n'), ..SplitArgs::default() };
    for opt in &parsed.opts {
        let text = opt.text();
        match opt.letter {
            'R' => args.altroot = Some(text.into()),
            'o' => {
                let Some((name, value)) = text.split_once('=') else {
                    let text = "missing '=' for -o option".to_owned();
                    return Err(CommandLineError::Usage(text));
                };
                match pool_column(name).map(|p| p.name) {
                    Some("altroot") => args.altroot = Some(value.into()),
                    Some(name) => args.props.push((name.to_owned(), value.to_owned())),
                    None => {
                        return plain(format!(
                            "property '{name}' is not a valid pool or vdev property"
                        ));
                    }
                }
            }
            _ => {}
        }
    }
    if let Some(root) = args.altroot.as_ref().filter(|root| !root.is_absolute()) {
        let root = root.display();
        return plain(format!("invalid alternate root '{root}': must be an absolute path"));
    }
    let mut words = parsed.words().into_iter();
    let usage = |text: &str| CommandLineError::Usage(text.to_owned());
    let pool = words.next().ok_or_else(|| usage("Missing pool name"))?;
    args.new_name = words.next().ok_or_else(|| usage("Missing new pool name"))?;
    args.devices = words.collect();
    Ok((pool, args))
}

fn find(root: &Vdev, guid: u64) -> Option<&Vdev> {
    if root.guid == guid {
        return Some(root);
    }
    root.children.iter().find_map(|child| find(child, guid))
}

/// `zpool split [-gLlnP] [-o property=value] ... [-R root] <pool> <newpool> [device ...]`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("split", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let (name, args) = match parse_options(&parsed) {
        Ok(split) => split,
        Err(CommandLineError::Usage(text)) => return Ok(misuse("split", Some(&text))),
        Err(wrong) => return Ok(complain("split", wrong)),
    };
    let mut pools = Pools::connect()?;
    if pools.select(std::slice::from_ref(&name), no_such_pool)?.is_empty() {
        return Ok(Exit::FAILURE);
    }
    let (dry_run, new_name) = (args.dry_run, args.new_name.clone());
    let root = pools.status(&name)?.root;
    let mut client = Client::connect(&Runtime::from_env()?)?;
    let change = Change::Split(Box::new(args));
    let request = Request::Change { pool: name, change, command: command("split", argv) };
    let Reply::Split(report) = client.request(&request)? else { return Err(unexpected_reply()) };
    if dry_run {
        let naming =
            Naming { guid: parsed.has('g'), path: parsed.has('P'), links: parsed.has('L') };
        let leaf = |(guid, path): &(u64, std::path::PathBuf)| match find(&root, *guid) {
            Some(leaf) => Vdev { class: VdevRole::Normal, ..leaf.clone() },
            None => layout::shown(&NewVdev {
                kind: NewKind::File(path.clone()),
                class: VdevRole::Normal,
                children: Vec::new(),
            }),
        };
        let tree = layout::of(&new_name, report.devices.iter().map(leaf).collect(), naming);
        ui::out(&format!("would create '{new_name}' with the following layout:\n\n{tree}"));
    }
    report.lines.iter().for_each(|line| ui::out(&format!("{line}\n")));
    Ok(Exit::failed_if(client.failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> std::result::Result<(String, SplitArgs), CommandLineError> {
        let argv: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        parse_options(&commands::find("zpool", "split").parse(&argv).unwrap())
    }

    #[test]
    fn options_and_operands() {
        let (pool, args) = parse("-n -R /alt -o comment=x tank new d0 d1").unwrap();
        assert_eq!((pool.as_str(), args.new_name.as_str()), ("tank", "new"));
        assert!(args.dry_run && args.altroot == Some("/alt".into()));
        assert_eq!(args.devices, ["d0", "d1"]);
        assert_eq!(args.props, [("comment".to_owned(), "x".to_owned())]);
        let usage = |line: &str, text: &str| {
            assert_eq!(parse(line), Err(CommandLineError::Usage(text.to_owned())), "{line}");
        };
        usage("", "Missing pool name");
        usage("tank", "Missing new pool name");
        usage("-o comment tank new", "missing '=' for -o option");
        assert!(matches!(parse("-o nothing=1 tank new"), Err(CommandLineError::Plain(_))));
        assert!(matches!(parse("-R alt tank new"), Err(CommandLineError::Plain(_))));
    }
}
