//! The commands that other programs run (chapter 09 §10), as they write them, with what they
//! read from the answers; and the checklist of §11, whose table is printed.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Stdio;

use common::{Said, Sandbox, can_mount, said};

/// A sandbox with the commands on lines.
struct ToolCommands(Sandbox);

impl ToolCommands {
    /// A pool `tank` on a file, mounted below the sandbox.
    fn new(name: &str) -> ToolCommands {
        let c = ToolCommands(Sandbox::new(name));
        let disk = c.0.path("disk");
        std::fs::File::create(&disk).unwrap().set_len(400 << 20).unwrap();
        let root = c.0.text("mnt");
        c.ok(&format!("zpool create -f -O mountpoint={root} tank {}", disk.display()));
        c
    }

    fn say(&self, line: &str) -> Said {
        let words: Vec<&str> = line.split_whitespace().collect();
        self.0.say(&words)
    }

    fn ok(&self, line: &str) -> String {
        let said = self.say(line);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{line}");
        said.out
    }

    /// It fails with 1, as programs expect of what is absent, and says so.
    fn absent(&self, line: &str) {
        let said = self.say(line);
        assert_eq!(said.code, 1, "{line}: {said:?}");
        assert!(said.err.contains("dataset does not exist"), "{line}: {said:?}");
    }

    /// The bytes of a stream.
    fn sent(&self, line: &str) -> Vec<u8> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let out = self.0.run(&words);
        assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    }

    /// A command at the end of a pipe.
    fn fed(&self, line: &str, input: &[u8]) -> Said {
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut command = self.0.command(&words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        let _refused = pipe.write_all(input);
        drop(pipe);
        said(&child.wait_with_output().unwrap())
    }

    fn received(&self, line: &str, input: &[u8]) -> Said {
        let said = self.fed(line, input);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{line}");
        said
    }

    fn end(&self) {
        self.ok("zpool destroy tank");
        self.0.stop();
    }
}

fn fields(line: &str) -> Vec<&str> {
    line.trim_end_matches('\n').split('\t').collect()
}

#[test]
fn sanoid_makes_and_prunes_snapshots() {
    if !can_mount("commands of other programs") {
        return;
    }
    let c = ToolCommands::new("clients-sanoid");
    c.ok("zfs create tank/data");
    c.ok("zfs create tank/data/deep");
    let list = c.ok("zfs list -o name -t filesystem,volume -Hr tank/data");
    assert_eq!(list, "tank/data\ntank/data/deep\n");
    for hour in 0..5 {
        c.ok(&format!("zfs snapshot -r tank/data@autosnap_2026-01-0{hour}_00:00:00_hourly"));
        c.ok(&format!("zfs snapshot tank/data@autosnap_2026-01-0{hour}_00:00:01_daily"));
    }
    // Snapshot, property, seconds.
    let snaps = c.ok("zfs get -Hrpt snapshot creation tank/data");
    let mut seen = BTreeMap::new();
    for line in snaps.lines() {
        let [name, "creation", seconds, "-"] = fields(line)[..] else { panic!("{line}") };
        assert!(name.ends_with("ly") && seconds.parse::<u64>().unwrap() > 1_700_000_000);
        seen.insert(name.to_owned(), ());
    }
    assert_eq!(seen.len(), 15, "{snaps}");
    for name in seen.keys().filter(|name| !name.contains("-04_")) {
        c.ok(&format!("zfs destroy {name}"));
    }
    assert_eq!(c.ok("zfs list -Hrt snapshot -o name tank").lines().count(), 3);
    let table = c.ok("zpool list -o name,size,cap,health,free tank");
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((row.len(), row[0], row[3]), (5, "tank", "ONLINE"), "{table}");
    let cap = c.ok("zpool list -H -o cap tank");
    assert!(cap.trim_end().strip_suffix('%').unwrap().parse::<u8>().unwrap() < 100);
    let status = c.ok("zpool status tank");
    let mut lines = status.lines().skip_while(|line| !line.starts_with("\tNAME"));
    let header: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(header, ["NAME", "STATE", "READ", "WRITE", "CKSUM"]);
    assert!(lines.next().unwrap().starts_with("\ttank"), "{status}");
    assert!(!status.contains("scan:"), "a pool that was never scanned: {status}");
    c.end();
}

