//! `zdb -d`, `-i`, `-O`: datasets, their objects and intent logs.

use std::fmt::Write;
use std::sync::Arc;

use base::{ErrorKind, ObjectId, Result};
use cenote::inspect::dmu::{Io, Objset};
use cenote::inspect::dsl::{DslDataset, DslDir, bpobj};
use cenote::inspect::spa::Spa;
use cenote::inspect::zpl::FileSystem;
use ui::Exit;

use super::object::{self, Dump};
use super::{DumpOptions, bptext, exit, logs, worse};

/// The txg in which a pool begins; zdb shows it for the MOS.
const TXG_INITIAL: u64 = 4;

/// One object set to show.
struct ListedObjset {
    name: String,
    id: u64,
    created: u64,
    size: u64,
    os: Arc<Objset>,
    dataset: Option<DslDataset>,
}

fn listed_mos(spa: &Spa) -> Result<ListedObjset> {
    let root = spa.root_dir()?;
    let used = root.child("$MOS")?.map_or(0, |d| d.phys().used_bytes);
    Ok(ListedObjset {
        name: "mos".to_owned(),
        id: 0,
        created: TXG_INITIAL,
        size: used,
        os: Arc::clone(spa.mos().objset()),
        dataset: None,
    })
}

fn shown(dataset: DslDataset) -> Result<Option<ListedObjset>> {
    let Some(os) = dataset.open_objset()? else { return Ok(None) };
    Ok(Some(ListedObjset {
        name: dataset.name().to_owned(),
        id: dataset.object(),
        created: dataset.phys().creation_txg.0,
        size: dataset.phys().referenced_bytes,
        os,
        dataset: Some(dataset),
    }))
}

/// Shows the objects that the operands name: the MOS and everything, or one dataset, or some
/// objects of either.
pub(super) fn main(opts: &DumpOptions, spa: &Spa, target: &str, rest: &[String]) -> Result<Exit> {
    let Ok(objects) = rest.iter().map(|o| parse(o)).collect::<std::result::Result<Vec<_>, _>>()
    else {
        ui::err("zdb: objects are given by number");
        return Ok(exit::OPEN);
    };
    let whole = !target.contains(['/', '@']);
    if !whole {
        let Some(dataset) = find(spa, target)? else {
            ui::err(&format!("zdb: can't open '{target}': No such file or directory"));
            return Ok(exit::OPEN);
        };
        return match shown(dataset)? {
            Some(one) => show(opts, spa, &one, &objects),
            None => Ok(Exit::OK),
        };
    }
    let mos = listed_mos(spa)?;
    if !objects.is_empty() {
        return show(opts, spa, &mos, &objects);
    }
    let mut result = show(opts, spa, &mos, &[])?;
    each(&spa.root_dir()?, &mut |dataset| {
        let name = dataset.name().to_owned();
        let shown = shown(dataset).and_then(|one| match one {
            Some(one) => show(opts, spa, &one, &[]),
            None => Ok(Exit::OK),
        });
        let exit = shown.unwrap_or_else(|e| {
            ui::err(&format!("zdb: failed to show dataset '{name}': {e}"));
            exit::READ
        });
        result = worse(result, exit);
        Ok(())
    })?;
    Ok(result)
}

/// The layout of a dataset's files.
pub(super) fn layout(spa: &Spa, target: &str) -> Result<Exit> {
    match find(spa, target)? {
        Some(dataset) => super::layout::main(&dataset),
        None => {
            ui::err(&format!("zdb: can't open '{target}': No such file or directory"));
            Ok(exit::OPEN)
        }
    }
}

fn parse(text: &str) -> std::result::Result<i64, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16),
        None => text.parse(),
    }
}

