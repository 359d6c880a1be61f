//! The rows of `cenote` itself and of the tools that have a name of their own
//! (chapter 09 §7, §8).

use super::{COMMAND, Command, Flag, Word, arg, flag, ignored};

/// A tool that can be called by its own name.
const TOOL: Command = Command { alone: true, ..COMMAND };

const HELP: Flag = flag('h', "how it is used");
const PATH: Flag =
    arg('P', "DIR", Word::Dir, "a directory such as /proc/spl/kstat/zfs instead of the daemon")
        .named("path");
const SEARCH: Flag = arg('d', "DIR|FILE", Word::File, "look for the pool there; may be repeated");
const AS_OF: Flag =
    arg('T', "TXG", Word::Any, "as of this transaction group ('cenote uberblocks' lists them)");
const SECTIONS: &[&str] = &["arc", "archits", "dmu", "l2arc", "spl", "tunables", "vdev", "zil"];
const BENCHES: &[&str] = &[
    "cached",
    "poison",
    "du",
    "stress",
    "write",
    "sync",
    "zil-sticky",
    "oltp",
    "fragmentation",
    "aged",
    "atime",
    "l2arc",
    "metaslabs",
    "scrub",
    "removal",
    "expansion",
    "defrag",
    "dedup",
    "clone",
    "snapshots",
    "send",
    "codecs",
    "fuse-null",
    "cache",
];
const LAYOUTS: &[&str] = &["single", "stripe", "mirror", "raidz", "raidz2", "classes"];
const WORKLOADS: &[&str] = &[
    "mixed",
    "files",
    "zaps",
    "datasets",
    "churn",
    "full",
    "lineage",
    "clones",
    "block-clones",
    "dedup",
    "block-sharing",
    "moves",
    "checkpoint",
    "trim",
    "short",
    "posix",
    "logs",
    "volumes",
];
const PLANTS: &[&str] = &[
    "uberblock-before-flush",
    "label-order",
    "reuse-same-group",
    "reuse-before-commit",
    "no-defer",
    "lose-entry",
    "wrong-group",
    "free-kept",
    "forget-range",
    "trim-deferred",
    "forgotten-deadlist",
    "forgotten-clones",
    "left-bookmarks",
    "kept-blocks",
    "freed-origin",
    "dropped-holds",
    "forgotten-deferral",
    "lost-entry",
    "ignored-frees",
    "kept-livelist",
    "lost-decrement",
    "lost-increment",
    "counted-late",
    "dropped-pointer",
    "dedup-unlogged",
    "dedup-stale-flush",
    "dedup-old-checkpoint",
    "dedup-lost-records",
    "dedup-kept-newborn",
    "dedup-lost-decrement",
    "dedup-lost-increment",
    "dedup-kept-entry",
    "removal-off-by-one",
    "removal-lost-entry",
    "expansion-skipped-row",
    "move-left-entry",
    "move-left-snapshot",
    "move-old-heads",
    "move-forgotten-handles",
];
const FAULTS: &[&str] = &[
    "drop",
    "away",
    "write-errors",
    "flush-errors",
    "read-errors",
    "stale-reads",
    "misdirected",
    "lying-flushes",
];

