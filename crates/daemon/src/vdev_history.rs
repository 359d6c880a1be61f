//! The last removal and expansion for `zpool status`, from the pool's own records (chapter 08
//! §D.1 and §E). It reads the MOS through `cenote::inspect`; the library has no status of its
//! own for these.

use base::Result;
use cenote::inspect::ondisk::config::VdevConfig;
use cenote::inspect::ondisk::removal::MappingHeader;
use cenote::{MoveState, MoveWork, Pool, VdevStatus};
use proto::{Expand, Removal};

/// Fields of the MOS directory's `com.delphix:removing`.
const REMOVING: &str = "com.delphix:removing";

fn state(code: u64) -> u8 {
    u8::try_from(code).ok().filter(|c| *c <= 3).unwrap_or(0)
}

/// The top-level vdevs as they are now.
fn tops(pool: &Pool) -> Vec<VdevConfig> {
    match pool.writer() {
        Ok(writer) => writer.published().config.vdev_tree.children.clone(),
        Err(_) => pool.spa().config().vdev_tree.children.clone(),
    }
}

/// The last removal of a top-level vdev, if there ever was one.
///
/// # Errors
/// The pool's records cannot be read.
pub(super) fn removal(pool: &Pool, root: &VdevStatus) -> Result<Option<Removal>> {
    let (mapped, moved) = (mapped_removal(pool, root)?, moved_removal(pool, root));
    Ok(mapped.into_iter().chain(moved).max_by_key(|removal| removal.start))
}

/// The job that moves the blocks of a vdev away, if it is the pool's last job.
fn moved_removal(pool: &Pool, root: &VdevStatus) -> Option<Removal> {
    let job = pool.move_job()?;
    let record = job.record;
    let (vdev, shrinks) = match record.work {
        MoveWork::Remove { vdev } => (vdev, false),
        MoveWork::Shrink { vdev, .. } => (vdev, true),
        _ => return None,
    };
    let state = match record.state {
        MoveState::Active | MoveState::Paused => 1,
        MoveState::Complete => 2,
        MoveState::Canceled | MoveState::Failed => 3,
    };
    let (id, _) = record.position;
    let name = root.children.iter().find(|v| v.guid == vdev).map(|v| v.name.clone());
    let copied = record.moved.saturating_add(record.metadata);
    let to_copy = record.to_move.unwrap_or(0);
    let failed = record.state == MoveState::Failed;
    let kept = || format!("{} blocks could not be moved", record.kept);
    Some(Removal {
        state,
        vdev: id,
        name: name.unwrap_or_else(|| id.to_string()),
        start: record.start,
        end: record.end,
        copied: if state == 1 { copied.min(to_copy) } else { copied },
        to_copy,
        mapping_memory: 0,
        why: job.waiting.or_else(|| failed.then(kept)),
        shrinks,
    })
}

/// The last removal with a mapping.
fn mapped_removal(pool: &Pool, root: &VdevStatus) -> Result<Option<Removal>> {
    let Some(words) = pool.spa().mos().lookup_words(REMOVING)? else { return Ok(None) };
    let Some(&[code, vdev, _, start, end, to_copy, copied]) = words.first_chunk::<7>() else {
        return Ok(None);
    };
    if state(code) == 0 {
        return Ok(None);
    }
    let mut mapping_memory = 0u64;
    for top in tops(pool) {
        let Some(id) = top.top.as_ref().and_then(|t| t.indirect.mapping) else { continue };
        // One that was condensed meanwhile is gone.
        let Ok(object) = pool.spa().mos().object(id.0) else { continue };
        let dnode = object.dnode();
        let header = MappingHeader::parse(&dnode.bonus, dnode.endian)?;
        // An entry takes 24 bytes, in memory and on disk.
        mapping_memory = mapping_memory.saturating_add(header.num_entries.saturating_mul(24));
    }
    let name = root.children.iter().find(|v| v.id == vdev).map(|v| v.name.clone());
    // Its devices are free when their labels are wiped.
    let ending = pool.writer().is_ok_and(|writer| writer.removal_is_ending());
    Ok(Some(Removal {
        state: if ending { 1 } else { state(code) },
        vdev,
        name: name.unwrap_or_else(|| vdev.to_string()),
        start,
        end,
        copied,
        to_copy,
        mapping_memory,
        why: None,
        shrinks: false,
    }))
}

