//! The commands that look after devices, on a suspended pool: each says so at once and changes
//! nothing.

use std::fs::File;
use std::io::Write;
use std::process::Stdio;

use super::common::{Sandbox, can_mount, eventually as wait_for};
use super::{Tmpfs, ok, say, well};

/// `zpool split` of a suspended pool never returned. `attach`, `replace` and `add` wrote labels to
/// the new device before they looked, and told of its errors without its name.
#[test]
fn a_suspended_pool_and_its_devices() {
    if !can_mount("a full backing store") {
        return;
    }
    let s = Sandbox::new("care-suspended");
    let disks = Tmpfs::new("care-suspended-disks", 40);
    well(&s);
    let files: Vec<String> = (0..4).map(|i| disks.text(&format!("d{i}"))).collect();
    for path in &files {
        File::create(path).unwrap().set_len(96 << 20).unwrap();
    }
    let [d0, d1, spare, new] = [0, 1, 2, 3].map(|i| files[i].as_str());
    let mountpoint = format!("mountpoint={}", s.text("mnt-sick"));
    ok(&s, &["zpool", "create", "-O", &mountpoint, "sick", "mirror", d0, d1]);
    ok(&s, &["zpool", "add", "sick", "spare", spare]);
    let mut filler = File::create(disks.text("filler")).unwrap();
    while filler.write_all(&[1; 65536]).is_ok() {}
    // A change that finds no room.
    let mut sync = s.command(&["zfs", "create", "sick/fs"]);
    let mut sync = sync.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let health = || ok(&s, &["zpool", "list", "-H", "-o", "health", "sick"]);
    wait_for("it is not suspended", || health() == "SUSPENDED\n");
    let _ended = sync.kill();
    sync.wait().unwrap();

    let free = std::fs::read(new).unwrap();
    let why = "pool I/O is currently suspended";
    let refused: [(&[&str], &str); 24] = [
        (&["scrub", "sick"], "cannot scrub sick: "),
        (&["scrub", "-w", "sick"], "cannot scrub sick: "),
        (&["scrub", "-e", "sick"], "cannot scrub sick: "),
        (&["scrub", "-C", "sick"], "cannot scrub sick: "),
        (&["scrub", "-p", "sick"], "cannot pause scrubbing sick: "),
        (&["scrub", "-s", "sick"], "cannot cancel scrubbing sick: "),
        (&["resilver", "sick"], "cannot restart resilver on sick: "),
        (&["attach", "sick", d0, new], "cannot attach {new} to {d0}: "),
        (&["replace", "sick", d0, new], "cannot replace {d0} with {new}: "),
        (&["replace", "-s", "sick", d0, new], "cannot replace {d0} with {new}: "),
        (&["replace", "sick", d0, spare], "cannot replace {d0} with {spare}: "),
        (&["detach", "sick", d0], "cannot detach {d0}: "),
        (&["offline", "sick", d0], "cannot offline {d0}: "),
        (&["offline", "-t", "sick", d0], "cannot offline {d0}: "),
        (&["offline", "-f", "sick", d0], "cannot offline {d0}: "),
        (&["add", "sick", "spare", new], "cannot add to 'sick': "),
        (&["remove", "sick", spare], "cannot remove {spare}: "),
        (&["split", "sick", "half"], "Unable to split sick: "),
        (&["checkpoint", "sick"], "cannot checkpoint 'sick': "),
        (&["trim", "sick", d0], "cannot trim '{d0}': "),
        (&["initialize", "sick", d0], "cannot initialize '{d0}': "),
        (&["set", "checksum_n=5", "sick", d0], "cannot set property for '{d0}' on 'sick': "),
        (&["upgrade", "sick"], "cannot upgrade 'sick': "),
        (&["upgrade", "-V", "28", "sick"], "cannot upgrade 'sick': "),
    ];
    for (args, words) in refused {
        let said = say(&s, &[&["zpool"], args].concat());
        let words = words.replace("{new}", new).replace("{d0}", d0).replace("{spare}", spare);
        // One of the two may be faulted by now.
        let gone = format!("{words}one or more devices is currently unavailable\n");
        let is_gone = matches!(args[0], "trim" | "initialize") && said.err == gone;
        let suspended = said.err == format!("{words}{why}\n");
        assert!(said.code == 1 && (suspended || is_gone), "{args:?}: {said:?}");
    }
    assert!(std::fs::read(new).unwrap() == free, "a refused command wrote to the device");
    // What only asks is answered, and what gives the devices another chance ends.
    for args in [
        &["wait", "sick"][..],
        &["wait", "-t", "scrub,resilver,replace", "sick"],
        &["status", "-v", "sick"],
        &["status", "-j", "sick"],
        &["get", "checksum_n", "sick", d0],
        &["history", "sick"],
        &["events", "-Hv", "sick"],
        &["iostat", "-v", "sick"],
    ] {
        ok(&s, &[&["zpool"], args].concat());
    }
    for args in [&["reopen", "sick"][..], &["reopen", "-n", "sick"], &["online", "sick", d0]] {
        // It depends on what the devices had taken.
        let said = say(&s, &[&["zpool"], args].concat());
        let unavailable = said.err.contains("one or more devices is currently unavailable");
        assert!(said.code == 0 || unavailable, "{args:?}: {said:?}");
    }
    ok(&s, &["zpool", "export", "-f", "sick"]);
    assert_eq!(ok(&s, &["zpool", "list", "-H", "-o", "name,health"]), "well\tONLINE\n");
    ok(&s, &["daemon", "stop", "-f"]);
}
