//! A newer version for a file system (chapter 06 §2).
//!
//! # Theory
//! Version 5 has tables of system attributes. They are made, and the master node names them
//! and the version, in one transaction. Objects keep their structure of before version 5,
//! which file systems of version 5 may have; so do new ones, until the file system is opened
//! again.
//!
//! Pools before version 15 do not account space to owners. A file system from such a pool begins
//! with that at its upgrade: from a txg on, each object that changes is charged, and then all
//! others are written again as they are. The flag that says that all are charged, and the new
//! version, come last. After a crash in between the next upgrade goes on with what is left.

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::{Zap, zaps};
use ondisk::ObjType;
use ondisk::objset::FLAG_USER_ACCOUNTED;
use ondisk::zap::ZapValue;

use super::make::DNODE_BLOCK;
use crate::create::{NewFs, SA_MASTER_NODE, ZPL_VERSION_FUID, tables};
use crate::fs::FileSystem;
use crate::master::{MASTER_NODE, ZPL_VERSION};

/// Objects that are charged in one transaction.
const BATCH: usize = 256;
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

    /// Brings the file system to a newer version: from 3 to 4 or 5, from 4 to 5.
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
        if now < ZPL_VERSION_FUID || version > ZPL_VERSION {
            let text = format!("file systems of version {now} cannot be changed to {version}");
            return Err(Error::unsupported(text));
        }
        let flags = self.os().flags();
        if flags & FLAG_USER_ACCOUNTED == 0 {
            self.account_all()?;
            self.os().set_flags(flags | FLAG_USER_ACCOUNTED)?;
        }
        if version < ZPL_VERSION {
            let tx = self.begin_tx(8 * DNODE_BLOCK, false)?;
            let _turn = rw.seqlock.write(MASTER_NODE);
            self.touch(&tx, MASTER_NODE);
            let value = ZapValue::from_u64(version);
            return zaps::update(self.os(), &tx, MASTER_NODE, b"VERSION", &value);
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

    /// Charges all objects to their owners.
    fn account_all(&self) -> Result<()> {
        let os = self.os();
        os.start_accounting()?;
        // What was made before is on disk then.
        {
            let tx = self.begin_tx(DNODE_BLOCK, false)?;
            os.touch(&tx, MASTER_NODE)?;
            self.touch(&tx, MASTER_NODE);
        }
        self.sync_all()?;
        let mut last = None;
        loop {
            let mut batch = Vec::new();
            while batch.len() < BATCH
                && let Some(id) = os.next_object(last.unwrap_or(ObjectId(0)), self.io())?
            {
                last = Some(id);
                batch.push(id);
            }
            if batch.is_empty() {
                // The flag may go with an earlier txg than that of the last ones.
                return self.sync_all();
            }
            let tx = self.begin_tx(batch.len() as u64 * DNODE_BLOCK, false)?;
            for id in batch {
                let done = match os.is_accounted(id, self.io()) {
                    Ok(false) => os.touch(&tx, id),
                    other => other.map(drop),
                };
                // It may be removed meanwhile.
                done.or_else(|e| if e.kind() == ErrorKind::NotFound { Ok(()) } else { Err(e) })?;
                self.touch(&tx, id);
            }
        }
    }
}
