use super::*;
use crate::EngineConfig;
use proptest::prelude::*;

fn engine() -> std::sync::Arc<Engine> {
    let cache_bytes = Some(64 << 20);
    Engine::new(EngineConfig { cache_bytes, ..EngineConfig::default() }).unwrap()
}

fn set(engine: &Engine, name: &str, value: &str) -> Result<()> {
    find(name)?.set(engine, value)
}

#[test]
fn all_three_names_lead_to_one_tunable() {
    for name in ["zfs_arc_max", "vfs.zfs.arc.max", "vfs.zfs.arc_max"] {
        assert_eq!(find(name).unwrap().name, "zfs_arc_max");
    }
    assert_eq!(freebsd_names("zfs_compressed_arc_enabled"), ["vfs.zfs.compressed_arc_enabled"]);
    assert_eq!(
        freebsd_names("zfetch_max_streams"),
        ["vfs.zfs.prefetch.max_streams", "vfs.zfs.zfetch.max_streams"]
    );
    assert!(find("zfs_arc").unwrap_err().message().contains("'zfs_arc'"));
    let names: Vec<&str> = TUNABLES.iter().map(|t| t.name).collect();
    assert!(names.is_sorted());
}

#[test]
fn every_tunable_can_be_set_to_its_default_and_its_bounds() {
    let engine = engine();
    for t in &TUNABLES {
        let (low, high) = t.range();
        for n in [low, t.default_value(), high, t.default_value()] {
            // The least size may not exceed the largest.
            let fits = t.name != "zfs_arc_min" || n <= engine.arc_config().arc_max;
            assert_eq!(t.set(&engine, &n.to_string()).is_ok(), fits, "{} {n}", t.name);
            if fits {
                assert_eq!(t.get(&engine), n, "{}", t.name);
            }
        }
        assert!(!t.what.is_empty() && !t.range_text().is_empty());
    }
}

#[test]
fn nonsense_is_refused_with_the_range_and_changes_nothing() {
    let engine = engine();
    let before = engine.arc_config();
    for (name, value) in [
        ("zfs_arc_max", "1"),
        ("zfs_arc_max", "-1"),
        ("zfs_arc_max", "99999999P"),
        ("zfs_arc_max", "lots"),
        ("zfs_arc_max", ""),
        ("zfs_arc_min", "1023K"),
        ("zfs_arc_shrink_shift", "0"),
        ("zfs_arc_shrink_shift", "64"),
        ("zfs_arc_meta_balance", "1e3"),
        ("zfs_arc_policy", "lru"),
        ("zfs_arc_policy", "2"),
        ("zfs_compressed_arc_enabled", "maybe"),
    ] {
        let error = set(&engine, name, value).unwrap_err();
        let range = find(name).unwrap().range_text();
        assert!(error.message().ends_with(&format!("it takes {range}")), "{error}");
    }
    // Each is within its range, but the combination is invalid.
    let error = set(&engine, "zfs_arc_min", "65M").unwrap_err();
    assert_eq!(error.message(), "zfs_arc_min must not be more than zfs_arc_max, which is 64M");
    assert_eq!(engine.arc_config(), before);
    set(&engine, "zfs_arc_min", "48M").unwrap();
    assert!(set(&engine, "zfs_arc_max", "47M").is_err());
}

#[test]
fn zero_is_automatic_and_suffixes_and_words_are_understood() {
    let engine = engine();
    let max = find("zfs_arc_max").unwrap();
    assert_eq!(max.get(&engine), 64 << 20);
    set(&engine, "vfs.zfs.arc.max", "0").unwrap();
    assert_eq!(
        (max.get(&engine), max.in_effect(&engine)),
        (0, arc::pressure::default_sizes(engine.memory_now().as_ref()).1)
    );
    set(&engine, "zfs_arc_max", "16.5M").unwrap();
    assert_eq!(engine.arc_config().arc_max, 33 << 19);
    // The automatic least size changed as well.
    assert_eq!(engine.arc_config().arc_min, 33 << 18);
    set(&engine, "zfs_compressed_arc_enabled", "off").unwrap();
    assert!(!engine.arc_config().compressed);
    set(&engine, "zfs_arc_policy", "arc").unwrap();
    assert_eq!(engine.arc_config().policy, PolicyKind::Arc);
    assert_eq!(find("zfs_arc_policy").unwrap().show(1), "arc");
}

proptest! {
    #[test]
    fn no_text_breaks_the_bounds(which in 0..TUNABLES.len(), text in "\\PC{0,24}") {
        let t = &TUNABLES[which];
        if let Ok(n) = t.parse(&text) {
            let (low, high) = t.range();
            prop_assert!((low..=high).contains(&n) || (n == 0 && t.automatic));
        }
    }
}
