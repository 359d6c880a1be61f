//! Looking at pools whose devices may not answer.
//!
//! # Theory
//! What is looked for lies on disk, as far as it is not cached. So each look is work beside
//! the thread that was asked for it ([`super::beside`]), and is left behind when a device of
//! the pool is silent and the look says nothing. State, name, sizes and vdevs are in memory:
//! of a silent pool these are shown, with a remark that names the device. At most
//! `STUCK_MAX` looks are left behind at one pool; then it is not asked until one comes back.

use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use cenote::Pool;
use proto::{PropertyEntry, PropertyValue};

use super::convert;
use super::handle::RowListener;
use super::registry::{SILENT, Slot};
use super::state::DaemonState;
use super::watched::{Relay, run_watched};

/// How long a look at a silent pool may say nothing, where it is one of several.
pub(super) const BRIEF: Duration = Duration::from_millis(1500);
/// The same where the user named it.
pub(super) const PATIENT: Duration = Duration::from_secs(15);

/// The remark about a pool that is silent.
fn remark(slot: &Slot) -> String {
    let name = slot.name();
    match slot.silence() {
        Some((device, time)) => {
            format!("'{name}': {device} has not answered for {} s", time.as_secs())
        }
        None => format!("'{name}': earlier requests have not been answered yet"),
    }
}

fn silent(slot: &Slot) -> Error {
    Error::new(ErrorKind::Io, format!("cannot open {}", remark(slot)))
}

