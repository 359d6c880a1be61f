//! `zpool`: pools, with the output of OpenZFS's command (chapter 09 §4).

mod add;
mod advise;
mod attach;
mod change;
mod create;
mod dedup;
mod defrag;
mod events;
mod free_space;
mod get;
mod history;
mod import;
pub(crate) mod io;
mod iohist;
mod iostat;
mod json;
mod layout;
mod list;
mod map;
mod rebalance;
mod scan;
mod scan_text;
mod scripts;
mod shrink;
mod spec;
mod split;
mod status;
mod upgrade;
mod vdev_props;
mod vdevs;
mod wait;

use std::ffi::OsString;

use base::{Error, Result};
use cenote::space_map::PoolMap;
use commands::getopt::{Bad, Parsed};
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{Pool, PropertyEntry, Reply, Request, SpaceMap};
use ui::Exit;

/// Complains and shows the usage of a command; the exit code is 2.
pub(super) fn misuse(command: &str, message: Option<&str>) -> Exit {
    let exit = commands::misuse("zpool", command, message);
    if command == "set" {
        ui::err(&change::properties());
    }
    exit
}

/// `zpool ...`
pub(crate) fn main(argv: &[OsString]) -> Result<Exit> {
    let Some((first, rest)) = argv.split_first() else {
        ui::err("missing command");
        ui::err(commands::usage("zpool").trim_end());
        return Ok(Exit::USAGE);
    };
    let command = first.to_string_lossy();
    match command.as_ref() {
        "list" => list::main(rest),
        "scrub" => scan::scrub(rest),
        "defrag" => defrag::main(rest),
        "rebalance" => rebalance::main(rest),
        "shrink" => shrink::main(rest),
        "resilver" => scan::resilver(rest),
        "map" => map::main(rest),
        "status" => status::main(rest),
        "iostat" => iostat::main(rest),
        "import" => import::main(rest),
        "export" => export(rest),
        "get" => get::main(rest),
        "checkpoint" => free_space::checkpoint(rest),
        "trim" => free_space::trim(rest),
        "initialize" => free_space::initialize(rest),
        "create" => create::main(rest),
        "add" => add::main(rest),
        "advise" => advise::main(rest),
        "attach" => attach::attach(rest),
        "replace" => attach::replace(rest),
        "detach" => attach::detach(rest),
        "reopen" => attach::reopen(rest),
        "destroy" => change::destroy(rest),
        "clear" => change::clear(rest),
        "online" => change::online(rest),
        "offline" => change::offline(rest),
        "labelclear" => change::labelclear(rest),
        "reguid" => change::reguid(rest),
        "sync" => change::sync(rest),
        "ddtprune" => dedup::prune(rest),
        "prefetch" => dedup::prefetch(rest),
        "set" => change::set(rest),
        "events" => events::main(rest),
        "history" => history::main(rest),
        "remove" => change::remove(rest),
        "upgrade" => upgrade::main(rest),
        "split" => split::main(rest),
        "wait" => wait::main(rest),
        "version" | "-V" | "--version" => Ok(commands::version("zpool", rest)),
        "help" => commands::help("zpool", rest),
        "-?" | "--help" => {
            ui::out(&commands::usage("zpool"));
            Ok(Exit::OK)
        }
        c if c.contains('=') => change::set(argv),
        c => Ok(commands::unrecognized("zpool", c, &[])),
    }
}

/// A command in the form of the pool's history.
pub(super) fn command(name: &str, argv: &[OsString]) -> String {
    let mut out = format!("zpool {name}");
    for word in argv {
        out.push(' ');
        out.push_str(&word.to_string_lossy());
    }
    out
}

/// Parses options or complains.
pub(super) fn options(command: &str, argv: &[OsString]) -> std::result::Result<Parsed, Exit> {
    let row = commands::find("zpool", command);
    let parsed = row.parse(argv).map_err(|bad: Bad| misuse(command, bad.message().as_deref()))?;
    match row.refusal(&parsed) {
        Some(why) => {
            ui::err(&why);
            Err(Exit::FAILURE)
        }
        None => Ok(parsed),
    }
}

