//! Planted bugs are found, and nothing is found where none is planted.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

use sim::{Campaign, PlantedBug, Workload};

/// Seeds tried for each bug.
const SEEDS: u64 = 40;

fn campaign(plant: Option<PlantedBug>) -> Campaign {
    // Seeds that are known to find the bug soon; `make nightly` begins with the first one.
    let first = match plant {
        _ if std::env::var_os("CENOTE_NIGHTLY").is_some() => 1,
        Some(PlantedBug::ForgottenDeadlist) => 20,
        Some(PlantedBug::ForgottenClones) => 3,
        Some(PlantedBug::LeftBookmarks | PlantedBug::KeptBlocks) => 5,
        Some(PlantedBug::MoveLeftEntry) => 7,
        Some(PlantedBug::DroppedHolds) => 7,
        Some(PlantedBug::ForgottenDeferral) => 15,
        Some(PlantedBug::KeptLivelist) => 4,
        Some(PlantedBug::LostDecrement) => 3,
        Some(PlantedBug::RemovalOffByOne) => 8,
        Some(PlantedBug::CountedLate) => 26,
        Some(PlantedBug::DroppedPointer) => 35,
        Some(PlantedBug::ReuseSameTxg | PlantedBug::ReuseBeforeCommit | PlantedBug::NoDefer) => 11,
        Some(PlantedBug::FreeKept) => 4,
        Some(PlantedBug::DedupLostRecords | PlantedBug::DedupKeptNewborn) => 4,
        _ => 1,
    };
    let mut campaign = Campaign::new(first, SEEDS);
    (campaign.plant, campaign.shrink) = (plant, false);
    let workload = plant.map_or(Workload::Churn, PlantedBug::workload);
    (campaign.workload, campaign.ops) = (Some(workload), Some(30));
    // Most operations on lineages are txgs of their own, with many events each.
    let stride = match workload {
        Workload::BlockClones | Workload::Dedup => 10,
        Workload::BlockSharing => 20,
        Workload::Moves => 250,
        _ if workload.is_lineage() => 250,
        _ => 3,
    };
    (campaign.stride, campaign.more) = (stride, 0);
    campaign
}

#[test]
fn each_planted_bug_is_found() {
    let others = [Workload::BlockClones, Workload::Dedup, Workload::BlockSharing];
    are_found(|plant| {
        let workload = plant.workload();
        !workload.is_lineage() && !others.contains(&workload)
    });
}

#[test]
fn planted_bugs_of_cloned_blocks_are_found() {
    are_found(|plant| plant.workload() == Workload::BlockClones);
}

#[test]
fn planted_bugs_of_dedup_tables_are_found() {
    are_found(|plant| plant.workload() == Workload::Dedup);
}

#[test]
fn planted_bugs_of_removals_and_expansions_are_found() {
    are_found(|plant| plant.workload() == Workload::BlockSharing);
}

#[test]
fn planted_bugs_of_lineages_are_found() {
    are_found(|plant| plant.workload() == Workload::Lineage);
}

#[test]
fn planted_bugs_of_livelists_are_found() {
    are_found(|plant| plant.workload() == Workload::Clones);
}

#[test]
fn planted_bugs_of_moves_are_found() {
    are_found(|plant| plant.workload() == Workload::Moves);
}

fn are_found(wanted: impl Fn(&PlantedBug) -> bool) {
    for plant in PlantedBug::ALL.into_iter().filter(wanted) {
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