#[test]
fn dockers_driver_keeps_layers() {
    if !can_mount("commands of other programs") {
        return;
    }
    const COLUMNS: &str = "name,origin,used,available,mountpoint,compression,type,volsize,quota,\
                           referenced,written,logicalused,usedbydataset";
    let c = ToolCommands::new("clients-docker");
    let list = |args: &str| c.ok(&format!("zfs list {args}").replace("COLUMNS", COLUMNS));
    c.ok("zfs create -p -o mountpoint=legacy tank/docker/base");
    c.ok("zfs create -p -V 32M tank/docker/volumes/one");
    c.ok("zfs snapshot tank/docker/base@layer1");
    c.ok("zfs clone -p -o mountpoint=legacy tank/docker/base@layer1 tank/docker/layer1");
    c.ok("zfs snapshot -r tank/docker/layer1@layer2");
    c.ok("zfs clone -p -o mountpoint=legacy tank/docker/layer1@layer2 tank/docker/containers/one");
    c.ok("zfs set quota=16M tank/docker/containers/one");
    let row = list("-Hp -o COLUMNS tank/docker/containers/one");
    let row = fields(&row);
    assert_eq!(row.len(), 13);
    assert_eq!((row[1], row[4], row[6]), ("tank/docker/layer1@layer2", "legacy", "filesystem"));
    assert_eq!((row[7], row[8]), ("-", "16777216"));
    for (kind, count) in [("filesystem", 6), ("snapshot", 2), ("volume", 1)] {
        let all = list(&format!("-rHp -t {kind} -o COLUMNS tank/docker"));
        let all: Vec<_> = all.lines().filter(|line| fields(line).len() == 13).collect();
        assert_eq!(all.len(), count, "{kind}: {all:?}");
    }
    assert_eq!(list("-Hp -d 1 -t all -o COLUMNS tank/docker").lines().count(), 5);
    c.absent("zfs list -Hp -o name tank/docker/none");
    // Four fields a line.
    let pool = c.ok("zpool get -Hp name,health,allocated,size,free,readonly,dedupratio,\
                     fragmentation,freeing,leaked tank");
    assert!(pool.lines().all(|line| fields(line).len() == 4), "{pool}");
    assert_eq!(pool.lines().count(), 10);
    assert_eq!(c.ok("zpool list -Ho name"), "tank\n");
    // Options behind the operands.
    c.ok("zfs rename tank/docker/layer1 tank/docker/below/layer1 -p");
    c.ok("zfs rename tank/docker/below/layer1@layer2 tank/docker/below/layer1@two");
    let origin = c.ok("zfs get -H origin tank/docker/containers/one");
    assert_eq!(fields(&origin)[2], "tank/docker/below/layer1@two");
    c.ok("zfs rollback -r tank/docker/below/layer1@two");
    let refused = c.say("zfs destroy tank/docker/below/layer1");
    assert_eq!(refused.code, 1);
    c.ok("zfs destroy -R tank/docker/below/layer1");
    c.absent("zfs list tank/docker/containers/one");
    c.ok("zfs destroy -r -f tank/docker");
    c.end();
}

