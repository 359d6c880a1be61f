use spa::status::VdevClass;

use super::*;

fn leaf(name: &str) -> DeviceFacts {
    // 5000 operations of 0.25 to 0.5 ms.
    let mut latency = vec![0; 40];
    latency[18] = 5000;
    DeviceFacts { name: name.into(), sector: Some(512), latency, ..DeviceFacts::default() }
}

fn top(name: &str, leaves: &[&str]) -> TopFacts {
    TopFacts {
        name: name.into(),
        class: VdevClass::Normal,
        size: 1 << 40,
        allocated: 1 << 38,
        ashift: 12,
        leaves: leaves.iter().map(|l| leaf(l)).collect(),
    }
}

/// A busy pool of which nothing is to be said.
fn healthy() -> PoolFacts {
    let dataset = |name: &str, mountpoint: &str| DatasetFacts {
        name: name.into(),
        mountpoint: Some(mountpoint.into()),
        referenced: 1 << 36,
        record_size: 128 << 10,
        writes: 100_000,
        written: 100_000 << 17,
        commits: 900,
        logged: 1 << 20,
        ..DatasetFacts::default()
    };
    PoolFacts {
        name: "tank".into(),
        size: 2 << 40,
        allocated: 1 << 39,
        fragmentation: Some(12),
        vdevs: vec![top("mirror-0", &["a", "b"]), top("mirror-1", &["c", "d"])],
        datasets: vec![dataset("tank", "/tank"), dataset("tank/home", "/home")],
        blocks: 1 << 30,
        gang_blocks: 7,
        sync_times: vec![1_000_000_000; 50],
        cache: CacheFacts {
            size: 4 << 30,
            max: 4 << 30,
            metadata_hits: 9_900_000,
            metadata_misses: 100_000,
            ..CacheFacts::default()
        },
        ..PoolFacts::default()
    }
}

/// The rule fires for the facts that `hurt` makes of a healthy pool, about `about`, with this
/// figure and nothing else; it does not for those that `almost` makes.
fn rule(
    rule: Rule,
    about: &str,
    figure: Figure,
    hurt: fn(&mut PoolFacts),
    almost: fn(&mut PoolFacts),
) -> Advice {
    let mut facts = healthy();
    hurt(&mut facts);
    let found = advise(&facts);
    let [advice] = &found[..] else { panic!("{rule:?}: {found:?}") };
    assert_eq!((advice.rule, &*advice.about, advice.figure), (rule, about, figure));
    assert!(advice.problem.contains("{}") || advice.rule == Rule::Features, "{advice:?}");
    assert!(advice.problem.ends_with('.') && advice.gain.ends_with('.'), "{advice:?}");
    assert!(!advice.command.is_empty());
    let mut facts = healthy();
    almost(&mut facts);
    assert_eq!(advise(&facts), [], "{rule:?} is too eager");
    advice.clone()
}

#[test]
fn nothing_is_said_of_a_healthy_pool_or_an_empty_one() {
    assert_eq!(advise(&healthy()), []);
    assert_eq!(advise(&PoolFacts::default()), []);
}

/// Figures of a damaged pool overflow nothing.
#[test]
fn absurd_figures_are_survived() {
    let mut facts = healthy();
    facts.size = 0;
    facts.allocated = u64::MAX;
    facts.fragmentation = Some(u64::MAX);
    (facts.blocks, facts.gang_blocks) = (u64::MAX, u64::MAX);
    facts.sync_times = vec![u64::MAX; 9];
    for top in &mut facts.vdevs {
        (top.allocated, top.ashift) = (u64::MAX, u32::MAX);
        for leaf in &mut top.leaves {
            leaf.latency = vec![u64::MAX; 200];
            leaf.sector = Some(u64::MAX);
            (leaf.read_errors, leaf.write_errors) = (u64::MAX, u64::MAX);
        }
    }
    for d in &mut facts.datasets {
        (d.written, d.writes, d.read_modify_writes) = (u64::MAX, 1000, u64::MAX);
        (d.commits, d.logged, d.referenced) = (u64::MAX, u64::MAX, u64::MAX);
        (d.uncompressed, d.every_access, d.record_size) = (true, true, u64::MAX);
    }
    facts.cache = CacheFacts {
        size: u64::MAX,
        max: u64::MAX,
        metadata_hits: 1,
        metadata_misses: u64::MAX,
        data_hits: u64::MAX,
        data_misses: u64::MAX,
        expected: Some(u64::MAX),
        expected_with_device: vec![(u64::MAX, u64::MAX), (0, 0)],
        ..CacheFacts::default()
    };
    let rules: Vec<Rule> = advise(&facts).iter().map(|a| a.rule).collect();
    assert!(rules.is_sorted() && rules.len() > 8, "{rules:?}");
}

