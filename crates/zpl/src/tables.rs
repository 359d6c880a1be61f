//! Reading the tables of system attributes (chapter 06 §4.1, §4.2).

use std::sync::Arc;

use base::{Error, ObjectId, Result};
use dmu::{Io, Objset, Zap, ZapEntry};
use ondisk::sa::{SA_ATTRS_MAX, SA_LAYOUTS_MAX, SaTables};

/// The registry and the layouts below the SA master node.
///
/// # Errors
/// `Corrupt` when a table is damaged, absent or empty, those of reading.
pub(crate) fn read_tables(os: &Arc<Objset>, master: ObjectId, io: Io) -> Result<SaTables> {
    let zap = Zap::open(os.object(master, io)?, io)?;
    let table = |key: &str, max: usize| -> Result<Vec<ZapEntry>> {
        let id = zap.lookup_u64(key)?.map(ObjectId).ok_or_else(|| {
            Error::corrupt(format!("the table {key} of system attributes is absent"))
                .in_object(master)
        })?;
        entries(&Zap::open(os.object(id, io)?, io)?, max).map_err(|e| e.in_object(id))
    };
    let registry = table("REGISTRY", SA_ATTRS_MAX)?;
    let layouts = table("LAYOUTS", SA_LAYOUTS_MAX)?;
    let odd = || Error::corrupt("a table of system attributes has an odd value").in_object(master);
    let registry = registry
        .iter()
        .map(|e| Ok((e.name.as_slice(), e.value.as_u64().ok_or_else(odd)?)))
        .collect::<Result<Vec<_>>>()?;
    let layouts = layouts
        .iter()
        .map(|e| Ok((e.name.as_slice(), e.value.u16s().ok_or_else(odd)?)))
        .collect::<Result<Vec<_>>>()?;
    SaTables::new(registry, layouts).map_err(|e| e.in_object(master))
}

fn entries(zap: &Zap, max: usize) -> Result<Vec<ZapEntry>> {
    let mut all = Vec::new();
    zap.for_each(|e| {
        if all.len() >= max {
            return Err(Error::limit("too many system attributes or layouts"));
        }
        all.push(e);
        Ok(())
    })?;
    Ok(all)
}
