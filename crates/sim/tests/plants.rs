//! Planted bugs are found, and nothing is found where none is planted.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

use sim::{Campaign, PlantedBug, Workload};

/// Seeds tried for each bug.
const SEEDS: u64 = 40;

fn campaign(plant: Option<PlantedBug>) -> Campaign {
    let mut campaign = Campaign::new(1, SEEDS);
    (campaign.plant, campaign.shrink) = (plant, false);
    let workload = plant.map_or(Workload::Churn, PlantedBug::workload);
    (campaign.workload, campaign.ops) = (Some(workload), Some(30));
    (campaign.stride, campaign.more) = (3, 0);
    campaign
}

#[test]
fn each_planted_bug_is_found() {
    for plant in PlantedBug::ALL {
        let start = base::rt::now();
        let totals = campaign(Some(plant)).go(&mut |_, _| ());
        let Some(failure) = totals.failure else {
            panic!("{} was not found in {} images", plant.name(), totals.images);
        };
        println!(
            "PLANTED {}: found in run {} after {} images, {:.1} s: {}",
            plant.name(),
            totals.runs,
            totals.images,
            start.elapsed().as_secs_f64(),
            failure.what.chars().take(120).collect::<String>()
        );
    }
}

#[test]
fn nothing_is_found_where_nothing_is_planted() {
    let mut campaign = campaign(None);
    campaign.runs = 5;
    let totals = campaign.go(&mut |_, _| ());
    assert!(totals.failure.is_none(), "{}", totals.failure.unwrap());
}

#[test]
fn a_failure_is_shortened_and_comes_again() {
    let mut campaign = campaign(Some(PlantedBug::LoseEntry));
    (campaign.shrink, campaign.runs) = (true, 1);
    let failure = campaign.go(&mut |_, _| ()).failure.unwrap();
    assert!(failure.ops.len() < 10, "{failure}");
    let (event, seed) = failure.crash.unwrap();
    let again = sim::record(&failure.setup).crash_once(event, seed);
    assert_eq!(again.unwrap_err(), failure.what);
}