/// The dataset with that name; a name with a slash at its end is the root dataset's.
fn find(spa: &Spa, target: &str) -> Result<Option<DslDataset>> {
    let target = target.strip_suffix('/').unwrap_or(target);
    let (name, snapshot) = match target.split_once('@') {
        Some((name, snapshot)) => (name, Some(snapshot)),
        None => (target, None),
    };
    let found = spa.root_dir().and_then(|root| root.find(name)).and_then(|dir| dir.head());
    let head = match found {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    match (head, snapshot) {
        (Some(head), Some(snapshot)) => head.snapshot(snapshot),
        (head, _) => Ok(head),
    }
}

/// Calls `f` with every dataset, children first and snapshots before their head.
fn each(dir: &DslDir, f: &mut impl FnMut(DslDataset) -> Result<()>) -> Result<()> {
    let mos = dir.mos();
    for entry in mos.zap_entries(dir.phys().child_dir_zapobj)? {
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        // The depth is bounded by `child`, which refuses datasets nested too deep.
        if !name.starts_with('$')
            && let Some(child) = dir.child(&name)?
        {
            each(&child, f)?;
        }
    }
    let Some(head) = dir.head()? else { return Ok(()) };
    for entry in mos.zap_entries(head.phys().snapnames_zapobj)? {
        if let Some(snapshot) = head.snapshot(&String::from_utf8_lossy(&entry.name))? {
            f(snapshot)?;
        }
    }
    f(head)
}

fn show(opts: &DumpOptions, spa: &Spa, one: &ListedObjset, objects: &[i64]) -> Result<Exit> {
    let exact = opts.has('P');
    let level = opts.level('d');
    let root = if level >= 4 {
        format!(", rootbp {}", bptext::long(&one.os.root_bp()))
    } else {
        String::new()
    };
    ui::out(&format!(
        "Dataset {} [{}], ID {}, cr_txg {}, {}, {} objects{root}\n",
        one.name,
        one.os.kind().name(),
        one.id,
        one.created,
        bptext::size(one.size, exact),
        one.os.object_count()
    ));
    if (opts.has('i') || level >= 2 && objects.is_empty())
        && let Some(dataset) = &one.dataset
        && !dataset.is_snapshot()
    {
        logs::show(opts, spa, &one.os)?;
    }
    if level >= 3
        && objects.is_empty()
        && let Some(dataset) = &one.dataset
    {
        deadlist(spa, dataset, level, exact)?;
    }
    if level >= 4 && objects.is_empty() && one.dataset.is_none() {
        pending_frees(spa, exact)?;
    }
    if level < 2 && objects.is_empty() {
        return Ok(Exit::OK);
    }
    let dump = Dump::new(opts, spa, &one.os, one.dataset.as_ref());
    let result = if objects.is_empty() { dump.all()? } else { some(&dump, objects)? };
    ui::out("\n");
    Ok(result)
}

fn some(dump: &Dump<'_>, objects: &[i64]) -> Result<Exit> {
    let mut result = Exit::OK;
    for &id in objects {
        if let Err(e) = dump.one(id) {
            ui::err(&format!("zdb: dmu_bonus_hold({id}) failed: {e}"));
            result = exit::READ;
        }
    }
    Ok(result)
}

/// The blocks that wait to be freed in the whole pool.
fn pending_frees(spa: &Spa, exact: bool) -> Result<()> {
    let mut out = "\n".to_owned();
    for (key, title) in [("sync_bplist", "Deferred frees"), ("free_bpobj", "Pool snapshot frees")] {
        let Some(object) = spa.mos().lookup(key)? else { continue };
        let phys = bpobj::header(spa.mos(), object)?;
        let _ = writeln!(
            out,
            "    {title}: object {object}, {} blkptrs, {}",
            phys.num_blkptrs,
            bptext::size(phys.bytes, exact)
        );
    }
    ui::out(&out);
    Ok(())
}

fn deadlist(spa: &Spa, dataset: &DslDataset, level: usize, exact: bool) -> Result<()> {
    let object = dataset.phys().deadlist_obj;
    if object == 0 {
        return Ok(());
    }
    let totals = dataset.deadlist_totals()?;
    let size = |n: u64| bptext::size(n, exact);
    let entries = match spa.mos().zap(object) {
        Ok(zap) => zap.entries()?,
        // Before version 26 the deadlist is a plain list.
        Err(e) if e.kind() == ErrorKind::Corrupt => Vec::new(),
        Err(e) => return Err(e),
    };
    let mut out = format!(
        "\n    Deadlist: {} ({}/{} comp), {} entries\n",
        size(totals.used),
        size(totals.comp),
        size(totals.uncomp),
        entries.len()
    );
    if level >= 4 {
        out.push('\n');
        let mut keys: Vec<(u64, u64)> = entries
            .iter()
            .filter_map(|e| {
                let key = String::from_utf8_lossy(&e.name).into_owned();
                Some((u64::from_str_radix(&key, 16).ok()?, e.value.as_u64()?))
            })
            .collect();
        keys.sort_unstable();
        for (txg, list) in keys {
            if level < 5 {
                let _ = writeln!(out, "mintxg {txg} -> obj {list}");
                continue;
            }
            let phys = bpobj::header(spa.mos(), list)?;
            let _ = writeln!(
                out,
                "    mintxg {txg} -> obj {list}: object {list}, {} blkptrs, {}\n",
                phys.num_blkptrs,
                size(phys.bytes)
            );
        }
    }
    ui::out(&out);
    Ok(())
}

/// `-O`: the object behind a path of a dataset.
pub(super) fn by_path(
    opts: &DumpOptions,
    spa: &Spa,
    target: &str,
    rest: &[String],
) -> Result<Exit> {
    let [path] = rest else {
        ui::err("zdb: -O needs a dataset and a path");
        return Ok(exit::OPEN);
    };
    let missing = |e: String| {
        ui::err(&format!("failed to lookup dataset={target} path={path}: {e}"));
        Ok(exit::OPEN)
    };
    let Some(dataset) = find(spa, target)? else {
        return missing("No such file or directory".to_owned());
    };
    let Some(os) = dataset.open_objset()? else {
        return missing("the dataset has no content".to_owned());
    };
    let fs = FileSystem::open(Arc::clone(&os), Io::WAIT)?;
    match fs.walk(path.trim_matches('/').as_bytes(), Io::WAIT) {
        Ok(ObjectId(id)) => {
            let dump = Dump::new(opts, spa, &os, Some(&dataset)).at_least(object::PATH_LEVEL);
            dump.one(id.cast_signed())?;
            Ok(Exit::OK)
        }
        Err(e) if e.kind() == ErrorKind::NotFound => missing("No such file or directory".into()),
        Err(e) => missing(e.to_string()),
    }
}
