//! `zpool map`: the space of imported pools.

use std::ffi::OsString;

use base::Result;
use ui::Exit;

use super::{Pools, misuse, no_such_pool, options};
use crate::map::{MapOptions, SpaceMaps};

/// `zpool map ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("map", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let options = match MapOptions::of("zpool map", &parsed) {
        Ok(options) => options,
        Err(message) => return Ok(misuse("map", Some(&message))),
    };
    crate::map::run(options, |names| {
        let mut pools = Pools::connect()?;
        let found = pools.select(names, no_such_pool)?;
        let maps = found.iter().map(|name| pools.space_map(name)).collect::<Result<_>>()?;
        Ok(SpaceMaps { maps, failed: pools.failed })
    })
}