impl DaemonState {
    /// Looks at a pool, with patience once one of its devices is silent.
    ///
    /// # Errors
    /// `NotFound` for a pool that is not there, or not yet; `Io` when it does not answer;
    /// the whole message.
    pub(super) fn inspect<T: Send + 'static>(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        patience: Duration,
        to: &mut dyn RowListener,
        f: impl FnOnce(&Arc<DaemonState>, &Arc<Pool>, &mut Relay) -> T + Send + 'static,
    ) -> Result<T> {
        let pool = slot.pool().ok_or_else(|| {
            let word = slot.phase().word().unwrap_or("gone").to_lowercase();
            Error::not_found(format!("cannot open '{}': the pool is {word}", slot.name()))
        })?;
        let look = slot.inspection_permit().ok_or_else(|| silent(slot))?;
        let state = Arc::clone(self);
        let leave = &mut |to: &mut dyn RowListener, quiet: Duration| {
            if slot.silence().is_some() {
                to.progress(&remark(slot), 0, 0);
            }
            to.is_gone() || slot.is_gone() || quiet >= patience && slot.silence().is_some()
        };
        let done = run_watched(to, leave, move |relay| {
            let _look = look;
            f(&state, &pool, relay)
        });
        done.ok_or_else(|| silent(slot))
    }

    /// Tells a client that waits which device is silent.
    pub(super) fn report_silence(&self, to: &mut dyn RowListener) {
        let all = self.registry().all();
        if let Some(slot) = all.iter().find(|s| s.silence().is_some()) {
            to.progress(&remark(slot), 0, 0);
        }
    }

    /// Does something to each pool in turn. One that is busy or silent is left out, with a
    /// word.
    pub(super) fn each_pool(
        self: &Arc<Self>,
        action: &'static str,
        to: &mut dyn RowListener,
        f: impl Fn(&Arc<DaemonState>, &Arc<Pool>, &mut Relay) + Send + Sync + 'static,
    ) {
        let f = Arc::new(f);
        for slot in self.registry().all() {
            let name = slot.name();
            let Some(lock) = slot.try_lock_within(&format!("{action} is under way"), SILENT) else {
                let held = slot.lock_holder().map_or(String::new(), |h| format!(": {}", h.0));
                to.problem(format!("cannot {action} '{name}': the pool is busy{held}"));
                continue;
            };
            let f = Arc::clone(&f);
            let done = self.inspect(&slot, BRIEF, to, move |state, pool, relay| {
                let _turn = lock;
                f(state, pool, relay);
            });
            if let Err(e) = done {
                to.problem(format!("cannot {action} '{name}': {}", e.message()));
            }
        }
    }

    /// State and devices of a pool, as far as memory has them if it is silent.
    ///
    /// # Errors
    /// `NotFound`; those of reading.
    pub(super) fn status_of(
        self: &Arc<Self>,
        name: &str,
        verbose: bool,
        to: &mut dyn RowListener,
    ) -> Result<proto::Pool> {
        let slot = self.registry().find(name)?;
        let doing = slot.phase().word().map(str::to_owned);
        let Some(pool) = slot.pool() else {
            let guid = slot.guid().unwrap_or(0);
            return Ok(convert::pool_without_tree(name, guid, doing));
        };
        let looked = self.inspect(&slot, BRIEF, to, move |state, pool, _| {
            super::handle::full_status(state, pool, verbose)
        });
        let status = match looked {
            Ok(status) => {
                if slot.silence().is_some() {
                    to.remark(remark(&slot));
                }
                status?
            }
            Err(_) => {
                to.remark(remark(&slot));
                convert::pool(&pool.status_from_memory())
            }
        };
        Ok(proto::Pool { doing: doing.filter(|_| !pool.is_suspended()), ..status })
    }

    /// Properties of a pool; `None`: all. Of a silent one those that memory has.
    ///
    /// # Errors
    /// `NotFound`; those of reading.
    pub(super) fn props_of(
        self: &Arc<Self>,
        name: &str,
        props: Option<&[String]>,
        to: &mut dyn RowListener,
    ) -> Result<Vec<(String, PropertyEntry)>> {
        let slot = self.registry().find(name)?;
        let doing = slot.phase().word().filter(|_| !slot.is_suspended());
        let fact = |name: &str, value: PropertyValue| (name.to_owned(), PropertyEntry::fact(value));
        let word = |word: &str| fact("health", PropertyValue::Str(word.to_owned()));
        let mut all = match slot.pool() {
            None => {
                let guid = fact("guid", PropertyValue::Num(slot.guid().unwrap_or(0)));
                vec![fact("name", PropertyValue::Str(name.to_owned())), guid]
            }
            Some(pool) => {
                let wanted = props.map(<[String]>::to_vec);
                let looked = self.inspect(&slot, BRIEF, to, move |_, pool, _| {
                    super::handle::pool_props(pool, wanted.as_deref())
                });
                match looked {
                    Ok(props) => props?,
                    Err(_) => {
                        to.remark(remark(&slot));
                        from_memory(&pool)
                    }
                }
            }
        };
        if let Some(doing) = doing {
            all.retain(|p| p.0 != "health");
            all.push(word(doing));
        }
        all.retain(|p| props.is_none_or(|wanted| wanted.contains(&p.0)));
        Ok(all)
    }
}

fn from_memory(pool: &Pool) -> Vec<(String, PropertyEntry)> {
    let status = pool.status_from_memory();
    let health = match status.suspended {
        true => "SUSPENDED".to_owned(),
        false => status.health.to_string(),
    };
    let (size, used) = (status.root.size, status.root.allocated);
    let percent = (u128::from(used) * 100).checked_div(size.into()).unwrap_or(0);
    let values = [
        ("name", PropertyValue::Str(status.name)),
        ("guid", PropertyValue::Num(status.guid.0)),
        ("health", PropertyValue::Str(health)),
        ("size", PropertyValue::Num(size)),
        ("allocated", PropertyValue::Num(used)),
        ("free", PropertyValue::Num(size.saturating_sub(used))),
        ("capacity", PropertyValue::Num(u64::try_from(percent).unwrap_or(0))),
    ];
    values.into_iter().map(|(n, v)| (n.to_owned(), PropertyEntry::fact(v))).collect()
}
