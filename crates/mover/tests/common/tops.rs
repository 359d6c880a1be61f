//! Pools of several vdevs, one of which is to leave or to shrink.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic, missing_docs)]

use std::path::Path;
use std::sync::Arc;

use base::Guid;
use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting};
use cenote::inspect::spa::audit::{AuditOptions, Verify};
use cenote::{MoveRecord, MoveState, Pool};
use testkit::eventually;

use super::history::{DISK, NAME, contents};
use super::{streams, sums};

/// Parity and disks of each top-level vdev; parity 0 is a mirror or a single disk.
#[derive(Clone, Copy, Debug)]
pub struct TopsShape {
    pub tops: &'static [(u8, usize)],
    pub ashift: u64,
    /// The vdev that is removed or shrunk.
    pub leaves: u32,
}

pub const fn shape(tops: &'static [(u8, usize)], ashift: u64, leaves: u32) -> TopsShape {
    TopsShape { tops, ashift, leaves }
}

impl TopsShape {
    pub fn name(&self) -> String {
        let tops: String = self.tops.iter().map(|(p, n)| format!("p{p}w{n}")).collect();
        format!("{tops}a{}", self.ashift)
    }

    pub fn make(&self, dir: &Path) -> Arc<Pool> {
        let mut next = 0;
        let mut file = || {
            let path = dir.join(format!("disk{next}"));
            std::fs::File::create(&path).unwrap().set_len(DISK).unwrap();
            next += 1;
            NewVdev::new(NewKind::File(path))
        };
        let mut top = |&(nparity, n): &(u8, usize)| {
            let leaves: Vec<NewVdev> = (0..n).map(|_| file()).collect();
            match (nparity, n) {
                (0, 1) => leaves.into_iter().next().unwrap(),
                (0, _) => NewVdev::new(NewKind::Mirror).with_children(leaves),
                _ => NewVdev::new(NewKind::Raidz { nparity: nparity.into() }).with_children(leaves),
            }
        };
        let vdevs = self.tops.iter().map(&mut top).collect();
        let request = CreateRequest {
            force: Force::ALL,
            settings: vec![
                PoolSetting::Stored("ashift", self.ashift),
                PoolSetting::Stored("failmode", 1),
            ],
            ..CreateRequest::new(NAME, vdevs)
        };
        testkit::engine().create_pool(&request).unwrap().unwrap()
    }
}

pub fn top_guid(pool: &Pool, id: u32) -> Guid {
    let config = pool.writer().unwrap().published().config;
    config.vdev_tree.children.iter().find(|v| v.id == id).unwrap().guid
}

pub fn ended(pool: &Pool) -> MoveRecord {
    let state = || pool.move_job().map(|job| job.record.state);
    eventually("the removal ends", || state().is_some_and(|s| s != MoveState::Active));
    let job = pool.move_job().unwrap();
    println!("{:?}: {:?}", job.record.state, job.waiting);
    job.record
}

/// What must not change.
pub fn invariants(pool: &Pool, made: u64) -> impl PartialEq + use<> {
    (sums(pool), streams(pool), contents(pool, made))
}

pub fn problems(dir: &Path) -> Option<String> {
    let options = testkit::readonly();
    let pool = match testkit::import_from(&testkit::engine(), dir, &options) {
        Ok(pool) => pool,
        Err(e) => return Some(e.to_string()),
    };
    let options = AuditOptions { verify: Verify::All, ..AuditOptions::default() };
    let report = match pool.spa().audit(options, &()) {
        Ok(report) => report,
        Err(e) => return Some(e.to_string()),
    };
    let wrong = !report.is_clean() || report.leaked > 0 || report.damaged > 0;
    wrong.then(|| format!("{} leaked, {:?}", report.leaked, report.problems.first()))
}
