//! Receives of streams under the simulator.
//!
//! # Theory
//! A source pool gets a random history of one dataset, with snapshots ([`source`]). Their streams
//! are made once. Another pool receives them: whole, cut off and begun anew, cut off and resumed,
//! and with `-F` over a dataset that was changed since. Its power fails after every event. Then
//! the copy must have the snapshots of before or after the step that was under way, each with
//! exactly the content that the source's had, and its head that of the newest one, unless the
//! copy was changed. What a receive has stored so far is the partial state of a resumable one, or
//! an inconsistent dataset that the next import destroys; both only where a receive was cut off.
//! A partial state that was acknowledged is never older after the crash.
//!
//! Some crashed pools are opened for writing ([`judge`]). A partial state is resumed from its
//! position: the snapshot must have the source's content, so a position that is ahead of the
//! data is found. Other pools receive the next stream. Some of these are crashed once more.
//!
//! # Invariants
//! * A seed decides everything. Streams are made outside the runs, because their bytes do not
//!   depend on threads; the rest of a stream is cut from its records.
//! * Only the model of the source and the requests are compared with what is found.
//!
//! Lock order: the locks of the recording are leaves, invisible to the scheduler.

mod judge;
mod source;

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::rt::plain;
use base::rt::sim::{Rng, run_with};
use base::{Error, ErrorKind, Result, Txg};
use device::sim::SimDisks;
use dmu::{ObjectSpec, Tx};
use dsl::DslDir;
use dsl::write::receive::{ReceivePosition, ReceivedSnapshot, ResumeState};
use ondisk::ObjType;
use ondisk::objset::ObjsetType;
use spa::engine::{EndReceive, NewReceive, ReceiveTarget, Writer, objset_props};
use stream::{
    Features, ReceiveHost, ReceiveInto, StreamReader, StreamRecord, StreamWriter, receive_substream,
};

use crate::everywhere::CrashPoints;
use crate::fs::ended;
use crate::memo::Memo;
use crate::ops::content;
use crate::pool::{POOL, make};
use crate::setup::{Layout, Setup, Workload};
use judge::FoundCopy;
use source::ReceiveSource;

/// The dataset that receives.
const COPY: &str = "sim/copy";
/// Payload that one transaction applies, bytes: so little that a stream spans several txgs.
const BATCH: u64 = 12 << 10;
/// Snapshots of the source.
const SNAPSHOTS: usize = 4;

/// A bug to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveBug {
    /// The dataset gets the content that was received before the last of it is stored.
    EarlySwitch,
    /// The stored position of a receive is that of records in later txgs.
    PositionTooFar,
    /// The position of a receive that is cut off is not on disk when the caller learns of it.
    UnsyncedPosition,
}

impl ReceiveBug {
    /// All bugs.
    pub const ALL: [ReceiveBug; 3] =
        [ReceiveBug::EarlySwitch, ReceiveBug::PositionTooFar, ReceiveBug::UnsyncedPosition];
}

/// A run.
#[derive(Clone, Debug)]
pub struct ReceiveSetup {
    /// Vdevs, disks and schedule of the pool that receives.
    pub run: Setup,
    /// A bug.
    pub plant: Option<ReceiveBug>,
}

impl ReceiveSetup {
    /// The run of a seed.
    pub fn varied(seed: u64, plant: Option<ReceiveBug>) -> ReceiveSetup {
        let mut rng = Rng::stream(seed, 90);
        let layouts = [
            Layout::Single,
            Layout::Mirror,
            Layout::Raidz,
            Layout::Classes,
            Layout::Raidz2,
            Layout::Draid,
            Layout::Wide(3, 5),
        ];
        let layout = layouts[rng.below(layouts.len() as u64) as usize];
        let workload = Workload::Mixed;
        ReceiveSetup { run: Setup { layout, workload, threads: 1, ..Setup::varied(seed) }, plant }
    }
}

/// A stream of the source, and how it is received.
#[derive(Clone)]
struct PlannedReceive {
    /// Index of the snapshot that it is incremental to.
    from: Option<usize>,
    /// Index of the snapshot that it brings.
    to: usize,
    /// The copy is changed before, and gets a snapshot; the receive discards both.
    over_changes: bool,
    /// Where it is cut off, in thousandths of what is left.
    cuts: Vec<u64>,
    /// What was received before a cut is kept, and the receive resumed.
    resumable: bool,
    /// The whole stream.
    stream: Arc<Vec<u8>>,
}

