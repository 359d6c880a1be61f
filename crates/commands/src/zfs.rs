//! The rows of `zfs` (chapter 09 §3).

use super::{COMMAND, Command, Flag, Word, arg, flag, ignored};

const ZFS: Command = Command { program: "zfs", section: 8, ..COMMAND };

const TYPES: Word = Word::Some(&["filesystem", "volume", "snapshot", "bookmark", "all"]);
const SOURCES: Word =
    Word::Some(&["local", "default", "inherited", "temporary", "received", "none"]);
const FIELDS: Word = Word::Some(&["all", "name", "property", "value", "received", "source"]);

const SCRIPTED: Flag = flag('H', "no headings, fields separated by one TAB");
const EXACT: Flag = flag('p', "exact numbers");
const JSON: Flag = flag('j', "JSON output").or("json");
const JSON_INT: Flag = flag('J', "JSON output with exact numbers, not strings").named("json-int");
const SPACE_FIELD: Word = Word::Some(&["type", "name", "used", "quota", "objused", "objquota"]);
const SPACE_FIELDS: Flag = arg('o', "field[,...]", SPACE_FIELD, "the columns");
const SPACE_UP: Flag = arg('s', "field", SPACE_FIELD, "sort by this, ascending");
const SPACE_DOWN: Flag = arg('S', "field", SPACE_FIELD, "sort by this, descending");
const SPACE_TYPES: Flag = arg(
    't',
    "type[,...]",
    Word::Some(&["posixuser", "smbuser", "posixgroup", "smbgroup", "all"]),
    "accounts of these types",
);
const DEPTH: Flag = arg('d', "max", Word::Any, "as many levels below those named");

