use super::*;
use crate::iostat::IoClass;

/// Number of clients that always want more, and the simulated time in seconds.
const CLIENTS: usize = 512;
const TIME: f64 = 15.0;

/// Operations that a device completes in the last two thirds of the time. `curve` gives
/// its operations per second, for a number of operations in flight and a time in
/// seconds.
fn served(curve: &dyn Fn(f64, f64) -> f64, fixed: Option<usize>) -> (f64, usize) {
    served_to(CLIENTS, curve, fixed)
}

fn served_to(
    clients: usize,
    curve: &dyn Fn(f64, f64) -> f64,
    fixed: Option<usize>,
) -> (f64, usize) {
    let class = IoClass::SyncRead as usize;
    let mut depths = Depths::default();
    let (mut now, mut flying, mut ops) = (0.0, 0usize, 0.0);
    while now < TIME {
        let limit = fixed.unwrap_or_else(|| depths.limit(class));
        flying = flying.max(limit.min(clients));
        now += 1.0 / curve(flying as f64, now);
        flying -= 1;
        ops += f64::from(u8::from(now > TIME / 3.0));
        let waiting = if flying + 1 < limit { 0 } else { clients - 1 - flying };
        depths.done(class, 8192, waiting, true, Duration::from_secs_f64(now));
    }
    (ops, depths.limit(class))
}

type Curve = (&'static str, fn(f64, f64) -> f64);
const CURVES: [Curve; 8] = [
    ("one head", |_, _| 20_000.0),
    ("four channels", |d, _| 3000.0 * d.min(4.0)),
    ("sixteen channels", |d, _| 2500.0 * d.min(16.0)),
    ("a hundred channels", |d, _| 400.0 * d.min(100.0)),
    ("channels chosen at random", |d, _| 60_000.0 * d / (d + 8.0)),
    ("too much hurts", |d, _| 1500.0 * d.min(24.0) / (1.0 + 0.02 * (d - 24.0).max(0.0))),
    ("a neighbour in waves", |d, t| 2000.0 * d.min(32.0) * (1.0 + 0.8 * (t * 2.0).sin())),
    ("slower and slower", |d, t| 4000.0 * d.min(12.0) / (1.0 + t / 3.0)),
];

#[test]
fn no_fixed_depth_is_more_than_five_percent_better() {
    for (name, curve) in CURVES {
        let fixed = |depth: &u16| (served(&curve, Some((*depth).into())).0, *depth);
        let best = LADDER.iter().map(fixed).fold((0.0, 0), |a, b| if b.0 > a.0 { b } else { a });
        let (own, depth) = served(&curve, None);
        let part = own / best.0;
        assert!(part >= 0.95, "{name}: {part:.3} of depth {}, at depth {depth}", best.1);
    }
}

/// Sixty-four readers got 15 % less than possible. None of them waits at a depth of 64,
/// but each rung towards it gave nothing, so none was taken.
#[test]
fn a_depth_at_which_nothing_waits_is_found_behind_a_plain() {
    let curve = |d: f64, _: f64| if d < 63.0 { 7000.0 * d.min(8.0) } else { 66_000.0 };
    assert_eq!(served_to(64, &curve, None).1, 64);
}

#[test]
fn depth_that_gives_nothing_is_given_up() {
    let depth = |n: usize| served(&CURVES[n].1, None).1;
    assert!(depth(0) <= 4, "one head: {}", depth(0));
    assert!((4..=8).contains(&depth(1)), "four channels: {}", depth(1));
    assert!((12..=32).contains(&depth(2)), "sixteen channels: {}", depth(2));
    assert!((64..=192).contains(&depth(3)), "a hundred channels: {}", depth(3));
    assert!((16..=48).contains(&depth(5)), "too much hurts: {}", depth(5));
}

#[test]
fn the_same_completions_give_the_same_depths() {
    for (_, curve) in CURVES {
        assert_eq!(served(&curve, None), served(&curve, None));
    }
}

#[test]
fn a_depth_that_is_not_reached_or_fixed_stays() {
    let (mut depths, class) = (Depths::new(true), IoClass::AsyncWrite as usize);
    for n in 0..100_000u64 {
        let time = Duration::from_micros(50 * n);
        depths.done(class, 4096, usize::from(n % 3 == 0), true, time);
        depths.done(IoClass::Scrub as usize, 4096, 1, false, time);
    }
    assert_eq!(depths.limit(IoClass::Scrub as usize), 8);
    // It may be in the middle of a trial, but no trial had a verdict.
    assert_eq!(depths.settled()[class], 8);
}

#[test]
fn a_class_that_went_away_does_not_hold_up_another() {
    let mut depths = Depths::default();
    depths.done(0, 4096, 1, true, Duration::ZERO);
    assert!(depths.trial.is_some_and(|t| t.class == 0));
    let later = STALE + Duration::from_millis(1);
    depths.done(3, 4096, 1, true, later);
    depths.done(3, 4096, 1, true, later);
    assert!(depths.trial.is_some_and(|t| t.class == 3));
}