#[test]
fn incus_keeps_instances_and_images() {
    if !can_mount("commands of other programs") {
        return;
    }
    let c = ToolCommands::new("clients-incus");
    assert_eq!(c.ok("zfs get -H -o name name tank"), "tank\n");
    c.absent("zfs get -H -o name name tank/images");
    for dir in ["images", "containers", "virtual-machines", "deleted", "deleted/images"] {
        c.ok(&format!("zfs create -o mountpoint=none -o canmount=noauto tank/{dir}"));
    }
    c.ok("zfs create -o mountpoint=legacy tank/images/debian");
    c.ok("zfs create -s -V 64M tank/images/debian.block");
    c.ok("zfs set incus:content_type=block tank/images/debian.block");
    c.ok("zfs snapshot -r tank/images/debian@readonly");
    c.ok("zfs snapshot tank/images/debian.block@readonly");
    c.ok("zfs clone -o mountpoint=legacy tank/images/debian@readonly tank/containers/c1");
    c.ok("zfs clone tank/images/debian.block@readonly tank/virtual-machines/v1");
    c.ok("zfs set atime=off setuid=on tank/containers/c1");
    assert_eq!(c.ok("zfs get -H -p -o value atime tank/containers/c1"), "off\n");
    let two = c.ok("zfs get -H -p -o property,value volsize,volmode tank/virtual-machines/v1");
    assert_eq!(two, "volsize\t67108864\nvolmode\tdefault\n");
    let clones = c.ok("zfs get -H -p -r -o value clones tank/images/debian@readonly");
    assert_eq!(clones, "tank/containers/c1\n");
    let names = c.ok("zfs get -H -r -o name -t filesystem name tank/containers");
    assert_eq!(names, "tank/containers\ntank/containers/c1\n");
    assert_eq!(c.ok("zfs list -H -r -o name -t volume tank").lines().count(), 2);
    let all = c.ok("zfs list -H -o name,type,incus:content_type -r -t filesystem,volume tank");
    let block = all.lines().find(|line| line.starts_with("tank/images/debian.block"));
    assert_eq!(fields(block.unwrap()), ["tank/images/debian.block", "volume", "block"]);
    let other = all.lines().find(|line| line.starts_with("tank/containers/c1"));
    assert_eq!(fields(other.unwrap()), ["tank/containers/c1", "filesystem", "-"]);
    c.ok("zfs snapshot -r tank/containers/c1@snapshot-a");
    c.ok("zfs rollback tank/containers/c1@snapshot-a");
    // An image in use is kept aside.
    c.ok("zfs rename tank/images/debian tank/deleted/images/debian");
    c.ok("zfs destroy -r tank/containers/c1");
    c.ok("zfs destroy -r tank/deleted/images/debian");
    c.ok("zfs destroy -r tank/virtual-machines/v1");
    c.ok("zfs set volsize=128M tank/images/debian.block");
    c.ok("zpool set autotrim=on tank");
    let disk = c.0.text("disk");
    c.ok(&format!("zpool online -e tank {disk}"));
    c.ok("zpool export tank");
    let dir = disk.rsplit_once('/').unwrap().0.to_owned();
    c.ok(&format!("zpool import -f -d {dir} tank"));
    c.end();
}

#[test]
fn programs_of_the_boot_ask_for_root() {
    if !can_mount("commands of other programs") {
        return;
    }
    let c = ToolCommands::new("clients-boot");
    c.ok("zfs create -o canmount=noauto tank/root");
    c.ok("zpool set bootfs=tank/root tank");
    assert_eq!(c.ok("zpool list -H -o bootfs tank"), "tank/root\n");
    assert_eq!(c.ok("zpool get -Ho value bootfs"), "tank/root\n");
    // Raw streams need it; no dataset of this pool is encrypted.
    assert_eq!(c.ok("zpool get -Ho value feature@encryption tank"), "enabled\n");
    assert!(c.ok("zpool list -v -H -P tank").lines().nth(1).unwrap().starts_with('\t'));
    let name = c.ok("zpool get -H -o name,value name,guid tank");
    assert!(name.starts_with("tank\ttank\n"), "{name}");
    for (what, value) in [("encryptionroot", "-"), ("keystatus", "-"), ("keylocation", "none")] {
        assert_eq!(c.ok(&format!("zfs get -Ho value {what} tank/root")), format!("{value}\n"));
    }
    let list = c.ok("zfs list -t filesystem -Ho name,mountpoint,canmount -r tank");
    assert_eq!(fields(list.lines().nth(1).unwrap())[2], "noauto");
    c.ok("zfs create -V 16M tank/swap");
    let wait = "zfs list -t volume -H -o name,volmode,receive_resume_token,redact_snaps,keystatus";
    assert_eq!(fields(&c.ok(wait)), ["tank/swap", "default", "-", "-", "-"]);
    c.ok("zfs mount -a");
    c.end();
}

