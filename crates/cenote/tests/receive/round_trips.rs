//! Datasets of golden pools, sent with every combination of options and received: their files are
//! those that OpenZFS listed.

use cenote::{ReceiveNames, ReceiveOptions, SendOptions};
use testkit::{Golden, golden_pools, side_by_side, verify};

use super::TestPool;

/// Combinations of `-L`, `-e` and `-c`.
const FORMS: usize = 8;

fn form(bits: usize) -> SendOptions {
    SendOptions {
        large_blocks: bits & 1 != 0,
        embedded: bits & 2 != 0,
        compressed: bits & 4 != 0,
        raw: false,
    }
}

/// Sends each dataset of a pool that has a manifest, in the forms that `forms` selects for its
/// number, and compares the copies. Returns how many there were.
fn travels(of: &Golden, forms: impl Fn(usize) -> Vec<usize>) -> usize {
    let manifests = of.manifests();
    let Some(source) = TestPool::golden(&of.name) else { return 0 };
    let to = TestPool::new(&format!("round-trip-{}", of.name));
    let options = ReceiveOptions::default();
    let mut count = 0;
    for (number, (name, manifest)) in manifests.iter().enumerate() {
        let dataset = source.pool.dataset(name).unwrap();
        if manifest.is_empty()
            || dataset.prop("keystatus").unwrap().is_some_and(|key| {
                // Nothing is encrypted in a dataset without a key.
                !matches!(key.value, cenote::PropData::None | cenote::PropData::Num(0))
            })
        {
            continue;
        }
        for bits in forms(number) {
            let (mut stream, how) = (Vec::new(), form(bits));
            // A micro ZAP above 128 KiB travels with large blocks only.
            match dataset.send(None, how, &mut stream, &mut |_| true) {
                Err(e) if e.kind() == cenote::ErrorKind::Unsupported => continue,
                sent => sent.unwrap(),
            }
            let target = "tank/copy@sent";
            to.pool.receive(target, ReceiveNames::Whole, &options, stream.as_slice()).unwrap();
            let fs = to.pool.dataset("tank/copy").unwrap().open_fs().unwrap();
            let differences = verify(&fs, manifest, true);
            assert!(differences.is_empty(), "{name} as {how:?}: {differences:#?}");
            drop(fs);
            to.pool.destroy_dataset("tank/copy", true, None).unwrap();
            count += 1;
        }
    }
    println!("TRAVELLED {}: {count} streams", of.name);
    to.judged();
    count
}

#[test]
fn golden_datasets_in_every_form() {
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let all: Vec<Golden> = golden_pools()
        .into_iter()
        .filter(|of| match nightly {
            // Logs that are not replayed, and keys.
            true => !of.name.contains("zil") && !of.name.starts_with("crypt"),
            false => matches!(of.name.as_str(), "snaps" | "twomirrors"),
        })
        .collect();
    let counts: base::rt::Mutex<usize> = base::rt::Mutex::new(0);
    side_by_side(&all, |of| {
        let found = travels(of, |number| match nightly {
            true => (0..FORMS).collect(),
            false => vec![(number * 3 + of.name.len()) % FORMS],
        });
        *counts.lock() += found;
    });
    assert!(*counts.lock() >= 3);
}
