//! An open file system.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use base::limits::FILE_NAME_MAX;
use base::{Error, ObjectId, Result};
use dmu::{Io, Object, Objset, Zap};
use nvlist::NvList;
use ondisk::objset::ObjsetType;

use crate::master::{MASTER_NODE, Props};
use crate::sa::Tables;

/// Bytes in a name under feature longname (chapter 06 §7.1).
const LONG_NAME_MAX: usize = 1023;
/// Bytes of a FUID domain table.
const FUID_TABLE_MAX: u64 = 16 << 20;

/// A file system, open for reading.
#[derive(Debug)]
pub struct FileSystem {
    os: Arc<Objset>,
    props: Props,
    pub(crate) sa: Tables,
    long_names: AtomicBool,
}

/// A domain of foreign ids (chapter 06 §12).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuidDomain {
    /// The high half of the FUIDs in it.
    pub index: u64,
    /// Its name.
    pub domain: String,
}

impl FileSystem {
    /// Opens the file system in `os`: the master node and the tables of system
    /// attributes.
    ///
    /// # Errors
    /// `Invalid` when the object set holds no file system, `Unsupported` for a
    /// version above 5, `Locked` when it is encrypted, `Corrupt` when the tables
    /// are damaged, those of reading.
    pub fn open(os: Arc<Objset>, io: Io) -> Result<Arc<FileSystem>> {
        if os.kind() != ObjsetType::Zfs {
            return Err(Error::invalid("the dataset is not a file system"));
        }
        let master = Zap::open(os.object(MASTER_NODE, io)?, io)?;
        let props = Props::read(&master).map_err(|e| e.in_object(MASTER_NODE))?;
        let sa = match props.sa_attrs {
            Some(id) => Tables::open(&os, id, io)?,
            None => Tables::default(),
        };
        Ok(Arc::new(FileSystem { os, props, sa, long_names: AtomicBool::new(false) }))
    }

    /// The object set it lives in.
    pub fn objset(&self) -> &Arc<Objset> {
        &self.os
    }

    /// What its master node says.
    pub fn props(&self) -> &Props {
        &self.props
    }

    /// The root directory.
    pub fn root(&self) -> ObjectId {
        self.props.root
    }

    /// Allows names of up to 1023 bytes: the dataset has feature `longname` active.
    pub fn set_long_names(&self, on: bool) {
        self.long_names.store(on, Relaxed);
    }

    /// Bytes that a name may have.
    pub fn name_max(&self) -> usize {
        if self.long_names.load(Relaxed) { LONG_NAME_MAX } else { FILE_NAME_MAX }
    }

    /// Number of allocated objects: `f_files` less the free ones.
    pub fn object_count(&self) -> u64 {
        self.os.object_count()
    }

    pub(crate) fn object(&self, id: ObjectId, io: Io) -> Result<Object> {
        self.os.object(id, io)
    }

    /// The domains of ids beyond 32 bits; none on Linux and FreeBSD.
    ///
    /// # Errors
    /// `Corrupt` when the table is damaged, those of reading.
    pub fn fuid_domains(&self, io: Io) -> Result<Vec<FuidDomain>> {
        let Some(id) = self.props.fuid else { return Ok(Vec::new()) };
        let object = self.object(id, io)?;
        let dnode = object.dnode();
        // The bonus tells how much of the blocks is the packed list.
        let size = dnode.endian.u64(&dnode.bonus, 0).filter(|n| *n <= FUID_TABLE_MAX);
        let size = size.ok_or_else(|| Error::corrupt("FUID table of odd size").in_object(id))?;
        let mut packed = vec![0; size as usize];
        object.read_into(0, &mut packed, io)?;
        parse_domains(&packed).map_err(|e| e.in_object(id))
    }
}

fn parse_domains(packed: &[u8]) -> Result<Vec<FuidDomain>> {
    let list = NvList::unpack(packed)?;
    let rows = list.lists("fuid_nvlist").unwrap_or_default();
    rows.iter()
        .map(|row| {
            let index = row.need_u64("fuid_idx")?;
            Ok(FuidDomain { index, domain: row.need_str("fuid_domain")?.to_owned() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_of_a_packed_table() {
        let mut row = NvList::new();
        row.add_u64("fuid_idx", 1).add_u64("fuid_offset", 0).add_str("fuid_domain", "S-1-5-21");
        let mut list = NvList::new();
        list.add_lists("fuid_nvlist", vec![row]);
        let want = FuidDomain { index: 1, domain: "S-1-5-21".to_owned() };
        assert_eq!(parse_domains(&list.pack_xdr()).unwrap(), [want]);
        assert_eq!(parse_domains(&NvList::new().pack_xdr()).unwrap(), []);
        let mut bad = NvList::new();
        bad.add_lists("fuid_nvlist", vec![NvList::new()]);
        assert!(parse_domains(&bad.pack_xdr()).is_err());
    }
}
