//! `golden list`, `golden unpack POOL DIR`, `golden verify POOL[/DATASET] ROOT [--copied]`.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::ExitCode;

use testkit::tree::{Compare, verify_tree};
use testkit::{golden, golden_pools};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["list"] => {
            golden_pools().iter().for_each(|p| println!("{}", p.name));
            ExitCode::SUCCESS
        }
        ["unpack", pool, dir] => match golden(pool) {
            Some(pool) => {
                pool.unpack(Path::new(dir));
                ExitCode::SUCCESS
            }
            None => ExitCode::FAILURE,
        },
        ["verify", dataset, root] => verify(dataset, root, true),
        ["verify", dataset, root, "--copied"] => verify(dataset, root, false),
        _ => {
            eprintln!("usage: golden list | unpack POOL DIR | verify DATASET ROOT [--copied]");
            ExitCode::from(2)
        }
    }
}

fn verify(dataset: &str, root: &str, identity: bool) -> ExitCode {
    let pool = dataset.split(['/', '@']).next().unwrap_or_default();
    let Some(pool) = golden(pool) else { return ExitCode::FAILURE };
    let manifests = pool.manifests();
    let Some((_, manifest)) = manifests.iter().find(|(name, _)| name == dataset) else {
        eprintln!("there is no manifest of {dataset}");
        return ExitCode::FAILURE;
    };
    let differences = verify_tree(Path::new(root), manifest, Compare { times: true, identity });
    for line in differences.iter().take(20) {
        println!("  {line}");
    }
    println!("{dataset}: {} entries compared, {} differences", manifest.len(), differences.len());
    if differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