#[test]
fn damaged_files() {
    rule(Rule::DataErrors, "tank", Figure::Count(3), |f| f.data_errors = 3, |f| f.data_errors = 0);
}

#[test]
fn errors_of_devices() {
    let advice = rule(
        Rule::DeviceErrors,
        "d",
        Figure::Count(6),
        |f| {
            let leaf = &mut f.vdevs[1].leaves[1];
            (leaf.read_errors, leaf.write_errors, leaf.checksum_errors) = (1, 2, 3);
        },
        |_| {},
    );
    assert_eq!(advice.command, "zpool clear tank d");
}

#[test]
fn a_nearly_full_pool() {
    let eighty = |f: &mut PoolFacts| f.allocated = f.size / 100 * 80 + 100;
    let below = |f: &mut PoolFacts| f.allocated = f.size / 100 * 79;
    rule(Rule::Capacity, "tank", Figure::Percent(80), eighty, below);
    let full = |f: &mut PoolFacts| f.allocated = f.size / 100 * 94;
    let advice = rule(Rule::Capacity, "tank", Figure::Percent(93), full, below);
    assert!(advice.problem.contains("slow"));
}

#[test]
fn one_full_vdev() {
    let advice = rule(
        Rule::FullVdev,
        "mirror-1",
        Figure::Percent(92),
        |f| {
            f.vdevs[1].allocated = f.vdevs[1].size / 100 * 93;
            f.datasets[1].referenced = 1 << 38;
        },
        |f| f.vdevs.iter_mut().for_each(|v| v.allocated = v.size / 100 * 93),
    );
    assert_eq!(advice.command, "zpool rebalance tank");
    // A raidz exchanges blocks only with its like.
    let mut facts = healthy();
    facts.vdevs[1] = top("raidz1-1", &["c", "d", "e"]);
    facts.vdevs[1].allocated = facts.vdevs[1].size / 100 * 93;
    facts.datasets[1].referenced = 1 << 38;
    assert_eq!(advise(&facts)[0].command, "zfs rewrite -r -S /home");
    // A full log vdev is no matter of balance.
    let mut facts = healthy();
    facts.vdevs.push(TopFacts { class: VdevClass::Log, allocated: 1 << 40, ..top("e", &["e"]) });
    assert_eq!(advise(&facts), []);
}

#[test]
fn vdevs_of_one_kind_are_unequally_full() {
    let advice = rule(
        Rule::UnevenVdevs,
        "mirror-1",
        Figure::Percent(59),
        |f| f.vdevs[1].allocated = f.vdevs[1].size / 100 * 60,
        // The other one has a quarter in use.
        |f| f.vdevs[1].allocated = f.vdevs[1].size / 100 * 45,
    );
    assert_eq!(advice.command, "zpool rebalance tank");
}

#[test]
fn a_device_slower_than_its_siblings() {
    let advice = rule(
        Rule::SlowDevice,
        "b",
        Figure::Time(3 << 24 >> 1),
        |f| {
            let latency = &mut f.vdevs[0].leaves[1].latency;
            (latency[18], latency[24]) = (0, 5000);
        },
        // Twice as slow is not slow; nor are all of them together.
        |f| {
            f.vdevs[0].leaves[1].latency[19] = 20_000;
            for leaf in &mut f.vdevs[1].leaves {
                (leaf.latency[18], leaf.latency[24]) = (0, 5000);
            }
        },
    );
    assert!(advice.problem.contains("64 times"), "{}", advice.problem);
    // Too few operations.
    let mut facts = healthy();
    let latency = &mut facts.vdevs[0].leaves[1].latency;
    (latency[18], latency[24]) = (0, 999);
    assert_eq!(advise(&facts), []);
}