#[test]
fn ansible_and_autobackup_ask_for_everything() {
    if !can_mount("commands of other programs") {
        return;
    }
    let c = ToolCommands::new("clients-ansible");
    c.ok("zfs create -p tank/a/b");
    c.ok("zfs set autobackup:daily=child tank/a");
    let all = c.ok("zfs get -H -p -o property,value,source all tank/a");
    assert!(all.lines().all(|line| fields(line).len() == 3), "{all}");
    for (props, command) in [("version", "zpool get version tank"), ("tank", "zpool list tank")] {
        assert!(c.ok(command).contains(props));
    }
    let marked = c.ok("zfs get -t volume,filesystem -o name,value,source -H autobackup:daily");
    let marked: Vec<_> = marked.lines().map(fields).collect();
    assert_eq!(marked[1], ["tank/a", "child", "local"]);
    assert_eq!(marked[2], ["tank/a/b", "child", "inherited from tank/a"]);
    assert_eq!(marked[0], ["tank", "-", "-"]);
    // An option that is not known ends with 2, one that is known with 1.
    for option in ["-L", "-e", "-c"] {
        let said = c.say(&format!("zfs send {option} zfs_autobackup_option_test"));
        assert_eq!(said.code, 1, "{option}: {said:?}");
    }
    assert_eq!(c.say("zfs send --no-such-option tank/a@s").code, 2);
    c.ok("zfs snapshot -o com.example:by=backup tank/a@one tank/a/b@one");
    assert_eq!(c.ok("zfs list -d 1 -r -t snapshot -H -o name tank/a"), "tank/a@one\n");
    std::fs::write(c.0.path("mnt/a/file"), vec![1; 100_000]).unwrap();
    c.ok("zpool sync tank");
    let written = c.ok("zfs get -H -ovalue -p written@one tank/a");
    assert!(written.trim_end().parse::<u64>().unwrap() > 0);
    c.ok("zfs hold zfs_autobackup:daily tank/a@one");
    let holds = c.ok("zfs holds -H tank/a@one");
    assert_eq!(fields(&holds)[..2], ["tank/a@one", "zfs_autobackup:daily"]);
    assert_eq!(c.say("zfs hold zfs_autobackup:daily tank/a@one").code, 1);
    c.ok("zfs release zfs_autobackup:daily tank/a@one");
    assert_eq!(c.say("zfs release zfs_autobackup:daily tank/a@one").code, 1);
    c.ok("zfs inherit -r autobackup:daily tank/a");
    assert_eq!(c.ok("zfs get -H -o value autobackup:daily tank/a/b"), "-\n");
    let said = c.say("zfs mount tank/a");
    assert_eq!((said.code, said.err.contains("already mounted")), (1, true), "{said:?}");
    c.ok("zfs destroy -d tank/a@one");
    c.ok("zfs destroy -R tank/a");
    c.end();
}

/// Bytes that do not compress, so that a stream has many records.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = testkit::Rng::new(seed);
    (0..len.div_ceil(8)).flat_map(|_| rng.number().to_le_bytes()).take(len).collect()
}

