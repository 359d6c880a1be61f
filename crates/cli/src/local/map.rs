//! `map`: the space of a pool that is not imported.

use std::ffi::OsString;

use base::{Result, Txg};
use ui::Exit;

use super::{Pools, misuse};
use crate::map::{MapOptions, SpaceMaps};

/// `cenote map`. Each report opens the pools anew, because another system may write them.
pub(crate) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match commands::find("cenote", "map").parse(argv) {
        Ok(parsed) => parsed,
        Err(bad) => return Ok(misuse(bad.message().as_deref())),
    };
    let Ok(txg) = parsed.last('t').map(|text| text.parse().map(Txg)).transpose() else {
        return Ok(misuse(Some("invalid txg value")));
    };
    let options = match MapOptions::of("cenote map", &parsed) {
        Ok(options) => options,
        Err(message) => return Ok(misuse(Some(&message))),
    };
    crate::map::run(options, |names| {
        let mut pools = Pools::new(&parsed, txg)?;
        let mut found = SpaceMaps::default();
        for name in names {
            match pools.pool(name).and_then(|pool| pool.space_map()) {
                Ok(map) => found.maps.push(map),
                Err(e) => {
                    ui::err(&format!("map: {name}: {e}"));
                    found.failed = true;
                }
            }
        }
        Ok(found)
    })
}
