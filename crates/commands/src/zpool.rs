//! The rows of `zpool` (chapter 09 §4).

use super::{COMMAND, Command, Flag, Word, arg, flag, ignored};

const POOL: Command = Command { program: "zpool", section: 8, ..COMMAND };

const ACTIVITIES: &[&str] = &[
    "discard",
    "free",
    "initialize",
    "replace",
    "remove",
    "resilver",
    "scrub",
    "trim",
    "raidz_expand",
    "defrag",
    "rebalance",
];
/// Words of a vdev specification, besides devices.
const VDEVS: Word = Word::File;
const FIELDS: Word = Word::Some(&["all", "name", "property", "value", "source"]);

const SCRIPTED: Flag = flag('H', "no headings, fields separated by one TAB");
const EXACT: Flag = flag('p', "exact numbers");
const GUIDS: Flag = flag('g', "guids instead of the names of devices");
const LINKS: Flag = flag('L', "names of devices with symbolic links resolved");
const PATHS: Flag = flag('P', "whole paths of devices");
const STAMP: Flag =
    arg('T', "u|d", Word::One(&["u", "d"]), "the time before each report: seconds, or a date");
const JSON: Flag = flag('j', "JSON output").or("json");
const JSON_INT: Flag = flag('J', "JSON output with exact numbers, not strings").named("json-int");
const JSON_GUIDS: Flag =
    flag('K', "JSON output with the guids of pools as keys").named("json-pool-key-guid");
const ROOT: Flag = arg('R', "root", Word::Dir, "a directory before all mountpoints");

