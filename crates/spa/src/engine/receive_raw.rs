//! Receiving raw streams: whether they fit, and encryption roots (chapter 07 §13.1, §13.6).
//!
//! # Theory
//! A raw stream brings the blocks of an encrypted dataset as its sender stores them, and the keys
//! as they are wrapped there. The object set is written by `dmu` (`live::seal`); here are the
//! checks. An incremental stream fits only the snapshot whose initialisation vectors it names:
//! the same key never encrypts two contents with one vector, on whichever side.

use base::{Error, ErrorKind, Result};
use dmu::SealedRoot;
use dsl::write::create;
use dsl::write::crypt::{self, WrappedKeys};

use super::Writer;
use super::receive::NewReceive;
use super::tasks::TaskCx;

/// What a raw stream says of its dataset.
#[derive(Clone, Debug)]
pub struct RawReceive {
    /// Its keys.
    pub keys: WrappedKeys,
    /// Its object set.
    pub root: SealedRoot,
    /// Identity of the initialisation vectors of the snapshot that the stream is incremental to,
    /// if it has one.
    pub from_ivset: Option<u64>,
}

fn must_load() -> Error {
    Error::new(ErrorKind::Locked, "inherited key must be loaded")
}

pub(super) fn of_two_kinds() -> Error {
    let text = "zfs receive -F cannot be used to destroy an encrypted filesystem or overwrite an \
                unencrypted one with an encrypted one";
    Error::invalid(text)
}

impl TaskCx<'_> {
    /// Whether a raw stream fits the snapshot `base` that it is incremental to.
    pub(super) fn check_raw_base(&self, raw: &RawReceive, base: u64) -> Result<()> {
        let mos = self.read();
        crypt::check_same(mos, mos.dataset(base)?.dir_obj, &raw.keys)?;
        let (Some(from), Some(local)) = (raw.from_ivset, crypt::ivset_guid(mos, base)?) else {
            let text = "IV set guid missing. See errata 4 at \
                        https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-ER.";
            return Err(Error::invalid(text));
        };
        if from != local {
            let text = "IV set guid mismatch. See the 'zfs receive' man page section\n\
                        discussing the limitations of raw encrypted send streams.";
            return Err(Error::invalid(text));
        }
        Ok(())
    }

    /// Whether a new dataset below `parent` can get the stream's content.
    ///
    /// # Errors
    /// As [`create::check`]; `Locked` if it would be encrypted with a key that is not loaded.
    pub(super) fn check_new(
        &self,
        new: &NewReceive,
        parent: u64,
        wanted: &create::NewDataset<'_>,
    ) -> Result<()> {
        let mos = self.read();
        let Some(raw) = &new.raw else {
            create::check(self.cx, parent, wanted)?;
            let inherits = wanted.origin.is_none() && !new.is_plain;
            return match inherits && crypt::key_object(mos, parent)?.is_some() {
                true => Err(must_load()),
                false => Ok(()),
            };
        };
        create::check_received(self.cx, parent, wanted)?;
        match wanted.origin {
            Some(origin) if new.from_guid != 0 => self.check_raw_base(raw, origin),
            Some(origin) => crypt::check_same(mos, mos.dataset(origin)?.dir_obj, &raw.keys),
            None => Ok(()),
        }
    }
}

impl Writer {
    /// Moves an encrypted dataset that a raw package brought to the encryption root that it has
    /// there: with `inherits` that of its parent, otherwise itself. Nothing changes if it has that
    /// root, or if the parent has none.
    ///
    /// # Errors
    /// `NotFound`; those of a suspension.
    pub fn set_encryption_root(&self, dataset: &str, inherits: bool) -> Result<()> {
        let name = dataset.to_owned();
        let check = move |cx: &mut TaskCx<'_>| {
            let (dir, mos) = (cx.dir(&name)?, cx.read());
            let above = mos.dir(dir)?.parent_obj;
            let possible = crypt::key_object(mos, dir)?.is_some()
                && (!inherits || crypt::key_object(mos, above)?.is_some());
            Ok((possible && crypt::is_root(mos, dir)? == inherits).then_some(dir))
        };
        let act = move |cx: &mut TaskCx<'_>, dir: Option<u64>| {
            dir.map_or(Ok(()), |dir| crypt::set_root(cx.cx, dir, inherits))
        };
        self.sync_task(check, act).map(drop)
    }
}
