//! Tunables of block cloning.

use zpl::rw;

use super::{OFF_ON, Tunable, Unit, writing};

pub(super) const ENABLED: Tunable = writing(
    "zfs_bclone_enabled",
    "copies share blocks in pools with feature block_cloning",
    Unit::Choice(OFF_ON),
    1,
    || (0, 1),
    |_| rw::cloning_enabled().into(),
    |_, n| {
        rw::set_cloning_enabled(n != 0);
        Ok(())
    },
);

pub(super) const WAIT_DIRTY: Tunable = writing(
    "zfs_bclone_wait_dirty",
    "copies wait until the blocks that they may share are on disk",
    Unit::Choice(OFF_ON),
    0,
    || (0, 1),
    |_| rw::cloning_waits().into(),
    |_, n| {
        rw::set_cloning_waits(n != 0);
        Ok(())
    },
);
