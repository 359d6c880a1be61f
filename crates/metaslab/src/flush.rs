//! The choice of metaslabs whose logged changes are flushed to their own space maps
//! (chapter 05 §4.4).
//!
//! Departure: the estimate treats every log separately; OpenZFS sums them up in ten
//! rows. At most a thousand logs exist, so the exact result is affordable.

use base::{Txg, VdevId};

use crate::{MsKey, Space};

/// An existing log space map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFact {
    /// Its txg.
    pub txg: Txg,
    /// Number of its data blocks.
    pub blocks: u64,
}

/// Limits of the policy, with the defaults of chapter 05 §4.4.
#[derive(Clone, Copy, Debug)]
pub struct FlushLimits {
    /// Memory of the unflushed sets, bytes.
    pub memory: u64,
    /// Log blocks for each hundred metaslabs with logged changes.
    pub block_percent: u64,
    /// Lower and upper bound of the allowed log blocks.
    pub blocks: (u64, u64),
    /// Most logs kept.
    pub logs: u64,
    /// Least flushes in an active txg.
    pub least: u64,
}

impl Default for FlushLimits {
    fn default() -> FlushLimits {
        FlushLimits {
            memory: 1 << 30,
            block_percent: 400,
            blocks: (1000, 131_072),
            logs: 1000,
            least: 1,
        }
    }
}

/// Number of flushes that keep the logs within their limits. `dirty` has the unflushed
/// txgs of all metaslabs, ascending.
fn needed(dirty: &[Txg], logs: &[LogFact], limits: &FlushLimits) -> u64 {
    let last = &logs[logs.len().saturating_sub(5)..];
    let recent: u64 = last.iter().map(|l| l.blocks).sum();
    let incoming = recent.div_ceil((last.len() as u64).max(1));
    let limit = (dirty.len() as u64).saturating_mul(limits.block_percent) / 100;
    let limit = limit.clamp(limits.blocks.0, limits.blocks.1.max(limits.blocks.0));
    let all: u64 = logs.iter().map(|l| l.blocks).sum();
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let incoming = signed(incoming);
    let mut blocks = signed(limit).saturating_sub(signed(all)).saturating_sub(incoming);
    let mut txgs = signed(limits.logs).saturating_sub(logs.len() as i64);
    let (mut time, mut need, mut best) = (1i64, 0i64, signed(limits.least));
    let mut at = 0;
    for log in logs {
        if blocks >= 0 && txgs >= 0 {
            let skip = match incoming {
                0 => txgs + 1,
                n => (txgs + 1).min(blocks / n + 1),
            };
            blocks = blocks.saturating_sub(skip.saturating_mul(incoming));
            txgs -= skip;
            time = time.saturating_add(skip);
        }
        blocks = blocks.saturating_add(signed(log.blocks));
        txgs += 1;
        while dirty.get(at).is_some_and(|&txg| txg <= log.txg) {
            need += 1;
            at += 1;
        }
        best = best.max((need + time - 1) / time);
    }
    best.cast_unsigned()
}

impl Space {
    /// The metaslabs to flush in pass 1 of `txg`, in this order, before anything of
    /// `txg` is written. `logs` are the existing logs, ascending. With `all`, every
    /// metaslab with logged changes is flushed, as before an export. Returns an empty
    /// list if nothing is dirty, so that an idle pool stays idle.
    pub fn choose_flushes(
        &self,
        txg: Txg,
        logs: &[LogFact],
        limits: &FlushLimits,
        all: bool,
    ) -> Vec<MsKey> {
        if !all && self.is_clean(txg) {
            return Vec::new();
        }
        let layout = self.layout();
        let mut order: Vec<(Txg, VdevId, u64, u64)> = layout
            .slabs()
            .map(|(key, slab)| (slab.unflushed_txg(), key, slab))
            .filter(|&(at, ..)| at != Txg::ZERO)
            .map(|(at, key, slab)| (at, key.vdev, key.ms, slab.with(|m| m.unflushed_memory())))
            .collect();
        order.sort_unstable();
        let dirty: Vec<Txg> = order.iter().map(|&(at, ..)| at).collect();
        let mut quota = if all { u64::MAX } else { needed(&dirty, logs, limits) };
        let mut memory: u64 = order.iter().map(|&(.., memory)| memory).sum();
        let mut out = Vec::new();
        for (_, vdev, ms, size) in order.into_iter().filter(|&(at, ..)| at < txg) {
            if quota == 0 && memory <= limits.memory {
                break;
            }
            // Flushing one without changes only updates its txg, which costs almost
            // nothing.
            if size > 0 {
                quota = quota.saturating_sub(1);
                memory -= size;
            }
            out.push(MsKey { vdev, ms });
        }
        out
    }

    /// Logs of txgs before this one can be removed (chapter 05 §4.2 I5); `None` if no
    /// metaslab has logged changes, so that all can be removed.
    pub fn min_unflushed(&self) -> Option<Txg> {
        let layout = self.layout();
        layout.slabs().map(|(_, slab)| slab.unflushed_txg()).filter(|&t| t != Txg::ZERO).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs(n: u64, blocks: u64) -> Vec<LogFact> {
        (0..n).map(|i| LogFact { txg: Txg(100 + i), blocks }).collect()
    }

    #[test]
    fn few_logs_need_the_least() {
        let dirty = vec![Txg(100); 50];
        assert_eq!(needed(&dirty, &logs(10, 1), &FlushLimits::default()), 1);
    }

    #[test]
    fn at_the_limit_the_oldest_log_must_go_at_once() {
        let limits = FlushLimits { logs: 10, ..FlushLimits::default() };
        let mut dirty = vec![Txg(100); 7];
        dirty.extend([Txg(105); 3]);
        assert_eq!(needed(&dirty, &logs(11, 1), &limits), 7);
        // With one txg in reserve, two txgs are left to do it.
        assert_eq!(needed(&dirty, &logs(10, 1), &limits), 4);
    }

    #[test]
    fn the_estimate_spreads_the_work() {
        let limits = FlushLimits { logs: 100, ..FlushLimits::default() };
        let dirty: Vec<Txg> = (0..40).map(|_| Txg(100)).collect();
        assert_eq!(needed(&dirty, &logs(61, 1), &limits), 1);
        assert_eq!(needed(&dirty, &logs(91, 1), &limits), 4);
    }
}
