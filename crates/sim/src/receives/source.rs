//! The pool whose snapshots are sent: its history, and the streams of it.

use std::sync::Arc;

use base::rt::sim::{Rng, run_with};
use base::{Error, Result};
use device::sim::SimDisks;
use ondisk::objset::ObjsetType;
use spa::Spa;
use stream::{SendFeatures, SendOptions, SendRequest, SendSnapshot, SendSource};
use zio::BlockCache;

use super::{PlannedReceive, SNAPSHOTS};
use crate::driver::Driver;
use crate::fs::ended;
use crate::model::{Content, Model};
use crate::ops::{Op, plan};
use crate::pool::{CACHE, SimLeaves, find, import, make};
use crate::setup::{Layout, Setup, Workload};

/// Operations between two snapshots.
const OPS: usize = 10;

/// A snapshot of the source.
pub(super) struct SentSnapshot {
    /// Its name behind the `@`.
    pub(super) short: String,
    /// Its guid.
    pub(super) guid: u64,
    /// Its content.
    pub(super) content: Arc<Content>,
}

/// The source.
#[derive(Default)]
pub(super) struct ReceiveSource {
    /// Its snapshots, oldest first.
    pub(super) snaps: Vec<SentSnapshot>,
}

/// Operations on objects of the root dataset, with snapshots between them. Spill blocks belong to
/// system attributes in streams, and the objects here have none.
fn operations(setup: &Setup) -> Vec<Op> {
    let objects = |op: &Op| {
        matches!(
            op,
            Op::Create { .. }
                | Op::CreateZap { .. }
                | Op::Write { .. }
                | Op::Append { .. }
                | Op::Truncate { .. }
                | Op::Punch { .. }
                | Op::Free { .. }
                | Op::BlockSize { .. }
                | Op::Bonus { .. }
                | Op::ZapPut { .. }
                | Op::ZapRemove { .. }
                | Op::Props { .. }
        )
    };
    let all: Vec<Op> =
        plan(setup).into_iter().flatten().map(|(_, op)| op).filter(objects).collect();
    let mut out = Vec::new();
    for ops in all.chunks(OPS).take(SNAPSHOTS) {
        out.extend(ops.iter().cloned());
        out.extend([Op::Sync, Op::Snapshot { ds: 0 }, Op::Sync]);
    }
    out
}

fn body(setup: &Setup, disks: &SimDisks, model: &Arc<Model>) -> Result<Vec<usize>> {
    let driver = Driver::new(make(setup, disks)?, disks, Arc::clone(model))?;
    driver.add_root()?;
    driver.sync()?;
    let mut hand = driver.hand(0);
    for op in operations(setup) {
        driver.run(&mut hand, &op)?;
    }
    driver.writer.stop();
    Ok(hand.snaps)
}

/// Makes the source of a seed, and the streams of the plan.
pub(super) fn record(seed: u64, plan: &mut [PlannedReceive]) -> Result<ReceiveSource, String> {
    let workload = Workload::Mixed;
    let ops = OPS * SNAPSHOTS * 2;
    // Another schedule than the receiver's: the same one would draw the same guids.
    let varied = Setup::varied(seed.wrapping_add(1 << 32));
    let setup = Setup { layout: Layout::Single, workload, threads: 1, ops, ..varied };
    let disks = SimDisks::blank(setup.disks(), setup.layout.disks(), setup.disk_size());
    let model = Arc::new(Model::default());
    let (s, d, m) = (setup.clone(), disks.clone(), Arc::clone(&model));
    let run = run_with(setup.schedule(), move || body(&s, &d, &m).map_err(|e| e.to_string()));
    let snaps = ended(run.outcome)?;
    if snaps.len() != SNAPSHOTS {
        return Err(format!("{} snapshots", snaps.len()));
    }
    streams(&disks, &model, &snaps, Rng::stream(seed, 93), plan).map_err(|e| e.to_string())
}

fn streams(
    disks: &SimDisks,
    model: &Model,
    snaps: &[usize],
    mut rng: Rng,
    plan: &mut [PlannedReceive],
) -> Result<ReceiveSource> {
    let leaves = SimLeaves::of_images(&disks.current(), &[], None, &Arc::default());
    let found = find(&leaves)?.ok_or_else(|| Error::not_found("the pool is gone"))?;
    let spa = import(&leaves, &found, &Arc::new(BlockCache::of(CACHE)?), None)?;
    let mut sent = Vec::new();
    let mut source = ReceiveSource::default();
    for (of, snapshot) in snaps.iter().zip(snapshots(&spa)?) {
        let snap = model.snap(*of).ok_or_else(|| Error::bug("no such snapshot"))?;
        source.snaps.push(SentSnapshot {
            short: snap.home.now().1.clone(),
            guid: snapshot.0.guid,
            content: model.content(snap.ds, snap.born),
        });
        sent.push(snapshot);
    }
    for planned in plan {
        let bits = rng.below(4);
        let options = SendOptions {
            large_blocks: true,
            embedded: bits & 1 != 0,
            compressed: bits & 2 != 0,
            ..SendOptions::default()
        };
        let from = planned.from.map(|from| SendSource {
            guid: sent[from].0.guid,
            txg: sent[from].1,
            is_origin: false,
        });
        let request = SendRequest { source: from, options, ..SendRequest::default() };
        let mut bytes = Vec::new();
        sent[planned.to].0.send(&request, &mut bytes, &mut |_| true)?;
        planned.stream = Arc::new(bytes);
    }
    Ok(source)
}

/// The snapshots of the root dataset, oldest first, each with the txg that took it.
fn snapshots(spa: &Spa) -> Result<Vec<(SendSnapshot, base::Txg)>> {
    let head = spa.root_dir()?.head()?.ok_or_else(|| Error::corrupt("no root dataset"))?;
    let pool = dsl::features::FeatureState::load(spa.mos())?;
    let features = SendFeatures {
        embedded_data: pool.is_active("com.delphix:embedded_data"),
        lz4: pool.is_active("org.illumos:lz4_compress"),
        large_dnode: true,
        sa_spill: true,
        ..SendFeatures::default()
    };
    let mut out = Vec::new();
    for snap in head.snapshots()? {
        let os = snap.open_objset()?;
        let os = os.ok_or_else(|| Error::corrupt("a snapshot without an object set"))?;
        let phys = snap.phys();
        let send = SendSnapshot {
            zio: Arc::clone(os.zio()),
            objset: os.id(),
            root: os.root_bp(),
            name: snap.name().to_owned(),
            guid: phys.guid,
            creation_time: phys.creation_time,
            objset_type: if os.kind() == ObjsetType::Zvol { 3 } else { 2 },
            case_insensitive: false,
            features,
        };
        out.push((send, phys.creation_txg));
    }
    out.sort_by_key(|(_, txg)| *txg);
    Ok(out)
}
