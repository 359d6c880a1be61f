//! The end of an expansion: the txg that sets the new width, then the vdev's new space, and a
//! scrub.

use base::{Error, Result, Txg, VdevId};
use nvlist::NvList;
use ondisk::zap::ZapValue;

use super::super::tasks::TaskCx;
use super::super::topology::find_mut;
use super::super::{ScanRequest, Writer};
use super::{COPIED, END, ExpansionStep, STATE, Stage, expanding_top};

/// From the txg that ends an expansion to the first births with the new width.
const TXGS_UNTIL_WIDER: u64 = 3;

impl TaskCx<'_> {
    fn check_expansion_end(&self, vdev: VdevId) -> Result<()> {
        let state = self.writer.expansion.state.lock();
        let now = state.as_ref().filter(|now| now.vdev == vdev && now.stage == Stage::Copying);
        let whole = now.is_some_and(|now| now.done == now.end && now.recorded == now.end);
        drop(state);
        let config = expanding_top(&self.state.config.vdev_tree);
        match whole && config.is_some_and(|top| top.id == vdev.0) {
            true => Ok(()),
            false => Err(Error::busy("raidz expansion in progress")),
        }
    }

    fn end_expansion(&mut self, vdev: VdevId) -> Result<()> {
        let wider = Txg(self.cx.txg.0 + TXGS_UNTIL_WIDER);
        let guid = expanding_top(&self.state.config.vdev_tree).map(|top| top.guid);
        let guid = guid.ok_or_else(|| base::bug!("no vdev is being expanded"))?;
        let mut expand_txgs = Vec::new();
        let mut width = 0;
        if let Some(top) = find_mut(&mut self.config().vdev_tree, guid) {
            width = top.children.len();
            if let Some(raidz) = &mut top.raidz {
                raidz.expanding = false;
                raidz.expand_txgs.push(wider);
                expand_txgs.clone_from(&raidz.expand_txgs);
            }
        }
        let copied = {
            let mut state = self.writer.expansion.state.lock();
            let now = state.as_mut().ok_or_else(|| base::bug!("no vdev is being expanded"))?;
            (now.stage, now.expand_txgs, now.writing) = (Stage::Ending, expand_txgs, None);
            now.copied
        };
        if let Some(zap) = self.sync.top_zap(vdev) {
            for (key, value) in [(STATE, 2), (END, self.cx.now.0), (COPIED, copied)] {
                self.cx.mos.zap_update(zap, key.as_bytes(), &ZapValue::from_u64(value))?;
            }
        }
        let text = format!("{} vdev {vdev} new width {width}", self.writer.name());
        self.log_internal("raidz vdev expansion completed", None, &text)
    }
}

impl Writer {
    /// Everything was copied, and an uberblock says so.
    pub(super) fn finish_expansion(&self, vdev: VdevId) -> ExpansionStep {
        let check = move |cx: &mut TaskCx<'_>| cx.check_expansion_end(vdev);
        let act = move |cx: &mut TaskCx<'_>, ()| cx.end_expansion(vdev);
        match self.sync_task(check, act) {
            Ok(_) => ExpansionStep::More,
            Err(_) => ExpansionStep::Wait,
        }
    }

    /// The vdev grows, and a scrub begins.
    pub(super) fn after_expansion(&self, vdev: VdevId) -> ExpansionStep {
        let grow = move |cx: &mut TaskCx<'_>, ()| cx.expand_top(vdev).map(drop);
        if self.sync_task(|_| Ok(()), grow).is_err() {
            return ExpansionStep::Wait;
        }
        *self.expansion.ended.lock() = None;
        let mut values = NvList::new();
        values.add_u64("vdev_id", u64::from(vdev.0));
        self.sysevent("vdev_autoexpand", &values);
        let scrub = self.expansion.tuning.lock().scrub;
        if let Some(writer) = self.me.get().and_then(std::sync::Weak::upgrade).filter(|_| scrub) {
            // Another scan may be under way.
            let _other = writer.scan(ScanRequest::Scrub, None);
        }
        ExpansionStep::More
    }
}