/// The last expansion of a raidz vdev, if there ever was one.
///
/// # Errors
/// The pool's records cannot be read.
pub(super) fn expansion(pool: &Pool, root: &VdevStatus) -> Result<Option<Expand>> {
    let mut last: Option<Expand> = None;
    for top in tops(pool).iter().filter(|t| t.raidz.is_some()) {
        let Some(zap) = top.top.as_ref().and_then(|t| t.zap) else { continue };
        let vdev = root.children.iter().find(|v| v.id == u64::from(top.id));
        let found = match expansion_of(pool, zap.0, vdev) {
            // Its vdev is being removed.
            Err(_) if pool.has_vdev_object_left(zap.0) => None,
            other => other?,
        };
        if let Some(expand) = found
            && last.as_ref().is_none_or(|l| l.start <= expand.start)
        {
            last = Some(expand);
        }
    }
    Ok(last)
}

/// The expansion that the ZAP of a vdev records.
fn expansion_of(pool: &Pool, zap: u64, vdev: Option<&VdevStatus>) -> Result<Option<Expand>> {
    let zap = pool.spa().mos().zap(zap)?;
    let get = |key: &str| zap.lookup_u64(&format!("org.openzfs:raidz_expand_{key}"));
    let state = state(get("state")?.unwrap_or(0));
    if state == 0 {
        return Ok(None);
    }
    Ok(Some(Expand {
        state,
        name: vdev.map(|v| v.name.clone()).unwrap_or_default(),
        start: get("start_time")?.unwrap_or(0),
        end: get("end_time")?.unwrap_or(0),
        copied: get("bytes_copied")?.unwrap_or(0),
        to_copy: vdev.map_or(0, |v| v.allocated),
    }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cenote::ImportOptions;
    use cenote::create::{CreateRequest, Force, NewKind, NewVdev};
    use cenote::inspect::spa::engine::TaskCx;
    use testkit::Scratch;

    use super::*;

    /// Story: while `zpool remove -w` waited, the txg that removed the vdev had freed its ZAP, and
    /// the configuration still named it. The status failed: "no such object (object 36)".
    #[test]
    fn the_zap_of_a_vdev_that_leaves_is_gone() {
        let scratch = Scratch::new("vdev-history");
        let disk = |name: &str| {
            let path = scratch.path().join(name);
            std::fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
            NewVdev::new(NewKind::File(path))
        };
        let raidz = |names: [&str; 2]| {
            let kind = NewKind::Raidz { nparity: 1 };
            NewVdev::new(kind).with_children(names.into_iter().map(disk).collect())
        };
        let vdevs = vec![raidz(["a", "b"]), raidz(["c", "d"])];
        let request = CreateRequest { force: Force::ALL, ..CreateRequest::new("leaving", vdevs) };
        let engine = testkit::engine();
        engine.create_pool(&request).unwrap().unwrap().export().unwrap();
        let options = ImportOptions::default();
        let pool = testkit::import_from(&engine, scratch.path(), &options).unwrap();
        let read = |pool: &Pool| expansion(pool, &pool.status().unwrap().root).map(|e| e.is_some());
        assert!(!read(&pool).unwrap());
        let zap = tops(&pool)[0].top.as_ref().unwrap().zap.unwrap().0;
        assert!(!pool.has_vdev_object_left(zap));
        pool.set_vdev_prop("d", "its:property", "there", None).unwrap();
        // As after the first half of the removal.
        let free = move |cx: &mut TaskCx<'_>, ()| cx.cx.mos.free_object(zap);
        pool.writer().unwrap().sync_task(|_| Ok(()), free).unwrap();
        assert!(pool.has_vdev_object_left(zap));
        assert!(!read(&pool).unwrap());
        assert_eq!(pool.vdev_props().unwrap().len(), 1);
        pool.give_up();
    }
}