/// The imported pools, read as a command needs them.
pub(super) struct Pools {
    client: Option<Client>,
    /// A named pool does not exist, or its state could not be read.
    pub(super) failed: bool,
}

impl Pools {
    /// Connects to the daemon, if one runs or has pools to import.
    pub(super) fn connect() -> Result<Pools> {
        let client = Client::connect_for_query(&Runtime::from_env()?)?;
        Ok(Pools { client, failed: false })
    }

    fn request(&mut self, request: &Request) -> Result<Reply> {
        match &mut self.client {
            Some(client) => client.request(request),
            None => Ok(Reply::Names(Vec::new())),
        }
    }

    /// The requested names that exist (all if none is requested); the others are reported with
    /// `missing`.
    pub(super) fn select(
        &mut self,
        wanted: &[String],
        missing: impl Fn(&str) -> String,
    ) -> Result<Vec<String>> {
        let Reply::Names(all) = self.request(&Request::PoolNames)? else {
            return Err(unexpected_reply());
        };
        if wanted.is_empty() {
            return Ok(all);
        }
        let mut out: Vec<String> = Vec::new();
        for name in wanted {
            if !all.contains(name) {
                ui::err(&missing(name));
                self.failed = true;
            } else if !out.contains(name) {
                out.push(name.clone());
            }
        }
        Ok(out)
    }

    /// A pool's state.
    pub(super) fn status(&mut self, name: &str) -> Result<Pool> {
        self.status_with(name, false)
    }

    /// A pool's state, with the paths of damaged files if `verbose`.
    pub(super) fn status_with(&mut self, name: &str, verbose: bool) -> Result<Pool> {
        match self.request(&Request::PoolStatus { name: name.to_owned(), verbose })? {
            Reply::Pool(pool) => Ok(*pool),
            _ => Err(unexpected_reply()),
        }
    }

    /// The properties that are set on a pool's vdevs.
    pub(super) fn vdev_props(&mut self, name: &str) -> Result<vdev_props::SetProps> {
        match self.request(&Request::VdevProps { name: name.to_owned() })? {
            Reply::VdevProps(all) => Ok(all.into_iter().collect()),
            _ => Err(unexpected_reply()),
        }
    }

    /// A pool's space, metaslab by metaslab.
    pub(super) fn space_map(&mut self, name: &str) -> Result<PoolMap> {
        let mut whole: Option<SpaceMap> = None;
        loop {
            let from = whole.as_ref().and_then(|map| map.next).unwrap_or(0);
            let Reply::SpaceMap(page) =
                self.request(&Request::SpaceMap { name: name.to_owned(), from })?
            else {
                return Err(unexpected_reply());
            };
            // A page without a metaslab would be requested again and again.
            let ends = page.next.is_none_or(|next| next <= from);
            let map = match whole.take() {
                None => *page,
                Some(mut map) => {
                    map.append(*page);
                    map
                }
            };
            if ends {
                return Ok(map.into());
            }
            whole = Some(map);
        }
    }

    /// A pool's properties.
    pub(super) fn props(
        &mut self,
        name: &str,
        props: Option<Vec<String>>,
    ) -> Result<Vec<(String, PropertyEntry)>> {
        match self.request(&Request::PoolProps { name: name.to_owned(), props })? {
            Reply::Props(props) => Ok(props),
            _ => Err(unexpected_reply()),
        }
    }
}

/// The error for a reply of an unexpected type.
pub(crate) fn unexpected_reply() -> Error {
    Error::corrupt("the daemon answered something else")
}

/// The message for a pool that does not exist.
pub(super) fn no_such_pool(name: &str) -> String {
    format!("cannot open '{name}': no such pool")
}

/// `-T` and `interval [count]` after the operands, for the reporting commands.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Repeat {
    interval: Option<f64>,
    count: Option<u64>,
    stamp: Option<String>,
}