pub(super) const COMMANDS: &[Command] = &[
    Command {
        name: "daemon",
        about: "the process that holds imported pools",
        synopsis: "daemon start [--foreground] [--metrics ADDRESS:PORT]\n\tdaemon stop [-f]\n\t\
                   daemon status",
        flags: &[
            flag('F', "stay in the foreground, for service managers").named("foreground"),
            arg('m', "ADDRESS:PORT", Word::Any, "serve the kstats for Prometheus there")
                .named("metrics"),
            flag('f', "stop even if mounts are busy").or("force"),
            flag('D', "").named("detached").internal(),
        ],
        words: &[Word::One(&["start", "stop", "status"]), Word::Any],
        section: 8,
        ..COMMAND
    },
    Command {
        name: "zdb",
        about: "look inside a pool, without a daemon and without changing it",
        synopsis: "zdb [-bcdhimuyCLPvAFX] [-e [-p DIR]...] [-t TXG] POOL[/DATASET[@SNAP]] \
                   [OBJECT...]\n\tzdb -O [-e [-p DIR]...] DATASET PATH\n\tzdb --layout [-e [-p DIR]...] \
                   DATASET[@SNAP]\n\tzdb -l [-Aqu] DEVICE",
        flags: ZDB,
        words: &[Word::Dataset, Word::Any],
        section: 8,
        ..TOOL
    },
    Command {
        name: "zstream",
        aliases: &["zstreamdump"],
        about: "look into send streams, and repair them",
        synopsis: "zstream dump [-vCd] [FILE]\n\tzstream decompress [-v] [OBJECT,OFFSET[,TYPE]]...\n\t\
                   zstream recompress [-l level] TYPE\n\tzstream token resume_token\n\tzstream redup \
                   [-v] FILE\n\tzstream drop_record [-v] [OBJECT,OFFSET]...",
        flags: &[
            flag('v', "a line for each record of a dump; otherwise how many records were changed"),
            flag('C', "dump a stream whose checksums are wrong"),
            flag('d', "dump what the records carry, too"),
            arg('l', "level", Word::Any, "compression level of gzip or zstd"),
        ],
        words: &[
            Word::One(&["dump", "decompress", "recompress", "token", "redup", "drop_record"]),
            Word::File,
        ],
        section: 8,
        ..TOOL
    },
    Command {
        name: "arc",
        about: "the cache on one page, and at other sizes",
        synopsis: "arc [--what-if] [--path DIR]",
        flags: &[
            flag('w', "the hit ratio to expect from smaller and larger caches").named("what-if"),
            PATH,
            HELP,
        ],
        ..COMMAND
    },
    Command {
        name: "arcstat",
        aliases: &["zarcstat", "arcstat.pl"],
        about: "statistics of the cache, a line at a time",
        synopsis: "arcstat [-havxzp] [--2007] [--path DIR] [-f fields] [-o file] [-s string] \
                   [interval [count]]",
        flags: &[
            HELP,
            flag('a', "all fields"),
            flag('v', "list the fields and what they mean"),
            flag('x', "extended fields"),
            flag('z', "the prefetcher's fields"),
            flag('p', "raw numbers, columns not padded"),
            arg('f', "fields", Word::Any, "these fields, separated by commas"),
            arg('o', "file", Word::File, "write to a file instead of standard output"),
            arg('s', "string", Word::Any, "between fields, instead of two blanks"),
            flag('7', "fields and numbers of arcstat.pl, as in 2007").named("2007"),
            PATH,
        ],
        ..TOOL
    },
    Command {
        name: "arc_summary",
        aliases: &["zarcsummary"],
        about: "a report on the cache and its tunables",
        synopsis: "arc_summary [-adgrh] [-s SECTION] [--path DIR]",
        flags: &[
            HELP,
            flag('a', "tunables in the form NAME=VALUE").or("alternate"),
            flag('d', "tunables with what they do").or("description"),
            flag('g', "a picture of the cache instead of the report").or("graph"),
            flag('r', "the raw counters").or("raw"),
            arg('s', "SECTION", Word::One(SECTIONS), "one section of the report").or("section"),
            PATH,
        ],
        ..TOOL
    },
    Command {
        name: "zilstat",
        about: "what intent logs wrote, a line at a time",
        synopsis: "zilstat [-hgva] [-s fields] [-i interval] [-p pool[,...]] \
                   [-d dataset[,...]] [--path DIR] [interval [count]]",
        flags: &[
            HELP,
            flag('g', "all logs together"),
            flag('v', "list the fields and what they mean"),
            flag('a', "all fields"),
            arg('s', "fields", Word::Any, "these fields, separated by commas"),
            arg('i', "interval", Word::Any, "seconds between lines"),
            arg('p', "pool[,...]", Word::Any, "datasets of these pools"),
            arg('d', "dataset[,...]", Word::Any, "these datasets"),
            PATH,
        ],
        ..TOOL
    },
    Command {
        name: "trace",
        about: "commits, records, blocks and latencies of intent logs while they happen",
        synopsis: "trace zil [-hl] [--path DIR] [pool] [seconds]",
        flags: &[HELP, flag('l', "a report every so many seconds, until interrupted"), PATH],
        words: &[Word::One(&["zil"]), Word::Pool],
        ..COMMAND
    },
    Command {
        name: "kstat",
        about: "counters of the cache, the pools and their parts",
        synopsis: "kstat [-pj] [-m MODULE] [-n NAME] [--prometheus] [--path DIR] [interval \
                   [count]]",
        flags: &[
            flag('p', "module:instance:name:statistic, a TAB, the value"),
            flag('j', "JSON").or("json"),
            arg('m', "MODULE", Word::Any, "of this module only; * and ? stand for characters"),
            arg('n', "NAME", Word::Any, "of this name only, likewise"),
            flag('M', "as Prometheus wants them").named("prometheus"),
            PATH,
            HELP,
        ],
        ..COMMAND
    },
    Command {
        name: "tune",
        about: "show and set tunables of the running daemon",
        synopsis: "tune [-aH] [NAME[=VALUE]] ...\n\ttune list",
        flags: &[
            flag('a', "all of them, with what they do").or("all"),
            flag('H', "name, TAB, number; nothing else"),
            HELP,
        ],
        words: &[Word::One(&["list"])],
        section: 8,
        ..COMMAND
    },
    Command {
        name: "ls",
        about: "list files of a pool that is not imported",
        synopsis: "ls [-lR] [-d DIR|FILE]... [-T TXG] POOL/DATASET[@SNAP][:/path] ...",
        flags: &[
            flag('l', "modes, owners, sizes and times, too"),
            flag('R', "with all directories below"),
            SEARCH,
            AS_OF,
            ignored('a'),
            ignored('r'),
        ],
        ..COMMAND
    },
    Command {
        name: "tree",
        about: "draw the files of a pool that is not imported",
        synopsis: "tree [-d DIR|FILE]... [-T TXG] POOL/DATASET[@SNAP][:/path] ...",
        flags: &[SEARCH, AS_OF, ignored('a'), ignored('l'), ignored('r'), ignored('R')],
        ..COMMAND
    },
    Command {
        name: "cat",
        about: "print files or volumes of a pool that is not imported",
        synopsis: "cat [-d DIR|FILE]... [-T TXG] POOL/DATASET[@SNAP][:/path] ...",
        flags: &[SEARCH, AS_OF, ignored('a'), ignored('l'), ignored('r'), ignored('R')],
        ..COMMAND
    },
    Command {
        name: "cp",
        about: "copy files out of a pool that is not imported",
        synopsis: "cp [-r] [-d DIR|FILE]... [-T TXG] POOL/DATASET[@SNAP]:/path ... TARGET",
        flags: &[
            flag('r', "directories with all that is in them"),
            flag('R', "as -r"),
            flag('a', "as -r"),
            SEARCH,
            AS_OF,
            ignored('l'),
        ],
        words: &[Word::File],
        ..COMMAND
    },
    Command {
        name: "clone",
        about: "make a copy of a file that shares its blocks",
        synopsis: "clone FILE TARGET",
        words: &[Word::File],
        ..COMMAND
    },
    Command {
        name: "uberblocks",
        about: "list the earlier states that a pool can be looked at or gone back to",
        synopsis: "uberblocks [-Hp] [-d DIR|FILE]... POOL",
        flags: &[
            flag('H', "no heading, one TAB between fields"),
            flag('p', "times in seconds since 1970"),
            SEARCH,
        ],
        ..COMMAND
    },
    Command {
        name: "map",
        about: "show how full and how fragmented a pool's metaslabs are",
        synopsis: "map [-jp] [--json-int] [-o FILE.svg] [-T d|u] [-d DIR|FILE]... [--txg TXG] \
                   POOL ... [interval [count]]",
        flags: &[
            flag('j', "JSON output").or("json"),
            flag('J', "JSON output with exact numbers, not strings").named("json-int"),
            flag('p', "exact numbers"),
            arg(
                'o',
                "FILE.svg",
                Word::File,
                "a picture in this file instead; - is standard output",
            ),
            arg('T', "d|u", Word::One(&["d", "u"]), "the time above each report"),
            SEARCH,
            Flag { letter: 't', ..AS_OF }.named("txg"),
        ],
        ..COMMAND
    },
    Command {
        name: "io",
        about: "what each device is asked for: sizes, latency, operations, bytes",
        synopsis: "io [-T d|u] [pool ...] [interval [count]]",
        flags: &[arg('T', "d|u", Word::One(&["d", "u"]), "the time above each report")],
        words: &[Word::Pool],
        ..COMMAND
    },
    Command {
        name: "bench",
        about: "measure what this machine and the cache can do",
        synopsis: "bench NAME [options]",
        words: &[Word::One(BENCHES), Word::File],
        ..COMMAND
    },
    Command {
        name: "sim",
        about: "the engine on simulated disks, crashed everywhere",
        synopsis: "sim [--seed N] [--runs M] [option ...]",
        flags: SIM,
        ..COMMAND
    },
    Command {
        name: "completion",
        about: "print the completion script of a shell",
        synopsis: "completion bash|zsh|fish",
        words: &[Word::One(&["bash", "zsh", "fish"]), Word::Any],
        ..COMMAND
    },
    Command {
        name: "mount.cenote",
        about: "mount a file system as mount(8) does",
        synopsis: "mount.cenote [-sfrw] [-o OPTIONS] DATASET DIRECTORY",
        flags: MOUNT,
        words: &[Word::Dataset, Word::Dir],
        section: 8,
        ..TOOL
    },
];