pub(super) const COMMANDS: &[Command] = &[
    Command {
        name: "create",
        about: "make a pool of devices",
        synopsis: "create [-fnd] [-o property=value] ... \n\t    [-O file-system-property=value] \
                   ... \n\t    [-m mountpoint] [-R root] <pool> <vdev> ...",
        flags: &[
            flag('f', "even if devices seem to be in use, or redundancy differs"),
            flag('n', "only show what would be made"),
            flag('d', "enable no features but those named with -o"),
            arg('o', "property=value", Word::PoolAssign, "a property of the pool, or ashift"),
            arg('O', "property=value", Word::DatasetAssign, "a property of the root file system"),
            arg('m', "mountpoint", Word::Dir, "where the root file system is mounted"),
            ROOT,
            arg('t', "name", Word::Any, "a temporary name, for this import alone"),
        ],
        words: &[Word::Any, VDEVS],
        ..POOL
    },
    Command {
        name: "destroy",
        about: "destroy a pool",
        synopsis: "destroy [-f] <pool>",
        flags: &[flag('f', "unmount even what is busy")],
        words: &[Word::Pool],
        ..POOL
    },
    Command {
        name: "add",
        about: "add devices to a pool",
        synopsis: "add [-afgLnP] [-o property=value] <pool> <vdev> ...",
        flags: &[
            ignored('a'),
            flag('f', "all of the --allow options"),
            GUIDS,
            LINKS,
            flag('n', "only show what the pool would look like"),
            arg('o', "property=value", Word::Any, "ashift, for the new devices"),
            PATHS,
            flag('U', "devices that seem to be in use").named("allow-in-use"),
            flag('R', "another redundancy than the pool's").named("allow-replication-mismatch"),
            flag('A', "another sector size than the pool's").named("allow-ashift-mismatch"),
        ],
        words: &[Word::Pool, VDEVS],
        ..POOL
    },
    Command {
        name: "advise",
        about: "say what hurts pools, and what to do",
        synopsis: "advise [-jp] [pool] ...",
        flags: &[flag('j', "JSON output").or("json"), EXACT],
        words: &[Word::Pool],
        ..POOL
    },
    Command {
        name: "checkpoint",
        about: "keep the state of a pool, to return to it later",
        synopsis: "checkpoint [-d [-w]] <pool>",
        flags: &[
            flag('d', "discard the checkpoint").or("discard"),
            flag('w', "with -d: wait until its space is free").or("wait"),
        ],
        words: &[Word::Pool],
        ..POOL
    },
    Command {
        name: "clear",
        about: "forget errors of devices, and go on with those that came back",
        synopsis: "clear <pool> [device]",
        words: &[Word::Pool, Word::PoolOrVdev],
        ..POOL
    },
    Command {
        name: "attach",
        about: "mirror a device by another one",
        synopsis: "attach [-fsw] [-o property=value] <pool> <device> <new-device>",
        flags: &[
            flag('f', "even if the new device seems to be in use"),
            arg('o', "property=value", Word::Any, "ashift, for the new device"),
            flag('s', "copy sequentially, and verify by a scrub afterwards"),
            flag('w', "wait until it has all data"),
        ],
        words: &[Word::Pool, Word::PoolOrVdev, Word::File],
        ..POOL
    },
    Command {
        name: "detach",
        about: "take a device out of a mirror, a replacement or a spare",
        synopsis: "detach <pool> <device>",
        words: &[Word::Pool, Word::PoolOrVdev],
        ..POOL
    },
    Command {
        name: "replace",
        about: "replace a device by another one",
        synopsis: "replace [-fsw] [-o property=value] <pool> <device> [new-device]",
        flags: &[
            flag('f', "even if the new device seems to be in use"),
            arg('o', "property=value", Word::Any, "ashift, for the new device"),
            flag('s', "copy sequentially, and verify by a scrub afterwards"),
            flag('w', "wait until it has all data"),
        ],
        words: &[Word::Pool, Word::PoolOrVdev, Word::File],
        ..POOL
    },
    Command {
        name: "split",
        about: "make a new pool of one device of each mirror",
        synopsis: "split [-gLnP] [-o property=value] ... [-R root] <pool> <newpool> [device ...]",
        flags: &[
            flag('g', "with -n: show guids instead of names"),
            flag('L', "with -n: resolve symbolic links in paths"),
            flag('l', "load the keys of the new pool").refused(),
            flag('n', "only show what the new pool would be"),
            flag('P', "with -n: show full paths"),
            arg('o', "property=value", Word::Any, "a property of the new pool"),
            arg('R', "root", Word::Dir, "import the new pool below this directory"),
        ],
        words: &[Word::Pool, Word::Any, Word::PoolOrVdev],
        ..POOL
    },
    Command {
        name: "reopen",
        about: "open the devices of pools again",
        synopsis: "reopen [-n] [pool] ...",
        flags: &[ignored('n')],
        words: &[Word::Pool],
        ..POOL
    },
    Command {
        name: "offline",
        about: "take devices out of use until they are brought online",
        synopsis: "offline [-f] [-t] <pool> <device> ...",
        flags: &[
            flag('f', "fault the device, so that a spare may replace it"),
            flag('t', "only until the pool is exported"),
        ],
        words: &[Word::Pool, Word::PoolOrVdev],
        ..POOL
    },
    Command {
        name: "online",
        about: "take devices back that were gone or offline",
        synopsis: "online [-e] <pool> <device> ...",
        flags: &[flag('e', "use the space that the device gained")],
        words: &[Word::Pool, Word::PoolOrVdev],
        ..POOL
    },
    Command {
        name: "scrub",
        about: "read and verify everything in a pool, and repair what is wrong",
        synopsis: "scrub [-e|-s|-p|-C] [-w] <pool> ...",
        flags: &[
            flag('e', "only the blocks of the error log; also continues such a scrub"),
            flag('s', "stop the scrub or error scrub"),
            flag('p', "pause the scrub or error scrub; run the command again to continue"),
            flag('C', "only what was written since the last scrub"),
            flag('w', "wait until the scrub has ended"),
        ],
        words: &[Word::Pool],
        ..POOL
    },
    Command {
        name: "defrag",
        about: "lay files out in order, and join free space; snapshots stay shared",
        synopsis: "defrag [-n] [-w] [-l score] <pool> [dataset] ...\n\
                   \tdefrag --unmap [-n] [-w] <pool>\n\tdefrag -s|-p <pool>",
        flags: &[
            flag('n', "only show what would be moved"),
            flag('s', "stop the defragmentation; what was moved stays moved"),
            flag('p', "pause the defragmentation; run the command again to continue"),
            flag('w', "wait until the defragmentation has ended"),
            arg('l', "score", Word::Any, "lay out files with a lower layout score (0 to 1, 0.95)"),
            flag('U', "erase the mappings of removed devices: move all blocks that need them")
                .named("unmap"),
        ],
        words: &[Word::Pool, Word::Dataset],
        ..POOL
    },
    Command {
        name: "rebalance",
        about: "move blocks until vdevs are equally full; snapshots stay shared",
        synopsis: "rebalance [-n] [-w] [--special|--from-special] <pool>\n\trebalance -s|-p <pool>",
        flags: &[
            flag('n', "only show what would be moved"),
            flag('s', "stop the rebalance; what was moved stays moved"),
            flag('p', "pause the rebalance; run the command again to continue"),
            flag('w', "wait until the rebalance has ended"),
            flag('S', "move what the special class takes to special vdevs").named("special"),
            flag('F', "move everything on special vdevs to normal ones").named("from-special"),
        ],
        words: &[Word::Pool],
        ..POOL
    },
    Command {
        name: "shrink",
        about: "make a vdev smaller, so that smaller devices can replace its own",
        synopsis: "shrink [-n] [-w] <pool> <vdev> <size>\n\tshrink -s <pool>",
        flags: &[
            flag('n', "only show what would be moved"),
            flag('s', "cancel the shrinking under way; what was moved stays moved"),
            flag('w', "wait until the vdev is smaller"),
        ],
        words: &[Word::Pool, Word::PoolOrVdev, Word::Any],
        ..POOL
    },
    Command {
        name: "resilver",
        about: "copy to devices what they missed, from the beginning",
        synopsis: "resilver <pool> ...",
        words: &[Word::Pool],
        ..POOL
    },
    Command {
        name: "remove",
        about: "remove devices from a pool",
        synopsis: "remove [-npw] <pool> <device> ... | remove -s <pool>",
        flags: &[
            flag('n', "only say how much memory the mappings would take"),
            flag('p', "with -n: exact numbers"),
            flag('s', "cancel the removal under way"),
            flag('w', "wait until the removal has ended"),
        ],
        words: &[Word::Pool, Word::PoolOrVdev],
        ..POOL
    },
    Command {
        name: "labelclear",
        about: "wipe the labels of a device",
        synopsis: "labelclear [-f] <vdev>",
        flags: &[flag('f', "even if a pool that is not imported may want it")],
        words: &[Word::File],
        ..POOL
    },
    Command {
        name: "initialize",
        about: "write a pattern to the free space of devices",
        synopsis: "initialize [-c | -s | -u] [-w] <pool> [device] ...",
        flags: &[
            flag('c', "give it up").or("cancel"),
            flag('s', "interrupt it, to be continued by the command without options").or("suspend"),
            flag('u', "forget that devices were initialized").or("uninit"),
            flag('w', "wait for the end").or("wait"),
        ],
        words: &[Word::Pool, Word::PoolOrVdev],
        ..POOL
    },
    Command {
        name: "list",
        about: "list pools with their sizes and health",
        synopsis: "list [-gHLpPv] [-o property[,...]] [-j [--json-int, \
                   --json-pool-key-guid]]\n\t    [-T d|u] [pool] ... [interval [count]]",
        flags: &[
            GUIDS,
            SCRIPTED,
            LINKS,
            EXACT,
            PATHS,
            flag('v', "the vdevs of each pool, too"),
            arg('o', "property[,...]", Word::PoolProps, "the columns"),
            STAMP,
            JSON,
            JSON_INT,
            JSON_GUIDS,
        ],
        words: &[Word::Pool],
        ..POOL
    },
    Command {
        name: "map",
        about: "show how full and how fragmented the metaslabs of pools are",
        synopsis: "map [-jp] [--json-int] [-o file.svg] [-T d|u] <pool> ... [interval [count]]",
        flags: &[
            flag('j', "JSON output").or("json"),
            flag('J', "JSON output with exact numbers, not strings").named("json-int"),
            EXACT,
            arg(
                'o',
                "file.svg",
                Word::File,
                "a picture in this file instead; - is standard output",
            ),
            STAMP,
        ],
        words: &[Word::Pool],
        ..POOL
    },
    Command {
        name: "status",
        about: "show the state of pools and the errors of their devices",
        synopsis: "status [-dDegiLPpstvx] [-c script[,script]...] [-T d|u] [pool] ...\n\t    [interval \
                   [count]] [-j [--json-int, --json-flat-vdevs, --json-pool-key-guid]]",
        flags: &[
            arg(
                'c',
                "script,...",
                Word::Any,
                "columns that these scripts print for each device; without a name, a list of them",
            ),
            flag('e', "only devices that are not well"),
            GUIDS,
            flag('i', "whether devices were initialized"),
            LINKS,
            PATHS,
            EXACT,
            flag('s', "slow operations, as a column"),
            flag('t', "whether devices were trimmed"),
            flag('v', "every damaged file, and devices read through the page cache"),
            flag('x', "only pools that something is wrong with"),
            flag('d', "errors of direct writes, as a column"),
            STAMP,
            flag('D', "the dedup tables: entries, sizes, blocks by their references"),
            flag('1', "the state of the slots' power").named("power").refused(),
            flag('j', "JSON output").or("json"),
            flag('J', "JSON output with exact numbers, not strings").named("json-int"),
            flag('F', "JSON output with all vdevs in one object").named("json-flat-vdevs"),
            flag('K', "JSON output with the guids of pools as keys").named("json-pool-key-guid"),
        ],
        words: &[Word::Pool],
        ..POOL
    },
    Command {
        name: "iostat",
        about: "show the input and output of pools and devices",
        synopsis: "iostat [[-lq] | -r | -w] [-gHLnpPvy] [-T d|u]\n\t    [pool ... | pool vdev ... | \
                   vdev ...] [interval [count]]",
        flags: &[
            GUIDS,
            SCRIPTED,
            LINKS,
            flag('n', "the headings only once"),
            flag('p', "exact numbers, in wider columns"),
            PATHS,
            flag('v', "the vdevs of each pool, too"),
            flag('y', "not the first report, about all the time since the import"),
            STAMP,
            flag('l', "mean latencies, too"),
            flag('q', "what waits and what is under way, too"),
            flag('r', "histograms of the sizes of operations, instead"),
            flag('w', "histograms of latencies, instead"),
            arg('c', "script[,...]", Word::Any, "running scripts").refused(),
        ],
        words: &[Word::PoolOrVdev],
        ..POOL
    },
    Command {
        name: "import",
        about: "find pools on devices and import them",
        synopsis: "import [-d dir|file] ... [-D]\n\timport [-d dir|file] ... [-DfmN] [-F [-nX]] [-T \
                   txg] [-o readonly=on] [-R root] -a\n\timport [-d dir|file] ... [-DfmNt] [-F \
                   [-nX]] [-T txg] [--rebuild-space] [--rewind-to-checkpoint]\n\t    [-o readonly=on] [-R \
                   root] <pool | id> [newpool]",
        flags: &[
            flag('a', "every pool that is found"),
            arg('d', "dir|file", Word::File, "look there instead of at the system's devices"),
            flag('D', "pools that were destroyed"),
            flag('f', "even if another system had the pool last"),
            flag('m', "without log devices that are missing"),
            flag('N', "mount nothing"),
            flag('F', "if the newest state is damaged, go back a few transaction groups"),
            flag('n', "with -F or -T: only say whether that would work, and what it would lose"),
            flag('X', "with -F: go back as far as necessary, and read all data first"),
            arg('T', "txg", Word::Any, "as of this transaction group; discards all later ones"),
            flag('2', "make the space maps anew from the blocks that there are")
                .named("rebuild-space"),
            arg(
                'o',
                "property=value|option[,...]",
                Word::One(&["readonly=on", "ro", "direct_io", "altroot="]),
                "a property of this import, or options of its mounts",
            ),
            ROOT,
            arg('c', "file", Word::File, "the use of cache files").refused(),
            flag('t', "newpool is a temporary name: the pool keeps its own on its devices"),
            ignored('l'),
            ignored('s'),
            flag('C', "").refused(),
            flag('E', "").refused(),
            flag('V', "an import without a look at the devices").refused(),
            flag('1', "as it was when the checkpoint was taken; discards all that came later")
                .named("rewind-to-checkpoint"),
        ],
        words: &[Word::Any],
        ..POOL
    },
    Command {
        name: "export",
        about: "unmount pools and let go of them",
        synopsis: "export [-af] <pool> ...",
        flags: &[flag('a', "all pools"), flag('f', "unmount even what is busy")],
        words: &[Word::Pool],
        ..POOL
    },
    Command {
        name: "upgrade",
        about: "show which features pools lack, and enable them",
        synopsis: "upgrade\n\tupgrade -v\n\tupgrade [-V version] <-a | pool ...>",
        flags: &[
            flag('v', "the features and versions that Cenote knows"),
            flag('a', "all pools"),
            arg('V', "version", Word::Any, "to this version, without features"),
        ],
        words: &[Word::Pool],
        ..POOL
    },
    Command {
        name: "reguid",
        about: "give a pool another guid",
        synopsis: "reguid [-g guid] <pool>",
        flags: &[arg('g', "guid", Word::Any, "this one instead of a random one")],
        words: &[Word::Pool],
        ..POOL
    },
    Command {
        name: "events",
        about: "show what happened to pools and devices",
        synopsis: "events [-vHf [pool]] | -c",
        flags: &[
            flag('v', "with all values"),
            SCRIPTED,
            flag('f', "wait for further events"),
            flag('c', "forget all events"),
        ],
        words: &[Word::Pool],
        ..POOL
    },
    Command {
        name: "history",
        about: "show the commands that changed pools",
        synopsis: "history [-il] [<pool>] ...",
        flags: &[
            flag('i', "what the pool itself noted, too"),
            flag('l', "who did it, and on which host"),
        ],
        words: &[Word::Pool],
        ..POOL
    },
    Command {
        name: "get",
        about: "show properties of pools and vdevs",
        synopsis: "get [-Hp] [-j [--json-int, --json-pool-key-guid]] [-o \"all\" | field[,...]]\n\t    \
                   <\"all\" | property[,...]> [pool] ...\n\tget [-Hp] [-j [--json-int]] [-o \"all\" | field[,...]] <\"all\" | property[,...]> <pool>\n\t    \
                   <all-vdevs | vdev> ...",
        flags: &[
            SCRIPTED,
            EXACT,
            arg('o', "field[,...]", FIELDS, "the columns"),
            JSON,
            JSON_INT,
            JSON_GUIDS,
        ],
        words: &[Word::PoolProps, Word::Pool],
        ..POOL
    },
    Command {
        name: "set",
        about: "set a property of a pool or of a vdev",
        synopsis: "set <property=value> <pool>\n\tset <vdev_property=value> <pool> <vdev>",
        words: &[Word::PoolAssign, Word::Pool, Word::Any],
        ..POOL
    },
    Command {
        name: "sync",
        about: "write everything to the devices",
        synopsis: "sync [pool] ...",
        flags: &[ignored('f')],
        words: &[Word::Pool],
        ..POOL
    },
    Command {
        name: "ddtprune",
        about: "forget dedup entries of blocks that nothing shares, the oldest first",
        synopsis: "ddtprune -d|-p <amount> <pool>",
        flags: &[
            arg('d', "days", Word::Any, "those that are older than this"),
            arg('p', "percentage", Word::Any, "this share of them"),
        ],
        words: &[Word::Pool],
        ..POOL
    },
    Command {
        name: "prefetch",
        about: "read a pool's dedup tables into the cache",
        synopsis: "prefetch -t <type> [<type opts>] <pool>\n\t    -t ddt <pool>",
        flags: &[arg('t', "type", Word::One(&["ddt"]), "what is read: ddt, the dedup tables")],
        words: &[Word::Pool],
        ..POOL
    },
    Command {
        name: "trim",
        about: "tell devices which of their space is free",
        synopsis: "trim [-dw] [-r rate] [-c | -s] <pool> [device] ...",
        flags: &[
            flag('d', "so that discarded data cannot be recovered").or("secure"),
            arg('r', "rate", Word::Any, "bytes a second on each device").or("rate"),
            flag('c', "give it up").or("cancel"),
            flag('s', "interrupt it, to be continued by the command without options").or("suspend"),
            flag('w', "wait for the end").or("wait"),
        ],
        words: &[Word::Pool, Word::PoolOrVdev],
        ..POOL
    },
    Command {
        name: "wait",
        about: "wait until a pool is no longer busy",
        synopsis: "wait [-Hp] [-T d|u] [-t <activity>[,...]] <pool> [interval]",
        flags: &[
            SCRIPTED,
            EXACT,
            STAMP,
            arg('t', "activity[,...]", Word::Some(ACTIVITIES), "only for these"),
        ],
        words: &[Word::Pool],
        ..POOL
    },
    Command {
        name: "version",
        about: "show the version",
        synopsis: "version [-j]",
        flags: &[flag('j', "as JSON").or("json")],
        ..POOL
    },
];