impl Repeat {
    /// Removes trailing numbers from `words`; `stamp` is the argument of `-T`. An error is the
    /// message before the usage.
    pub(crate) fn take(
        words: &mut Vec<String>,
        stamp: Option<String>,
    ) -> std::result::Result<Repeat, String> {
        if stamp.as_deref().is_some_and(|s| s != "d" && s != "u") {
            return Err("invalid time format".to_owned());
        }
        let number =
            |w: Option<&String>| w.and_then(|w| w.parse::<f64>().ok()).filter(|n| n.is_finite());
        let Some(last) = number(words.last()) else {
            return Ok(Repeat { stamp, ..Repeat::default() });
        };
        words.pop();
        let (interval, count) = match number(words.last()) {
            Some(interval) => {
                words.pop();
                (interval, Some(last))
            }
            None => (last, None),
        };
        if interval <= 0.0 {
            return Err("interval cannot be zero".to_owned());
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count of reports"
        )]
        let count = count.map(|c| c.max(1.0) as u64);
        Ok(Repeat { interval: Some(interval), count, stamp })
    }

    /// The time between two reports; one second if there is no interval.
    pub(super) fn interval_or_second(&self) -> std::time::Duration {
        std::time::Duration::from_secs_f64(self.interval.unwrap_or(1.0).min(1e9))
    }

    /// Whether there may be more than one report.
    pub(crate) fn repeats(&self) -> bool {
        self.interval.is_some() && self.count != Some(1)
    }

    /// Calls `report` as often as the options say, each time after the time that `-T` requests.
    pub(super) fn run(self, mut report: impl FnMut() -> Result<Exit>) -> Result<Exit> {
        self.run_stamped(|stamp| {
            ui::out(stamp);
            report()
        })
    }

    /// As [`Repeat::run`], but passes the line with the time to `report`; it is empty without
    /// `-T`.
    pub(crate) fn run_stamped(self, mut report: impl FnMut(&str) -> Result<Exit>) -> Result<Exit> {
        let mut left = self.count;
        loop {
            let line = |kind: &String| format!("{}\n", ui::time::stamp(kind));
            let exit = report(&self.stamp.as_ref().map(line).unwrap_or_default())?;
            left = left.map(|n| n.saturating_sub(1));
            match self.interval {
                Some(_) if left != Some(0) => {
                    base::rt::sleep(self.interval_or_second());
                }
                _ => return Ok(exit),
            }
        }
    }
}

/// `zpool export [-af] <pool> ...`
fn export(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("export", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let (all, force, words) = (parsed.has('a'), parsed.has('f'), parsed.words());
    if all && !words.is_empty() {
        return Ok(misuse("export", Some("too many arguments")));
    }
    if !all && words.is_empty() {
        return Ok(misuse("export", Some("missing pool argument")));
    }
    let mut pools = Pools::connect()?;
    let names = pools.select(&words, no_such_pool)?;
    let mut failed = pools.failed;
    for name in names {
        match pools.request(&Request::Export { name, force }) {
            Ok(_) => {}
            Err(e) => {
                ui::err(e.message());
                failed = true;
            }
        }
    }
    Ok(Exit::failed_if(failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_and_count_are_taken_off_the_end() {
        let take = |words: &[&str]| {
            let mut words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
            Repeat::take(&mut words, None).map(|r| (r, words.join(" ")))
        };
        let none = Repeat::default();
        assert_eq!(take(&["a", "b"]), Ok((none, "a b".into())));
        assert_eq!(
            take(&["a", "5"]),
            Ok((Repeat { interval: Some(5.0), ..Repeat::default() }, "a".into()))
        );
        let both = Repeat { interval: Some(0.5), count: Some(3), stamp: None };
        assert_eq!(take(&["0.5", "3"]), Ok((both, String::new())));
        assert_eq!(take(&["0"]), Err("interval cannot be zero".into()));
    }
}
