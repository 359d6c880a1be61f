use super::*;

fn class(total: &[(usize, u64)], single: &[(usize, u64)]) -> ClassIo {
    let histogram = |pairs: &[(usize, u64)]| {
        let mut out = vec![0; pairs.iter().map(|p| p.0 + 1).max().unwrap_or(0)];
        pairs.iter().for_each(|(j, n)| out[*j] += n);
        out
    };
    ClassIo {
        queued: histogram(&[(0, 1)]),
        disk: histogram(total),
        total: histogram(total),
        single: histogram(single),
        ..ClassIo::default()
    }
}

fn classes() -> Vec<ClassIo> {
    let mut out = vec![ClassIo::default(); 7];
    out[SYNC_READ] = class(&[(10, 3), (20, 1)], &[(12, 4)]);
    out[ASYNC_WRITE] = class(&[(36, 2)], &[(3, 1), (9, 1), (24, 5)]);
    (out[SCRUB].pending, out[SCRUB].active) = (7, 2);
    out
}

/// Chapter 09 §4.5, golden.
#[test]
fn golden_titles() {
    assert_eq!(
        titles(&LATENCY, 5),
        "   total_wait     disk_wait    syncq_wait    asyncq_wait  scrub   trim  rebuild"
    );
    assert_eq!(
        titles(&QUEUES, 5),
        "   syncq_read    syncq_write   asyncq_read  asyncq_write   scrubq_read   trimq_write  \
         rebuildq_write"
    );
}

/// Chapter 09 §4.5, golden.
#[test]
fn golden_labels() {
    let labels: Vec<String> = HistogramKind::Times.rows(false).into_iter().map(|r| r.1).collect();
    assert_eq!(
        labels.join(" "),
        "1ns 3ns 7ns 15ns 31ns 63ns 127ns 255ns 511ns 1us 2us 4us 8us 16us 32us 65us 131us 262us \
         524us 1ms 2ms 4ms 8ms 16ms 33ms 67ms 134ms 268ms 536ms 1s 2s 4s 8s 17s 34s 68s 137s"
    );
    let sizes: Vec<String> = HistogramKind::Sizes.rows(false).into_iter().map(|r| r.1).collect();
    assert_eq!(sizes.join(" "), "512 1K 2K 4K 8K 16K 32K 64K 128K 256K 512K 1M 2M 4M 8M 16M");
}

/// Chapter 09 §4.5, golden.
#[test]
fn golden_latencies() {
    let text = table(HistogramKind::Times, "tank", &classes(), false, false);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1 + 3 + 37 + 1);
    assert_eq!(lines[0], "");
    assert_eq!(lines[1], "tank         total_wait     disk_wait    syncq_wait    asyncq_wait");
    assert_eq!(
        lines[2],
        "latency      read  write   read  write   read  write   read  write  scrub   trim  rebuild"
    );
    assert_eq!(
        lines[3],
        "----------  -----  -----  -----  -----  -----  -----  -----  -----  -----  -----  -----"
    );
    assert_eq!(
        lines[4],
        "1ns             0      0      0      0      1      0      0      1      0      0      0"
    );
    assert_eq!(
        lines[40],
        "137s            0      2      0      2      0      0      0      0      0      0      0"
    );
    assert_eq!(lines[41], "-".repeat(87));
    let scripted = table(HistogramKind::Times, "tank", &classes(), true, false);
    assert!(scripted.starts_with("tank\n1\t0\t0\t0\t0\t1\t"), "{scripted}");
}

#[test]
fn sizes_alone_and_merged() {
    let text = table(HistogramKind::Sizes, "tank", &classes(), false, false);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1 + 3 + 16 + 1);
    assert!(lines[2].starts_with("req_size      ind    agg    ind    agg"), "{}", lines[2]);
    // Sizes smaller than a sector are counted with the smallest.
    let cells = |line: &str| -> Vec<String> {
        line.split_whitespace().skip(1).map(str::to_owned).collect()
    };
    assert_eq!(cells(lines[4])[6], "2");
    assert_eq!(cells(lines[7])[0], "4");
    assert_eq!(cells(lines[19])[6], "5");
}

#[test]
fn averages_are_of_the_middles() {
    assert_eq!(average(&[]), None);
    assert_eq!(average(&[0, 0]), None);
    assert_eq!(average(&[0, 0, 1]), Some(6));
    let mut long = [0; TIMES];
    long[10] = 3;
    long[20] = 1;
    assert_eq!(average(&long), Some((3 * 1536 + 1_572_864) / 4));
    long[36] = u64::MAX;
    assert_eq!(average(&long), Some(103_079_215_103));
    let cells = latency_cells(&classes(), false);
    assert_eq!(cells[..6], ["394us", "103s", "394us", "103s", "1ns", "-"]);
    assert_eq!(latency_cells(&classes(), true)[0], "394368");
}

#[test]
fn queues_now_and_differences_since() {
    let now = classes();
    assert_eq!(queue_cells(&now)[8..10], ["7", "2"]);
    assert_eq!(queue_cells(&[]).len(), 14);
    let mut before = classes();
    before[SYNC_READ].total = vec![0; 11];
    before[SYNC_READ].total[10] = 2;
    let delta = since(&now, Some(&before));
    assert_eq!(delta[SYNC_READ].total[10], 1);
    assert_eq!(delta[SYNC_READ].total[20], 1);
    assert_eq!(delta[ASYNC_WRITE].single.iter().sum::<u64>(), 0);
    assert_eq!((delta[SCRUB].pending, delta[SCRUB].active), (7, 2));
    assert_eq!(since(&now, None), now);
}