pub(super) const COMMANDS: &[Command] = &[
    Command {
        name: "create",
        about: "make a file system or a volume",
        synopsis: "create [-Pnpuv] [-o property=value] ... <filesystem>\n\tcreate [-Pnpsv] [-b \
                   blocksize] [-o property=value] ... -V <size> <volume>",
        flags: &[
            flag('P', "say what is made in a form for scripts"),
            flag('n', "only check; with -v, say what would be made"),
            flag('p', "the file systems above it, too, where they are missing"),
            flag('u', "do not mount it"),
            flag('v', "say what is made"),
            flag('s', "a volume without a reservation"),
            arg('V', "size", Word::Any, "a volume of this size"),
            arg('b', "blocksize", Word::Any, "the size of a volume's blocks"),
            arg('o', "property=value", Word::DatasetAssign, "a property"),
        ],
        words: &[Word::Dataset],
        ..ZFS
    },
    Command {
        name: "destroy",
        about: "destroy datasets or snapshots",
        synopsis: "destroy [-fnpRrv] <filesystem|volume>\n\tdestroy [-dnpRrv] \
                   <filesystem|volume>@<snap>[%<snap>][,...]\n\tdestroy \
                   <filesystem|volume>#<bookmark>",
        flags: &[
            flag('v', "say what is destroyed"),
            flag('p', "say it in a form for scripts"),
            flag('n', "only say what would be destroyed, with -v or -p"),
            flag('d', "snapshots that are in use are destroyed later"),
            flag('f', "unmount even what is busy"),
            flag('r', "with everything below; a snapshot of all descendants"),
            flag('R', "with everything that depends on it, clones included"),
        ],
        words: &[Word::DatasetOrSnapshot],
        ..ZFS
    },
    Command {
        name: "snapshot",
        aliases: &["snap"],
        about: "take snapshots",
        synopsis: "snapshot [-r] [-o property=value] ... <filesystem|volume>@<snap> ...",
        flags: &[
            flag('r', "of all descendants, too, at the same moment"),
            arg('o', "property=value", Word::DatasetAssign, "a property"),
        ],
        words: &[Word::Dataset],
        ..ZFS
    },
    Command {
        name: "clone",
        about: "make a file system or volume from a snapshot",
        synopsis: "clone [-pu] [-o property=value] ... <snapshot> <filesystem|volume>",
        flags: &[
            flag('p', "the file systems above it, too, where they are missing"),
            flag('u', "do not mount it"),
            arg('o', "property=value", Word::DatasetAssign, "a property"),
        ],
        words: &[Word::DatasetOrSnapshot, Word::Dataset],
        ..ZFS
    },
    Command {
        name: "promote",
        about: "make a clone independent of the dataset that it was cloned from",
        synopsis: "promote <clone-filesystem>",
        words: &[Word::Dataset],
        ..ZFS
    },
    Command {
        name: "rollback",
        about: "return a dataset to a snapshot",
        synopsis: "rollback [-rRf] <snapshot>",
        flags: &[
            flag('r', "destroy newer snapshots and bookmarks"),
            flag('R', "destroy newer snapshots and bookmarks, and clones of them"),
            flag('f', "unmount even what is busy"),
        ],
        words: &[Word::DatasetOrSnapshot],
        ..ZFS
    },
    Command {
        name: "rename",
        about: "rename a dataset or snapshot",
        synopsis: "rename [-f] <filesystem|volume|snapshot> <filesystem|volume|snapshot>\n\trename \
                   -p [-f] <filesystem|volume> <filesystem|volume>\n\trename -u [-f] \
                   <filesystem> <filesystem>\n\trename -r <snapshot> <snapshot>",
        flags: &[
            flag('f', "unmount even what is busy"),
            flag('p', "the file systems above the new name, too, where they are missing"),
            flag('u', "leave the mounts where they are"),
            flag('r', "the snapshots of the same name of all descendants, too"),
        ],
        words: &[Word::DatasetOrSnapshot, Word::DatasetOrSnapshot],
        ..ZFS
    },
    Command {
        name: "bookmark",
        about: "remember a snapshot without keeping its blocks",
        synopsis: "bookmark <snapshot|bookmark> <newbookmark>",
        words: &[Word::DatasetOrSnapshot, Word::Dataset],
        ..ZFS
    },
    Command {
        name: "redact",
        about: "remember which blocks of a snapshot other snapshots have changed",
        synopsis: "redact <snapshot> <bookmark> <redaction_snapshot> ...",
        words: &[Word::DatasetOrSnapshot, Word::Any, Word::DatasetOrSnapshot],
        ..ZFS
    },
    Command {
        name: "hold",
        about: "keep snapshots from being destroyed",
        synopsis: "hold [-r] <tag> <snapshot> ...",
        flags: &[flag('r', "the snapshots of the same name of all descendants, too")],
        words: &[Word::Any, Word::DatasetOrSnapshot],
        ..ZFS
    },
    Command {
        name: "holds",
        about: "show who holds snapshots",
        synopsis: "holds [-rHp] <snapshot> ...",
        flags: &[
            flag('r', "the snapshots of the same name of all descendants, too"),
            SCRIPTED,
            flag('p', "times as seconds since 1970"),
        ],
        words: &[Word::DatasetOrSnapshot],
        ..ZFS
    },
    Command {
        name: "release",
        about: "release snapshots that are held",
        synopsis: "release [-r] <tag> <snapshot> ...",
        flags: &[flag('r', "the snapshots of the same name of all descendants, too")],
        words: &[Word::Any, Word::DatasetOrSnapshot],
        ..ZFS
    },
    Command {
        name: "set",
        about: "set properties of datasets",
        synopsis: "set [-u] <property=value> ... <filesystem|volume|snapshot> ...",
        flags: &[flag('u', "leave the mounts as they are")],
        words: &[Word::DatasetAssign, Word::DatasetOrSnapshot],
        ..ZFS
    },
    Command {
        name: "inherit",
        about: "let datasets take a property from above again",
        synopsis: "inherit [-rS] <property> <filesystem|volume|snapshot> ...",
        flags: &[
            flag('r', "of all descendants, too"),
            flag('S', "back to what a stream brought, if one did"),
        ],
        words: &[Word::DatasetProps, Word::DatasetOrSnapshot],
        ..ZFS
    },
    Command {
        name: "list",
        about: "list datasets",
        synopsis: "list [-Hp] [-j [--json-int]] [-r|-d max] [-o property[,...]] [-s property]...\n\t    [-S \
                   property]... [-t type[,...]] [filesystem|volume|snapshot] ...",
        flags: &[
            SCRIPTED,
            EXACT,
            flag('r', "with all descendants"),
            DEPTH,
            arg('o', "property[,...]", Word::DatasetProps, "the columns"),
            arg('s', "property", Word::DatasetProps, "sort by this, ascending"),
            arg('S', "property", Word::DatasetProps, "sort by this, descending"),
            arg('t', "type[,...]", TYPES, "datasets of these types"),
            JSON,
            JSON_INT,
        ],
        words: &[Word::DatasetOrSnapshot],
        ..ZFS
    },
    Command {
        name: "get",
        about: "show properties of datasets",
        synopsis: "get [-rHp] [-j [--json-int]] [-d max] [-o \"all\" | field[,...]]\n\t    [-t type[,...]] [-s \
                   source[,...]]\n\t    <\"all\" | property[,...]> \
                   [filesystem|volume|snapshot|bookmark] ...",
        flags: &[
            flag('r', "of all descendants, too"),
            SCRIPTED,
            EXACT,
            DEPTH,
            arg('o', "field[,...]", FIELDS, "the columns"),
            arg('t', "type[,...]", TYPES, "datasets of these types"),
            arg('s', "source[,...]", SOURCES, "values from these sources"),
            JSON,
            JSON_INT,
        ],
        words: &[Word::DatasetProps, Word::DatasetOrSnapshot],
        ..ZFS
    },
    Command {
        name: "mount",
        about: "mount file systems, or show what is mounted",
        synopsis: "mount [-j]\n\tmount [-flvO] [-o opts] <-a|-R filesystem|filesystem>",
        flags: &[
            flag('a', "all that mount by themselves"),
            arg('R', "filesystem", Word::Dataset, "this one and all descendants"),
            arg(
                'o',
                "opts",
                Word::Some(&[
                    "ro",
                    "rw",
                    "noatime",
                    "relatime",
                    "strictatime",
                    "nodiratime",
                    "nosuid",
                    "nodev",
                    "noexec",
                    "direct_io",
                    "io_uring",
                    "keepawake",
                    "nokeepawake",
                ]),
                "options for this mount, with commas between",
            ),
            flag('O', "even over a directory that is not empty"),
            flag('f', "even a dataset that lacks what a redacted stream left out"),
            ignored('l'),
            ignored('v'),
            flag('j', "what is mounted, as JSON").or("json"),
        ],
        words: &[Word::Dataset],
        ..ZFS
    },
    Command {
        name: "unmount",
        aliases: &["umount"],
        about: "unmount file systems",
        synopsis: "unmount [-fu] <-a | filesystem|mountpoint>",
        flags: &[flag('a', "all that are mounted"), flag('f', "even what is busy"), ignored('u')],
        words: &[Word::Dataset],
        ..ZFS
    },
    Command {
        name: "rewrite",
        about: "write the blocks of files again with the current properties",
        synopsis: "rewrite [-CPSrvx] [-o offset] [-l length] <file|directory> ...",
        flags: &[
            flag('r', "the files below directories, too"),
            flag('x', "do not cross into other file systems"),
            flag('v', "print the path of each file that was rewritten"),
            flag('P', "keep the blocks' logical birth (feature physical_rewrite)"),
            flag('S', "skip blocks that a snapshot shares"),
            flag('C', "skip cloned blocks"),
            arg('o', "offset", Word::Any, "begin at this byte of each file"),
            arg('l', "length", Word::Any, "at most this many bytes of each file"),
        ],
        words: &[Word::File],
        ..ZFS
    },
    Command {
        name: "send",
        about: "write a snapshot as a stream to standard output",
        synopsis: "send [-DLPVbcehnpvw] [-i snapshot|bookmark] <filesystem|volume|snapshot>\n\t\
                   send [-DLPVbcehnpsvw] [-R [-X dataset[,dataset]...]] [-[i|I] snapshot] \
                   <snapshot>\n\tsend [-DLPVcehnpvw] [-i snapshot|bookmark] --redact <bookmark> \
                   <snapshot>\n\tsend [-PVenv] -t <token>\n\tsend [-DLPVcenv] -S \
                   <filesystem|volume>",
        flags: &[
            arg('i', "snapshot|bookmark", Word::DatasetOrSnapshot, "only what changed since then"),
            arg('I', "snapshot", Word::DatasetOrSnapshot, "also all snapshots since then"),
            flag('L', "blocks above 128 KiB are not split").or("large-block"),
            flag('e', "embedded blocks stay embedded").or("embed"),
            flag('c', "compressed blocks stay compressed").or("compressed"),
            flag('w', "encrypted blocks as they are stored, without the key; implies -c -e -L")
                .or("raw"),
            flag('n', "tell the size only").or("dryrun"),
            flag('v', "tell the size first, then what was sent, each second").or("verbose"),
            flag('P', "these figures for programs").or("parsable"),
            ignored('D').or("dedup"),
            flag('V', "the name of the process (ps -o comm) tells the share that was sent")
                .or("proctitle"),
            flag('R', "also all datasets below, with their snapshots and properties")
                .or("replicate"),
            flag('p', "also the properties").or("props"),
            flag('b', "of properties, those that were received").or("backup"),
            flag('h', "also the holds").or("holds"),
            flag('s', "leave out datasets that lack the snapshot").or("skip-missing"),
            arg('X', "dataset", Word::Dataset, "datasets to leave out, separated by commas")
                .or("exclude"),
            arg('t', "token", Word::Any, "go on where a receiver stopped").or("resume"),
            flag('S', "what an interrupted, resumable receive has left").or("saved"),
            arg('d', "bookmark", Word::Any, "without the blocks that a redaction bookmark lists")
                .or("redact"),
            flag('U', "sending an encrypted dataset's properties")
                .or("no-preserve-encryption")
                .refused(),
        ],
        words: &[Word::DatasetOrSnapshot],
        ..ZFS
    },
    Command {
        name: "allow",
        about: "let users other than root do things with datasets",
        synopsis: "allow <filesystem|volume>\n\tallow [-ldug] <\"everyone\"|user|group>[,...] \
                   <perm|@setname>[,...]\n\t    <filesystem|volume>\n\tallow [-ld] -e \
                   <perm|@setname>[,...] <filesystem|volume>\n\tallow -c <perm|@setname>[,...] \
                   <filesystem|volume>\n\tallow -s @setname <perm|@setname>[,...] \
                   <filesystem|volume>",
        flags: &[
            flag('l', "for the dataset itself alone"),
            flag('d', "for its descendants alone"),
            flag('u', "the first word names users"),
            flag('g', "the first word names groups"),
            flag('e', "all users"),
            flag('c', "those who create a dataset below, for that dataset"),
            flag('s', "define a set of permissions, or add to it"),
        ],
        words: &[Word::Any, Word::Any, Word::Dataset],
        ..ZFS
    },
    Command {
        name: "unallow",
        about: "take back what users other than root may do",
        synopsis: "unallow [-rldug] <\"everyone\"|user|group>[,...]\n\t    \
                   [<perm|@setname>[,...]] <filesystem|volume>\n\tunallow [-rld] -e \
                   [<perm|@setname>[,...]] <filesystem|volume>\n\tunallow [-r] -c \
                   [<perm|@setname>[,...]] <filesystem|volume>\n\tunallow [-r] -s @setname \
                   [<perm|@setname>[,...]] <filesystem|volume>",
        flags: &[
            flag('r', "at all descendants, too"),
            flag('l', "for the dataset itself alone"),
            flag('d', "for its descendants alone"),
            flag('u', "the first word names users"),
            flag('g', "the first word names groups"),
            flag('e', "what all users may do"),
            flag('c', "those who create a dataset below"),
            flag('s', "from a set of permissions"),
        ],
        words: &[Word::Any, Word::Any, Word::Dataset],
        ..ZFS
    },
    Command {
        name: "userspace",
        about: "show what each user has used, and their quotas",
        synopsis: "userspace [-Hinp] [-o field[,...]] [-s field] ...\n\t    [-S field] ... [-t \
                   type[,...]] <filesystem|snapshot|path>",
        flags: &[
            SCRIPTED,
            flag('n', "numbers instead of names"),
            EXACT,
            SPACE_FIELDS,
            SPACE_UP,
            SPACE_DOWN,
            SPACE_TYPES,
            ignored('i'),
        ],
        words: &[Word::DatasetOrSnapshot],
        ..ZFS
    },
    Command {
        name: "groupspace",
        about: "show what each group has used, and their quotas",
        synopsis: "groupspace [-Hinp] [-o field[,...]] [-s field] ...\n\t    [-S field] ... [-t \
                   type[,...]] <filesystem|snapshot|path>",
        flags: &[
            SCRIPTED,
            flag('n', "numbers instead of names"),
            EXACT,
            SPACE_FIELDS,
            SPACE_UP,
            SPACE_DOWN,
            SPACE_TYPES,
            ignored('i'),
        ],
        words: &[Word::DatasetOrSnapshot],
        ..ZFS
    },
    Command {
        name: "projectspace",
        about: "show what each project has used, and their quotas",
        synopsis: "projectspace [-Hp] [-o field[,...]] [-s field] ...\n\t    [-S field] ... \
                   <filesystem|snapshot|path>",
        flags: &[SCRIPTED, EXACT, SPACE_FIELDS, SPACE_UP, SPACE_DOWN],
        words: &[Word::DatasetOrSnapshot],
        ..ZFS
    },
    Command {
        name: "project",
        about: "show, check and set the projects of files",
        synopsis: "project [-d|-r] <file|directory> ...\n\tproject -C [-kr] <file|directory> \
                   ...\n\tproject -c [-0] [-d|-r] [-p id] <file|directory> ...\n\tproject [-p \
                   id] [-rs] <file|directory> ...",
        flags: &[
            flag('d', "directories themselves, not what is in them"),
            flag('r', "everything below directories, too"),
            flag('C', "clear the project and the flag by which files inherit it"),
            flag('k', "with -C, keep the project"),
            flag('c', "report what has another project, or lacks the flag"),
            flag('0', "with -c, names that end with NUL, and no words"),
            arg('p', "id", Word::Any, "the project to set, or to compare with"),
            flag('s', "set the flag by which new files inherit the project"),
        ],
        words: &[Word::File],
        ..ZFS
    },
    Command {
        name: "upgrade",
        about: "show and change the versions of file systems",
        synopsis: "upgrade [-v]\n\tupgrade [-r] [-V version] <-a | filesystem ...>",
        flags: &[
            flag('v', "the versions that are supported"),
            flag('a', "all file systems"),
            flag('r', "all descendants, too"),
            arg('V', "version", Word::Any, "to this version, not the newest"),
        ],
        words: &[Word::Dataset],
        ..ZFS
    },
    Command {
        name: "diff",
        about: "show what changed in a file system since a snapshot",
        synopsis: "diff [-FHth] <snapshot> [snapshot|filesystem]",
        flags: &[
            flag('F', "the types of files, as ls -F shows them"),
            flag('H', "fields separated by one TAB, without arrows"),
            flag('t', "the time of each file's last change"),
            flag('h', "names as they are, without escapes"),
        ],
        words: &[Word::DatasetOrSnapshot],
        ..ZFS
    },
    Command {
        name: "receive",
        aliases: &["recv"],
        about: "make a snapshot from a stream on standard input",
        synopsis: "receive [-FMhnsuv] [-o <property>=<value> | -x <property>] ... \
                   <filesystem|volume|snapshot>\n\treceive [-FMhnsuv] [-d|-e] [-o \
                   <property>=<value> | -x <property>] ...\n\t    <filesystem>\n\treceive -A \
                   <filesystem|volume>\n\treceive -c [-nv] <filesystem|snapshot>",
        flags: &[
            flag('F', "give up changes and snapshots since the one that the stream begins with"),
            flag('d', "the sender's name without its pool, below the file system"),
            flag('e', "the last part of the sender's name, below the file system"),
            flag('n', "only check; with -v, say what would be received"),
            flag('v', "say what is received, how much and how fast"),
            flag('u', "do not mount what is new"),
            arg(
                'o',
                "property=value",
                Word::DatasetAssign,
                "a property; origin=, a snapshot to clone",
            ),
            arg('x', "property", Word::DatasetProps, "inherit this property"),
            flag('s', "keep what came if the stream is cut off, to be resumed"),
            flag('A', "discard what an interrupted receive kept"),
            flag('M', "unmount even what is busy"),
            flag('h', "leave out the holds in the stream"),
            flag('c', "only repair damaged blocks of the snapshot from its stream")
                .or("corrective"),
        ],
        words: &[Word::DatasetOrSnapshot],
        ..ZFS
    },
    Command {
        name: "version",
        about: "show the version",
        synopsis: "version [-j]",
        flags: &[flag('j', "as JSON").or("json")],
        ..ZFS
    },
];
