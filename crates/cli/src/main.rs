//! `cenote`: the daemon, and `zpool`, `zfs`, `zdb` and other tools as subcommands. Linked to
//! one of those names, the program behaves as that tool.
//!
//! This crate is a front end: it has no engine logic, and takes threads and clocks from
//! `base::rt` all the same.

mod clone;
mod local;
mod map;
#[cfg(test)]
mod pages;
mod sim;
mod zfs;
mod zpool;
mod zstream;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use ui::Exit;

/// Reason for mimalloc: glibc's allocator grows each thread's heap page by page, under the lock
/// that page faults of all threads need.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "\
usage: cenote command args ...
where 'command' is one of the following:

	zpool ...                      pools: import, export, list, status, get
	zfs ...                        datasets: create, destroy, snapshot, set, mount, list, get
	zdb ...                        a look inside, without a daemon
	daemon start|stop|status       the process that holds imported pools

	arc [--what-if]                the cache on one page, and at other sizes
	arcstat, arc_summary, zilstat, kstat
	                               statistics, as ZFS's own tools show them
	tune [NAME[=VALUE]] ...        tunables of the running daemon
	io   [POOL ...] [SECONDS]      what each device is asked for
	map  [-d DIR|FILE]... POOL     how full and fragmented its metaslabs are
	trace zil [POOL] [SECONDS]     commits, records, blocks and latencies of intent logs

	ls   [-lR] [-d DIR|FILE]... POOL/DATASET[@SNAP][:/path]
	tree [-d DIR|FILE]... POOL/DATASET[@SNAP][:/path]
	cat  [-d DIR|FILE]... POOL/DATASET[@SNAP][:/path] ...
	cp   [-r] [-d DIR|FILE]... POOL/DATASET[@SNAP]:/path ... TARGET
	                               files and volumes of a pool that is not imported

	clone FILE TARGET              a copy in a mounted file system that shares blocks

	zstream dump|token|decompress|recompress|redup|drop_record
	                               send streams, without a pool
	bench [NAME]                   what this machine and the cache can do
	sim [--seed N] [--runs M]      the engine on simulated disks, crashed everywhere
	completion bash|zsh|fish       what the shell needs to complete all this
	help [COMMAND] | version
";

/// Tools that the program can be linked to.
const TOOLS: [&str; 13] = [
    "mount.cenote",
    "mount.fuse.cenote",
    "zpool",
    "zfs",
    "zdb",
    "arcstat",
    "zarcstat",
    "arcstat.pl",
    "arc_summary",
    "zarcsummary",
    "zilstat",
    "zstream",
    "zstreamdump",
];

fn main() -> ExitCode {
    base::bug::report_with(ui::err);
    let mut argv: Vec<OsString> = std::env::args_os().collect();
    if argv.is_empty() {
        argv.push("cenote".into());
    }
    let called = Path::new(&argv[0]).file_name().map(|n| n.to_string_lossy().into_owned());
    let called = called.unwrap_or_default();
    let exit = if TOOLS.contains(&called.as_str()) {
        tool(&called, &argv[1..])
    } else {
        command(&argv[1..])
    };
    ExitCode::from(exit.0)
}

/// A command of the program itself.
fn command(argv: &[OsString]) -> Exit {
    let Some((first, rest)) = argv.split_first() else {
        ui::err("missing command");
        ui::err(USAGE.trim_end());
        return Exit::USAGE;
    };
    match first.as_bytes() {
        b"help" if !rest.is_empty() => tool("help", rest),
        b"help" | b"--help" | b"-?" | b"-h" => {
            ui::out(USAGE);
            Exit::OK
        }
        b"version" | b"--version" | b"-V" => {
            ui::out(&format!("cenote {}\n", env!("CARGO_PKG_VERSION")));
            Exit::OK
        }
        _ => tool(&first.to_string_lossy(), rest),
    }
}

fn tool(name: &str, argv: &[OsString]) -> Exit {
    let result = match name {
        "zpool" => zpool::main(argv),
        "zfs" => zfs::main(argv),
        "zdb" => zdb::main(argv),
        "zstream" | "zstreamdump" => zstream::main(name, argv),
        name if zfs::helper::NAMES.contains(&name) => zfs::helper::main(argv),
        "daemon" => daemon::main(argv),
        "ls" | "cat" | "cp" | "tree" => local::main(name, argv),
        "clone" => clone::main(argv),
        "uberblocks" => local::uberblocks(argv),
        "map" => local::map(argv),
        "help" => match argv.split_first() {
            Some((first, topic)) if first == "zpool" => commands::help("zpool", topic),
            Some((first, topic)) if first == "zfs" => commands::help("zfs", topic),
            _ => commands::help("cenote", argv),
        },
        "completion" => commands::complete::main(argv),
        "bench" => bench::main(argv),
        "sim" => sim::main(argv),
        "io" => zpool::io::main(argv),
        "arcstat" | "zarcstat" | "arcstat.pl" | "arc_summary" | "zarcsummary" | "kstat" | "arc"
        | "tune" | "zilstat" | "trace" => stats::main(name, argv),
        _ => {
            ui::err(&format!("unrecognized command '{name}'"));
            ui::err(USAGE.trim_end());
            return Exit::USAGE;
        }
    };
    match result {
        Ok(exit) => exit,
        Err(e) => {
            // An error of kind Invalid is the tool's own whole message.
            let text = if e.location() == &base::error::ErrorLocation::default()
                && std::error::Error::source(&e).is_none()
            {
                e.message().to_owned()
            } else {
                format!("{name}: {e}")
            };
            ui::err(&text);
            Exit::FAILURE
        }
    }
}