#[test]
fn fragmented_free_space() {
    rule(
        Rule::Fragmentation,
        "tank",
        Figure::Percent(50),
        |f| f.fragmentation = Some(50),
        |f| f.fragmentation = Some(49),
    );
    let mut facts = healthy();
    facts.fragmentation = None;
    assert_eq!(advise(&facts), []);
}

#[test]
fn gang_blocks() {
    rule(
        Rule::Ganging,
        "tank",
        Figure::Count(1000),
        |f| (f.blocks, f.gang_blocks) = (1_000_000, 1000),
        |f| (f.blocks, f.gang_blocks) = (1_000_000, 999),
    );
}

#[test]
fn long_txgs() {
    rule(
        Rule::LongTxgs,
        "tank",
        Figure::Time(6_000_000_000),
        |f| f.sync_times = vec![6_000_000_000; 5],
        // A single long one; too few.
        |f| f.sync_times = vec![1, 1, 1, 9_000_000_000, 1],
    );
    let mut facts = healthy();
    facts.sync_times = vec![6_000_000_000; 4];
    assert_eq!(advise(&facts), []);
}

#[test]
fn sectors_smaller_than_the_devices() {
    let advice = rule(
        Rule::SectorSize,
        "c",
        Figure::Bytes(4096),
        |f| {
            f.vdevs[1].ashift = 9;
            f.vdevs[1].leaves[0].sector = Some(4096);
        },
        |f| {
            f.vdevs[1].leaves[0].sector = Some(4096);
            f.vdevs[0].ashift = 9;
            f.vdevs[0].leaves[0].sector = None;
        },
    );
    assert!(advice.command.contains("ashift=12"));
}

#[test]
fn synchronous_writes_without_a_log_device() {
    let busy = |f: &mut PoolFacts| {
        f.datasets[1].commits = 50_000;
        f.datasets[1].logged = 100_000 << 17;
    };
    let advice = rule(Rule::NoLogDevice, "tank", Figure::Count(50_900), busy, |f| {
        // There is one.
        f.datasets[1].commits = 50_000;
        f.datasets[1].logged = 100_000 << 17;
        f.vdevs.push(TopFacts { class: VdevClass::Log, ..top("e", &["e"]) });
    });
    assert!(advice.problem.contains("50 %") && advice.problem.contains("'tank/home'"));
    // Little data; few commits.
    let mut facts = healthy();
    facts.datasets[1].commits = 50_000;
    assert_eq!(advise(&facts), []);
    let mut facts = healthy();
    (facts.datasets[0].commits, facts.datasets[1].commits) = (0, 999);
    facts.datasets[1].logged = 100_000 << 17;
    assert_eq!(advise(&facts), []);
}

#[test]
fn records_larger_than_writes() {
    let advice = rule(
        Rule::RecordSize,
        "tank/home",
        Figure::Bytes(8192),
        |f| {
            let d = &mut f.datasets[1];
            (d.written, d.read_modify_writes) = (100_000 << 13, 60_000);
        },
        // Small writes one after the other: records are complete before they are written.
        |f| f.datasets[1].written = 100_000 << 13,
    );
    assert_eq!(advice.command, "zfs set recordsize=8192 tank/home");
    assert!(advice.gain.contains("16 times"), "{}", advice.gain);
    // Writes of half a record; volumes.
    let mut facts = healthy();
    let d = &mut facts.datasets[1];
    (d.written, d.read_modify_writes) = (100_000 << 16, 60_000);
    assert_eq!(advise(&facts), []);
    let d = &mut facts.datasets[1];
    (d.written, d.record_size) = (100_000 << 13, 0);
    assert_eq!(advise(&facts), []);
}

#[test]
fn a_cache_too_small_for_the_metadata() {
    let advice = rule(
        Rule::CacheSize,
        "tank",
        Figure::Percent(89),
        |f| f.cache.metadata_misses = 1_200_000,
        // The cache is not full.
        |f| {
            f.cache.metadata_misses = 1_200_000;
            f.cache.size = 1 << 30;
        },
    );
    assert_eq!(advice.command, "cenote tune zfs_arc_max=8589934592");
    let mut facts = healthy();
    (facts.cache.metadata_hits, facts.cache.metadata_misses) = (0, 99_999);
    assert_eq!(advise(&facts), []);
}

