use proptest::prelude::*;
use testkit::Scratch;

use super::*;

const GIB: u64 = 1 << 30;
const MEMINFO: &str = "MemTotal:       16777216 kB\nMemFree:         1048576 kB\n\
                       MemAvailable:    8388608 kB\nInactive(file):  2097152 kB\n";

/// A system of files.
struct FakeFiles(Scratch);

impl FakeFiles {
    fn new(name: &str, files: &[(&str, &str)]) -> FakeFiles {
        let fake = FakeFiles(Scratch::new(name));
        for (path, text) in files {
            fake.set(path, text.as_bytes());
        }
        fake
    }

    fn set(&self, path: &str, bytes: &[u8]) {
        let full = self.0.path().join(path);
        std::fs::create_dir_all(full.parent().unwrap()).unwrap();
        std::fs::write(full, bytes).unwrap();
    }

    fn sample(&self) -> Result<MemorySample> {
        Reader::new(self.0.path()).sample()
    }
}

#[test]
fn the_machine_alone() {
    let fake = FakeFiles::new("mem-machine", &[("proc/meminfo", MEMINFO)]);
    let s = fake.sample().unwrap();
    assert_eq!((s.total, s.scope, s.available), (16 * GIB, 16 * GIB, 8 * GIB as i64));
    assert_eq!(s.source, "/proc/meminfo");
    let old = MEMINFO.replace("MemAvailable", "Whatever");
    fake.set("proc/meminfo", old.as_bytes());
    assert_eq!(fake.sample().unwrap().available, 3 * GIB as i64);
}

#[test]
fn groups_of_version_2_and_those_above_them() {
    let fake = FakeFiles::new(
        "mem-v2",
        &[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/user/job\n"),
            ("proc/self/mountinfo", "31 23 0:28 / /cg rw,relatime shared:9 - cgroup2 cgroup2 rw\n"),
            ("cg/user/job/memory.max", "max\n"),
            ("cg/user/job/memory.high", "2147483648\n"),
            ("cg/user/job/memory.current", "1610612736\n"),
            ("cg/user/job/memory.stat", "anon 5\ninactive_file 536870912\nactive_file 7\n"),
            ("cg/user/memory.max", "4294967296\n"),
            ("cg/user/memory.high", "max\n"),
            ("cg/user/memory.current", "1073741824\n"),
        ],
    );
    let s = fake.sample().unwrap();
    assert_eq!((s.total, s.scope, s.available), (2 * GIB, 2 * GIB, GIB as i64));
    assert_eq!(s.source, "/cg/user/job/memory.high");
    // The group above becomes the tightest.
    fake.set("cg/user/memory.current", b"4290000000\n");
    let s = fake.sample().unwrap();
    assert_eq!((s.total, s.scope, s.available), (2 * GIB, 4 * GIB, 4_967_296));
    // Above a soft limit.
    fake.set("cg/user/job/memory.current", b"3221225472\n");
    assert_eq!(fake.sample().unwrap().available, -(GIB as i64) / 2);
}

#[test]
fn groups_of_version_1_in_a_container() {
    let fake = FakeFiles::new(
        "mem-v1",
        &[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/docker/abc/sub\n0::/\n"),
            (
                "proc/self/mountinfo",
                "35 31 0:32 /docker/abc /m rw - cgroup cgroup rw,memory\n\
             34 31 0:31 / /cpu rw - cgroup cgroup rw,cpu\n",
            ),
            ("m/memory.limit_in_bytes", "268435456\n"),
            ("m/memory.usage_in_bytes", "67108864\n"),
            ("m/memory.stat", "inactive_file 1\ntotal_inactive_file 16777216\n"),
            ("m/sub/memory.limit_in_bytes", "9223372036854771712\n"),
            ("m/sub/memory.usage_in_bytes", "1\n"),
        ],
    );
    let s = fake.sample().unwrap();
    assert_eq!((s.total, s.available), (256 << 20, 208 << 20));
    assert_eq!(s.source, "/m/memory.limit_in_bytes");
}