/// syncoid 2: the first replication, one that is cut off and resumed, and the next one.
#[test]
fn syncoid_replicates_and_resumes() {
    if !can_mount("commands of other programs") {
        return;
    }
    let c = ToolCommands::new("clients-syncoid");
    c.ok("zfs create tank/src");
    c.ok("zfs create tank/backup");
    std::fs::write(c.0.path("mnt/src/one"), noise(1, 3 << 20)).unwrap();
    assert!(c.ok("zfs get -H name tank/src").starts_with("tank/src\t"));
    c.absent("zfs get -H name tank/backup/src");
    assert_eq!(fields(&c.ok("zfs get -H syncoid:sync tank/src"))[2], "-");
    let feature = c.ok("zpool get -o value -H feature@extensible_dataset tank");
    assert!(matches!(feature.trim_end(), "enabled" | "active"), "{feature}");
    let names = c.ok("zfs list -o name,origin -t filesystem,volume -Hr tank/src");
    assert_eq!(names, "tank/src\t-\n");
    // The last line of the estimate has the size.
    let size = |line: &str| {
        let text = c.ok(line);
        let last = text.lines().last().unwrap().to_owned();
        last.strip_prefix("size\t").unwrap().parse::<usize>().unwrap()
    };
    c.ok("zfs snapshot tank/src@syncoid_one");
    let due = size("zfs send -nvP tank/src@syncoid_one");
    let full = c.sent("zfs send tank/src@syncoid_one");
    assert_eq!(due, full.len());
    // The pipe breaks; what came stays.
    let said = c.fed("zfs receive -s -F tank/backup/src", &full[..due / 2]);
    assert_eq!(said.code, 1, "{said:?}");
    let said = c.fed("zfs receive -s -F tank/backup/src", &full);
    assert_eq!(said.code, 1);
    assert!(said.err.contains("contains partially-complete state"), "{said:?}");
    let token = c.ok("zfs get -H receive_resume_token tank/backup/src");
    let token = fields(&token)[2].to_owned();
    assert!(token.starts_with("1-"), "{token}");
    let due = size(&format!("zfs send -nvP -t {token}"));
    let rest = c.sent(&format!("zfs send -t {token}"));
    assert_eq!(due, rest.len());
    assert!(rest.len() < full.len());
    c.received("zfs receive -s -F tank/backup/src", &rest);
    assert_eq!(fields(&c.ok("zfs get -H receive_resume_token tank/backup/src"))[2], "-");
    let guids = |fs: &str| {
        let list = c.ok(&format!("zfs get -Hpd 1 -t snapshot guid,creation {fs}"));
        let short = |line: &str| {
            let of = fields(line);
            format!("{} {} {}", of[0].split('@').nth(1).unwrap(), of[1], of[2])
        };
        list.lines().map(short).collect::<Vec<_>>()
    };
    assert_eq!(guids("tank/src"), guids("tank/backup/src"));
    assert_eq!(guids("tank/src").len(), 2);
    // The next time: everything since the newest common snapshot.
    std::fs::write(c.0.path("mnt/src/two"), noise(2, 100_000)).unwrap();
    c.ok("zfs snapshot tank/src@autosnap_between");
    c.ok("zfs snapshot tank/src@syncoid_two");
    let range = "-I tank/src@syncoid_one tank/src@syncoid_two";
    let due = size(&format!("zfs send -nvP {range}"));
    let next = c.sent(&format!("zfs send {range}"));
    assert!(due > 100_000 && due < next.len(), "{due} of {}", next.len());
    c.ok("zfs set syncoid:note=x tank/backup/src");
    // A receive with -F discards what was written to the copy.
    std::fs::write(c.0.path("mnt/backup/src/mine"), b"x").unwrap();
    c.received("zfs receive -s -F tank/backup/src", &next);
    assert_eq!(guids("tank/src"), guids("tank/backup/src"));
    let copy = std::fs::read(c.0.path("mnt/backup/src/two")).unwrap();
    assert!(copy == noise(2, 100_000) && !c.0.path("mnt/backup/src/mine").exists());
    // From a bookmark, when the snapshot is gone.
    c.ok("zfs bookmark tank/src@syncoid_two tank/src#syncoid_two");
    c.ok("zfs destroy tank/src@syncoid_one");
    c.ok("zfs destroy tank/src@syncoid_two");
    let marks = c.ok("zfs get -Hpd 1 -t bookmark guid,creation tank/src");
    assert_eq!(marks.lines().count(), 2, "{marks}");
    c.ok("zfs snapshot tank/src@syncoid_three");
    let last = c.sent("zfs send -i tank/src#syncoid_two tank/src@syncoid_three");
    let said = c.fed("zfs receive -s -F tank/backup/src", &last[..last.len() - 10]);
    assert_eq!(said.code, 1, "{said:?}");
    // Given up, and begun again.
    c.ok("zfs receive -A tank/backup/src");
    let again = c.say("zfs receive -A tank/backup/src");
    assert_eq!(again.code, 1);
    c.received("zfs receive -s -F tank/backup/src", &last);
    // The source of a token can be gone.
    let said = c.fed("zfs receive -s tank/backup/other", &full[..full.len() / 2]);
    assert_eq!(said.code, 1);
    let token = c.ok("zfs get -H receive_resume_token tank/backup/other");
    let said = c.say(&format!("zfs send -nvP -t {}", fields(&token)[2]));
    assert_eq!(said.code, 1);
    assert!(said.err.contains("used in the initial send no longer exists"), "{said:?}");
    c.ok("zfs destroy -r tank/backup/other");
    c.end();
}

