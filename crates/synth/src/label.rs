//! The configuration, the four labels and their uberblocks (chapter 01).

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use base::{Error, Guid, Result};
use nvlist::{NvList, NvStr};
use ondisk::Endian;
use ondisk::config::{LeafState, Member, PoolConfig, PoolState, Top, VdevConfig, VdevType};
use ondisk::label::{
    BOOTENV_OFFSET, BOOTENV_SIZE, LABEL_SIZE, LABELS, VDEV_PHYS_OFFSET, VDEV_PHYS_SIZE,
    encode_bootenv, encode_slot, encode_vdev_phys, label_offset, leaf_asize, slot_of_txg,
    slot_offset, slot_size, usable_size,
};
use ondisk::uberblock::{Mmp, ScratchState, Uberblock, VERSION_FEATURES};

use crate::mos::{MosInput, WrittenMos};
use crate::space::BumpSpace;
use crate::{TXG, mix};

fn pool_guid(pool: &MosInput<'_>) -> Guid {
    Guid(mix(pool.spec.seed, 1) | 1)
}

fn vdev_guid(pool: &MosInput<'_>) -> Guid {
    Guid(mix(pool.spec.seed, 2) | 2)
}

fn node(kind: VdevType, guid: Guid) -> VdevConfig {
    VdevConfig {
        kind,
        id: 0,
        guid,
        path: None,
        devid: None,
        phys_path: None,
        whole_disk: None,
        create_txg: TXG,
        orig_guid: None,
        raidz: None,
        draid: None,
        dspare: None,
        top: None,
        leaf: LeafState::default(),
        root_zap: None,
        children: Vec::new(),
        raw: NvList::new(),
    }
}

fn leaf(pool: &MosInput<'_>, space: &BumpSpace, metaslab_array: u64) -> Result<VdevConfig> {
    let asize = leaf_asize(usable_size(pool.spec.size));
    let top = Top {
        metaslab_array,
        metaslab_shift: space.ms_shift,
        ashift: pool.spec.ashift,
        asize: asize.ok_or_else(|| Error::invalid("the image is too small"))?,
        ..Top::default()
    };
    Ok(VdevConfig {
        path: Some(NvStr::new(pool.path.as_os_str().as_bytes())?),
        top: Some(top),
        ..node(VdevType::File, vdev_guid(pool))
    })
}

/// The configuration for the MOS, or, with `member`, for the labels.
pub(crate) fn config(
    pool: &MosInput<'_>,
    space: &BumpSpace,
    metaslab_array: u64,
    member: bool,
) -> Result<NvList> {
    let leaf = leaf(pool, space, metaslab_array)?;
    let vdev_tree = if member {
        leaf
    } else {
        VdevConfig { children: vec![leaf], ..node(VdevType::Root, pool_guid(pool)) }
    };
    let guid = vdev_guid(pool);
    let member = member.then_some(Member {
        guid,
        top_guid: guid,
        is_spare: false,
        is_log: false,
        create_txg: base::Txg::ZERO,
    });
    let config = PoolConfig {
        version: VERSION_FEATURES,
        name: pool.spec.name.clone(),
        state: PoolState::Exported,
        txg: TXG,
        pool_guid: pool_guid(pool),
        errata: 0,
        hostid: 0,
        hostname: None,
        comment: None,
        compatibility: None,
        vdev_children: Some(1),
        hole_array: Vec::new(),
        split_guid: None,
        member,
        vdev_tree,
        features_for_read: crate::mos::label_features(),
        has_per_vdev_zaps: false,
        raw: NvList::new(),
    };
    Ok(config.to_nvlist())
}

/// Writes the four labels, each with the one uberblock.
pub(crate) fn write(file: &File, pool: &MosInput<'_>, written: &WrittenMos) -> Result<()> {
    let config = config(pool, &written.space, written.metaslab_array, true)?;
    let uberblock = Uberblock {
        version: VERSION_FEATURES,
        txg: TXG,
        guid_sum: pool_guid(pool).0.wrapping_add(vdev_guid(pool).0),
        timestamp: pool.spec.time,
        root_bp: written.root_bp,
        software_version: VERSION_FEATURES,
        mmp: Some(Mmp::default()),
        checkpoint_txg: base::Txg::ZERO,
        raidz_reflow_info: 0,
        endian: Endian::Little,
    };
    let mut bootenv = NvList::new();
    bootenv.add_u64("version", 0);
    let ashift = pool.spec.ashift;
    let slot = slot_of_txg(ashift, TXG, false, ScratchState::Unused);
    let slot_at = slot_offset(ashift, slot).ok_or_else(|| Error::bug("no uberblock slot"))?;
    for n in 0..LABELS {
        let at = label_offset(usable_size(pool.spec.size), n)
            .ok_or_else(|| Error::invalid("the image is too small"))?;
        let mut label = vec![0; LABEL_SIZE as usize];
        let region = &mut label[BOOTENV_OFFSET as usize..][..BOOTENV_SIZE];
        encode_bootenv(&bootenv, region, at + BOOTENV_OFFSET)?;
        let region = &mut label[VDEV_PHYS_OFFSET as usize..][..VDEV_PHYS_SIZE];
        encode_vdev_phys(&config, region, at + VDEV_PHYS_OFFSET)?;
        let region = &mut label[slot_at as usize..][..slot_size(ashift)];
        encode_slot(&uberblock, region, at + slot_at)?;
        file.write_all_at(&label, at).map_err(|e| Error::io("cannot write a label", e))?;
    }
    Ok(())
}
