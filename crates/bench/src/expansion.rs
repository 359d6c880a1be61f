//! The expansion of a raidz vdev, beside a plain copy of the same bytes.
//!
//! # Theory
//! A pool on a raidz1 of three devices gets a file; a fourth device is attached, and all blocks
//! move to rows of four. The limit is a plain copy of what is allocated on the three devices,
//! one device after another in its order, to another file on the same disk: direct reads and
//! writes of up to 1 MiB, sixteen at a time, and a flush for each device. Both are measured in
//! each round, with a new pool. The expansion's time is that until the vdev has its new width,
//! with all of its txgs, and without the scrub that follows.

use base::rt;
use base::{Error, Result};
use cenote::create::NewKind;
use cenote::{AttachMode, AttachRequest, NewDevice};

use super::args::opt;
use super::removal::{MoveOptions, Moved};
use super::scrub_pool::{ScrubVdev, allocated, copy, import, sum, wait};
use super::tidy::Scratch;
use super::write_pool::cpu;
use super::{Bench, BenchResult, Run};

pub(super) const BENCH: Bench = Bench {
    name: "expansion",
    about: "the expansion of a raidz vdev beside a plain copy of the same bytes",
    words: "",
    options: &[&[
        opt("--size", "SIZE", "bytes of each of the devices (2G)"),
        opt("--fill", "PERCENT", "level of the pool (50)"),
        opt("--record", "SIZE", "record size (128K)"),
        opt("--memory", "SIZE", "the cache (256M)"),
        opt("--rounds", "N", "pairs of copies and expansions (3)"),
        opt("--device", "DIR", "directory for the pool ($TMPDIR)"),
    ]],
    run,
};

/// Devices before the expansion.
const WIDTH: u64 = 3;

fn run(run: &mut Run) -> BenchResult<()> {
    let options = MoveOptions::read(&run.args, 2 << 30, WIDTH + 2)?;
    options.rounds(run, "expansion, share of a plain copy", one)
}

fn one(run: &mut Run, options: &MoveOptions, _: u64) -> BenchResult<Moved> {
    let scratch = Scratch::new(&options.dir)?;
    let device = |name: &str| options.device(&scratch, name);
    let old = ["a.img", "b.img", "c.img"].map(device).into_iter().collect::<Result<Vec<_>>>()?;
    let (new, other) = (device("new.img")?, device("copy.img")?);
    options.make_pool(run, vec![ScrubVdev::Raidz.over(&old)])?;
    let ranges = allocated(ScrubVdev::Raidz, &old)?;
    let bytes = sum(&ranges) * WIDTH;
    let mut plain = 0.0;
    for device in &old {
        plain += copy((device, &other), &ranges)?;
    }
    let (running, engine) = import(&old, options.memory, false)?;
    let pool = running.pool();
    let request = AttachRequest {
        old: "raidz1-0".to_owned(),
        new: Some(NewDevice::Path(NewKind::File(new))),
        mode: AttachMode::Attach,
        sequential: false,
        force: true,
        ashift: None,
        command: None,
    };
    let (used, began) = (cpu(), rt::now());
    engine.attach(pool, &request)?;
    wait(run, "expanding a raidz vdev", &mut || Ok(pool.writer()?.expansion().is_none()))?;
    pool.sync()?;
    let seconds = began.elapsed().as_secs_f64();
    let used = cpu().saturating_sub(used).as_secs_f64();
    if pool.writer()?.published().config.vdev_tree.children[0].children.len() != 4 {
        return Err(Error::bug("a raidz vdev that did not grow").into());
    }
    running.end(true)?;
    Ok(Moved { bytes, plain, seconds, cpu: used })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Stop;
    use super::super::frag::tests::{json, rows};

    #[test]
    fn all_rows_move() {
        let scratch = testkit::Scratch::new("bench-expansion");
        let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
        let (dir, out) = (path(""), path("out.json"));
        let words =
            ["--size", "128M", "--fill", "20", "--rounds", "1", "--device", &dir, "--json", &out];
        super::BENCH.start(&words.map(str::to_owned)).map_err(Stop::text).unwrap();
        let json = json(Path::new(&out));
        let row = &rows(&json, "moves")[0];
        assert!(row["bytes"].as_u64().unwrap() > 8 << 20, "{json}");
        assert!(row["move_mb_s"].as_f64().unwrap() > 0.0, "{json}");
    }
}
