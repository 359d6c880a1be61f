//! The histogram of dedup tables, as `zpool status -D` and `zdb -DD` print it (chapter 09 §8.3).

use std::fmt::Write;

use cenote::StatBucket;
use cenote::props::nicenum;

const HEADING: &str = "
bucket              allocated                       referenced          
______   ______________________________   ______________________________
refcnt   blocks   LSIZE   PSIZE   DSIZE   blocks   LSIZE   PSIZE   DSIZE
------   ------   -----   -----   -----   ------   -----   -----   -----
";

fn row(out: &mut String, label: &str, bucket: &StatBucket) {
    let _ = write!(out, "{label:>6}");
    for [blocks, sizes @ ..] in [bucket.blocks, bucket.referenced] {
        let _ = write!(out, "   {:>6}", nicenum(blocks));
        for size in sizes {
            let _ = write!(out, "   {:>5}", nicenum(size));
        }
    }
    out.push('\n');
}

/// The sum of all buckets.
pub fn sum(buckets: &[StatBucket]) -> StatBucket {
    let mut sum = StatBucket::default();
    buckets.iter().for_each(|bucket| sum.add(bucket));
    sum
}

/// The rows of the buckets, by log2 of the references, that have blocks; with `total` their sum
/// as well.
pub fn histogram(buckets: &[StatBucket], total: bool) -> String {
    let mut out = HEADING.to_owned();
    for (bucket, log2) in buckets.iter().zip(0u32..64).filter(|(b, _)| b.blocks[0] > 0) {
        row(&mut out, &nicenum(1 << log2), bucket);
    }
    if total {
        row(&mut out, "Total", &sum(buckets));
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What zdb 2.3.2 prints of the golden pool `dedup`.
    #[test]
    fn rows_as_openzfs_prints_them() {
        let mut buckets = [StatBucket::default(); 64];
        let bucket = |blocks, referenced| StatBucket { blocks, referenced };
        let k = |n: u64| n << 10;
        buckets[1] =
            bucket([272, 11_859_968, k(2000), k(2000)], [680, 29_578_240, k(5000), k(5000)]);
        buckets[4] = bucket([1, k(128), k(1), k(1)], [18, k(2304), k(18), k(18)]);
        let lines = histogram(&buckets, true);
        let wanted = "
     2      272   11.3M   1.95M   1.95M      680   28.2M   4.88M   4.88M
    16        1    128K      1K      1K       18   2.25M     18K     18K
 Total      273   11.4M   1.95M   1.95M      698   30.5M   4.90M   4.90M

";
        assert_eq!(lines, format!("{HEADING}{}", &wanted[1..]));
        assert_eq!(histogram(&[], false), format!("{HEADING}\n"));
    }
}
