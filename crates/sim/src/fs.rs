//! A file system in a simulated pool, and the result of a run with it.

use std::sync::Arc;

use base::rt::sim::Outcome;
use base::{Error, Result, Txg};
use dmu::{Io, Objset, Tx};
use ondisk::objset::ObjsetType;
use spa::Spa;
use spa::engine::{NewDataset, Writer};
use zpl::rw::HostSpace;
use zpl::{FileSystem, NewFs, Time};

use crate::pool::POOL;

/// Its dataset.
pub(crate) fn dataset() -> String {
    format!("{POOL}/fs")
}

/// Creates its dataset.
pub(crate) fn make_dataset(writer: &Writer) -> Result<()> {
    let content = Box::new(|os: &Arc<Objset>, tx: &Tx| {
        let props = os.props()?;
        let (count_objects, count_projects) = (props.count_objects, props.count_projects);
        zpl::create::fill(os, tx, &NewFs { count_objects, count_projects, ..NewFs::default() })
    });
    let new = NewDataset {
        name: dataset(),
        kind: ObjsetType::Zfs,
        case_insensitive: false,
        props: Vec::new(),
        content,
    };
    writer.create_dataset(new, None).map(drop)
}

/// The file system in an open pool, for reading.
pub(crate) fn open_read(spa: &Spa) -> Result<Arc<FileSystem>> {
    let mut os = None;
    spa.root_dir()?.walk(&mut |dir| {
        if dir.name() == dataset()
            && let Some(head) = dir.head()?
        {
            os = head.open_objset()?;
        }
        Ok(())
    })?;
    let os = os.ok_or_else(|| Error::not_found("the file system is gone"))?;
    FileSystem::open(os, Io::WAIT)
}

/// Waits until a txg is on disk.
pub(crate) fn synced(writer: &Writer, txg: Txg) -> Result<()> {
    writer.txgs().kick(txg);
    writer.txgs().wait_synced(txg)
}

/// The simulated clock.
pub(crate) fn now() -> Time {
    let now = base::rt::wall_clock();
    Time { seconds: now.as_secs() as i64, nanoseconds: u64::from(now.subsec_nanos()) }
}

/// The available space of its dataset.
pub(crate) fn space(writer: &Writer) -> HostSpace {
    HostSpace { used: 0, available: writer.allocatable(false) }
}

/// The result of a run, or why it has none.
pub(crate) fn ended<T>(
    outcome: Outcome<std::result::Result<T, String>>,
) -> std::result::Result<T, String> {
    match outcome {
        Outcome::Done(done) => done,
        Outcome::Halted => Err("the run was halted".to_owned()),
        Outcome::Deadlock(who) => Err(format!("deadlock: {who}")),
        Outcome::Panicked { thread, message } => Err(format!("{thread} panicked: {message}")),
        Outcome::Limit(why) => Err(format!("no end: {why}")),
    }
}
