//! The engine's policies on published traces (fixtures: see their README).

use std::path::PathBuf;

use cachesim::{PolicyKind, Trace, simulate};

fn trace(name: &str) -> Trace {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/traces");
    Trace::read(&PathBuf::from(dir).join(name), None).unwrap()
}

fn percent(policy: PolicyKind, trace: &Trace, size: usize) -> f64 {
    simulate(policy, trace, size).hit_ratio() * 100.0
}

/// The paper's figure 4 over plain vectors: no links, no bytes, no shared code.
fn naive_arc(trace: &Trace, c: usize) -> f64 {
    let [mut t1, mut t2, mut b1, mut b2] = [const { Vec::<u32>::new() }; 4];
    let (mut p, mut hits) = (0.0f64, 0u32);
    let cut = |list: &mut Vec<u32>, x| {
        list.iter().rposition(|&y| y == x).map(|at| list.remove(at)).is_some()
    };
    let replace = |p: f64, in_b2: bool, [t1, t2, b1, b2]: [&mut Vec<u32>; 4]| {
        let n = t1.len() as f64;
        if t2.is_empty() || (n > 0.0 && (n > p || (in_b2 && n == p))) {
            b1.push(t1.remove(0));
        } else {
            b2.push(t2.remove(0));
        }
    };
    for &x in &trace.requests {
        if cut(&mut t1, x) || cut(&mut t2, x) {
            hits += 1;
            t2.push(x);
            continue;
        }
        let (n1, n2) = (b1.len() as f64, b2.len() as f64);
        if cut(&mut b1, x) {
            p = (p + (n2 / n1).max(1.0)).min(c as f64);
            replace(p, false, [&mut t1, &mut t2, &mut b1, &mut b2]);
            t2.push(x);
        } else if cut(&mut b2, x) {
            p = (p - (n1 / n2).max(1.0)).max(0.0);
            replace(p, true, [&mut t1, &mut t2, &mut b1, &mut b2]);
            t2.push(x);
        } else {
            let l1 = t1.len() + b1.len();
            if l1 == c && t1.len() == c {
                t1.remove(0);
            } else if l1 == c {
                b1.remove(0);
                replace(p, false, [&mut t1, &mut t2, &mut b1, &mut b2]);
            } else if l1 + t2.len() + b2.len() >= c {
                if l1 + t2.len() + b2.len() == 2 * c {
                    b2.remove(0);
                }
                replace(p, false, [&mut t1, &mut t2, &mut b1, &mut b2]);
            }
            t1.push(x);
        }
    }
    f64::from(hits) / trace.requests.len() as f64 * 100.0
}

#[test]
fn the_reference_agrees_with_a_naive_arc() {
    let oltp = trace("oltp-100k.trace.xz");
    assert_eq!((oltp.requests.len(), oltp.keys), (100_000, 41_526));
    for size in [250, 1000, 2000] {
        let (ours, naive) = (percent(PolicyKind::Arc, &oltp, size), naive_arc(&oltp, size));
        assert!((ours - naive).abs() < 0.05, "OLTP {size}: {ours:.3} {naive:.3}");
    }
    let cpp = trace("cpp.trace.gz");
    for size in [50, 300, 900] {
        let (ours, naive) = (percent(PolicyKind::Arc, &cpp, size), naive_arc(&cpp, size));
        assert!((ours - naive).abs() < 0.05, "cpp {size}: {ours:.3} {naive:.3}");
    }
}

const ALL: [(&str, &[usize]); 10] = [
    ("loop", &[100, 500, 900]),
    ("scan", &[100, 1000, 1800]),
    ("cs", &[100, 500, 1000, 1300]),
    ("gli", &[100, 500, 1250, 1750, 2250]),
    ("ps", &[100, 900, 1800, 2700]),
    ("multi1", &[260, 780, 1560, 2340]),
    ("multi3", &[300, 1500, 3700, 6700]),
    ("zigzag", &[200, 800, 1000, 1800]),
    ("backf", &[75, 300, 525, 740]),
    ("cpp", &[50, 300, 900]),
];

#[test]
fn the_default_is_nowhere_far_below_the_reference() {
    for (name, sizes) in ALL {
        let trace = trace(&format!("{name}.trace.gz"));
        for &size in sizes {
            let ours = percent(PolicyKind::Default, &trace, size);
            let arc = percent(PolicyKind::Arc, &trace, size);
            assert!(ours >= arc - 1.0, "{name} {size}: default {ours:.2}, arc {arc:.2}");
        }
    }
}

#[test]
fn the_default_serves_loops_as_lirs_does_and_returns_as_lru_does() {
    for (name, sizes) in ALL {
        let trace = trace(&format!("{name}.trace.gz"));
        for &size in sizes {
            let ours = percent(PolicyKind::Default, &trace, size);
            let (rival, least) = match name {
                "zigzag" | "backf" => {
                    let lru = percent(PolicyKind::Lru, &trace, size);
                    (lru, lru - 1.0)
                }
                "cpp" => continue,
                _ => {
                    let lirs = percent(PolicyKind::Lirs, &trace, size);
                    (lirs, lirs * 0.85)
                }
            };
            assert!(ours >= least, "{name} {size}: default {ours:.2}, rival {rival:.2}");
        }
    }
}

#[test]
fn no_policy_beats_the_optimum() {
    for name in ["cpp", "gli", "zigzag"] {
        let trace = trace(&format!("{name}.trace.gz"));
        for size in [50, 400, 1000] {
            let best = simulate(PolicyKind::Min, &trace, size).hits;
            for policy in PolicyKind::ALL {
                let hits = simulate(policy, &trace, size).hits;
                assert!(hits <= best, "{name} {size} {}: {hits} > {best}", policy.name());
            }
        }
    }
}

#[test]
fn with_room_for_all_every_policy_only_misses_once() {
    let trace = trace("gli.trace.gz");
    let most = (trace.requests.len() - trace.keys) as u64;
    for policy in [PolicyKind::Arc, PolicyKind::Lru, PolicyKind::TwoQ, PolicyKind::Sieve] {
        assert_eq!(simulate(policy, &trace, trace.keys + 10).hits, most, "{}", policy.name());
    }
}