/// zfs-autobackup 3: probes, a stream with properties into a tree that is not mounted, and a
/// resumed one.
#[test]
fn autobackup_sends_and_resumes() {
    if !can_mount("commands of other programs") {
        return;
    }
    let c = ToolCommands::new("clients-autobackup");
    c.ok("zfs create -p tank/data/fs");
    c.ok("zfs create tank/target");
    c.ok("zfs set autobackup:test=true tank/data/fs");
    c.ok("zfs set compression=zstd tank/data/fs");
    std::fs::write(c.0.path("mnt/data/fs/file"), noise(3, 2 << 20)).unwrap();
    assert_eq!(c.say("zfs recv -s zfs_autobackup_option_test").code, 1);
    c.ok("zfs snapshot -o com.example:by=backup tank/data/fs@test-1");
    c.ok("zfs hold zfs_autobackup:test tank/data/fs@test-1");
    c.ok("zfs create -o canmount=off -p tank/target/tank/data");
    let full = c.sent("zfs send -L -e -c -p tank/data/fs@test-1");
    let into = "zfs recv -u -x mountpoint -o canmount=noauto -v -s tank/target/tank/data/fs";
    let said = c.fed(into, &full[..full.len() / 3]);
    assert_eq!(said.code, 1, "{said:?}");
    let token = c.ok("zfs get -H -o value -p receive_resume_token tank/target/tank/data/fs");
    let token = token.trim_end();
    let told = c.say(&format!("zfs send -t {token} -n -v"));
    assert!(matches!(told.code, 0 | 255), "{told:?}");
    let name = told.out.lines().find_map(|line| line.trim().strip_prefix("toname = "));
    assert_eq!(name, Some("tank/data/fs@test-1"), "{told:?}");
    let rest = c.sent(&format!("zfs send -v -P -t {token}"));
    c.received(into, &rest);
    // A resumed stream has no package, and so no properties: they come with the next one.
    c.ok("zfs snapshot tank/data/fs@test-2");
    let next = c.sent("zfs send -L -e -c -p -i @test-1 tank/data/fs@test-2");
    let said = c.received(
        "zfs recv -u -x mountpoint -o canmount=noauto -v -F -s tank/target/tank/data/fs",
        &next,
    );
    assert!(said.out.contains("receiving incremental stream of tank/data/fs@test-2"), "{said:?}");
    let row = c.ok("zfs get -H -o value,source compression tank/target/tank/data/fs");
    assert_eq!(row, "zstd\treceived\n");
    let row = c.ok("zfs get -H -o value,source canmount tank/target/tank/data/fs");
    assert_eq!(row, "noauto\tlocal\n");
    c.ok("zfs mount tank/target/tank/data/fs");
    let at = c.ok("zfs get -H -o value mountpoint tank/target/tank/data/fs");
    let copy = std::fs::read(format!("{}/file", at.trim_end())).unwrap();
    assert!(copy == noise(3, 2 << 20));
    c.ok("zfs release zfs_autobackup:test tank/data/fs@test-1");
    c.ok("zfs destroy tank/data/fs@test-1");
    c.ok("zfs rollback -r tank/target/tank/data/fs@test-1");
    c.end();
}

