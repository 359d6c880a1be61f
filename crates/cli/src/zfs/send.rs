//! `zfs send` (chapter 09 §3.4).

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use base::{Error, Result, rt};
use cenote::props::nicebytes;
use cenote::stream::{ResumeToken, list_text};
use commands::getopt::Parsed;
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{PackageArgs, Reply, Request, SendArgs, SendSize};
use ui::progress::Progress;
use ui::{Exit, time};

use super::{misuse, options};

/// `zfs send ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("send", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    let resume = parsed.last('t');
    let snapshot = match (words.as_slice(), &resume) {
        ([], Some(_)) => String::new(),
        (_, Some(_)) => return Ok(misuse("send", Some("too many arguments"))),
        ([], None) => return Ok(misuse("send", Some("missing snapshot argument"))),
        ([snapshot], None) => snapshot.clone(),
        _ => return Ok(misuse("send", Some("too many arguments"))),
    };
    if resume.is_some()
        && let Some(letter) = "iIRpbhsXcLewd".chars().find(|letter| parsed.has(*letter))
    {
        // The token says what the stream is.
        let text = format!("-t cannot be used together with -{letter}");
        return Ok(misuse("send", Some(&text)));
    }
    if parsed.has('S')
        && let Some(letter) = "iIRpbhsXwt".chars().find(|letter| parsed.has(*letter))
    {
        let text = format!("-S cannot be used together with -{letter}");
        return Ok(misuse("send", Some(&text)));
    }
    if !parsed.has('R')
        && let Some(letter) = "sX".chars().find(|letter| parsed.has(*letter))
    {
        return Ok(misuse("send", Some(&format!("-{letter} requires -R"))));
    }
    let (from, all) = match (parsed.last('i'), parsed.last('I')) {
        (None, None) => (None, false),
        (Some(from), None) => (Some(from), false),
        (None, Some(from)) => (Some(from), true),
        (Some(_), Some(_)) => {
            return Ok(misuse("send", Some("-i and -I cannot be used together")));
        }
    };
    let redact = parsed.last('d');
    if redact.is_some()
        && let Some(letter) = "IRpbhX".chars().find(|letter| parsed.has(*letter))
    {
        let text = format!("--redact cannot be used together with -{letter}");
        return Ok(misuse("send", Some(&text)));
    }
    let (dry_run, parsable) = (parsed.has('n'), parsed.has('P'));
    if !dry_run && std::io::stdout().is_terminal() {
        ui::err(
            "Error: Stream can not be written to a terminal.\nYou must redirect standard output.",
        );
        return Ok(Exit::FAILURE);
    }
    let raw = parsed.has('w');
    let args = SendArgs {
        from: from.map(|from| full_name(&snapshot, &from)),
        redact: redact.map(|mark| redaction_name(&snapshot, &mark)),
        snapshot,
        all,
        large_blocks: raw || parsed.has('L'),
        embedded: raw || parsed.has('e'),
        compressed: raw || parsed.has('c'),
        dry_run,
        package: PackageArgs {
            recursive: parsed.has('R'),
            props: parsed.has('p'),
            received: parsed.has('b'),
            holds: parsed.has('h'),
            raw,
            skip_missing: parsed.has('s'),
            exclude: excluded(&parsed),
        },
        resume: resume.clone(),
        saved: parsed.has('S'),
    };
    if let Some(token) = resume.filter(|_| parsed.has('v')) {
        let list = ResumeToken::decode_list(&token);
        let list = list.map_err(|e| Error::new(e.kind(), format!("cannot resume send: {e}")))?;
        let text = format!("resume token contents:\n{}", list_text(&list));
        // As the estimates.
        if dry_run { ui::out(&text) } else { ui::err(text.trim_end()) }
    }
    let mut client = Client::connect(&Runtime::from_env()?)?;
    let mut steps = Vec::new();
    // Its reply names what is left out, too.
    if dry_run || "vVs".chars().any(|letter| parsed.has(letter)) {
        let request = SendArgs { dry_run: true, ..args.clone() };
        let reply = client.request(&Request::Send(Box::new(request)))?;
        let Reply::SendSizes { sizes, skipped } = reply else {
            return Err(Error::invalid("the daemon answered something else"));
        };
        for name in skipped {
            ui::err(&format!("WARNING: could not send {name}: does not exist"));
        }
        // Those of a dry run are the command's output.
        let text = estimates(&sizes, parsable);
        if dry_run && (parsed.has('v') || parsable) {
            ui::out(&text);
        } else if !dry_run && parsed.has('v') {
            ui::err(text.trim_end());
        }
        steps = sizes;
    }
    if dry_run {
        return Ok(Exit::OK);
    }
    let (shows, title) = (parsed.has('v'), parsed.has('V'));
    let progress = (shows || title).then(|| SendProgress::new(parsable, shows, title, steps));
    stream(&mut client, &args, progress)
}

