//! Stored properties: the values in the property ZAPs, and their sources
//! (chapter 04 §12.1).

use base::{Error, Result};
use dmu::Zap;
use ondisk::zap::ZapValue;

use crate::dataset::DslDataset;
use crate::dir::DslDir;
use crate::mos::Mos;
use crate::props::{PropData, Source};

/// A stored value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// A number or an index.
    Number(u64),
    /// A string.
    Text(String),
}

impl Stored {
    pub(crate) fn from_zap(value: &ZapValue) -> Result<Stored> {
        if let Some(n) = value.as_u64() {
            return Ok(Stored::Number(n));
        }
        match value.as_str_bytes() {
            Some(text) => Ok(Stored::Text(String::from_utf8_lossy(text).into_owned())),
            None => Err(Error::corrupt("property is neither a number nor a string")),
        }
    }

    /// Converts to a property value.
    pub fn into_data(self) -> PropData {
        match self {
            Stored::Number(n) => PropData::Num(n),
            Stored::Text(s) => PropData::Str(s),
        }
    }

    /// The number, if it is one.
    pub fn number(&self) -> Option<u64> {
        match self {
            Stored::Number(n) => Some(*n),
            Stored::Text(_) => None,
        }
    }

    /// The string, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Stored::Number(_) => None,
            Stored::Text(s) => Some(s),
        }
    }
}

/// Suffix of received values.
const RECEIVED: &str = "$recvd";
/// Suffix that blocks a received value.
const INHERIT: &str = "$inherit";
/// Suffix of index values that older software does not know.
const UNKNOWN_VALUE: &str = "$iuv";

/// The property ZAP of one directory or snapshot.
struct Props(Option<Zap>);

impl Props {
    fn open(mos: &Mos, object: u64) -> Result<Props> {
        if object == 0 { Ok(Props(None)) } else { mos.zap(object).map(|z| Props(Some(z))) }
    }

    fn get(&self, name: &str, suffix: &str) -> Result<Option<Stored>> {
        let Some(zap) = &self.0 else { return Ok(None) };
        let value = zap.lookup(format!("{name}{suffix}").as_bytes())?;
        value.as_ref().map(Stored::from_zap).transpose()
    }

    fn has(&self, name: &str, suffix: &str) -> Result<bool> {
        let Some(zap) = &self.0 else { return Ok(false) };
        Ok(zap.lookup(format!("{name}{suffix}").as_bytes())?.is_some())
    }

    /// The value in force at this level, and whether it was received.
    fn in_force(&self, name: &str, use_unknown: bool) -> Result<Option<(Stored, bool)>> {
        if use_unknown && let Some(value) = self.get(name, UNKNOWN_VALUE)? {
            return Ok(Some((value, false)));
        }
        if let Some(value) = self.get(name, "")? {
            return Ok(Some((value, false)));
        }
        if self.has(name, INHERIT)? {
            return Ok(None);
        }
        Ok(self.get(name, RECEIVED)?.map(|value| (value, true)))
    }
}

impl DslDataset {
    /// The stored value of `name` that applies to this dataset, and its source; `None` when
    /// it was never set.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn stored(&self, name: &str, inheritable: bool) -> Result<Option<(Stored, Source)>> {
        if self.is_snapshot() {
            let own = Props::open(self.dir().mos(), self.phys().props_obj)?;
            if let Some((value, received)) = own.in_force(name, false)? {
                let source = if received { Source::Received } else { Source::Local };
                return Ok(Some((value, source)));
            }
            if !inheritable {
                return Ok(None);
            }
            // A snapshot inherits from its own dataset as if that were its parent.
            let found = self.dir().stored(name, inheritable)?;
            return Ok(found.map(|(value, source)| match source {
                Source::Local | Source::Received => {
                    (value, Source::Inherited(self.dir().name().to_owned()))
                }
                other => (value, other),
            }));
        }
        self.dir().stored(name, inheritable)
    }

    /// The received value of `name` at this very dataset.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn received(&self, name: &str) -> Result<Option<Stored>> {
        let object =
            if self.is_snapshot() { self.phys().props_obj } else { self.dir().phys().props_zapobj };
        Props::open(self.dir().mos(), object)?.get(name, RECEIVED)
    }

    /// Names of the properties that have a received value at this very dataset.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn received_names(&self) -> Result<Vec<String>> {
        let object =
            if self.is_snapshot() { self.phys().props_obj } else { self.dir().phys().props_zapobj };
        if object == 0 {
            return Ok(Vec::new());
        }
        let entries = self.dir().mos().zap_entries(object)?;
        let names = entries.iter().map(|entry| String::from_utf8_lossy(&entry.name));
        Ok(names.filter_map(|name| name.strip_suffix(RECEIVED).map(str::to_owned)).collect())
    }

    /// Names of all user properties that apply here, sorted.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn user_property_names(&self) -> Result<Vec<String>> {
        let mut names = std::collections::BTreeSet::new();
        let mos = self.dir().mos();
        let mut zaps = vec![self.dir().phys().props_zapobj];
        zaps.extend(self.dir().ancestors().map(|d| d.phys().props_zapobj));
        if self.is_snapshot() {
            zaps.push(self.phys().props_obj);
        }
        for zap in zaps {
            for entry in mos.zap_entries(zap)? {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                if name.contains(':') {
                    names.insert(name.split('$').next().unwrap_or_default().to_owned());
                }
            }
        }
        Ok(names.into_iter().collect())
    }
}

impl DslDir {
    /// As [`DslDataset::stored`], for the directory's head.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn stored(&self, name: &str, inheritable: bool) -> Result<Option<(Stored, Source)>> {
        let mut at = self;
        loop {
            let props = Props::open(at.mos(), at.phys().props_zapobj)?;
            if let Some((value, received)) = props.in_force(name, true)? {
                let source = match (std::ptr::eq(at, self), received) {
                    (true, false) => Source::Local,
                    (true, true) => Source::Received,
                    (false, _) => Source::Inherited(at.name().to_owned()),
                };
                return Ok(Some((value, source)));
            }
            match at.parent() {
                Some(parent) if inheritable => at = parent,
                _ => return Ok(None),
            }
        }
    }
}
