//! Power cuts at every event while scrubs begin, pause, stop and end beside other work.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

use sim::{Campaign, Layout, Workload};

#[test]
fn scrubs_survive_every_crash() {
    let (runs, stride) =
        if std::env::var_os("CENOTE_NIGHTLY").is_some() { (50, 1) } else { (1, 3) };
    let layouts = [Layout::Single, Layout::Mirror, Layout::Raidz, Layout::Raidz2, Layout::Draid];
    let mut points = 0;
    for (n, layout) in layouts.into_iter().enumerate() {
        let mut campaign = Campaign::new(1000 + n as u64, runs);
        (campaign.workload, campaign.layout) = (Some(Workload::Scans), Some(layout));
        campaign.stride = stride;
        let totals = campaign.go(&mut |_, _| ());
        if let Some(failure) = totals.failure {
            panic!("{}: {failure}", layout.name());
        }
        points += totals.points;
    }
    println!("SIMULATED scans: {points} crash points");
    assert!(points > 500, "{points} crash points");
}
