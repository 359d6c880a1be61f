//! Properties that an administrator sets on vdevs (chapter 09 §2.5).

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Error, ErrorKind, Guid, Result};
use dsl::props::is_user_prop;
use dsl::stored::Stored;
use ondisk::config::VdevConfig;
use spa::engine::Command;
use spa::engine::vdev_props::props_zap;

use crate::diagnosis::Thresholds;
use crate::pool::Pool;

/// Longest value of a user property, in bytes.
const TEXT_MAX: usize = 8191;

/// The kind of a settable property's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PropKind {
    /// A number, or `none`.
    Number,
    /// Any text.
    Text,
    /// One of these words, stored as their positions.
    Words(&'static [&'static str]),
}

const SETTABLE: [(&str, PropKind); 10] = [
    ("comment", PropKind::Text),
    ("failfast", PropKind::Words(&["off", "on", "inherit"])),
    ("checksum_n", PropKind::Number),
    ("checksum_t", PropKind::Number),
    ("io_n", PropKind::Number),
    ("io_t", PropKind::Number),
    ("slow_io_n", PropKind::Number),
    ("slow_io_t", PropKind::Number),
    ("slow_io_events", PropKind::Words(&["off", "on"])),
    (AUTOSIT, PropKind::Words(&["off", "on"])),
];
/// Slow leaves of the parity vdev sit out of reads by themselves.
const AUTOSIT: &str = "autosit";
/// The leaf sits out of reads now; it is not stored.
const SIT_OUT: &str = "sit_out";

/// Properties that OpenZFS can set.
const UNSUPPORTED: [&str; 4] = ["path", "allocating", "scheduler", "alloc_bias"];

/// The stored number of `none`: the threshold is never reached.
const NONE: u64 = u64::MAX;

/// A value in its stored form; `None` removes the property.
fn parse(name: &str, value: &str) -> Result<Option<Stored>> {
    if is_user_prop(name) {
        if value.len() > TEXT_MAX {
            return Err(Error::invalid(format!("property value too long for '{name}'")));
        }
        return Ok((!value.is_empty()).then(|| Stored::Text(value.to_owned())));
    }
    if UNSUPPORTED.contains(&name) {
        let why = format!("setting '{name}' is not supported by this version of Cenote");
        return Err(Error::unsupported(why));
    }
    let Some((_, kind)) = SETTABLE.iter().find(|(known, _)| *known == name) else {
        return Err(Error::invalid(format!("invalid property '{name}'")));
    };
    match kind {
        PropKind::Text => Ok((!value.is_empty()).then(|| Stored::Text(value.to_owned()))),
        PropKind::Number if value == "none" => Ok(Some(Stored::Number(NONE))),
        PropKind::Number => match value.parse::<u64>() {
            Ok(n) => Ok(Some(Stored::Number(n))),
            Err(_) => Err(Error::invalid(format!("bad numeric value '{value}'"))),
        },
        PropKind::Words(words) => match words.iter().position(|w| *w == value) {
            Some(n) => Ok(Some(Stored::Number(n as u64))),
            None => {
                let all = words.join("', '");
                Err(Error::invalid(format!("'{name}' must be one of '{all}'")))
            }
        },
    }
}

/// A stored value as it is shown.
fn shown(name: &str, value: &Stored) -> String {
    let kind = SETTABLE.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
    match (value, kind) {
        (Stored::Text(text), _) => text.clone(),
        (Stored::Number(NONE), Some(PropKind::Number)) => "none".to_owned(),
        (Stored::Number(n), Some(PropKind::Words(words))) => {
            let word = usize::try_from(*n).ok().and_then(|n| words.get(n));
            word.map_or_else(|| n.to_string(), |w| (*w).to_owned())
        }
        (Stored::Number(n), _) => n.to_string(),
    }
}

/// The properties that are set, by vdev: name and value as shown.
pub type VdevProps = BTreeMap<Guid, Vec<(String, String)>>;

