//! The rules. Each has its thresholds beside it.

use spa::status::VdevClass;

use super::{Advice, DatasetFacts, DeviceFacts, Figure, PoolFacts, Rule, TopFacts};

/// Requests that a rule about the use of a pool wants to have seen.
pub(crate) const ENOUGH_REQUESTS: u64 = 1000;

/// Everything that hurts a pool, the most urgent first.
pub fn advise(pool: &PoolFacts) -> Vec<Advice> {
    let rules: [fn(&PoolFacts) -> Vec<Advice>; 17] = [
        data_errors,
        device_errors,
        capacity,
        full_vdev,
        uneven_vdevs,
        slow_device,
        fragmentation,
        ganging,
        long_txgs,
        sector_size,
        no_log_device,
        record_size,
        cache_size,
        cache_device,
        compression,
        access_time,
        features,
    ];
    rules.iter().flat_map(|rule| rule(pool)).collect()
}

fn percent(part: u64, whole: u64) -> u64 {
    let share = u128::from(part) * 100 / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

fn of_pool(pool: &PoolFacts, rule: Rule, problem: &str, figure: Figure) -> Advice {
    Advice {
        rule,
        about: pool.name.clone(),
        problem: problem.to_owned(),
        figure,
        gain: String::new(),
        command: String::new(),
    }
}

fn leaves(pool: &PoolFacts) -> impl Iterator<Item = (&TopFacts, &DeviceFacts)> {
    pool.vdevs.iter().flat_map(|top| top.leaves.iter().map(move |leaf| (top, leaf)))
}

fn data_errors(pool: &PoolFacts) -> Vec<Advice> {
    let n = pool.data_errors;
    let advice = || Advice {
        gain: "The list names the files to restore from a backup or to remove.".into(),
        command: format!("zpool status -v {}", pool.name),
        ..of_pool(pool, Rule::DataErrors, "{} places of files are damaged.", Figure::Count(n))
    };
    (n > 0).then(advice).into_iter().collect()
}

fn device_errors(pool: &PoolFacts) -> Vec<Advice> {
    let one = |(_, leaf): (&TopFacts, &DeviceFacts)| {
        let (reads, writes, sums) = (leaf.read_errors, leaf.write_errors, leaf.checksum_errors);
        let n = reads.saturating_add(writes).saturating_add(sums);
        let advice = || Advice {
            about: leaf.name.clone(),
            gain: "A failing device or cable is found before redundancy is lost; the counters \
                   begin at zero again."
                .into(),
            command: format!("zpool clear {} {}", pool.name, leaf.name),
            problem: format!(
                "The device had {{}} errors ({reads} reads, {writes} writes, {sums} checksums)."
            ),
            ..of_pool(pool, Rule::DeviceErrors, "", Figure::Count(n))
        };
        (n > 0).then(advice)
    };
    leaves(pool).filter_map(one).collect()
}

/// Percent in use from which the allocator finds less and less contiguous space.
const FULL: u64 = 80;
/// Percent in use from which writes become much slower.
const VERY_FULL: u64 = 90;

fn capacity(pool: &PoolFacts) -> Vec<Advice> {
    let used = percent(pool.allocated, pool.size);
    let (problem, gain) = match used {
        VERY_FULL.. => (
            "{} of the pool are in use: free space is short, and writes become slow and \
             fragmented.",
            "With less than 90 % in use, writes find contiguous space again.",
        ),
        FULL.. => (
            "{} of the pool are in use: new blocks are written into ever smaller gaps.",
            "With less than 80 % in use, fragmentation stops growing.",
        ),
        _ => return Vec::new(),
    };
    vec![Advice {
        gain: gain.into(),
        command: format!("zfs list -t all -o name,used,referenced -s used -r {}", pool.name),
        ..of_pool(pool, Rule::Capacity, problem, Figure::Percent(used))
    }]
}

/// Percent in use of a full vdev, and most that another one may have.
const VDEV_FULL: u64 = 85;
const VDEV_EMPTY: u64 = 50;

fn full_vdev(pool: &PoolFacts) -> Vec<Advice> {
    let normal = || pool.vdevs.iter().filter(|v| v.class == VdevClass::Normal && v.size > 0);
    let used = |v: &TopFacts| percent(v.allocated, v.size);
    let least = normal().map(used).min().unwrap_or(100);
    let target = pool.datasets.iter().max_by_key(|d| d.referenced);
    let path = target.and_then(|d| d.mountpoint.clone()).unwrap_or_else(|| "<directory>".into());
    let full = normal().filter(|v| used(v) >= VDEV_FULL && least <= VDEV_EMPTY);
    let has_like = |v: &TopFacts| normal().any(|to| used(to) <= VDEV_EMPTY && alike(v, to));
    let one = |v: &TopFacts| Advice {
        about: v.name.clone(),
        problem: format!(
            "{{}} of the vdev are in use, and only {least} % of another one: new data goes to \
             few devices, and reads of old data, too."
        ),
        gain: match has_like(v) {
            true => "Blocks move until the vdevs are equally full; snapshots stay shared.",
            false => {
                "Files that are rewritten are spread over all vdevs; snapshots keep their \
                      blocks."
            }
        }
        .into(),
        command: match has_like(v) {
            true => format!("zpool rebalance {}", pool.name),
            false => format!("zfs rewrite -r -S {path}"),
        },
        ..of_pool(pool, Rule::FullVdev, "", Figure::Percent(used(v)))
    };
    full.map(one).collect()
}

/// Whether blocks can move from one vdev to the other, as far as names and devices tell: raidz
/// and draid vdevs exchange blocks with their like, mirrors and single devices with each other.
fn alike(a: &TopFacts, b: &TopFacts) -> bool {
    let parity = |v: &TopFacts| {
        let kind = v.name.rsplit_once('-').map_or("", |(kind, _)| kind);
        let counts = kind.starts_with("raidz") || kind.starts_with("draid");
        counts.then(|| (kind.to_owned(), v.leaves.len()))
    };
    a.class == b.class && a.ashift == b.ashift && parity(a) == parity(b)
}

/// Points between the shares that are in use.
const UNEVEN: u64 = 20;

fn uneven_vdevs(pool: &PoolFacts) -> Vec<Advice> {
    if !full_vdev(pool).is_empty() {
        return Vec::new();
    }
    let used = |v: &TopFacts| percent(v.allocated, v.size);
    let balanced = [VdevClass::Normal, VdevClass::Special];
    let all = || pool.vdevs.iter().filter(|v| balanced.contains(&v.class) && v.size > 0);
    let pairs = all().flat_map(|a| all().map(move |b| (a, b)));
    let uneven = pairs.filter(|(a, b)| alike(a, b) && used(a) > used(b).saturating_add(UNEVEN));
    let Some((full, empty)) = uneven.max_by_key(|(a, b)| used(a) - used(b)) else {
        return Vec::new();
    };
    vec![Advice {
        about: full.name.clone(),
        problem: format!(
            "{{}} of the vdev are in use, and {} % of '{}': old data is read from few devices, \
             and new data goes to few.",
            used(empty),
            empty.name
        ),
        gain: "Blocks move until the vdevs are equally full; snapshots stay shared. -n shows how \
               much would move."
            .into(),
        command: format!("zpool rebalance {}", pool.name),
        ..of_pool(pool, Rule::UnevenVdevs, "", Figure::Percent(used(full)))
    }]
}

/// The mean of a histogram of times by log2 of nanoseconds, and how many there are. Each time
/// counts with one and a half times the lower bound of its class.
fn mean_time(histogram: &[u64]) -> (u64, u64) {
    let (mut sum, mut count) = (0u128, 0u128);
    for (class, &n) in (0u32..64).zip(histogram) {
        let middle = (3u128 << class) / 2;
        sum = sum.saturating_add(middle.saturating_mul(n.into()));
        count += u128::from(n);
    }
    let mean = sum.checked_div(count).unwrap_or(0);
    (u64::try_from(mean).unwrap_or(u64::MAX), u64::try_from(count).unwrap_or(u64::MAX))
}

/// A device is slow if it takes so many times as long as the median of its siblings.
const SLOWER: u64 = 3;
/// Times below this are not worth a replacement, nanoseconds.
const SLOW: u64 = 1_000_000;

fn slow_device(pool: &PoolFacts) -> Vec<Advice> {
    let mut out = Vec::new();
    for top in &pool.vdevs {
        let times: Vec<(u64, u64)> = top.leaves.iter().map(|l| mean_time(&l.latency)).collect();
        for (i, (leaf, &(mean, count))) in top.leaves.iter().zip(&times).enumerate() {
            let others = times.iter().enumerate().filter(|(j, (_, n))| *j != i && *n > 0);
            let mut others: Vec<u64> = others.map(|(_, (mean, _))| *mean).collect();
            others.sort_unstable();
            let Some(&median) = others.get(others.len() / 2) else { continue };
            let slow = mean >= SLOW && mean / SLOWER >= median && count >= ENOUGH_REQUESTS;
            if !slow {
                continue;
            }
            let times = mean / median.max(1);
            out.push(Advice {
                about: leaf.name.clone(),
                problem: format!(
                    "The device takes {{}} for an operation, {times} times as long as its \
                     siblings, and '{}' waits for it.",
                    top.name
                ),
                gain: "A new device lets the vdev work at the speed of the others.".into(),
                command: format!("zpool iostat -vl {} 5", pool.name),
                ..of_pool(pool, Rule::SlowDevice, "", Figure::Time(mean))
            });
        }
    }
    out
}

/// Percent of fragmentation from which large blocks find no contiguous space.
const FRAGMENTED: u64 = 50;

fn fragmentation(pool: &PoolFacts) -> Vec<Advice> {
    let Some(n) = pool.fragmentation.filter(|n| *n >= FRAGMENTED) else { return Vec::new() };
    vec![Advice {
        gain: "Blocks move so that contiguous space comes back, and writes need fewer \
               operations; snapshots stay shared. -n shows how much would move."
            .into(),
        command: format!("zpool defrag {}", pool.name),
        ..of_pool(
            pool,
            Rule::Fragmentation,
            "The free space is fragmented by {}: it consists of small pieces.",
            Figure::Percent(n),
        )
    }]
}

/// One block of so many may be a gang.
const GANGS: u64 = 1000;

fn ganging(pool: &PoolFacts) -> Vec<Advice> {
    let n = pool.gang_blocks;
    if n == 0 || n.saturating_mul(GANGS) < pool.blocks {
        return Vec::new();
    }
    vec![Advice {
        gain: "With more contiguous free space each block is one operation again, instead of \
               four or more."
            .into(),
        command: format!("zpool defrag {}", pool.name),
        problem: format!(
            "{{}} of {} blocks found no contiguous space and were written in pieces (gang \
             blocks).",
            pool.blocks
        ),
        ..of_pool(pool, Rule::Ganging, "", Figure::Count(n))
    }]
}

/// A txg that takes longer than the usual interval of 5 s makes writers wait, nanoseconds.
const LONG: u64 = 5_000_000_000;
/// Txgs of which the median is taken.
const TXGS: usize = 5;

fn long_txgs(pool: &PoolFacts) -> Vec<Advice> {
    let mut times = pool.sync_times.clone();
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or(0);
    if times.len() < TXGS || median < LONG {
        return Vec::new();
    }
    vec![Advice {
        gain: "Writers wait less if the devices get less work at once, or are faster.".into(),
        command: format!("zpool iostat -vl {} 5", pool.name),
        ..of_pool(
            pool,
            Rule::LongTxgs,
            "A transaction group takes {} to be written: the devices do not keep up with the \
             writers.",
            Figure::Time(median),
        )
    }]
}

fn sector_size(pool: &PoolFacts) -> Vec<Advice> {
    let one = |(top, leaf): (&TopFacts, &DeviceFacts)| {
        let ours = 1u64.checked_shl(top.ashift).unwrap_or(u64::MAX);
        let sector = leaf.sector.filter(|sector| *sector > ours)?;
        Some(Advice {
            about: leaf.name.clone(),
            problem: format!(
                "The device has sectors of {{}}, and the pool writes sectors of {ours} bytes \
                 (ashift={}): the device reads a sector for each smaller write.",
                top.ashift
            ),
            gain: format!(
                "In a new pool with ashift={} small writes need no reads; the sectors of a vdev \
                 cannot be changed.",
                sector.ilog2()
            ),
            command: format!("zpool create -o ashift={} <pool> <vdev> ...", sector.ilog2()),
            ..of_pool(pool, Rule::SectorSize, "", Figure::Bytes(sector))
        })
    };
    leaves(pool).filter_map(one).collect()
}

/// Percent of the written bytes that go through the intent log.
const SYNCHRONOUS: u64 = 25;

fn no_log_device(pool: &PoolFacts) -> Vec<Advice> {
    let sum = |f: fn(&DatasetFacts) -> u64| {
        pool.datasets.iter().fold(0u64, |sum, d| sum.saturating_add(f(d)))
    };
    let (commits, logged, written) = (sum(|d| d.commits), sum(|d| d.logged), sum(|d| d.written));
    let has_log = pool.vdevs.iter().any(|v| v.class == VdevClass::Log);
    if has_log || commits < ENOUGH_REQUESTS || percent(logged, written) < SYNCHRONOUS {
        return Vec::new();
    }
    let most = pool.datasets.iter().max_by_key(|d| d.commits).map_or("", |d| d.name.as_str());
    vec![Advice {
        problem: format!(
            "{{}} synchronous writes, {} % of the written bytes, go to the data devices twice, \
             and the pool has no log device. Most are in '{most}'.",
            percent(logged, written).min(100)
        ),
        gain: "With a fast log device a synchronous write takes as long as that device takes \
               for one."
            .into(),
        command: format!("zpool add {} log <device>", pool.name),
        ..of_pool(pool, Rule::NoLogDevice, "", Figure::Count(commits))
    }]
}

/// A record is too large if it has so many mean writes.
const WRITES_A_RECORD: u64 = 4;
/// Percent of the writes that read a block first.
const MODIFYING: u64 = 25;
/// The smallest record size worth setting: below it, metadata outweighs the gain.
const RECORD_MIN: u64 = 4096;

fn record_size(pool: &PoolFacts) -> Vec<Advice> {
    let one = |d: &DatasetFacts| {
        let mean = d.written / d.writes.max(1);
        let wanted = mean.max(RECORD_MIN).checked_next_power_of_two()?;
        let often = percent(d.read_modify_writes, d.writes) >= MODIFYING;
        if d.writes < ENOUGH_REQUESTS || !often || d.record_size / WRITES_A_RECORD < wanted {
            return None;
        }
        let path = d.mountpoint.clone().unwrap_or_else(|| "<directory>".into());
        Some(Advice {
            about: d.name.clone(),
            problem: format!(
                "The mean write has {{}} and a record {} bytes: {} of {} writes read a record to \
                 change a part of it.",
                d.record_size, d.read_modify_writes, d.writes
            ),
            gain: format!(
                "With records of {wanted} bytes a write moves up to {} times fewer bytes. Files \
                 keep their record size, so copy those that matter below {path} afterwards.",
                d.record_size / wanted
            ),
            command: format!("zfs set recordsize={wanted} {}", d.name),
            ..of_pool(pool, Rule::RecordSize, "", Figure::Bytes(mean))
        })
    };
    pool.datasets.iter().filter_map(one).collect()
}

/// Percent of the requests for metadata that a large enough cache answers.
const METADATA_HITS: u64 = 90;
/// Percent of its limit from which a cache counts as full.
const CACHE_FULL: u64 = 90;
/// Requests for metadata that the rule wants to have seen.
const ENOUGH_METADATA: u64 = 100_000;

fn cache_size(pool: &PoolFacts) -> Vec<Advice> {
    let cache = &pool.cache;
    let all = cache.metadata_hits.saturating_add(cache.metadata_misses);
    let ratio = percent(cache.metadata_hits, all);
    let full = percent(cache.size, cache.max) >= CACHE_FULL;
    if all < ENOUGH_METADATA || ratio >= METADATA_HITS || !full {
        return Vec::new();
    }
    vec![Advice {
        problem: "The cache is full and answers {} of the requests for metadata: lookups and \
                  reads wait for devices."
            .into(),
        gain: "A larger cache holds the metadata; 'cenote arc --what-if' estimates the hit ratio \
               at other sizes."
            .into(),
        command: format!("cenote tune zfs_arc_max={}", cache.max.saturating_mul(2)),
        ..of_pool(pool, Rule::CacheSize, "", Figure::Percent(ratio))
    }]
}

/// Requests beyond memory from which the use of cache devices is known.
const ENOUGH_DEVICE_REQUESTS: u64 = 100_000;
/// Percent of these requests that a cache device should answer.
const DEVICE_HITS: u64 = 5;
/// Percentage points of the requests for data that a cache device should take from the pool
/// to be worth its price.
const DEVICE_GAIN: u64 = 15;
/// Requests for data from which estimates are worth a word.
const ENOUGH_DATA: u64 = 100_000;
/// The time that reads of the pool take, from which a cache device is faster, nanoseconds.
const SLOW_POOL: u64 = 2_000_000;

fn cache_device(pool: &PoolFacts) -> Vec<Advice> {
    match pool.vdevs.iter().any(|v| v.class == VdevClass::Cache) {
        true => idle_cache_devices(pool),
        false => missing_cache_device(pool).into_iter().collect(),
    }
}

/// Cache devices that have been filled and serve next to nothing. The counters are those of
/// all pools, so another pool's devices that serve much hide one that does not.
fn idle_cache_devices(pool: &PoolFacts) -> Vec<Advice> {
    let cache = &pool.cache;
    let all = cache.device_hits.saturating_add(cache.device_misses);
    let ratio = percent(cache.device_hits, all);
    if all < ENOUGH_DEVICE_REQUESTS || ratio >= DEVICE_HITS {
        return Vec::new();
    }
    // A device that is not full yet may still get what will be read again.
    let filled = |d: &&TopFacts| percent(d.allocated, d.size) >= CACHE_FULL;
    let one = |d: &TopFacts| Advice {
        about: d.name.clone(),
        problem: format!(
            "Cache devices answer {{}} of the requests that memory does not. Their index takes \
             {} MiB of memory.",
            cache.device_index >> 20
        ),
        gain: "Without the device, its index gives memory back to the cache, and nothing is \
               written to wear it; 'cenote arc --what-if' estimates other sizes."
            .into(),
        command: format!("zpool remove {} {}", pool.name, d.name),
        ..of_pool(pool, Rule::CacheDevice, "", Figure::Percent(ratio))
    };
    let devices = pool.vdevs.iter().filter(|v| v.class == VdevClass::Cache);
    devices.filter(filled).map(one).collect()
}

/// A pool of slow devices for which much is read again that memory cannot hold.
fn missing_cache_device(pool: &PoolFacts) -> Option<Advice> {
    let cache = &pool.cache;
    let now = cache.expected?;
    let known = cache.data_hits.saturating_add(cache.data_misses) >= ENOUGH_DATA;
    let full = percent(cache.size, cache.max) >= CACHE_FULL;
    let (mut time, mut count) = (0u128, 0u128);
    for (_, leaf) in leaves(pool).filter(|(top, _)| top.class == VdevClass::Normal) {
        let (mean, n) = mean_time(&leaf.latency);
        time = time.saturating_add(u128::from(mean).saturating_mul(n.into()));
        count += u128::from(n);
    }
    let slow = time.checked_div(count).unwrap_or(0) >= SLOW_POOL.into();
    let gain = |with: u64| with.saturating_sub(now);
    let best = cache.expected_with_device.iter().map(|(_, with)| gain(*with)).max()?;
    if !known || !full || !slow || best < DEVICE_GAIN {
        return None;
    }
    // The smallest one that gives most of it.
    let enough = |(_, with): &&(u64, u64)| gain(*with).saturating_mul(5) >= best.saturating_mul(4);
    let (times, with) = cache.expected_with_device.iter().find(enough)?;
    let gib = cache.max.saturating_mul(*times).div_ceil(1 << 30);
    Some(Advice {
        problem: "{} of the requests for data go to slow devices for blocks that were in memory \
                  before."
            .into(),
        gain: format!(
            "A cache device of about {gib} GiB answers them: with it, {with} % of the requests \
             do not reach the pool's own devices, now {now} %."
        ),
        command: format!("zpool add {} cache <device>", pool.name),
        ..of_pool(pool, Rule::CacheDevice, "", Figure::Percent(gain(*with)))
    })
}

/// Data from which compression is worth a word, bytes.
const WORTH: u64 = 16 << 20;

fn compression(pool: &PoolFacts) -> Vec<Advice> {
    let bytes = |d: &DatasetFacts| {
        let below = format!("{}/", d.name);
        let inherits = |other: &&DatasetFacts| {
            other.name == d.name
                || other.name.starts_with(&below)
                    && other.uncompressed
                    && other.compression_inherited
        };
        let all = pool.datasets.iter().filter(inherits);
        all.fold(0u64, |sum, d| sum.saturating_add(d.referenced))
    };
    let one = |d: &DatasetFacts| {
        let n = bytes(d);
        if !d.uncompressed || d.compression_inherited || n < WORTH {
            return None;
        }
        Some(Advice {
            about: d.name.clone(),
            problem: "{} are stored without compression.".into(),
            gain: "lz4 costs little processor time; blocks that do not become smaller are stored \
                   as they are. 'zfs rewrite -r' compresses the files that exist."
                .into(),
            command: format!("zfs set compression=on {}", d.name),
            ..of_pool(pool, Rule::Compression, "", Figure::Bytes(n))
        })
    };
    pool.datasets.iter().filter_map(one).collect()
}

fn access_time(pool: &PoolFacts) -> Vec<Advice> {
    let wrong: Vec<_> =
        pool.datasets.iter().filter(|d| d.every_access && !d.access_inherited).collect();
    let one = |d: &&DatasetFacts| {
        let below = format!("{}/", d.name);
        let inherits = |o: &&DatasetFacts| {
            o.name == d.name || o.every_access && o.access_inherited && o.name.starts_with(&below)
        };
        let n = pool.datasets.iter().filter(inherits).count() as u64;
        Advice {
            about: d.name.clone(),
            problem: "Each read of a file writes its time of access, in {} file systems \
                      (atime=on, relatime=off)."
                .into(),
            gain: "With relatime a time is written once a day, and reads cause hardly any writes."
                .into(),
            command: format!("zfs set relatime=on {}", d.name),
            ..of_pool(pool, Rule::AccessTime, "", Figure::Count(n))
        }
    };
    wrong.iter().map(one).collect()
}

fn features(pool: &PoolFacts) -> Vec<Advice> {
    let advice = || Advice {
        gain: "Only a hint: new features may be useful, and other software may then not be able \
               to import the pool."
            .into(),
        command: format!("zpool upgrade {}", pool.name),
        ..of_pool(
            pool,
            Rule::Features,
            "Some features of this version are not enabled.",
            Figure::Count(1),
        )
    };
    pool.disabled_features.then(advice).into_iter().collect()
}
