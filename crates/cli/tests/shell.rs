//! What a shell sees: `zpool iostat` of a living pool, completions, the package, the units.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used, clippy::panic)]

mod common;

use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Sandbox, said};
use testkit::golden;

const PROGRAM: &str = env!("CARGO_BIN_EXE_cenote");

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Whether a program is installed.
fn there(tool: &str, what: &str) -> bool {
    testkit::has_program(testkit::Need::Programs, tool, what)
}

/// A pool `tank` of two mirrored files; nothing is mounted.
fn with_pool(name: &str) -> (Sandbox, [String; 2]) {
    let s = Sandbox::new(name);
    let disks = ["a.img", "b.img"].map(|n| s.text(n));
    for disk in &disks {
        std::fs::File::create(disk).unwrap().set_len(64 << 20).unwrap();
    }
    s.ok(&["zpool", "create", "-m", "none", "tank", "mirror", &disks[0], &disks[1]]);
    (s, disks)
}

/// The numbers behind the name in a line of `-Hp`.
fn numbers(line: &str) -> [u64; 6] {
    let cells = line.split('\t').skip(1).map(|n| n.parse().unwrap());
    cells.collect::<Vec<u64>>().try_into().unwrap()
}

#[test]
fn iostat_counts_what_devices_do() {
    let (s, disks) = with_pool("iostat");
    s.ok(&["zpool", "sync", "tank"]);
    let sizes = || {
        let list = s.ok(&["zpool", "list", "-Hp", "-o", "alloc,free", "tank"]);
        list.trim().split('\t').map(|n| n.parse().unwrap()).collect::<Vec<u64>>()
    };
    // Rates are means since the import, which was for each vdev a moment of its own: they
    // agree the better the longer it is ago. A txg may end between two commands.
    let near = |a: u64, b: u64| a.abs_diff(b) <= 2 + a.max(b) / 10;
    let agree = || {
        let before = sizes();
        let text = s.ok(&["zpool", "iostat", "-Hpv", "tank"]);
        let lines: Vec<&str> = text.lines().collect();
        let names: Vec<&str> = lines.iter().filter_map(|l| l.split('\t').next()).collect();
        assert_eq!(names, ["tank", "mirror-0", &disks[0], &disks[1]]);
        let [pool, mirror, a, b] = [0, 1, 2, 3].map(|i| numbers(lines[i]));
        assert!(pool[5] > pool[3] * 512, "the creation wrote: {pool:?}");
        assert_eq!((a[..2].to_vec(), b[..2].to_vec()), (vec![0; 2], vec![0; 2]));
        // Both sides of a mirror are written alike.
        before == sizes()
            && pool[..2] == before
            && pool.into_iter().zip(mirror).all(|(a, b)| near(a, b))
            && near(a[3], b[3])
            && near(pool[5], a[5] + b[5])
    };
    testkit::eventually("the counters of the pool and of its vdevs agree", agree);
    // Intervals in which nothing happens: at most one write in the time of the other.
    testkit::eventually("an idle pool writes nothing", || {
        let text = s.ok(&["zpool", "iostat", "-Hpy", "tank", "0.2", "2"]);
        assert_eq!(text.lines().count(), 2, "{text}");
        text.lines().all(|line| numbers(line)[3] < 50)
    });
    // Vdevs by name, in a table for people.
    let text = s.ok(&["zpool", "iostat", "tank", &disks[1]]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert!(lines[1].starts_with("vdev ") && lines[3].starts_with(&disks[1]));
    assert!(text.contains("     operations     bandwidth \n"));
    // Refusals.
    assert_eq!(
        s.fail(1, &["zpool", "iostat", "nope"]),
        "'nope' is neither a pool nor a vdev of one\nUnable to parse pools/vdevs list.\n"
    );
    assert_eq!(
        s.fail(1, &["zpool", "iostat", "-c", "x"]),
        "cannot run 'zpool iostat' with -c: running scripts is not supported by this version of Cenote\n"
    );
    assert!(s.fail(2, &["zpool", "iostat", "-z"]).starts_with("invalid option 'z'\nusage:\n"));
    assert_eq!(
        s.fail(2, &["zpool", "iostat", "0"]).lines().next(),
        Some("interval cannot be zero")
    );
    s.ok(&["zpool", "export", "tank"]);
    assert_eq!(s.fail(1, &["zpool", "iostat"]), "no pools available\n");
}

/// A disk whose data was overwritten: the counters of the running daemon name it, and
/// what was read of all of them is counted.
#[test]
fn counters_are_those_of_the_running_daemon() {
    let Some(pool) = golden("graidz1w3") else { return };
    let s = Sandbox::new("counters");
    let disks = pool.unpack(&s.dir("disks"));
    let bad = &disks[1];
    let file = std::fs::File::options().write(true).open(bad).unwrap();
    let data = vec![0x55; 16 << 20];
    file.write_all_at(&data, 4 << 20).unwrap();
    let (dir, root) = (s.text("disks"), s.text("alt"));
    let args = ["zpool", "import", "-N", "-f", "-o", "readonly=on", "-R", &root, "-d", &dir];
    s.ok(&[&args[..], &[&pool.name]].concat());
    s.ok(&["zfs", "get", "-r", "all", &pool.name]);
    let text = s.ok(&["zpool", "status", "-p", &pool.name, "0.1", "2"]);
    assert_eq!(text.matches("  pool: ").count(), 2, "{text}");
    assert!(text.contains("has experienced an unrecoverable error"), "{text}");
    let mut wrong = 0;
    for line in text.lines().filter(|l| l.contains(".img")) {
        let cells: Vec<&str> = line.split_whitespace().collect();
        let [read, write, cksum] = [2, 3, 4].map(|i: usize| cells[i].parse::<u64>().unwrap());
        let ours = cells[0] == bad.to_str().unwrap();
        assert_eq!((read, write, cksum > 0), (0, 0, ours), "{line}");
        wrong += u32::from(ours);
    }
    assert_eq!(wrong, 2, "{text}");
    let text = s.ok(&["zpool", "iostat", "-Hpv", &pool.name]);
    for line in text.lines() {
        let [.., reads, writes, nread, nwritten] = numbers(line);
        assert_eq!((writes, nwritten), (0, 0), "{line}");
        // Since the import, per second: fast machines show more than slow ones.
        assert!(nread >= reads * 512, "{line}");
    }
    let all: Vec<[u64; 6]> = text.lines().map(numbers).collect();
    assert!(all[0][4] > 0 && all[0][2] >= all[2][2], "{text}");
}

/// The names of the sandbox's tools in a directory for PATH.
fn linked(s: &Sandbox) -> String {
    let dir = s.dir("bin");
    // A link's target is called cenote, as the scripts want it.
    for name in ["cenote", "zpool", "zfs", "arcstat"] {
        symlink(PROGRAM, dir.join(name)).unwrap();
    }
    format!("{}:{}", dir.display(), std::env::var("PATH").unwrap())
}

fn shell(s: &Sandbox, program: &str, path: &str, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(args).env("PATH", path).env("CENOTE_RUNTIME_DIR", s.path("run"));
    command.env("HOME", s.path("home")).env("XDG_CONFIG_HOME", s.path("home"));
    command.output().unwrap()
}

/// What bash proposes at the end of a line.
const BASH: &str = r#"
source <(cenote completion bash)
COMP_LINE=$1 COMP_POINT=${#1}
_cenote
printf '%s\n' "${COMPREPLY[@]}"
"#;

#[test]
fn shells_complete_commands_options_and_names() {
    let (s, disks) = with_pool("complete");
    s.ok(&["zfs", "create", "-u", "tank/home"]);
    s.ok(&["zfs", "snapshot", "tank/home@monday"]);
    let path = linked(&s);
    let wanted: &[(&str, &[&str])] = &[
        ("cenote zpool io", &["iostat"]),
        ("zpool imp", &["import"]),
        ("zfs snap", &["snapshot", "snap"]),
        ("zpool status t", &["tank"]),
        ("cenote zpool status -v ", &["tank"]),
        ("zfs list tank/", &["tank/home"]),
        ("zpool list --j", &["--json", "--json-int", "--json-pool-key-guid"]),
        ("zpool scrub --j", &[]),
        ("zpool import --", &["--rebuild-space", "--rewind-to-checkpoint"]),
        ("zpool add --allow-in", &["--allow-in-use"]),
        ("zpool list -o alloc", &["allocated"]),
        ("zpool list -T ", &["u", "d"]),
        ("zpool wait -Ht scrub,tr", &["scrub,trim"]),
        ("cenote completion ba", &["bash"]),
        ("arcstat --pa", &["--path"]),
    ];
    if there("bash", "completion") {
        for (line, names) in wanted {
            let said = said(&shell(&s, "bash", &path, &["-c", BASH, "bash", line]));
            let found: Vec<&str> = said.out.lines().filter(|l| !l.is_empty()).collect();
            assert_eq!((found, said.err.as_str()), (names.to_vec(), ""), "bash: {line}");
        }
        // Bash splits at these, and wants what stands behind them.
        for (line, reply) in [
            ("zfs destroy tank/home@mon", "monday\n"),
            ("zfs set compressi", "compression=\n"),
            (&format!("zpool iostat tank {}", &disks[0][..disks[0].len() - 4]), &disks[0]),
        ] {
            let said = said(&shell(&s, "bash", &path, &["-c", BASH, "bash", line]));
            assert_eq!(said.out.trim_end(), reply.trim_end(), "bash: {line}");
        }
    }
    if there("fish", "completion") {
        for (line, names) in wanted {
            let script = format!("cenote completion fish | source; complete -C'{line}'");
            let said = said(&shell(&s, "fish", &path, &["--no-config", "-c", &script]));
            let mut found: Vec<&str> =
                said.out.lines().filter_map(|l| l.split('\t').next()).collect();
            let mut names = names.to_vec();
            found.sort_unstable();
            names.sort_unstable();
            assert_eq!((found, said.err.as_str()), (names, ""), "fish: {line}");
        }
    }
    if there("zsh", "completion") {
        let script = "autoload -U compinit && compinit -D && source <(cenote completion zsh) && \
                      print -l $_comps[cenote] $_comps[zpool] $_comps[arcstat]";
        let said = said(&shell(&s, "zsh", &path, &["-f", "-c", script]));
        assert_eq!((said.out.as_str(), said.err.as_str()), ("_cenote\n_cenote\n_cenote\n", ""));
    }
    assert_eq!(s.fail(1, &["zpool", "help", "nope"]), "there is no command 'zpool nope'\n");
    assert_eq!(s.fail(2, &["completion", "csh"]), "usage:\n\tcompletion bash|zsh|fish\n");
}

#[test]
fn the_package_installs_beside_openzfs() {
    if !there("dpkg-deb", "the Debian package") {
        return;
    }
    let s = Sandbox::new("package");
    let out = s.dir("out");
    let made = Command::new(repository().join("scripts/make-deb.sh"))
        .args([PROGRAM, out.to_str().unwrap()])
        .env("CENOTE_DEB_COMPRESSION", "none")
        .output()
        .unwrap();
    let made = said(&made);
    assert_eq!(made.code, 0, "{}", made.err);
    let package = PathBuf::from(made.out.trim());
    let name = package.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with(&format!("cenote_{}_", env!("CARGO_PKG_VERSION"))), "{name}");
    let (root, control) = (s.path("root"), s.path("control"));
    for (action, to) in [("-x", &root), ("-e", &control)] {
        let done = Command::new("dpkg-deb").arg(action).arg(&package).arg(to).status().unwrap();
        assert!(done.success());
    }
    // The program, and the tools by their names.
    let run = |path: &str, args: &[&str]| {
        said(&Command::new(root.join(path)).args(args).env("TZ", "UTC").output().unwrap())
    };
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(run("usr/bin/cenote", &["--version"]).out, format!("cenote {version}\n"));
    for tool in ["zpool", "zfs"] {
        let said = run(&format!("usr/lib/cenote/bin/{tool}"), &["version"]);
        assert!(said.out.starts_with(&format!("zfs-cenote-{version}\n")), "{tool}: {}", said.out);
    }
    for tool in ["arcstat", "zarcstat", "arc_summary", "zarcsummary", "arcstat.pl"] {
        let said = run(&format!("usr/lib/cenote/bin/{tool}"), &["-h"]);
        assert!(said.code == 0 && said.out.starts_with("usage:"), "{tool}: {}", said.out);
    }
    assert!(run("usr/lib/cenote/bin/zdb", &["-?"]).err.starts_with("Usage:\tzdb "));
    // Nothing lies where OpenZFS's packages have their files.
    let mut files = Vec::new();
    walk(&root, &root, &mut files);
    for file in &files {
        let own = file.starts_with("usr/lib/cenote/") || file.contains("cenote");
        assert!(own, "{file} may be another package's");
    }
    for file in [
        "usr/share/man/man1/cenote.1.gz",
        "usr/share/man/man8/cenote-daemon.8.gz",
        "usr/lib/cenote/share/man/man8/zpool-iostat.8.gz",
        "usr/share/bash-completion/completions/cenote",
        "usr/lib/cenote/share/bash-completion/completions/zpool",
        "usr/share/zsh/vendor-completions/_cenote",
        "usr/share/fish/vendor_completions.d/cenote.fish",
        "usr/lib/systemd/system/cenote.service",
        "usr/share/doc/cenote/copyright",
        "etc/default/cenote",
    ] {
        assert!(files.iter().any(|f| f == file), "{file} is missing");
    }
    // The sums are right.
    let sums = Command::new("md5sum")
        .args(["--quiet", "-c"])
        .arg(control.join("md5sums"))
        .current_dir(&root)
        .output()
        .unwrap();
    assert!(sums.status.success(), "{}", String::from_utf8_lossy(&sums.stdout));
    assert_eq!(
        std::fs::read_to_string(control.join("conffiles")).unwrap(),
        "/etc/default/cenote\n"
    );
}

fn walk(root: &Path, dir: &Path, to: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            walk(root, &path, to);
        } else {
            to.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
        }
    }
}

#[test]
fn units_are_sound() {
    if !there("systemd-analyze", "the units") {
        return;
    }
    let s = Sandbox::new("units");
    let dir = s.dir("units");
    let mut units = Vec::new();
    for entry in std::fs::read_dir(repository().join("dist/systemd")).unwrap() {
        let from = entry.unwrap().path();
        let text = std::fs::read_to_string(&from).unwrap();
        // Pages and programs are looked for where they would be installed.
        let text = text.replace("/usr/bin/cenote", PROGRAM);
        let text: Vec<&str> = text.lines().filter(|l| !l.starts_with("Documentation=")).collect();
        let to = dir.join(from.file_name().unwrap());
        std::fs::write(&to, text.join("\n") + "\n").unwrap();
        units.push(to);
    }
    assert_eq!(units.len(), 2);
    let checked = Command::new("systemd-analyze").arg("verify").args(&units).output().unwrap();
    let said = said(&checked);
    // Other units of the machine are not ours to judge.
    let ours: Vec<&str> = said.err.lines().filter(|l| l.contains("cenote")).collect();
    assert_eq!(ours, Vec::<&str>::new(), "{}", said.err);
}