const ZDB: &[Flag] = &[
    flag('b', "statistics of blocks, and leaks; more with each b"),
    flag('c', "verify checksums of metadata; -cc: of all data"),
    flag('d', "datasets and objects; more with each d"),
    flag('h', "the history of the pool"),
    flag('i', "intent logs"),
    flag('l', "the labels of a device"),
    flag('m', "metaslabs; more with each m"),
    flag('u', "the uberblock"),
    flag('y', "replay space maps and their logs, looking for contradictions"),
    flag('C', "the configuration"),
    flag('D', "dedup tables; more with each D"),
    flag('O', "the object behind a path"),
    flag('g', "how far the blocks of each file lie one after another").named("layout"),
    flag('e', "a pool that is not imported"),
    arg('p', "DIR", Word::Dir, "look for devices there; may be repeated"),
    flag('L', "do not look for leaks"),
    flag('P', "exact numbers"),
    arg('t', "TXG", Word::Any, "no transaction group after this one"),
    flag('F', "go back to a transaction group that opens"),
    flag('X', "go back as far as necessary"),
    flag('v', "more of everything that was asked for"),
    flag('q', "with -l: only the exit status"),
    ignored('A'),
    ignored('G'),
    Flag { value: "value", ..ignored('I') },
    Flag { value: "value", ..ignored('o') },
    Flag { value: "value", ..ignored('U') },
    ignored('V'),
    Flag { value: "value", ..ignored('x') },
    ignored('Y'),
    flag('B', "streams are not made").refused(),
    flag('E', "words of a block pointer are not decoded").refused(),
    flag('f', "").refused(),
    flag('k', "checkpointed state is not looked at").refused(),
    arg('K', "key", Word::Any, "keys are not loaded").refused(),
    flag('M', "").refused(),
    flag('N', "").refused(),
    flag('r', "files are copied with cenote cp").refused(),
    flag('R', "blocks are not read by address").refused(),
    flag('s', "").refused(),
    flag('S', "deduplication is not simulated").refused(),
    flag('T', "").refused(),
    flag('Z', "").refused(),
];