/// What the copy has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CopyState {
    /// The dataset is there.
    exists: bool,
    /// Its snapshots, by their names; without an index a snapshot of the copy's own.
    snaps: BTreeMap<String, Option<usize>>,
    /// The snapshot of the source whose content the head has; `None` is not compared.
    head: Option<usize>,
    /// The snapshot that is partly received, and the bytes of its stream so far.
    partial: Option<(usize, u64)>,
}

/// A step of a run: the events around it, and the copy after it.
#[derive(Clone, Debug)]
struct CopyStep {
    what: &'static str,
    began: u64,
    ended: u64,
    /// The snapshot that it receives.
    receives: Option<usize>,
    after: CopyState,
}

/// A run that was recorded.
pub struct RecordedReceives {
    /// The setup.
    pub setup: ReceiveSetup,
    /// The disks, with their log.
    pub disks: SimDisks,
    /// A failure during the run itself.
    pub failed: Option<String>,
    source: Arc<ReceiveSource>,
    plan: Arc<Vec<PlannedReceive>>,
    steps: Vec<CopyStep>,
    /// What was found in each txg.
    found: plain::Mutex<BTreeMap<Txg, FoundCopy>>,
    /// Txgs that were judged.
    memo: Memo,
    /// Crashed pools that were opened for writing, and those of them that resumed a receive.
    reopened: plain::Mutex<(u64, u64)>,
}

/// The number of images of a run, and the first failure.
#[derive(Debug, Default)]
pub struct ReceiveTally {
    /// Events after which the power failed.
    pub points: u64,
    /// Crash images judged.
    pub images: u64,
    /// Txgs found in them.
    pub txgs: u64,
    /// Crashed pools that were opened for writing.
    pub reopened: u64,
    /// Those of them that resumed a receive.
    pub resumed: u64,
    /// Event, seed of the crash, and the error.
    pub failure: Option<(u64, u64, String)>,
}

/// Draws the receives of a run; their streams are made by [`source::record`].
fn draw(seed: u64) -> Vec<PlannedReceive> {
    let mut rng = Rng::stream(seed, 91);
    let (mut out, mut from) = (Vec::new(), None);
    let mut to = 0;
    while to < SNAPSHOTS {
        // Sometimes a stream spans a snapshot.
        if to > 0 && to + 1 < SNAPSHOTS && rng.one_in(5) {
            to += 1;
        }
        let cuts = (0..rng.below(3)).map(|_| rng.below(1000)).collect();
        out.push(PlannedReceive {
            from,
            to,
            over_changes: rng.one_in(3),
            cuts,
            resumable: rng.below(4) != 0,
            stream: Arc::default(),
        });
        from = Some(to);
        to += 1;
    }
    out
}

/// The rest of a stream from a position on, as a sender makes it (chapter 07 §8.6).
fn rest(stream: &[u8], at: (u64, u64)) -> Result<Vec<u8>> {
    let keeps = |record: &StreamRecord| match record {
        StreamRecord::Begin(_) | StreamRecord::End(_) => true,
        // At the very beginning, object 1 may be one that is free.
        StreamRecord::FreeObjects(r) => r.first.saturating_add(r.count) > at.0,
        StreamRecord::Write(r) => (r.object, r.offset) >= at,
        StreamRecord::WriteEmbedded(r) => (r.object, r.offset) >= at,
        StreamRecord::Free(r) if r.length != stream::TO_THE_END => (r.object, r.offset) >= at,
        other => other.object().is_some_and(|object| object >= at.0),
    };
    let mut reader = StreamReader::new(stream);
    let mut writer = StreamWriter::new(Vec::new());
    while let Some(read) = reader.next_record()? {
        let (mut record, mut payload) = (read.record, read.payload.to_vec());
        if let StreamRecord::Begin(begin) = &mut record {
            begin.version_info |= Features::RESUMING.0 << 2;
            let mut list = nvlist::NvList::new();
            list.add_u64("resume_object", at.0).add_u64("resume_offset", at.1);
            payload = list.pack_native(nvlist::Order::Little);
        }
        if keeps(&record) {
            writer.write(&record, &payload)?;
        }
    }
    Ok(writer.into_inner())
}

