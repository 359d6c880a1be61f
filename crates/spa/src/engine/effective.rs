//! Datasets by name, and their effective properties, from the MOS alone.

use base::limits::DATASET_DEPTH_MAX;
use base::{Error, Result};
use dsl::stored::Stored;
use dsl::write::{MosRead, props};

/// Suffix of index values that older software does not know (chapter 04 §12.1).
const UNKNOWN_VALUE: &str = "$iuv";

/// OpenZFS's message for a name that does not exist.
pub(super) fn missing(name: &str) -> Error {
    Error::not_found("dataset does not exist").in_dataset(name)
}

/// The directory of a file system or volume by its full name, pool first.
///
/// # Errors
/// `NotFound`; those of reading the MOS.
pub fn find_dir(mos: &dyn MosRead, pool: &str, name: &str) -> Result<u64> {
    let mut parts = name.split('/');
    if parts.next() != Some(pool) {
        return Err(missing(name));
    }
    let mut dir = mos.required("root_dataset")?;
    for part in parts {
        if part.starts_with(['$', '%']) {
            return Err(missing(name));
        }
        let children = mos.dir(dir)?.child_dir_zapobj;
        dir = mos.number(children, part)?.ok_or_else(|| missing(name))?;
    }
    Ok(dir)
}

/// The effective stored value of an inheritable property for the head of `dir`; `None` if
/// it was never set here or above.
///
/// # Errors
/// Those of reading the MOS; `Corrupt`.
pub fn effective(mos: &dyn MosRead, dir: u64, name: &str) -> Result<Option<Stored>> {
    let mut at = dir;
    for _ in 0..=DATASET_DEPTH_MAX {
        if at == 0 {
            break;
        }
        let phys = mos.dir(at)?;
        if phys.props_zapobj != 0 {
            let unknown = format!("{name}{UNKNOWN_VALUE}");
            if let Some(n) = mos.number(phys.props_zapobj, &unknown)? {
                return Ok(Some(Stored::Number(n)));
            }
            if let Some(value) = props::own(mos, phys.props_zapobj, name)? {
                return Ok(Some(value));
            }
        }
        at = phys.parent_obj;
    }
    Ok(None)
}

/// The number of [`effective`].
pub(super) fn effective_number(mos: &dyn MosRead, dir: u64, name: &str) -> Result<Option<u64>> {
    Ok(effective(mos, dir, name)?.and_then(|v| v.number()))
}

impl super::Writer {
    /// Property `special_small_blocks` of a dataset, by its directory: data blocks up to this size
    /// belong on special vdevs, in bytes; 0 = none.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn special_small_blocks(&self, dir: u64) -> Result<u64> {
        Ok(effective_number(self.mos(), dir, "special_small_blocks")?.unwrap_or(0))
    }
}
