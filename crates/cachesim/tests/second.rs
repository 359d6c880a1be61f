//! A second tier on published traces (fixtures: see their README): the default rule of
//! admission against OpenZFS's. With `--nocapture` it prints the table of docs/cache.md.

use std::path::PathBuf;

use cachesim::{L2Policy, Trace, simulate_second};

fn trace(name: &str) -> Trace {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/traces");
    Trace::read(&PathBuf::from(dir).join(name), None).expect("the fixture is a trace")
}

/// Per trace, a first tier of about an eighth of its keys.
#[test]
fn the_default_rule_serves_as_much_and_writes_less() {
    println!(
        "| trace | pages | times | openzfs: hits | written | hits/w | default: hits | written | hits/w |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    let mut sums = [(0u64, 0u64); 2];
    for name in ["cs", "gli", "ps", "multi1", "multi3", "zigzag", "cpp", "scan", "oltp-100k"] {
        let file = if name == "oltp-100k" {
            "oltp-100k.trace.xz".into()
        } else {
            format!("{name}.trace.gz")
        };
        let trace = trace(&file);
        let size = (trace.keys / 16).max(32);
        for times in [2, 4, 8] {
            let all = simulate_second(L2Policy::Openzfs, &trace, size, times);
            let ours = simulate_second(L2Policy::Default, &trace, size, times);
            print!("| {name} | {size} | {times} |");
            for (sum, out) in sums.iter_mut().zip([all, ours]) {
                let (hits, each) = (100.0 * out.hit_ratio(), out.hits_per_write());
                print!(" {hits:.2} | {} | {each:.2} |", out.writes);
                *sum = (sum.0 + out.second_hits, sum.1 + out.writes);
            }
            println!();
            assert!(
                ours.writes <= all.writes + all.writes / 50,
                "{name} {times}: {all:?} {ours:?}"
            );
        }
    }
    let [all, ours] = sums.map(|(hits, writes)| hits as f64 / writes as f64);
    println!("hits for each page written: openzfs {all:.3}, default {ours:.3}");
    assert!(ours > all, "openzfs {all:.3}, default {ours:.3}");
}
