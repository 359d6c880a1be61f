//! `zfs receive` (chapter 09 §3.4).

use std::ffi::OsString;
use std::io::IsTerminal;

use base::{Error, Result};
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{ClientInput, ReceiveArgs, ReceiveNaming, Request};
use ui::Exit;

use super::{command_line, misuse, options, property, select};

/// `zfs receive ...`
pub(super) fn main(command: &str, argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("receive", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let has = |flag| parsed.has(flag);
    let mut args = ReceiveArgs {
        naming: match (has('d'), has('e')) {
            (true, true) => {
                let text = "options -d and -e are mutually exclusive";
                return Ok(misuse("receive", Some(text)));
            }
            (true, false) => ReceiveNaming::WithoutPool,
            (false, true) => ReceiveNaming::LastPart,
            (false, false) => ReceiveNaming::Whole,
        },
        force: has('F'),
        resumable: has('s'),
        dry_run: has('n'),
        verbose: has('v'),
        no_mount: has('u'),
        force_unmount: has('M'),
        abort: has('A'),
        correct: has('c'),
        ignore_holds: has('h'),
        command: command_line(command, argv),
        ..ReceiveArgs::default()
    };
    let words = parsed.words();
    args.target = match words.as_slice() {
        [] => return Ok(misuse("receive", Some("missing snapshot argument"))),
        [target] => target.clone(),
        _ => return Ok(misuse("receive", Some("too many arguments"))),
    };
    if args.abort && parsed.opts.iter().any(|o| o.letter != 'A') {
        return Ok(misuse("receive", Some("invalid option")));
    }
    if args.correct && parsed.opts.iter().any(|o| !matches!(o.letter, 'c' | 'v' | 'n')) {
        return Ok(misuse("receive", Some("invalid option")));
    }
    for given in &parsed.opts {
        let text = given.text();
        match given.letter {
            'o' => match text.strip_prefix("origin=") {
                Some(origin) => args.origin = Some(origin.to_owned()),
                None => {
                    if let Err(message) = property(&mut args.props, &text) {
                        ui::err(&message);
                        return Ok(Exit::FAILURE);
                    }
                }
            },
            'x' => args.inherits.push(text),
            _ => {}
        }
    }
    if let Some(both) = args.inherits.iter().find(|x| args.props.iter().any(|(n, _)| n == *x)) {
        let text = format!("invalid property '{both}': it cannot be both set and excluded");
        return Err(Error::invalid(text));
    }
    if let Err(message) = select::check_name(&args.target) {
        return Err(Error::invalid(message.replacen("cannot open", "cannot receive into", 1)));
    }
    if !args.abort && std::io::stdin().is_terminal() {
        ui::err(
            "Error: Backup stream can not be read from a terminal.\nYou must redirect standard \
             input.",
        );
        return Ok(Exit::FAILURE);
    }
    let mut client = Client::connect(&Runtime::from_env()?)?;
    let mut input = ClientInput::stdin()?;
    client.request_with_input(&Request::Receive(Box::new(args)), &mut input)?;
    Ok(Exit::failed_if(client.failed))
}
