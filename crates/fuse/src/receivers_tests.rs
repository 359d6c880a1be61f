use super::*;
use base::rt::{OneShot, spawn};
use std::io::{PipeReader, Read, Write, pipe};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What has not happened by then does not happen.
const LIMIT: Duration = Duration::from_secs(60);

/// Requests from a pipe, two bytes each: the place in `text`, where `N` takes no time, `S`
/// sleeps until the next request was served, and `B` does so without a word.
struct PipeSource {
    from: PipeReader,
    text: Vec<u8>,
    done: Vec<(OneShot<()>, AtomicBool)>,
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    served: AtomicUsize,
    ended: OneShot<()>,
    /// Most requests served at once, and whether the source was full.
    limit: usize,
    busy: AtomicUsize,
    busiest: AtomicUsize,
    held_back: AtomicBool,
    hold: AtomicBool,
}

/// Waits in a way that the receivers are not told of.
#[allow(clippy::disallowed_methods)]
fn wait_without_a_word(done: &AtomicBool) {
    let begin = std::time::Instant::now();
    while !done.load(Ordering::SeqCst) {
        assert!(begin.elapsed() < LIMIT, "the next request is not served");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl RequestSource for PipeSource {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.from.as_fd()
    }

    fn fit(&self, inbox: &mut BufMut) {
        if inbox.len() < 2 {
            *inbox = BufMut::alloc(2);
        }
    }

    fn take(&self, inbox: &mut BufMut, _: bool) -> ReadOutcome {
        let full = || self.busy.load(Ordering::SeqCst) >= self.limit;
        if full() {
            self.held_back.store(true, Ordering::SeqCst);
            if full() {
                return ReadOutcome::Full;
            }
        }
        match (&self.from).read(&mut inbox[..2]) {
            Ok(0) => ReadOutcome::Gone,
            Ok(len) => {
                let busy = self.busy.fetch_add(1, Ordering::SeqCst) + 1;
                self.busiest.fetch_max(busy, Ordering::SeqCst);
                ReadOutcome::Request(len)
            }
            Err(_) => ReadOutcome::Nothing,
        }
    }

    fn serve(self: Arc<Self>, inbox: BufMut, _: usize) -> (BufMut, bool) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        let number = usize::from(u16::from_le_bytes([inbox[0], inbox[1]]));
        assert!(base::rt::poll(LIMIT, || !self.hold.load(Ordering::SeqCst)), "held for ever");
        match self.text[number] {
            b'S' => self.done[number + 1].0.wait(),
            b'B' => wait_without_a_word(&self.done[number + 1].1),
            _ => {}
        }
        self.now.fetch_sub(1, Ordering::SeqCst);
        self.done[number].0.set(());
        self.done[number].1.store(true, Ordering::SeqCst);
        self.served.fetch_add(1, Ordering::SeqCst);
        self.busy.fetch_sub(1, Ordering::SeqCst);
        (inbox, self.held_back.swap(false, Ordering::SeqCst))
    }

    fn gone(&self) {
        self.ended.set(());
    }
}

fn source(text: &[u8], limit: usize) -> (Arc<PipeSource>, std::io::PipeWriter) {
    let (from, to) = pipe().unwrap();
    rustix::io::ioctl_fionbio(&from, true).unwrap();
    let source = PipeSource {
        from,
        text: text.to_vec(),
        done: (0..=text.len()).map(|_| Default::default()).collect(),
        now: Arc::default(),
        most: Arc::default(),
        served: AtomicUsize::new(0),
        ended: OneShot::new(),
        limit,
        busy: AtomicUsize::new(0),
        busiest: AtomicUsize::new(0),
        held_back: AtomicBool::new(false),
        hold: AtomicBool::new(false),
    };
    (Arc::new(source), to)
}

fn feed(mut to: std::io::PipeWriter, requests: usize) {
    for number in 0..requests as u16 {
        to.write_all(&number.to_le_bytes()).unwrap();
    }
}

/// Serves the requests, from as many sources as there are texts.
fn serve(texts: &[&[u8]], leaders_max: usize) {
    let receivers = Receivers::new(leaders_max).unwrap();
    let sources: Vec<_> = texts.iter().map(|text| source(text, usize::MAX)).collect();
    for (source, _) in &sources {
        receivers.attach(Arc::clone(source) as _).unwrap();
    }
    let feeding = sources.into_iter().map(|(source, to)| {
        let len = source.text.len();
        (source, spawn("feeds", move || feed(to, len)).unwrap())
    });
    for (source, feeding) in feeding.collect::<Vec<_>>() {
        feeding.join();
        source.ended.wait();
        // The last are served beside the end.
        let all = || source.served.load(Ordering::SeqCst) >= source.text.len();
        assert!(base::rt::poll(LIMIT, all), "the last are not served");
    }
    assert!(receivers.sources.read().is_empty());
}

#[test]
fn a_thread_that_sleeps_is_replaced() {
    serve(&[b"SN"], 1);
    serve(&[b"SSSN"], 1);
    serve(&[b"SSSSSSSN"], 2);
    serve(&[&[&[b'S'; 200][..], b"N"].concat()], 2);
}

