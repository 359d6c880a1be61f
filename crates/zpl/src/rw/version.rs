//! A newer version for a file system (chapter 06 §2).
//!
//! # Theory
//! Version 5 has tables of system attributes. They are made, and the master node names them
//! and the version, in one transaction. Objects keep their structure of before version 5,
//! which file systems of version 5 may have; so do new ones, until the file system is opened
//! again.

use base::{Error, Result};
use dmu::{Zap, zaps};
use ondisk::ObjType;
use ondisk::zap::ZapValue;

use super::make::DNODE_BLOCK;
use crate::create::{NewFs, SA_MASTER_NODE, ZPL_VERSION_USERSPACE, tables};
use crate::fs::FileSystem;
use crate::master::{MASTER_NODE, ZPL_VERSION};

/// Bytes that the new tables and the changed master node make dirty.
const NEW_TABLES: u64 = 512 << 10;

impl FileSystem {
    /// The version as the master node has it now.
    fn stored_version(&self) -> Result<u64> {
        self.read_consistent(MASTER_NODE, self.io(), || {
            let zap = Zap::open(self.object(MASTER_NODE, self.io())?, self.io())?;
            Ok(zap.lookup_u64("VERSION")?.unwrap_or(ZPL_VERSION))
        })
    }

    /// Brings the file system to a newer version: from 4 to 5.
    ///
    /// # Errors
    /// `Invalid` for an older version than it has, `Unsupported` for others; `NoSpace`;
    /// `ReadOnly`; those of the object set.
    pub fn upgrade_version(&self, version: u64) -> Result<()> {
        let (rw, _) = self.rw()?;
        let _tables = rw.layouts.lock();
        let now = self.stored_version()?;
        if version == now {
            return Ok(());
        }
        if version < now {
            let text = format!("Can not downgrade; already at version {now}");
            return Err(Error::invalid(text));
        }
        if (now, version) != (ZPL_VERSION_USERSPACE, ZPL_VERSION) {
            let text = format!("file systems of version {now} cannot be changed to {version}");
            return Err(Error::unsupported(text));
        }
        let new = NewFs { count_projects: self.counts_projects(), ..NewFs::default() };
        let tx = self.begin_tx(NEW_TABLES + 8 * DNODE_BLOCK, false)?;
        let os = self.os();
        let sa = zaps::create(os, &tx, SA_MASTER_NODE, ObjType::NONE, &[], 0)?;
        tables(os, &tx, sa, &new)?;
        let _turn = rw.seqlock.write(MASTER_NODE);
        zaps::update(os, &tx, MASTER_NODE, b"SA_ATTRS", &ZapValue::from_u64(sa.0))?;
        zaps::update(os, &tx, MASTER_NODE, b"VERSION", &ZapValue::from_u64(version))
    }
}
