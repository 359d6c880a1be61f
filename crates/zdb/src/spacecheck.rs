//! `zdb -y`: replays space maps and their logs to find contradictions.

use base::Result;
use cenote::inspect::spa::Spa;
use cenote::inspect::spa::audit::maps;
use ui::Exit;

use super::exit;

/// Replays everything; allocations of allocated space, frees of free space, and
/// wrong sums are reported.
pub(super) fn main(spa: &Spa) -> Result<Exit> {
    ui::out("Verifying deleted livelist entries\nVerifying metaslab entries\n");
    let space = spa.load_space()?;
    let replayed = maps::replay(spa, &space)?;
    let mut result = Exit::OK;
    for (vdev, metaslab, errors) in &replayed.contradictions {
        result = exit::SPACE;
        if errors.alloc_twice > 0 {
            let n = errors.alloc_twice;
            ui::out(&format!("\tDouble ALLOC: vdev {}, metaslab {metaslab}: {n} bytes\n", vdev.0));
        }
        if errors.free_twice > 0 {
            let n = errors.free_twice;
            ui::out(&format!("\tDouble FREE: vdev {}, metaslab {metaslab}: {n} bytes\n", vdev.0));
        }
    }
    for (vdev, metaslab, found, claimed) in &replayed.sums {
        result = exit::SPACE;
        ui::out(&format!(
            "\tinconsistent: vdev {}, metaslab {metaslab}: entries add up to {found} bytes, the \
             headers claim {claimed}\n",
            vdev.0
        ));
    }
    Ok(result)
}