#[test]
fn data_without_compression() {
    rule(
        Rule::Compression,
        "tank",
        Figure::Bytes(2 << 36),
        |f| {
            f.datasets.iter_mut().for_each(|d| d.uncompressed = true);
            f.datasets[1].compression_inherited = true;
        },
        |f| {
            f.datasets[1].uncompressed = true;
            f.datasets[1].referenced = (16 << 20) - 1;
        },
    );
}

#[test]
fn times_of_each_access() {
    rule(
        Rule::AccessTime,
        "tank",
        Figure::Count(2),
        |f| {
            f.datasets.iter_mut().for_each(|d| d.every_access = true);
            f.datasets[1].access_inherited = true;
        },
        |f| f.datasets[1].access_inherited = true,
    );
}

#[test]
fn features_that_are_not_enabled() {
    rule(
        Rule::Features,
        "tank",
        Figure::Count(1),
        |f| f.disabled_features = true,
        |f| f.disabled_features = false,
    );
}

/// A pool of disks of 8 ms, whose data is read again from beyond the memory.
fn slow(facts: &mut PoolFacts, with: &[(u64, u64)]) {
    for leaf in facts.vdevs.iter_mut().flat_map(|top| &mut top.leaves) {
        leaf.latency = vec![0; 40];
        // 4 to 8 ms.
        leaf.latency[22] = 5000;
    }
    (facts.cache.data_hits, facts.cache.data_misses) = (600_000, 400_000);
    facts.cache.expected = Some(60);
    facts.cache.expected_with_device = with.to_vec();
}

#[test]
fn a_cache_device_that_would_serve_much() {
    const WITH: [(u64, u64); 4] = [(1, 65), (2, 84), (4, 88), (8, 89)];
    let hurt = |f: &mut PoolFacts| slow(f, &WITH);
    let advice = rule(Rule::CacheDevice, "tank", Figure::Percent(24), hurt, |f| {
        slow(f, &[(1, 62), (2, 66), (4, 70), (8, 74)]);
    });
    assert_eq!(advice.command, "zpool add tank cache <device>");
    assert!(advice.gain.contains("about 8 GiB") && advice.gain.contains("84 %"), "{advice:?}");
    // Fast devices, a cache that is not full, and too few requests.
    for other in [
        |f: &mut PoolFacts| f.vdevs = healthy().vdevs,
        |f: &mut PoolFacts| f.cache.size = 1 << 30,
        |f: &mut PoolFacts| (f.cache.data_hits, f.cache.data_misses) = (60, 40),
        |f: &mut PoolFacts| f.cache.expected = None,
    ] {
        let mut facts = healthy();
        slow(&mut facts, &WITH);
        other(&mut facts);
        assert_eq!(advise(&facts), []);
    }
}

#[test]
fn a_cache_device_that_serves_hardly_anything() {
    fn with(f: &mut PoolFacts, hits: u64, allocated: u64) {
        f.vdevs.push(TopFacts {
            class: VdevClass::Cache,
            size: 100 << 30,
            allocated,
            ..top("nvme0n1", &[])
        });
        (f.cache.device_hits, f.cache.device_misses) = (hits, 1_000_000 - hits);
        f.cache.device_index = 300 << 20;
    }
    let full = 99 << 30;
    let advice = rule(
        Rule::CacheDevice,
        "nvme0n1",
        Figure::Percent(2),
        |f| with(f, 20_000, 99 << 30),
        |f| with(f, 60_000, 99 << 30),
    );
    assert_eq!(advice.command, "zpool remove tank nvme0n1");
    assert!(advice.problem.contains("300 MiB"), "{advice:?}");
    // One that is still being filled.
    let mut facts = healthy();
    with(&mut facts, 20_000, full / 2);
    assert_eq!(advise(&facts), []);
    // Too few requests to know.
    with(&mut facts, 20, full);
    (facts.cache.device_hits, facts.cache.device_misses) = (20, 5_000);
    assert_eq!(advise(&facts), []);
}
