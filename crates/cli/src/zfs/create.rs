//! `zfs create` (chapter 09 §3).

use std::ffi::OsString;

use base::{Error, Result};
use commands::getopt::Parsed;
use proto::{DatasetChange, NewDatasetArgs, VolumeArgs};
use ui::Exit;

use super::{command_line, misuse, options, property, request_change, select};

/// The request of a command line, or the message before the usage.
fn parse_args(parsed: &Parsed) -> std::result::Result<NewDatasetArgs, String> {
    let size = parsed.last('V');
    let words = parsed.words();
    let kind = if size.is_some() { "volume" } else { "filesystem" };
    let name = match words.as_slice() {
        [] => return Err(format!("missing {kind} argument")),
        [name] => name.clone(),
        _ => return Err("too many arguments".to_owned()),
    };
    if size.is_none() && (parsed.has('s') || parsed.has('b')) {
        return Err("'-s' and '-b' can only be used when creating a volume".to_owned());
    }
    if size.is_some() && parsed.has('u') {
        return Err("'-u' can only be used when creating a filesystem".to_owned());
    }
    let volume =
        size.map(|size| VolumeArgs { size, block_size: parsed.last('b'), sparse: parsed.has('s') });
    Ok(NewDatasetArgs {
        name,
        volume,
        parents: parsed.has('p'),
        no_mount: parsed.has('u'),
        dry_run: parsed.has('n'),
        ..NewDatasetArgs::default()
    })
}

/// `zfs create ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("create", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let mut args = match parse_args(&parsed) {
        Ok(args) => args,
        Err(message) => return Ok(misuse("create", Some(&message))),
    };
    for given in parsed.opts.iter().filter(|o| o.letter == 'o') {
        if let Err(message) = property(&mut args.props, &given.text()) {
            ui::err(&message);
            return Ok(Exit::FAILURE);
        }
    }
    if let Err(message) = select::check_name(&args.name) {
        return Err(Error::invalid(message.replacen("cannot open", "cannot create", 1)));
    }
    args.command = command_line("create", argv);
    let text = report(&args, parsed.has('P'));
    let verbose = parsed.has('v') || parsed.has('P');
    if verbose {
        ui::out(&text);
    }
    let (_, failed) = request_change(DatasetChange::Create(args))?;
    Ok(Exit::failed_if(failed))
}

/// The output of `-v` and `-P`.
fn report(args: &NewDatasetArgs, parsable: bool) -> String {
    let mut props = args.props.clone();
    if let Some(volume) = &args.volume {
        props.push(("volsize".to_owned(), volume.size.clone()));
        if let Some(block) = &volume.block_size {
            props.push(("volblocksize".to_owned(), block.clone()));
        }
    }
    let (name, mut out) = (&args.name, String::new());
    if parsable {
        if args.parents {
            out.push_str(&format!("create_ancestors\t{name}\n"));
        }
        out.push_str(&format!("create\t{name}\n"));
        for (prop, value) in &props {
            out.push_str(&format!("property\t{prop}\t{value}\n"));
        }
        return out;
    }
    let verb = if args.dry_run { "would create" } else { "create" };
    if args.parents {
        let would = if args.dry_run { "would create" } else { "create" };
        out.push_str(&format!("{would} ancestors of {name}\n"));
    }
    out.push_str(&format!("{verb} {name}\n"));
    for (prop, value) in &props {
        out.push_str(&format!("\t{prop}={value}\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> std::result::Result<NewDatasetArgs, String> {
        let argv: Vec<OsString> = words.iter().map(OsString::from).collect();
        parse_args(&commands::find("zfs", "create").parse(&argv).unwrap())
    }

    #[test]
    fn command_lines() {
        assert_eq!(parse(&["tank/a"]).unwrap().name, "tank/a");
        let volume = parse(&["-sV", "1G", "-b", "8k", "tank/v"]).unwrap().volume.unwrap();
        assert!(volume.sparse && volume.size == "1G" && volume.block_size.unwrap() == "8k");
        assert_eq!(parse(&[]).unwrap_err(), "missing filesystem argument");
        assert_eq!(parse(&["-V", "1G"]).unwrap_err(), "missing volume argument");
        assert_eq!(parse(&["a", "b"]).unwrap_err(), "too many arguments");
        assert!(parse(&["-s", "a"]).is_err() && parse(&["-u", "-V", "1G", "a"]).is_err());
    }

    #[test]
    fn the_report_has_openzfs_format() {
        let mut args = parse(&["-n", "tank/a"]).unwrap();
        args.props = vec![("atime".into(), "off".into())];
        assert_eq!(report(&args, false), "would create tank/a\n\tatime=off\n");
        assert_eq!(report(&args, true), "create\ttank/a\nproperty\tatime\toff\n");
    }
}