const MOUNT: &[Flag] = &[
    arg('o', "OPTIONS", Word::Any, "options for this mount, with commas between"),
    flag('s', "leave out options that are unknown"),
    flag('f', "do everything but mount"),
    flag('r', "mount read-only"),
    flag('w', "mount for writing"),
    ignored('n'),
    ignored('v'),
    Flag { usage: super::Use::Ignored, ..arg('t', "TYPE", Word::Any, "") },
    Flag { usage: super::Use::Refused, ..arg('N', "NAMESPACE", Word::Any, "") },
];

const SIM: &[Flag] = &[
    arg('s', "N", Word::Any, "the first run's seed (1); each next run has the next one")
        .named("seed"),
    arg('r', "M", Word::Any, "runs (1)").named("runs"),
    arg('d', "NAME", Word::One(LAYOUTS), "the layout of the vdevs").named("vdevs"),
    arg('w', "NAME", Word::One(WORKLOADS), "what the threads do").named("workload"),
    arg('t', "N", Word::Any, "threads that write").named("threads"),
    arg('o', "N", Word::Any, "operations of each thread").named("ops"),
    arg('p', "NAME", Word::One(PLANTS), "a bug that the run must find").named("plant"),
    arg('f', "NAME", Word::One(FAULTS), "what one disk does").named("fault"),
    flag('g', "every block larger than a sector is a gang of single sectors").named("gangs"),
    arg('e', "N", Word::Any, "the power fails at every Nth event (1)").named("every"),
    arg('m', "N", Word::Any, "crashes of each event beyond losing and keeping all (1)")
        .named("more"),
    arg('j', "N", Word::Any, "threads that judge").named("judges"),
    arg('k', "LIST", Word::Any, "only the operations with these numbers").named("keep"),
    arg('c', "E[:S]", Word::Any, "only the crash after event E, with seed S (0)").named("crash"),
    arg('D', "DIR", Word::Dir, "with --crash: write the disks left behind there").named("dir"),
    flag('v', "tell of every run"),
];
