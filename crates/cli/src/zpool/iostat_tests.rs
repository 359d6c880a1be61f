use super::super::vdevs::tests::{pool, vdev};
use super::*;

const SECOND: u64 = 1_000_000_000;

fn done(age: u64, reads: u64, writes: u64, nread: u64, nwritten: u64) -> VdevIoCounts {
    VdevIoCounts { age, reads, writes, nread, nwritten }
}

/// The pool of the chapter's golden output.
fn tank() -> Pool {
    let io = done(100 * SECOND, 100, 300, 811_008, 13_004_800);
    let leaf = |name: &str| Vdev {
        io: done(100 * SECOND, 50, 150, 405_504, 6_502_400),
        ..vdev("file", name, VdevRole::Normal, vec![])
    };
    let mirror = Vdev {
        io,
        size: 10 << 30,
        allocated: 2 << 30,
        ..vdev("mirror", "mirror-0", VdevRole::Normal, vec![leaf("/a"), leaf("/b")])
    };
    let log = Vdev {
        size: 1 << 30,
        io: done(100 * SECOND, 0, 0, 0, 0),
        ..vdev("file", "/log", VdevRole::Log, vec![])
    };
    pool(Vdev {
        io,
        size: 10 << 30,
        allocated: 2 << 30,
        ..vdev("root", "tank", VdevRole::Normal, vec![mirror, log])
    })
}

fn text(options: IostatOptions, wanted: &[&str], pools: &[Pool], before: &Counters) -> String {
    let wanted = wanted.iter().map(|w| (*w).to_owned()).collect();
    IostatReport { options, wanted, pools, before }.text(true)
}

/// Chapter 09 §4.5, golden.
#[test]
fn golden_layout() {
    let pools = [tank()];
    let none = Counters::new();
    assert_eq!(
        text(IostatOptions::default(), &[], &pools, &none),
        "              capacity     operations     bandwidth \n\
         pool        alloc   free   read  write   read  write\n\
         ----------  -----  -----  -----  -----  -----  -----\n\
         tank           2G     8G      1      3  7.92K   127K\n"
    );
    let options = IostatOptions { scripted: true, exact: true, ..IostatOptions::default() };
    assert_eq!(
        text(options, &[], &pools, &none),
        "tank\t2147483648\t8589934592\t1\t3\t8110\t130048\n"
    );
}

#[test]
fn vdevs_below_their_pools() {
    let pools = [tank(), tank()];
    let none = Counters::new();
    let verbose = IostatOptions { verbose: true, ..IostatOptions::default() };
    let head = "              capacity     operations     bandwidth \n\
                pool        alloc   free   read  write   read  write\n\
                ----------  -----  -----  -----  -----  -----  -----\n";
    let one = "tank           2G     8G      1      3  7.92K   127K\n  \
               mirror-0     2G     8G      1      3  7.92K   127K\n    \
               /a          -      -      0      1  3.96K  63.5K\n    \
               /b          -      -      0      1  3.96K  63.5K\n\
               logs            -      -      -      -      -      -\n  \
               /log          0     1G      0      0      0      0\n\
               ----------  -----  -----  -----  -----  -----  -----\n";
    assert_eq!(text(verbose, &[], &pools, &none), format!("{head}{one}{one}"));
    let scripted =
        IostatOptions { scripted: true, exact: true, verbose: true, ..IostatOptions::default() };
    assert_eq!(
        text(scripted, &[], &pools[..1], &none),
        "tank\t2147483648\t8589934592\t1\t3\t8110\t130048\n\
         mirror-0\t2147483648\t8589934592\t1\t3\t8110\t130048\n\
         /a\t0\t0\t0\t1\t4055\t65024\n\
         /b\t0\t0\t0\t1\t4055\t65024\n\
         \n\
         /log\t0\t1073741824\t0\t0\t0\t0\n"
    );
    // Several pools end with a line; single vdevs are listed in place of pools.
    assert!(text(IostatOptions::default(), &[], &pools, &none).ends_with("-----\n"));
    let alone = text(IostatOptions::default(), &["/b"], &pools[..1], &none);
    assert_eq!(alone.lines().nth(1).unwrap().split(' ').next(), Some("vdev"));
    assert_eq!(
        alone.lines().nth(3).unwrap(),
        "/b              -      -      0      1  3.96K  63.5K"
    );
}

#[test]
fn later_reports_are_about_the_time_between() {
    let mut pools = [tank()];
    let mut before = Counters::new();
    remember(&pools[0].root, &mut before);
    pools[0].root.io = done(102 * SECOND, 110, 300, 811_008 + 4096, 13_004_800);
    let rates = |pools: &[Pool], before: &Counters| {
        IostatReport { options: IostatOptions::default(), wanted: vec![], pools, before }
            .rates(&pools[0].root)
    };
    assert_eq!(rates(&pools, &before), [5, 0, 2048, 0]);
    // The pool was reopened: the counters begin at zero.
    pools[0].root.io = done(SECOND, 7, 1, 0, 9);
    assert_eq!(rates(&pools, &before), [7, 1, 0, 9]);
    pools[0].root.io = done(0, 0, 0, 0, 0);
    assert_eq!(rates(&pools, &Counters::new()), [0; 4]);
}

#[test]
fn modes_that_exclude_each_other_are_refused() {
    let refused = |line: &str| {
        let argv: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        refusal(&commands::find("zpool", "iostat").parse(&argv).unwrap())
    };
    assert_eq!(refused("-vHp tank 1 2"), None);
    assert_eq!(refused("-lqv tank"), None);
    assert_eq!(refused("-rl").unwrap(), "[-r|-w] isn't allowed with [-c|-l|-q]");
    assert_eq!(refused("-rw").unwrap(), "Only one of [-r|-w] can be passed at a time");
    for fine in ["-q", "-r", "-w", "-l"] {
        assert_eq!(refused(fine), None);
    }
}

#[test]
fn operands_name_vdevs_by_any_name() {
    let tank = tank();
    for word in ["mirror-0", "/a", "7"] {
        assert!(has(&tank.root, word), "{word}");
    }
    assert!(!has(&tank.root, "tank") && !has(&tank.root, "/c"));
}
