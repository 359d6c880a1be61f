//! Checks of a request for new vdevs: devices in use, mismatched redundancy, and the effect
//! of `-f` (chapter 09 §1.2, §4).

use std::path::Path;

use base::{Error, Result};
use ondisk::config::VdevConfig;

use super::inuse::InUse;
use super::replication;
use super::topology::{LeafFacts, NewVdev, Role, check_shape};

/// The checks that `-f`, or a more specific option, overrides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Force {
    /// Devices that may be in use (`--allow-in-use`).
    pub in_use: bool,
    /// Mismatched redundancy (`--allow-replication-mismatch`).
    pub replication: bool,
    /// Another sector size than the pool's other vdevs have
    /// (`--allow-ashift-mismatch`).
    pub ashift: bool,
}

impl Force {
    /// `-f`.
    pub const ALL: Force = Force { in_use: true, replication: true, ashift: true };

    fn any(self) -> bool {
        self.in_use || self.replication || self.ashift
    }
}

/// The examination of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExaminedDevice {
    /// Its size and sectors.
    pub facts: LeafFacts,
    /// Possible other owners.
    pub in_use: Vec<InUse>,
    /// Equal for two names of one device.
    pub id: (u64, u64),
}

fn refusal(force: Force, lines: &[String]) -> Error {
    let head = if force.any() {
        "the following errors must be manually repaired:"
    } else {
        "use '-f' to override the following errors:"
    };
    Error::invalid(format!("invalid vdev specification\n{head}\n{}", lines.join("\n")))
}

/// Admits a request, or refuses it in OpenZFS's words. `pool` are the top-level vdevs of
/// the pool that is added to; `None` for a new pool. Each device is examined once.
///
/// # Errors
/// `Invalid` with the whole message, of several lines; errors of `look`.
pub fn admit(
    vdevs: &[NewVdev],
    pool: Option<&[VdevConfig]>,
    force: Force,
    look: &dyn Fn(&Path) -> Result<ExaminedDevice>,
) -> Result<()> {
    check_shape(vdevs)?;
    if pool.is_none() && !vdevs.iter().any(|v| v.role == Role::Data) {
        let line = "at least one general top-level vdev must be specified".to_owned();
        return Err(refusal(force, &[line]));
    }
    let mut seen: std::collections::HashMap<&Path, ExaminedDevice> =
        std::collections::HashMap::new();
    let mut ids = std::collections::HashSet::new();
    let mut lines = Vec::new();
    for vdev in vdevs {
        for path in vdev.paths() {
            let looked = look(path)?;
            let stands =
                |u: &&InUse| u.forbids(vdev.role) && !(force.in_use && u.yields_to_force());
            lines.extend(looked.in_use.iter().filter(stands).map(|u| u.line(path)));
            let again = !ids.insert(looked.id);
            seen.insert(path, looked);
            if again {
                // OpenZFS detects this through the kernel (EBUSY).
                return Err(Error::busy(
                    "one or more vdevs refer to the same device, or one of\nthe devices is part \
                     of an active md or lvm device",
                ));
            }
        }
    }
    if lines.is_empty() && !force.replication {
        let facts = |path: &Path| {
            seen.get(path).map(|l| l.facts).ok_or_else(|| base::bug!("a device was not looked at"))
        };
        lines = replication::check(vdevs, pool.unwrap_or_default(), &facts)?;
    }
    if lines.is_empty() { Ok(()) } else { Err(refusal(force, &lines)) }
}

#[cfg(test)]
mod tests {
    use super::super::topology::NewKind;
    use super::*;

    fn look(path: &Path) -> Result<ExaminedDevice> {
        let facts = LeafFacts { size: 128 << 20, logical_shift: 9, physical_shift: 9 };
        let kitchen = || "kitchen".to_owned();
        let in_use = match path.to_str().unwrap() {
            "/active" => vec![InUse::Active(kitchen())],
            "/exported" => vec![InUse::Exported(kitchen())],
            "/ext4" => vec![InUse::Content("ext4")],
            "/spare" => vec![InUse::Spare(kitchen())],
            _ => Vec::new(),
        };
        let id =
            (1, path.as_os_str().as_encoded_bytes().iter().fold(0, |h, &b| h * 31 + u64::from(b)));
        Ok(ExaminedDevice { facts, in_use, id })
    }

    fn file(path: &str) -> NewVdev {
        NewVdev::new(NewKind::File(path.into()))
    }

    fn outcome(vdevs: &[NewVdev], force: Force) -> String {
        match admit(vdevs, None, force, &look) {
            Ok(()) => String::new(),
            Err(e) => e.message().to_owned(),
        }
    }

    const MAY: &str = "invalid vdev specification\nuse '-f' to override the following errors:\n";
    const MUST: &str =
        "invalid vdev specification\nthe following errors must be manually repaired:\n";

    /// Recorded from OpenZFS 2.3.2.
    #[test]
    fn force_overrides_what_it_may() {
        let both = [file("/exported"), file("/ext4")];
        assert_eq!(
            outcome(&both, Force::default()),
            format!(
                "{MAY}/exported is part of exported pool 'kitchen'\n/ext4 contains a filesystem \
                 of type 'ext4'"
            )
        );
        assert_eq!(outcome(&both, Force::ALL), "");
        let active = [file("/active")];
        let line = "/active is part of active pool 'kitchen'";
        assert_eq!(outcome(&active, Force::default()), format!("{MAY}{line}"));
        assert_eq!(outcome(&active, Force::ALL), format!("{MUST}{line}"));
        let spare = file("/spare").for_role(Role::Spare);
        assert_eq!(outcome(&[file("/a"), spare.clone()], Force::default()), "");
        let general = "at least one general top-level vdev must be specified";
        assert_eq!(outcome(&[spare], Force::default()), format!("{MAY}{general}"));
        let log = file("/a").for_role(Role::Log);
        assert_eq!(outcome(&[log], Force::ALL), format!("{MUST}{general}"));
    }

    #[test]
    fn halves_of_force() {
        let mixed =
            [file("/a"), NewVdev::new(NewKind::Mirror).with_children(vec![file("/b"), file("/c")])];
        let line = "mismatched replication level: both file and mirror vdevs are present";
        assert_eq!(outcome(&mixed, Force::default()), format!("{MAY}{line}"));
        let in_use = Force { in_use: true, ..Force::default() };
        assert_eq!(outcome(&mixed, in_use), format!("{MUST}{line}"));
        let replication = Force { replication: true, ..Force::default() };
        assert_eq!(outcome(&mixed, replication), "");
        let twice = outcome(&[file("/a"), file("/a")], Force::ALL);
        assert!(twice.starts_with("one or more vdevs refer to the same device"), "{twice}");
    }
}