impl Pool {
    /// The properties that are set on the pool's vdevs. They are read once; the diagnosis of
    /// errors does not wait for devices again.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn vdev_props(&self) -> Result<Arc<VdevProps>> {
        if let Some(known) = &*self.core.vdev_props.read() {
            return Ok(Arc::clone(known));
        }
        // A property that is set meanwhile waits, so that its old value is not kept.
        let mut known = self.core.vdev_props.write();
        let config = self.core.config();
        let mut out = VdevProps::new();
        self.add_props(&config.vdev_tree, &config.vdev_tree, &mut out)?;
        let out = Arc::new(out);
        *known = Some(Arc::clone(&out));
        Ok(out)
    }

    /// Whether an object of a vdev in the MOS, which the configuration named a moment ago, is gone
    /// with its vdev. The txg that removes a vdev frees its objects at once, and publishes the
    /// configuration without it only when it is on disk.
    pub fn has_vdev_object_left(&self, object: u64) -> bool {
        fn names(at: &VdevConfig, object: u64) -> bool {
            let own = [at.top.as_ref().and_then(|top| top.zap), at.leaf.zap, at.root_zap];
            own.into_iter().flatten().any(|zap| zap.0 == object)
                || at.children.iter().any(|child| names(child, object))
        }
        let there = self.core.spa.mos().object(object);
        there.is_err_and(|e| e.kind() == ErrorKind::NotFound)
            || !names(&self.core.config().vdev_tree, object)
    }

    fn add_props(&self, root: &VdevConfig, at: &VdevConfig, out: &mut VdevProps) -> Result<()> {
        if let Some(zap) = props_zap(root, at.guid) {
            let mut props = Vec::new();
            let read = self.core.spa.mos().zap(zap).and_then(|zap| {
                zap.for_each(|entry| {
                    let name = String::from_utf8_lossy(&entry.name).into_owned();
                    let known = SETTABLE.iter().any(|(known, _)| *known == name);
                    // Other software's keys have a colon, too, and a domain before it.
                    let user = is_user_prop(&name)
                        && !name.starts_with("com.")
                        && !name.starts_with("org.");
                    let value = match entry.value.as_u64() {
                        Some(n) => Some(Stored::Number(n)),
                        None => entry
                            .value
                            .as_str_bytes()
                            .map(|text| Stored::Text(String::from_utf8_lossy(text).into_owned())),
                    };
                    if let (true, Some(value)) = (known || user, value) {
                        props.push((name.clone(), shown(&name, &value)));
                    }
                    Ok(())
                })
            });
            match read {
                Err(_) if self.has_vdev_object_left(zap) => props.clear(),
                other => other?,
            }
            if !props.is_empty() {
                props.sort();
                out.insert(at.guid, props);
            }
        }
        at.children.iter().try_for_each(|child| self.add_props(root, child, out))
    }

    /// Sets a property of a vdev, named by path, last part of the path, name or guid; `root` is
    /// the pool itself. An empty value removes a text.
    ///
    /// # Errors
    /// `ReadOnly`; `NotFound` for an unknown vdev; `Invalid` in OpenZFS's words.
    pub fn set_vdev_prop(
        &self,
        vdev: &str,
        name: &str,
        value: &str,
        command: Option<&str>,
    ) -> Result<()> {
        let guid = match vdev {
            "root" | "root-0" => self.core.config().vdev_tree.guid,
            _ => self.vdev_named(vdev)?,
        };
        if name == SIT_OUT {
            let on = match value {
                "on" => true,
                "off" => false,
                _ => return Err(Error::invalid(format!("'{name}' must be one of 'off', 'on'"))),
            };
            self.writer()?.zio().tree().set_sit_out(guid, on)?;
            return Ok(());
        }
        let stored = parse(name, value)?;
        let autosit = (name == AUTOSIT).then_some(value == "on");
        if let Some(on) = autosit {
            self.writer()?.zio().tree().set_autosit(guid, on)?;
        }
        self.writer()?.set_vdev_prop(guid, name, stored, command.map(Command::new))?;
        *self.core.vdev_props.write() = None;
        Ok(())
    }

    /// Applies property `autosit` of all vdevs to the tree; without their properties, which are
    /// read again when they are asked for, none has it.
    pub(crate) fn apply_autosit(&self) {
        let props = self.vdev_props().unwrap_or_default();
        let tree = self.core.spa.zio().tree();
        for (guid, _) in props
            .iter()
            .filter(|(_, own)| own.iter().any(|(name, value)| name == AUTOSIT && value == "on"))
        {
            // Only a damaged pool has it at another type of vdev.
            let _ = tree.set_autosit(*guid, true);
        }
    }

    /// The thresholds of a vdev: its own, those of the vdevs above it, or the defaults.
    pub fn thresholds(&self, vdev: Guid) -> Thresholds {
        let config = self.core.config();
        let mut path = Vec::new();
        path_to(&config.vdev_tree, vdev, &mut path);
        let props = self.vdev_props().unwrap_or_default();
        let number = |name: &str| {
            let of = |guid: &Guid| {
                let own = props.get(guid)?.iter().find(|(n, _)| n == name)?;
                Some(if own.1 == "none" { NONE } else { own.1.parse().ok()? })
            };
            path.iter().rev().find_map(of)
        };
        let pair = |kind: &str, usual: Option<(u64, u64)>| {
            let n = number(&format!("{kind}_n")).or(usual.map(|u| u.0))?;
            let t = number(&format!("{kind}_t")).or(usual.map(|u| u.1)).unwrap_or(600);
            (n != NONE && t != NONE).then_some((n, t))
        };
        let usual = Thresholds::default();
        Thresholds {
            checksum: pair("checksum", usual.checksum),
            io: pair("io", usual.io),
            slow_io: pair("slow_io", usual.slow_io),
        }
    }
}

/// The guids from the root to a vdev; empty if it is not there.
fn path_to(at: &VdevConfig, vdev: Guid, path: &mut Vec<Guid>) -> bool {
    path.push(at.guid);
    if at.guid == vdev || at.children.iter().any(|child| path_to(child, vdev, path)) {
        return true;
    }
    path.pop();
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked_and_shown_as_they_were_set() {
        for (name, value, shows) in [
            ("checksum_n", "7", Some("7")),
            ("io_t", "none", Some("none")),
            ("failfast", "inherit", Some("inherit")),
            ("slow_io_events", "off", Some("off")),
            ("comment", "top shelf", Some("top shelf")),
            ("comment", "", None),
            ("a:b", "x", Some("x")),
            ("a:b", "", None),
        ] {
            let stored = parse(name, value).unwrap();
            assert_eq!(stored.map(|s| shown(name, &s)).as_deref(), shows, "{name}={value}");
        }
        for (name, value) in
            [("checksum_n", "many"), ("failfast", "maybe"), ("size", "1"), ("nonsense", "1")]
        {
            assert!(parse(name, value).is_err(), "{name}={value}");
        }
        assert!(parse("a:b", &"x".repeat(TEXT_MAX + 1)).is_err());
    }
}
