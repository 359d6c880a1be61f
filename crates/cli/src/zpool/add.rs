//! `zpool add` (chapter 09 §4; the words as OpenZFS 2.3.2 prints them).

use std::ffi::OsString;

use base::{Error, Result};
use commands::getopt::Parsed;
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{AddArgs, Force, Reply, Request};
use ui::Exit;

use super::create::{CommandLineError, complain};
use super::vdevs::Naming;
use super::{Pools, layout, misuse, no_such_pool, options, spec, unexpected_reply};

/// `zpool add ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("add", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let ashift = match ashift(&parsed) {
        Ok(ashift) => ashift,
        Err(wrong) => return Ok(complain("add", wrong)),
    };
    let words = parsed.words();
    let Some((name, words)) = words.split_first() else {
        return Ok(misuse("add", Some("missing pool name argument")));
    };
    if words.is_empty() {
        return Ok(misuse("add", Some("missing vdev specification")));
    }
    let mut pools = Pools::connect()?;
    if pools.select(std::slice::from_ref(name), no_such_pool)?.is_empty() {
        return Ok(Exit::FAILURE);
    }
    let vdevs = spec::parse(words, &spec::resolve).map_err(Error::invalid)?;
    let dry_run = parsed.has('n');
    let args = AddArgs {
        name: name.clone(),
        vdevs: vdevs.clone(),
        force: force(&parsed),
        dry_run,
        ashift,
        command: super::command("add", argv),
    };
    let mut client = Client::connect(&Runtime::from_env()?)?;
    let Reply::Done = client.request(&Request::Add(Box::new(args)))? else {
        return Err(unexpected_reply());
    };
    if dry_run {
        let naming =
            Naming { guid: parsed.has('g'), path: parsed.has('P'), links: parsed.has('L') };
        let root = pools.status(name)?.root;
        ui::out(&format!(
            "would update '{name}' to the following configuration:\n\n{}",
            layout::with_new(name, &root, &vdevs, naming.with_env())
        ));
    }
    Ok(Exit::failed_if(client.failed))
}

fn force(parsed: &Parsed) -> Force {
    let all = parsed.has('f');
    Force {
        in_use: all || parsed.has('U'),
        replication: all || parsed.has('R'),
        ashift: all || parsed.has('A'),
    }
}

/// The one property that can be given.
pub(super) fn ashift(parsed: &Parsed) -> std::result::Result<Option<u32>, CommandLineError> {
    let mut out = None;
    for opt in parsed.opts.iter().filter(|o| o.letter == 'o') {
        let text = opt.text();
        let Some((name, value)) = text.split_once('=') else {
            return Err(CommandLineError::Usage("missing '=' for -o option".to_owned()));
        };
        if name != "ashift" {
            return Err(CommandLineError::Usage(String::new()));
        }
        let shift: u64 = value
            .parse()
            .map_err(|_| CommandLineError::Plain("ashift must be a number.".to_owned()))?;
        let fits = u32::try_from(shift).ok().filter(|s| *s == 0 || (9..=16).contains(s));
        let Some(shift) = fits else {
            return Err(CommandLineError::Plain(format!(
                "invalid 'ashift={value}' property: only values between 9 and 16 are allowed."
            )));
        };
        out = Some(shift).filter(|&s| s != 0);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Parsed {
        let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        commands::find("zpool", "add").parse(&argv).unwrap()
    }

    /// Recorded from OpenZFS 2.3.2.
    #[test]
    fn options_and_their_complaints() {
        assert_eq!(ashift(&parse("-o ashift=12 p")), Ok(Some(12)));
        assert_eq!(ashift(&parse("-o ashift=0 p")), Ok(None));
        assert_eq!(
            ashift(&parse("-o ashift=1 p")),
            Err(CommandLineError::Plain(
                "invalid 'ashift=1' property: only values between 9 and 16 are allowed.".into()
            ))
        );
        assert_eq!(ashift(&parse("-o comment=x p")), Err(CommandLineError::Usage(String::new())));
        assert_eq!(
            ashift(&parse("-o ashift p")),
            Err(CommandLineError::Usage("missing '=' for -o option".into()))
        );
        assert_eq!(force(&parse("-f p")), Force::all(true));
        let half = force(&parse("--allow-in-use p"));
        assert_eq!(half, Force { in_use: true, ..Force::default() });
    }
}
