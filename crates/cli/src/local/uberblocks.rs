//! `uberblocks`: earlier states of a pool that is not imported.

use std::sync::Arc;

use base::Result;
use cenote::{Engine, FoundPool};
use ui::table::{Column, render};
use ui::{Exit, time};

/// Lists the txgs whose uberblocks still exist, newest first.
pub(super) fn list(
    engine: &Arc<Engine>,
    pool: &FoundPool,
    scripted: bool,
    exact: bool,
) -> Result<Exit> {
    let columns = [
        Column { right: true, ..Column::text("TXG") },
        Column::text("TIME"),
        Column::text("STATE"),
    ];
    let rows: Vec<Vec<String>> = engine
        .look_back(pool)?
        .into_iter()
        .map(|past| {
            let at = past.timestamp;
            let when = if exact { at.to_string() } else { time::strftime("%F %T", at) };
            let state = match past.whole {
                Ok(()) => "whole".to_owned(),
                Err(e) => format!("damaged: {}", e.message()),
            };
            vec![past.txg.to_string(), when, state]
        })
        .collect();
    ui::out(&render(&columns, &rows, scripted));
    Ok(Exit::OK)
}
