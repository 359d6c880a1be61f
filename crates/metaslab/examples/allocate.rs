//! Measures allocations per second: `cargo run --release -p metaslab --example
//! allocate`.

use base::rt::{fan_out, now};
use base::{Txg, VdevId};
use metaslab::{MsDesc, Space, SpaceClass, VdevDesc, Want};

const SHIFT: u32 = 34;

fn pool() -> base::Result<Space> {
    let space = Space::new(4);
    let desc = VdevDesc {
        asize: 64 << SHIFT,
        ashift: 12,
        ms_shift: SHIFT,
        data_disks: 1,
        allocating: true,
        metaslabs: vec![MsDesc::default(); 64],
        ..VdevDesc::default()
    };
    space.add_vdev(&desc, None)?;
    Ok(space)
}

fn run(space: &Space, threads: usize, each: u64, size: impl Fn(u64) -> u64 + Sync) -> f64 {
    let start = now();
    fan_out(threads, |t| {
        for n in 0..each {
            let psize = size(n);
            let want = Want {
                psize,
                record: 0,
                copies: 1,
                class: SpaceClass::Normal,
                txg: Txg(9),
                hint: t as u64,
                metadata: false,
                gang_child: false,
                avoid: None,
            };
            drop(space.allocate(&want, &|_: VdevId| psize));
        }
    });
    start.elapsed().as_nanos() as f64 / each as f64
}

fn main() -> base::Result<()> {
    for threads in [1, 2, 4] {
        let space = pool()?;
        let ns = run(&space, threads, 500_000, |n| 4096 * (1 + n % 32));
        println!("empty space, {threads} threads: {ns:.0} ns each");
    }
    // Every second 16 KiB of 8 GiB free: first allocate everything, then free half.
    let space = pool()?;
    let mut held = Vec::new();
    let want = |size| Want {
        psize: size,
        record: 0,
        copies: 1,
        class: SpaceClass::Normal,
        txg: Txg(9),
        hint: 0,
        metadata: false,
        gang_child: false,
        avoid: None,
    };
    while let Ok(dvas) = space.allocate(&want(16384), &|_| 16384) {
        held.extend(dvas);
        if held.len() >= 64 << (SHIFT - 14) || held.len() >= 1 << 21 {
            break;
        }
    }
    let holes: Vec<_> = held.iter().copied().step_by(2).collect();
    space.unallocate(Txg(9), &holes);
    let start = now();
    for _ in 0..500_000 {
        drop(space.allocate(&want(8192), &|_| 8192));
    }
    println!("a million holes: {:.0} ns each", start.elapsed().as_nanos() as f64 / 500_000.0);
    let start = now();
    let found = held.iter().skip(1).step_by(4).filter(|dva| space.is_allocated(**dva)).count();
    let each = start.elapsed().as_nanos() as f64 / (held.len() / 4) as f64;
    println!("is_allocated among a million holes, {found} addresses: {each:.0} ns each");
    Ok(())
}
