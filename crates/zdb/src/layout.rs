//! `zdb --layout`: how far the blocks of each file lie one after another on the devices
//! ([`cenote::layout`]).

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use base::{ObjectId, Result};
use cenote::inspect::dmu::{Io, Objset, Zap};
use cenote::inspect::dsl::DslDataset;
use cenote::inspect::ondisk::ObjType;
use cenote::layout::{LayoutScore, LayoutWalk};
use ui::Exit;

use super::exit;

/// Components of a path; deeper ones are not shown.
const PATH_MAX: usize = 256;
/// The bits of a directory's entry that have the object.
const ENTRY_OBJECT: u64 = (1 << 48) - 1;

/// The parent and the name of each object that a directory has, the first of several.
type ParentNames = HashMap<u64, (u64, Box<str>)>;

/// Prints a line for each file or volume, and one for all. A file of fewer than two stored blocks
/// has no score.
///
/// # Errors
/// Those of reading the dnodes. What cannot be read of a file is named, and the exit code tells.
pub(super) fn main(dataset: &DslDataset) -> Result<Exit> {
    let Some(os) = dataset.open_objset()? else { return Ok(Exit::OK) };
    let (mut all, mut files, mut result) = (LayoutScore::default(), 0u64, Exit::OK);
    let mut out = format!("Dataset {}\n", dataset.name());
    let _ = writeln!(out, "{:>12} {:>12} {:>7}  path", "object", "blocks", "score");
    ui::out(&out);
    let names = names(&os)?;
    each(&os, &[ObjType::PLAIN_FILE_CONTENTS, ObjType::ZVOL], &mut |id| {
        let mut walk = LayoutWalk::default();
        let done = os.object(id, Io::WAIT).and_then(|o| walk.object(&o, u64::MAX, Io::WAIT));
        if let Err(e) = done {
            ui::err(&format!("zdb: {e}"));
            result = exit::READ;
        }
        let score = walk.score();
        files += 1;
        all.merge(&score);
        ui::out(&format!(
            "{:>12} {:>12} {:>7}  {}\n",
            id.0,
            score.blocks,
            text(score),
            path(&names, id)
        ));
        Ok(())
    })?;
    let of = if files == 1 { "object" } else { "objects" };
    ui::out(&format!("{:>12} {:>12} {:>7}  {files} {of}\n", "all", all.blocks, text(all)));
    Ok(result)
}

/// Calls `f` with each object of these types.
fn each(
    os: &Arc<Objset>,
    types: &[ObjType],
    f: &mut dyn FnMut(ObjectId) -> Result<()>,
) -> Result<()> {
    let mut last = ObjectId(0);
    while let Some(id) = os.next_object(last, Io::WAIT)? {
        last = id;
        if types.contains(&os.object(id, Io::WAIT)?.object_type()) {
            f(id)?;
        }
    }
    Ok(())
}

/// The names in all directories, of those that can be read.
fn names(os: &Arc<Objset>) -> Result<ParentNames> {
    let mut names = ParentNames::new();
    each(os, &[ObjType::DIRECTORY_CONTENTS], &mut |dir| {
        let zap = os.object(dir, Io::WAIT).and_then(|object| Zap::open(object, Io::WAIT));
        let _unreadable = zap.and_then(|zap| {
            zap.for_each(|entry| {
                if let Some(value) = entry.value.first_u64() {
                    // As ls does: a name cannot break a line.
                    let name = String::from_utf8_lossy(&entry.name).replace(char::is_control, "?");
                    names.entry(value & ENTRY_OBJECT).or_insert((dir.0, name.into()));
                }
                Ok(())
            })
        });
        Ok(())
    })?;
    Ok(names)
}

/// The path of a file; only its last components if one above has no name.
fn path(names: &ParentNames, id: ObjectId) -> String {
    let (mut at, mut parts) = (id.0, Vec::new());
    while let Some((parent, name)) = names.get(&at).filter(|_| parts.len() < PATH_MAX) {
        parts.push(&**name);
        at = *parent;
    }
    parts.iter().rev().fold(String::new(), |path, part| path + "/" + part)
}

fn text(score: LayoutScore) -> String {
    score.share().map_or_else(|| "-".to_owned(), |share| format!("{share:.3}"))
}