/// A file system that slept in a system call of its own stopped its whole mount.
#[test]
fn a_thread_that_sleeps_without_a_word_is_replaced() {
    serve(&[b"BN"], 1);
    serve(&[b"BBSBNNNNN"], 2);
    serve(&[b"BBBBBBBN"], 1);
}

#[test]
fn every_request_is_served_however_many_sleep() {
    let mut seed = 7u32;
    for leaders_max in [1, 2, 3] {
        for _ in 0..10 {
            let mut text = || -> Vec<u8> {
                let mut one = std::iter::repeat_with(|| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    if seed >> 30 == 0 { b'S' } else { b'N' }
                });
                one.by_ref().take(300).chain([b'N']).collect()
            };
            let (a, b, c) = (text(), text(), text());
            serve(&[&a, &b, &c], leaders_max);
        }
    }
}

/// A mount whose pool hangs takes a thread for each request up to its limit, and no other
/// mount waits for it.
#[test]
fn a_full_source_is_left_alone_until_a_request_ends() {
    let receivers = Receivers::new(2).unwrap();
    let (hung, to_hung) = source(&[b'N'; 50], 5);
    hung.hold.store(true, Ordering::SeqCst);
    let (well, to_well) = source(&[b'N'; 50], 5);
    receivers.attach(Arc::clone(&hung) as _).unwrap();
    receivers.attach(Arc::clone(&well) as _).unwrap();
    feed(to_hung, 50);
    assert!(base::rt::poll(LIMIT, || hung.busy.load(Ordering::SeqCst) >= 5), "it is not full");
    feed(to_well, 50);
    well.done[49].0.wait();
    assert_eq!(hung.served.load(Ordering::SeqCst), 0);
    hung.hold.store(false, Ordering::SeqCst);
    hung.ended.wait();
    hung.done[49].0.wait();
    assert!(hung.busiest.load(Ordering::SeqCst) <= 5 + 1, "the limit is not kept");
}

/// One caller keeps a source filled: with one leader, another source is still served.
#[test]
fn a_busy_source_does_not_starve_another() {
    let receivers = Receivers::new(1).unwrap();
    let (busy, to_busy) = source(&[b'N'; 20_000], usize::MAX);
    let (quiet, to_quiet) = source(b"N", usize::MAX);
    feed(to_quiet, 1);
    let mut to_busy = to_busy;
    let fill: Vec<u8> = (0..20_000u16).flat_map(u16::to_le_bytes).collect();
    to_busy.write_all(&fill).unwrap();
    receivers.attach(Arc::clone(&busy) as _).unwrap();
    receivers.attach(Arc::clone(&quiet) as _).unwrap();
    quiet.done[0].0.wait();
    let before = busy.served.load(Ordering::SeqCst);
    drop(to_busy);
    busy.ended.wait();
    assert!(before < 20_000, "it was served last");
}

#[test]
fn surplus_threads_are_parked_not_leading() {
    let receivers = Receivers::new(2).unwrap();
    let text = [&[b'S'; 60][..], b"N"].concat();
    let (source, to) = source(&text, usize::MAX);
    receivers.attach(Arc::clone(&source) as _).unwrap();
    feed(to, text.len());
    source.ended.wait();
    let all = || source.served.load(Ordering::SeqCst) >= text.len();
    assert!(base::rt::poll(LIMIT, all), "the last are not served");
    let state = receivers.state.lock();
    assert!(state.threads > 60, "each that sleeps has a thread");
    assert!(state.active <= 2 && state.listening <= state.active);
}

#[test]
fn a_crowd_brings_leaders_and_calm_parks_them() {
    let mut state = ReceiverState { wanted: 1, ..ReceiverState::default() };
    for _ in 0..GROW_AFTER - 1 {
        state.learn(Arrival::Backlogged, 3);
    }
    state.learn(Arrival::Single, 3);
    assert_eq!(state.wanted, 1);
    for wanted in [2, 3, 3] {
        for _ in 0..GROW_AFTER {
            state.learn(Arrival::Backlogged, 3);
        }
        assert_eq!(state.wanted, wanted);
    }
    // All busy: as many as before.
    for _ in 0..2 * SHRINK_AFTER {
        state.learn(Arrival::Single, 3);
    }
    assert_eq!(state.wanted, 3);
    state.listening = 1;
    for wanted in [2, 1, 1] {
        for _ in 0..SHRINK_AFTER {
            state.learn(Arrival::Single, 3);
        }
        assert_eq!(state.wanted, wanted);
    }
}

#[test]
fn a_long_wait_calls_for_a_second_leader() {
    let mut state = ReceiverState { wanted: 1, ..ReceiverState::default() };
    state.learn(Arrival::Slept(SHORT_WAIT / 2), 4);
    assert_eq!(state.wanted, 1);
    state.learn(Arrival::Slept(SHORT_WAIT), 1);
    assert_eq!(state.wanted, 1, "there are no more leaders than cores");
    state.learn(Arrival::Slept(SHORT_WAIT), 4);
    assert_eq!(state.wanted, 2);
    state.listening = 1;
    for _ in 0..SHRINK_AFTER {
        state.learn(Arrival::Slept(SHORT_WAIT), 4);
    }
    assert_eq!(state.wanted, 2);
    for _ in 0..SHRINK_AFTER {
        state.learn(Arrival::Slept(SHORT_WAIT / 2), 4);
    }
    assert_eq!(state.wanted, 1);
}