/// A stream that comes slowly: txgs end between its records.
struct SlowInput<'a> {
    bytes: &'a [u8],
    rng: Rng,
    writer: &'a Writer,
}

impl Read for SlowInput<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        match self.rng.below(24) {
            0 | 1 => self.writer.txgs().kick(self.writer.txgs().open_txg()),
            2 => base::rt::sleep(std::time::Duration::from_millis(self.rng.below(1500))),
            _ => {}
        }
        self.bytes.read(out)
    }
}

/// The pool's side of a receive.
struct SimReceiveHost<'a> {
    writer: &'a Writer,
    target: &'a ReceiveTarget,
}

impl ReceiveHost for SimReceiveHost<'_> {
    fn begin(&self, bytes: u64, frees: bool) -> Result<Tx> {
        self.writer.begin_wait(bytes, frees)
    }

    fn sync(&self) -> Result<()> {
        self.writer.sync().map(drop)
    }

    fn applied(&self, txg: Txg, object: u64, offset: u64, bytes: u64) {
        let bytes = self.target.bytes + bytes;
        self.target.applied(txg, ReceivePosition { object, offset, bytes });
    }
}

/// Receives `bytes`, as `zfs receive -F` does. `at` is the position that they go on from.
fn receive(
    writer: &Writer,
    bytes: &[u8],
    resumable: bool,
    at: Option<(u64, u64)>,
    seed: u64,
) -> Result<()> {
    let rng = Rng::stream(seed, 92);
    let mut reader = StreamReader::new(SlowInput { bytes, rng, writer });
    let begin = match reader.next_record()?.map(|read| read.record) {
        Some(StreamRecord::Begin(begin)) => begin,
        _ => return Err(Error::corrupt("the stream does not begin")),
    };
    let to_name = begin.to_name()?.to_owned();
    let snapshot = to_name.rsplit('@').next().unwrap_or_default().to_owned();
    let from_guid = begin.from_guid;
    let resume = resumable.then(|| ResumeState {
        from_guid: Some(from_guid).filter(|guid| *guid != 0),
        to_guid: begin.to_guid,
        to_name,
        position: ReceivePosition::BEGIN,
        large_blocks: false,
        embedded: begin.features().has(Features::EMBED_DATA),
        compressed: begin.features().has(Features::COMPRESSED),
        raw: false,
        from_redacted: None,
    });
    let new = NewReceive {
        dataset: COPY.to_owned(),
        snapshot: snapshot.clone(),
        kind: ObjsetType::Zfs,
        case_insensitive: false,
        from_guid,
        to_guid: begin.to_guid,
        origin: None,
        force: true,
        needs: Vec::new(),
        uses: Vec::new(),
        props: Vec::new(),
        resume,
        resumes_at: at,
        redacted: None,
        from_redacted: None,
        is_plain: false,
        raw: None,
    };
    let target = writer.begin_receive(new, None)?;
    let apply = || {
        let host = SimReceiveHost { writer, target: &target };
        let objset = writer.received_objset(&target)?;
        let (has_content, resumes) = (target.has_content, at.is_some());
        let into = ReceiveInto { objset, host: &host, has_content, resumes, batch: BATCH };
        receive_substream(&mut reader, &begin, into)?;
        let (guid, creation_time) = (begin.to_guid, begin.creation_time);
        let snapshot = ReceivedSnapshot { name: snapshot, guid, creation_time, raw: None };
        writer.end_receive(&target, &EndReceive { snapshot, force: true })
    };
    apply().or_else(|e| {
        writer.abandon_receive(&target, true)?;
        Err(e)
    })
}

/// The copy's head.
fn head_of_copy(writer: &Writer) -> Result<u64> {
    let _names = writer.names();
    let head = DslDir::root(writer.mos(), POOL)?.find(COPY)?.head()?;
    Ok(head.ok_or_else(|| Error::corrupt("a dataset without a head"))?.object())
}