/// A row of the checklist: its number, and commands with the number of fields of each line of
/// the answer (0: anything).
const CHECKLIST: [(u32, &str, usize); 52] = [
    (1, "zfs list -H -o name -r -t filesystem tank", 1),
    (2, "zfs get -H -p -o value used tank", 1),
    (3, "zfs snapshot -r tank/x@s", 0),
    (9, "zfs set com.example:k=v tank/x", 0),
    (10, "zfs list tank/x", 0),
    (12, "zfs create -o compression=lz4 tank/x/made", 0),
    (13, "zfs get -H -o name name tank/x", 1),
    (14, "zfs get -H -o property,value,source -p all tank/x", 3),
    (15, "zfs get -Hp -d 1 -t snapshot guid,creation tank/x", 4),
    (16, "zfs list -Hp -o name,used,avail,refer,mountpoint,origin tank/x", 6),
    (28, "zfs destroy -nvp tank/x@s%s", 0),
    (17, "zfs rollback -r tank/x@s", 0),
    (22, "zfs get -H receive_resume_token tank/x", 4),
    (23, "zfs clone -p -o atime=off tank/x@s tank/p/clone", 0),
    (24, "zfs hold tag tank/x@s", 0),
    (24, "zfs holds -H tank/x@s", 3),
    (24, "zfs release tag tank/x@s", 0),
    (25, "zfs inherit -r com.example:k tank/x", 0),
    (26, "zfs unmount -f tank/x", 0),
    (26, "zfs mount tank/x", 0),
    (26, "zfs mount -a", 0),
    (29, "zfs list -t all -r -o space tank", 0),
    (31, "zfs create -V 16M -s -b 8K tank/vol", 0),
    (32, "zfs rename tank/x/made tank/new/made -p", 0),
    (33, "zpool list -H -o name", 1),
    (34, "zpool list -Hp -o name,size,alloc,free tank", 4),
    (35, "zpool get -Hp size,health tank", 4),
    (36, "zpool get -H -o value feature@async_destroy tank", 1),
    (37, "zpool get -H -p all tank", 4),
    (38, "zpool status tank", 0),
    (39, "zpool status -x", 0),
    (40, "zpool list -H -o cap,health tank", 2),
    (45, "zfs get -H -p -o value written@s tank/x", 1),
    (46, "zfs get -r -s local,received -t filesystem compression tank", 0),
    (48, "zfs bookmark tank/x@s tank/x#b", 0),
    (48, "zfs get -Hp -t bookmark guid tank/x", 4),
    (49, "zfs promote tank/p/clone", 0),
    (50, "zfs get -H keystatus tank/x", 4),
    (52, "zpool iostat -Hp -y tank 1 1", 7),
    (53, "zpool events -Hv", 0),
    (54, "zpool history -il tank", 0),
    (55, "zpool scrub -w tank", 0),
    (57, "zpool set comment=text tank", 0),
    (59, "zfs list -j tank", 0),
    (59, "zfs get -j used tank", 0),
    (59, "zpool status -j tank", 0),
    (60, "zfs version", 0),
    (60, "zpool version", 0),
    (27, "zfs destroy -d tank/p/clone@s", 0),
    (4, "zfs destroy tank/new/made", 0),
    (11, "zfs destroy -r tank/new", 0),
    (27, "zfs destroy -R -f tank/vol", 0),
];

#[test]
fn the_checklist() {
    if !can_mount("commands of other programs") {
        return;
    }
    let c = ToolCommands::new("clients-checklist");
    c.ok("zfs create tank/x");
    println!("row  command");
    for (row, line, count) in CHECKLIST {
        let said = c.say(line);
        println!("{row:>3}  {line}: exit {}, {} lines", said.code, said.out.lines().count());
        assert_eq!((said.code, said.err.as_str()), (0, ""), "row {row}: {line}");
        for text in said.out.lines().filter(|_| count > 0) {
            assert_eq!(fields(text).len(), count, "row {row}: {line}: {text}");
        }
    }
    // Sums that other programs rely on.
    let used = "zfs get -Hp -o value used,usedbysnapshots,usedbydataset,usedbychildren,\
                usedbyrefreservation tank";
    let used: Vec<u64> = c.ok(used).lines().map(|n| n.parse().unwrap()).collect();
    assert_eq!(used[0], used[1..].iter().sum::<u64>());
    c.end();
}
