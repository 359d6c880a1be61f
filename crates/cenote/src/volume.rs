//! The size of volumes, and the space that is reserved for them.
//!
//! # Theory
//! A volume that is not sparse has a `refreservation` of what it takes when it is full. It
//! follows `volsize` as long as it equals that (chapter 09 §2.3). A volume that grows has the
//! larger reservation first, so that a pool without space for it refuses; a volume that
//! shrinks has the smaller size first.

use base::{Error, ErrorKind, Result};
use dsl::props::PropData;
use spa::engine::PropChange;
use zvol::create::{NewVolume, full_reservation};

use crate::dataset::{Dataset, DatasetKind};
use crate::pool::Pool;

/// The value of `refreservation` that stands for what a full volume takes (`auto`).
pub const REFRESERVATION_AUTO: u64 = u64::MAX;

const REFRESERVATION: &str = "refreservation";

fn copies_of(dataset: &Dataset) -> Result<u64> {
    Ok(match dataset.prop("copies")?.map(|v| v.value) {
        Some(PropData::Num(n)) => n,
        _ => 1,
    })
}

/// Replaces `auto` by the size of a full volume.
fn resolve(props: &mut [(String, PropData)], full: impl FnOnce() -> Result<u64>) -> Result<()> {
    let auto = PropData::Num(REFRESERVATION_AUTO);
    if let Some(slot) = props.iter_mut().find(|(n, v)| n == REFRESERVATION && *v == auto) {
        slot.1 = PropData::Num(full()?);
    }
    Ok(())
}

/// Splits off a new `volsize`.
pub(crate) fn take_size(props: &mut Vec<(String, PropData)>) -> Option<u64> {
    let mut size = None;
    props.retain(|(name, value)| match (name.as_str(), value) {
        ("volsize", PropData::Num(n)) => {
            size = Some(*n);
            false
        }
        _ => true,
    });
    size
}

impl Pool {
    /// The properties of a volume that is to be created, with `refreservation=auto` resolved.
    pub(crate) fn new_volume_props(
        &self,
        name: &str,
        new: &NewVolume,
        props: &[(String, PropData)],
    ) -> Result<Vec<(String, PropData)>> {
        let mut props = props.to_vec();
        let given = props.iter().find(|p| p.0 == "copies").map(|p| p.1.clone());
        resolve(&mut props, || {
            let copies = match (given, name.rsplit_once('/')) {
                (Some(PropData::Num(n)), _) => n,
                (_, Some((parent, _))) => copies_of(&self.dataset(parent)?)?,
                _ => 1,
            };
            Ok(full_reservation(new.size, u64::from(new.block_size), copies))
        })?;
        Ok(props)
    }

    /// Resolves `refreservation=auto` of an existing volume.
    pub(crate) fn resolve_auto(&self, name: &str, props: &mut [(String, PropData)]) -> Result<()> {
        resolve(props, || {
            let dataset = self.dataset(name)?;
            if dataset.kind() != DatasetKind::Volume {
                let text = format!("'{REFRESERVATION}' is automatic for volumes alone");
                return Err(Error::invalid(text));
            }
            let volume = dataset.read_volume()?;
            Ok(full_reservation(volume.size(), volume.block_size(), copies_of(&dataset)?))
        })
    }

    /// Changes the size of a volume, and other properties with it. A reservation that equals
    /// what the full volume takes follows the size.
    ///
    /// # Errors
    /// As [`Pool::set_props`] and [`zvol::Volume::set_size`]; `Invalid` for anything but a
    /// volume.
    pub(crate) fn set_volume_size(
        &self,
        name: &str,
        size: u64,
        mut props: Vec<(String, PropData)>,
        command_line: Option<&str>,
    ) -> Result<()> {
        let dataset = self.dataset(name)?;
        if dataset.kind() != DatasetKind::Volume {
            let text = "'volsize' does not apply to datasets of this type";
            return Err(Error::invalid(text).in_dataset(name));
        }
        dataset.check_writable()?;
        let volume = dataset.volume_to_write()?;
        let (old, block) = (volume.size(), volume.block_size());
        zvol::rw::check_new_size(size, block).map_err(|e| e.in_dataset(name))?;
        if !volume.is_writable() {
            let text = "the volume is read-only";
            return Err(Error::new(ErrorKind::NotPermitted, text).in_dataset(name));
        }
        let copies = copies_of(&dataset)?;
        let given = props.iter().any(|p| p.0 == REFRESERVATION);
        resolve(&mut props, || Ok(full_reservation(size, block, copies)))?;
        let reserved = full_reservation(old, block, copies);
        let stored = dataset.prop(REFRESERVATION)?.map(|v| v.value);
        let follows = !given && stored == Some(PropData::Num(reserved));
        if follows {
            let full = full_reservation(size, block, copies);
            props.push((REFRESERVATION.to_owned(), PropData::Num(full)));
        }
        let fail = |e: Error| e.in_dataset(name);
        if size < old {
            volume.set_size(size).map_err(fail)?;
            return self.set_or_log(name, &props, command_line);
        }
        self.set_or_log(name, &props, command_line)?;
        volume.set_size(size).map_err(|e| {
            if follows {
                // The volume is as it was. The error that is reported is the first one.
                let back = [(REFRESERVATION.to_owned(), PropData::Num(reserved))];
                let _second = self.set_or_log(name, &back, None);
            }
            fail(e)
        })
    }

    fn set_or_log(
        &self,
        name: &str,
        props: &[(String, PropData)],
        command_line: Option<&str>,
    ) -> Result<()> {
        let changes: Vec<PropChange> = crate::changes::set_changes(props);
        match self.command(command_line) {
            Some(line) if changes.is_empty() => self.writer()?.log_command(line),
            _ if changes.is_empty() => Ok(()),
            line => self.writer()?.set_props(name, changes, line),
        }
    }
}
