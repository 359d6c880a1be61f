//! Inspection of pools whose devices may not answer.
//!
//! # Theory
//! Data that is not cached has to be read from disk. So each inspection runs on a thread of its
//! own ([`super::watched`]). It is abandoned when a device of the pool is silent and the
//! inspection reports nothing. State, name, sizes and vdevs are in memory: they are shown even
//! for a silent pool, with a remark that names the device. At most `STUCK_MAX` abandoned
//! inspections of one pool exist; then it is not inspected until one of them returns.

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

/// How long an inspection of a silent pool may report nothing, if it is one of several pools.
pub(super) const LISTING_TIMEOUT: Duration = Duration::from_millis(1500);
/// The same if the user named the pool.
pub(super) const NAMED_POOL_TIMEOUT: Duration = Duration::from_secs(15);

/// The remark about a silent pool.
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
    /// Inspects a pool; the time limit applies once one of its devices is silent.
    ///
    /// # Errors
    /// `NotFound` for a pool that is not open, `Io` if it does not answer; with the whole
    /// message.
    pub(super) fn inspect<T: Send + 'static>(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        timeout: Duration,
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
            to.is_gone() || slot.is_gone() || quiet >= timeout && slot.silence().is_some()
        };
        let done = run_watched(to, leave, move |relay| {
            let _look = look;
            f(&state, &pool, relay)
        });
        done.ok_or_else(|| silent(slot))
    }

    /// Tells a waiting client which device is silent.
    pub(super) fn report_silence(&self, to: &mut dyn RowListener) {
        let all = self.registry().all();
        if let Some(slot) = all.iter().find(|s| s.silence().is_some()) {
            to.progress(&remark(slot), 0, 0);
        }
    }

    /// Calls `f` for one pool after the other. A busy or silent pool is skipped, with a remark.
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
            let done = self.inspect(&slot, LISTING_TIMEOUT, to, move |state, pool, relay| {
                let _turn = lock;
                f(state, pool, relay);
            });
            if let Err(e) = done {
                to.problem(format!("cannot {action} '{name}': {}", e.message()));
            }
        }
    }

    /// State and devices of a pool; of a silent pool what is in memory.
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
        let looked = self.inspect(&slot, LISTING_TIMEOUT, to, move |state, pool, _| {
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

    /// Properties of a pool; `None`: all. Of a silent pool those that are in memory.
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
                let looked = self.inspect(&slot, LISTING_TIMEOUT, to, move |_, pool, _| {
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
