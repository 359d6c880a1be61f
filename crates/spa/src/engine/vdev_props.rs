//! Properties of vdevs, in their ZAPs (chapter 08 §H).

use base::{Error, Guid, Result};
use dsl::stored::Stored;
use ondisk::config::VdevConfig;
use ondisk::zap::ZapValue;

use super::Writer;
use super::tasks::{Command, TaskCx};

/// The ZAP with the properties of a vdev: the root's, a top-level vdev's, or a leaf's.
pub fn props_zap(root: &VdevConfig, vdev: Guid) -> Option<u64> {
    fn below(node: &VdevConfig, vdev: Guid) -> Option<u64> {
        if node.guid == vdev {
            let top = node.top.as_ref().and_then(|t| t.zap);
            return top.or(node.leaf.zap).or(node.root_zap).map(|zap| zap.0).filter(|z| *z != 0);
        }
        node.children.iter().find_map(|child| below(child, vdev))
    }
    below(root, vdev)
}

fn zap_value(value: &Stored) -> Result<ZapValue> {
    match value {
        Stored::Number(n) => Ok(ZapValue::from_u64(*n)),
        Stored::Text(text) => {
            let mut bytes = text.as_bytes().to_vec();
            bytes.push(0);
            ZapValue::from_bytes(&bytes).ok_or_else(|| Error::invalid("the value is too long"))
        }
    }
}

impl Writer {
    /// Sets a property of a vdev, or with `None` removes it; `root` is the pool's guid.
    ///
    /// # Errors
    /// `NotFound` for an unknown vdev, `Unsupported` for one without a ZAP; that of a
    /// suspension.
    pub fn set_vdev_prop(
        &self,
        vdev: Guid,
        name: &str,
        value: Option<Stored>,
        command: Option<Command>,
    ) -> Result<()> {
        let name = name.to_owned();
        let value = value.as_ref().map(zap_value).transpose()?;
        let check = move |cx: &mut TaskCx<'_>| {
            props_zap(&cx.state.config.vdev_tree, vdev).ok_or_else(|| {
                Error::unsupported("the pool has no place for properties of this device")
            })
        };
        let act = move |cx: &mut TaskCx<'_>, zap: u64| {
            match &value {
                Some(value) => cx.cx.mos.zap_update(zap, name.as_bytes(), value)?,
                None => {
                    let known = cx.read().zap_lookup(zap, name.as_bytes())?.is_some();
                    if known {
                        cx.cx.mos.zap_remove(zap, name.as_bytes())?;
                    }
                }
            }
            match &command {
                Some(command) => cx.log_command(command),
                None => Ok(()),
            }
        };
        self.sync_task(check, act).map(drop)
    }
}