#[test]
fn stalls_are_the_faster_of_both_totals() {
    let fake = FakeFiles::new(
        "mem-psi",
        &[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/a\n"),
            ("proc/pressure/memory", "some avg10=0.00 total=1000\nfull avg10=0.00 total=500\n"),
            ("sys/fs/cgroup/a/memory.pressure", "some avg10=0.00 total=70\n"),
        ],
    );
    let mut reader = Reader::new(fake.0.path());
    let s = reader.sample().unwrap();
    assert_eq!((s.psi_some_us, s.psi_full_us), (0, 0));
    fake.set("proc/pressure/memory", b"some avg10=0.00 total=1100\nfull total=530\n");
    fake.set("sys/fs/cgroup/a/memory.pressure", b"some total=270\n");
    let s = reader.sample().unwrap();
    assert_eq!((s.psi_some_us, s.psi_full_us), (200, 30));
    // A total that decreases means that counting restarted.
    fake.set("sys/fs/cgroup/a/memory.pressure", b"some total=0\n");
    fake.set("proc/pressure/memory", b"some total=1107\n");
    assert_eq!(reader.sample().unwrap().psi_some_us, 207);
}

#[test]
fn nothing_at_all_is_an_error_and_a_warning() {
    let fake = FakeFiles::new("mem-none", &[]);
    assert_eq!(fake.sample().unwrap_err().kind(), base::ErrorKind::NotFound);
    let (sample, warning) = super::super::probe(fake.0.path());
    assert_eq!(sample, None);
    assert!(warning.unwrap().contains("at most 256 MiB"));
    fake.set("proc/meminfo", MEMINFO.as_bytes());
    assert_eq!(super::super::probe(fake.0.path()).1, None);
}

#[test]
fn what_makes_no_sense_is_an_error() {
    let meminfos: [&[u8]; 7] = [
        b"",
        b"MemTotal: kB\n",
        b"MemTotal: 0 kB\nMemAvailable: 1 kB\n",
        b"MemTotal: -5 kB\n",
        b"MemTotal: 99999999999999999999 kB\n",
        b"MemTotal: 18014398509481984 kB\nMemAvailable: 1 kB\n",
        b"\xff\xfe\0",
    ];
    for text in meminfos {
        let fake = FakeFiles::new("mem-odd", &[]);
        fake.set("proc/meminfo", text);
        assert_eq!(fake.sample().unwrap_err().kind(), base::ErrorKind::Corrupt);
    }
    for (path, text) in [
        ("proc/self/cgroup", "0::/a\nnonsense\n"),
        ("proc/self/cgroup", "0::/\n0::/\n0::/\n"),
        ("sys/fs/cgroup/a/memory.max", "-1"),
        ("sys/fs/cgroup/a/memory.high", "1e9"),
        ("sys/fs/cgroup/a/memory.current", ""),
        ("sys/fs/cgroup/a/memory.stat", "inactive_file many"),
        ("sys/fs/cgroup/a/memory.pressure", "some total=x"),
        ("proc/pressure/memory", "none"),
    ] {
        let fake = FakeFiles::new(
            "mem-odd",
            &[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "0::/a\n"),
                ("sys/fs/cgroup/a/memory.max", "1000000"),
                ("sys/fs/cgroup/a/memory.current", "1000"),
            ],
        );
        assert!(fake.sample().is_ok());
        fake.set(path, text.as_bytes());
        let e = fake.sample().unwrap_err();
        assert!(e.to_string().contains(path), "{e}");
    }
}

#[test]
fn paths_do_not_lead_out() {
    let group =
        locate(Version::Two, Path::new("/../../etc/./x"), "a b c / /../../m/../n - cgroup2 c rw\n");
    assert_eq!((group.mount, group.path), (PathBuf::from("/m/n"), PathBuf::from("etc/x")));
    let deep = "/d".repeat(10_000);
    assert_eq!(locate(Version::One, Path::new(&deep), "").path.components().count(), DEPTH_MAX);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any contents of the files give a sample or an error.
    #[test]
    fn any_contents(
        texts in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..60),
                "(MemTotal|MemAvailable|MemFree|some|full|inactive_file|0|4|memory)?[: ]{0,2}(total=|/)?[0-9a-z/.]{0,24}( kB)?\n?"
                    .prop_map(String::into_bytes),
                Just(MEMINFO.as_bytes().to_vec()),
            ],
            9,
        ),
    ) {
        let fake = FakeFiles::new("mem-any", &[]);
        let paths = [
            "proc/meminfo", "proc/self/cgroup", "proc/self/mountinfo", "proc/pressure/memory",
            "sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.high", "sys/fs/cgroup/memory.current",
            "sys/fs/cgroup/memory.stat", "sys/fs/cgroup/memory.pressure",
        ];
        for (path, text) in paths.iter().zip(&texts) {
            fake.set(path, text);
        }
        if let Ok(sample) = fake.sample() {
            prop_assert!(sample.total < NO_LIMIT);
        }
    }
}