/// The datasets of `-X a,b -X c`.
fn excluded(parsed: &Parsed) -> Vec<String> {
    let given = parsed.opts.iter().filter(|opt| opt.letter == 'X');
    given.flat_map(|opt| opt.text().split(',').map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// The full name of a source, of which `@` and `#` alone mean the dataset that is sent.
fn full_name(snapshot: &str, from: &str) -> String {
    let fs = snapshot.split('@').next().unwrap_or(snapshot);
    match from.starts_with(['@', '#']) {
        true => format!("{fs}{from}"),
        // A name without either is a snapshot's.
        false if !from.contains(['@', '#', '/']) => format!("{fs}@{from}"),
        false => from.to_owned(),
    }
}

/// The full name of a redaction bookmark: `#` and the dataset that is sent may be left out.
fn redaction_name(snapshot: &str, mark: &str) -> String {
    let fs = snapshot.split('@').next().unwrap_or(snapshot);
    match mark.split_once('#') {
        Some(("", short)) => format!("{fs}#{short}"),
        Some(_) => mark.to_owned(),
        None => format!("{fs}#{mark}"),
    }
}

fn estimates(sizes: &[SendSize], parsable: bool) -> String {
    let mut out = String::new();
    for SendSize { snapshot, from, bytes } in sizes {
        let line = match (from, parsable) {
            (None, true) => format!("full\t{snapshot}\t{bytes}\n"),
            (Some(from), true) => {
                format!("incremental\t{}\t{snapshot}\t{bytes}\n", short(from, snapshot))
            }
            (None, false) => {
                format!("full send of {snapshot} estimated size is {}\n", nicebytes(*bytes))
            }
            (Some(from), false) => format!(
                "send from {} to {snapshot} estimated size is {}\n",
                short(from, snapshot),
                nicebytes(*bytes)
            ),
        };
        out.push_str(&line);
    }
    let sum: u64 = sizes.iter().map(|size| size.bytes).sum();
    match parsable {
        true => out.push_str(&format!("size\t{sum}\n")),
        false => out.push_str(&format!("total estimated size is {}\n", nicebytes(sum))),
    }
    out
}

/// A source without the name of the dataset, if it is that of the snapshot.
fn short<'a>(from: &'a str, snapshot: &str) -> &'a str {
    let fs = snapshot.split('@').next().unwrap_or(snapshot);
    from.strip_prefix(fs).filter(|rest| rest.starts_with(['@', '#'])).unwrap_or(from)
}

/// What `-v` and `-V` tell each second.
struct SendProgress {
    parsable: bool,
    /// Lines or a bar.
    shows: bool,
    /// The name of the process tells the share that was sent.
    title: bool,
    /// Instead of lines, where standard error is a terminal.
    bar: Option<Progress>,
    /// The streams, in order, with their sizes.
    steps: Vec<SendSize>,
    shown: rt::Instant,
    sent: u64,
}

impl SendProgress {
    fn new(parsable: bool, shows: bool, title: bool, steps: Vec<SendSize>) -> SendProgress {
        let is_terminal = std::io::stderr().is_terminal();
        let first = steps.first().filter(|_| shows && !parsable);
        if let Some(first) = first.filter(|_| !is_terminal) {
            let fs = first.snapshot.split('@').next().unwrap_or_default();
            ui::err(&format!("TIME        SENT   SNAPSHOT {fs}"));
        }
        let total = steps.iter().map(|step| step.bytes).sum();
        let bar = first.filter(|_| is_terminal).map(|of| Progress::new(&*of.snapshot, Some(total)));
        SendProgress { parsable, shows, title, bar, steps, shown: rt::now(), sent: 0 }
    }

    fn add(&mut self, bytes: u64) {
        self.sent += bytes;
        let (name, sent) = step_at(&self.steps, self.sent);
        if let Some(bar) = &mut self.bar {
            bar.rename(name);
            bar.at(self.sent);
        }
        if self.shown.elapsed() < Duration::from_secs(1) {
            return;
        }
        self.shown = rt::now();
        if self.title {
            set_title(self.sent, self.steps.iter().map(|step| step.bytes).sum());
        }
        if !self.shows || self.bar.is_some() {
            return;
        }
        let now = time::strftime("%T", rt::wall_clock().as_secs());
        ui::err(&match self.parsable {
            true => format!("{now}\t{sent}\t{name}"),
            false => format!("{now}   {:>5}   {name}", nicebytes(sent)),
        });
    }
}

/// The snapshot that is sent after so many bytes of all steps, and how much of it was sent.
fn step_at(steps: &[SendSize], sent: u64) -> (&str, u64) {
    let mut before = 0;
    for step in steps {
        if sent < before + step.bytes {
            return (&step.snapshot, sent - before);
        }
        before += step.bytes;
    }
    steps.last().map_or(("", sent), |last| (&last.snapshot, last.bytes))
}

/// Names the process after the share that was sent (`ps -o comm`).
fn set_title(sent: u64, total: u64) {
    let share = (u128::from(sent) * 100).checked_div(total.into()).unwrap_or(100).min(100);
    if let Ok(name) = std::ffi::CString::new(format!("zfs send {share}%")) {
        // The name is for people; without it everything is the same.
        let _ignored = rustix::thread::set_name(&name);
    }
}

/// Writes the stream to standard output.
fn stream(client: &mut Client, args: &SendArgs, progress: Option<SendProgress>) -> Result<Exit> {
    let (mut output, mut progress) = (std::io::stdout().lock(), progress);
    client.request_stream(&Request::Send(Box::new(args.clone())), |bytes| {
        output.write_all(bytes).map_err(|e| Error::io("cannot write the stream", e))?;
        if let Some(progress) = &mut progress {
            progress.add(bytes.len() as u64);
        }
        Ok(())
    })?;
    output.flush().map_err(|e| Error::io("cannot write the stream", e))?;
    Ok(Exit::OK)
}