/// The thread that receives, and its record.
struct Receiving<'a> {
    writer: Arc<Writer>,
    disks: &'a SimDisks,
    source: &'a ReceiveSource,
    steps: &'a plain::Mutex<Vec<CopyStep>>,
    now: CopyState,
    seed: u64,
}

impl Receiving<'_> {
    /// Performs a step and records it; `act` returns the copy after it.
    fn step(
        &mut self,
        what: &'static str,
        receives: Option<usize>,
        act: impl FnOnce(&Receiving<'_>) -> Result<CopyState>,
    ) -> Result<()> {
        let (began, after) = (self.disks.events(), self.now.clone());
        self.steps.lock().push(CopyStep { what, began, ended: u64::MAX, receives, after });
        self.now = act(self)?;
        let ended = self.disks.events();
        if let Some(step) = self.steps.lock().last_mut() {
            (step.ended, step.after) = (ended, self.now.clone());
        }
        Ok(())
    }

    /// Changes the copy, and takes a snapshot of it; without the dataset makes it.
    fn change(&mut self, number: usize) -> Result<()> {
        if !self.now.exists {
            return self.step("create", None, |of| {
                let new = spa::engine::NewDataset {
                    name: COPY.to_owned(),
                    kind: ObjsetType::Zfs,
                    case_insensitive: false,
                    props: Vec::new(),
                    content: Box::new(|_, _| Ok(())),
                };
                of.writer.create_dataset(new, None)?;
                Ok(CopyState { exists: true, ..CopyState::default() })
            });
        }
        self.step("write", None, |of| {
            let props = objset_props(&of.writer.flags()?, &|_| Ok(None))?;
            let os = of.writer.open_head(head_of_copy(&of.writer)?, props)?;
            let tx = of.writer.begin_wait(256 << 10, false)?;
            let spec = ObjectSpec {
                object_type: ObjType::PLAIN_FILE_CONTENTS,
                block_size: 4096,
                indirect_shift: 0,
                bonus_type: ObjType::NONE,
                bonus: Vec::new(),
                slots: 1,
            };
            let id = os.allocate(&tx, &spec)?;
            os.write(&tx, id, 0, &content(number as u32 | 3, 20_000))?;
            drop(tx);
            of.writer.sync()?;
            Ok(CopyState { head: None, ..of.now.clone() })
        })?;
        if self.now.snaps.is_empty() {
            // A full stream replaces only what has no snapshots.
            return Ok(());
        }
        self.step("snapshot", None, |of| {
            let name = format!("mine-{number}");
            of.writer.snapshot(&[format!("{COPY}@{name}")], &[], None)?;
            let mut after = of.now.clone();
            after.snaps.insert(name, None);
            Ok(after)
        })
    }

    /// Receives a stream of the plan.
    fn receive(&mut self, number: usize, planned: &PlannedReceive) -> Result<()> {
        if planned.over_changes {
            self.change(number)?;
        }
        let mut at = None;
        let mut next = (*planned.stream).clone();
        for (n, cut) in planned.cuts.iter().enumerate() {
            let len = (next.len() as u64 * cut / 1000) as usize;
            let (bytes, seed) = (next[..len].to_vec(), self.seed ^ (number * 16 + n) as u64);
            let mut position = None;
            self.step("cut off", Some(planned.to), |of| {
                match receive(&of.writer, &bytes, planned.resumable, at, seed) {
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                    Ok(()) => return Err(Error::bug("a stream without its end was received")),
                }
                let found = judge::look(of.writer.mos(), of.source)?;
                position = found.partial.map(|(_, at)| at);
                let partial = position.map(|at| (planned.to, at.bytes));
                Ok(CopyState { partial, ..of.now.clone() })
            })?;
            // A BEGIN that is cut off leaves nothing.
            let Some(found) = position else { continue };
            if !planned.resumable {
                return Err(Error::bug("a receive that cannot be resumed left its position"));
            }
            at = Some((found.object, found.offset));
            next = rest(&planned.stream, (found.object, found.offset))?;
        }
        let seed = self.seed ^ (number * 16 + 9) as u64;
        self.step("receive", Some(planned.to), |of| {
            receive(&of.writer, &next, planned.resumable, at, seed)?;
            let mut after = CopyState { exists: true, ..of.now.clone() };
            // What is newer than the stream's source is discarded.
            after.snaps.retain(|_, of| of.is_some());
            after.snaps.insert(of.source.snaps[planned.to].short.clone(), Some(planned.to));
            (after.head, after.partial) = (Some(planned.to), None);
            Ok(after)
        })
    }
}

fn body(
    setup: &ReceiveSetup,
    disks: &SimDisks,
    source: &ReceiveSource,
    plan: &[PlannedReceive],
    steps: &plain::Mutex<Vec<CopyStep>>,
) -> Result<(), String> {
    let writer = make(&setup.run, disks).map_err(|e| format!("making the pool: {e}"))?;
    writer.sync().map_err(|e| format!("first sync: {e}"))?;
    let plants = &writer.plants.receive;
    plants.early_switch.store(setup.plant == Some(ReceiveBug::EarlySwitch), Relaxed);
    plants.position_too_far.store(setup.plant == Some(ReceiveBug::PositionTooFar), Relaxed);
    plants.unsynced_position.store(setup.plant == Some(ReceiveBug::UnsyncedPosition), Relaxed);
    let (began, after) = (disks.events(), CopyState::default());
    steps.lock().push(CopyStep { what: "begin", began, ended: began, receives: None, after });
    let (now, seed) = (CopyState::default(), setup.run.seed);
    let mut of = Receiving { writer, disks, source, steps, now, seed };
    for (number, planned) in plan.iter().enumerate() {
        of.receive(number, planned).map_err(|e| {
            let what = of.steps.lock().last().map_or("", |step| step.what);
            format!("receive {number}, {what}: {e}")
        })?;
    }
    of.writer.sync().map_err(|e| format!("last sync: {e}"))?;
    of.writer.stop();
    Ok(())
}

/// Runs a setup and records it.
pub fn record(setup: ReceiveSetup) -> RecordedReceives {
    let run = &setup.run;
    let disks = SimDisks::blank(run.disks(), run.layout.disks(), run.disk_size());
    let steps: Arc<plain::Mutex<Vec<CopyStep>>> = Arc::default();
    let mut plan = draw(run.seed);
    let made = source::record(run.seed, &mut plan);
    let (source, mut failed) = match made {
        Ok(source) => (Arc::new(source), None),
        Err(why) => (Arc::default(), Some(format!("the source: {why}"))),
    };
    let plan = Arc::new(plan);
    if failed.is_none() {
        let (s, d, r) = (setup.clone(), disks.clone(), Arc::clone(&steps));
        let (of, p) = (Arc::clone(&source), Arc::clone(&plan));
        let outcome = run_with(run.schedule(), move || body(&s, &d, &of, &p, &r)).outcome;
        failed = ended(outcome).err();
    }
    let steps = steps.lock().clone();
    let (found, memo, reopened) = Default::default();
    RecordedReceives { setup, disks, failed, source, plan, steps, found, memo, reopened }
}

impl RecordedReceives {
    /// Kinds of steps that were done.
    pub fn done(&self) -> Vec<&'static str> {
        self.steps.iter().filter(|step| step.ended < u64::MAX).map(|step| step.what).collect()
    }

    /// Crashes after every `step`-th event since the pool was made, with unflushed writes lost,
    /// kept, and in `more` other ways, on `threads` threads.
    pub fn crash_everywhere(&self, step: usize, more: u64, threads: usize) -> ReceiveTally {
        let mut tally = ReceiveTally::default();
        if let Some(why) = &self.failed {
            tally.failure = Some((0, 0, why.clone()));
            return tally;
        }
        let start = self.steps.first().map_or(0, |step| step.began);
        let points = self.disks.crash_points().into_iter().filter(|p| *p >= start);
        let points: Vec<u64> = points.step_by(step.max(1)).collect();
        tally.points = points.len() as u64;
        let found = CrashPoints { points, seed: self.setup.run.seed, more, threads }
            .visit(|event, seed, cache| self.crash(event, seed, cache).map(Some));
        (tally.images, tally.txgs) = (found.images, found.txgs);
        (tally.reopened, tally.resumed) = *self.reopened.lock();
        tally.failure = found.wrong;
        tally
    }
}
