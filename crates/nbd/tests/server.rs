//! A client of its own against the server, over a pool: what the protocol says, and what
//! clients do that do not follow it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests have threads")]

mod tls;

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::{Error, Result};
use cenote::create::{CreateRequest, Force, NewKind, NewVdev};
use cenote::{Engine, Io, Pool, Volume};
use nbd::{ExportEntry, Exports, Limits, Server};
use testkit::{Rng, Scratch, eventually};

const MB: u64 = 1 << 20;
const SIZE: u64 = 8 * MB;

/// The datasets of a pool.
struct Datasets(Arc<Pool>);

impl Exports for Datasets {
    fn list(&self) -> Result<Vec<ExportEntry>> {
        let one = |name: &str| ExportEntry { name: name.to_owned(), description: "d".into() };
        Ok(vec![one("tank/vol"), one("tank/vol@s")])
    }

    fn open(&self, name: &str) -> Result<Arc<Volume>> {
        if name.is_empty() {
            return Err(Error::not_found("no such export"));
        }
        self.0.dataset(name)?.open_volume()
    }
}

struct NbdRig {
    server: Arc<Server>,
    pool: Arc<Pool>,
    socket: PathBuf,
    _engine: Arc<Engine>,
    _scratch: Scratch,
}

impl NbdRig {
    fn new(name: &str, limits: Limits) -> NbdRig {
        let scratch = Scratch::new(&format!("nbd-{name}"));
        let path = scratch.path().join("d0");
        std::fs::File::create(&path).unwrap().set_len(256 * MB).unwrap();
        let engine = testkit::engine();
        let vdevs = vec![NewVdev::new(NewKind::File(path))];
        let request = CreateRequest { force: Force::ALL, ..CreateRequest::new("tank", vdevs) };
        let pool = engine.create_pool(&request).unwrap().unwrap();
        pool.create_volume("tank/vol", SIZE, Some(16 << 10), &[], None).unwrap();
        pool.snapshot(&["tank/vol@s".into()], &[], None).unwrap();
        let server = Server::start(Arc::new(Datasets(Arc::clone(&pool))), limits).unwrap();
        let socket = scratch.path().join("nbd");
        server.listen_unix(&socket).unwrap();
        NbdRig { server, pool, socket, _engine: engine, _scratch: scratch }
    }

    fn volume(&self) -> Arc<Volume> {
        self.pool.dataset("tank/vol").unwrap().open_volume().unwrap()
    }

    fn raw(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }
}

impl Drop for NbdRig {
    fn drop(&mut self) {
        self.server.stop();
    }
}

/// How requests and replies look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Simple,
    Structured,
    Extended,
}

struct Client<S = UnixStream> {
    stream: S,
    style: Style,
    size: u64,
    flags: u16,
    cookie: u64,
}

fn take<const N: usize>(stream: &mut impl Read) -> [u8; N] {
    let mut out = [0; N];
    stream.read_exact(&mut out).unwrap();
    out
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
}
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn hello(stream: &mut (impl Read + Write)) {
    let greeting: [u8; 18] = take(stream);
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    assert_eq!(u16_at(&greeting, 16), 3);
    stream.write_all(&3u32.to_be_bytes()).unwrap();
}

fn send_option(stream: &mut impl Write, option: u32, data: &[u8]) {
    let mut out = b"IHAVEOPT".to_vec();
    out.extend(option.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    stream.write_all(&out).unwrap();
}

/// Replies to an option up to the last one: types and data.
fn option_replies(stream: &mut impl Read, option: u32) -> Vec<(u32, Vec<u8>)> {
    let mut out = Vec::new();
    loop {
        let head: [u8; 20] = take(stream);
        assert_eq!(u64_at(&head, 0), 0x0003_e889_0455_65a9);
        assert_eq!(u32_at(&head, 8), option);
        let mut data = vec![0; u32_at(&head, 16) as usize];
        stream.read_exact(&mut data).unwrap();
        let kind = u32_at(&head, 12);
        out.push((kind, data));
        if kind == 1 || kind >> 31 != 0 {
            return out;
        }
    }
}

fn ask(stream: &mut (impl Read + Write), option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
    send_option(stream, option, data);
    option_replies(stream, option)
}

fn counted(name: &str) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes(), name.as_bytes()].concat()
}

impl Client {
    fn new(rig: &NbdRig, name: &str, style: Style) -> Client {
        let mut stream = rig.raw();
        hello(&mut stream);
        Client::over(stream, name, style)
    }
}

impl<S: Read + Write> Client<S> {
    /// Chooses an export, after the greeting.
    fn over(mut stream: S, name: &str, style: Style) -> Client<S> {
        match style {
            Style::Simple => {}
            Style::Structured => assert_eq!(ask(&mut stream, 8, &[])[0].0, 1),
            Style::Extended => assert_eq!(ask(&mut stream, 11, &[])[0].0, 1),
        }
        if style != Style::Simple {
            let mut data = counted(name);
            data.extend(1u32.to_be_bytes());
            data.extend(counted("base:allocation"));
            let replies = ask(&mut stream, 10, &data);
            assert_eq!(replies[0], (4, [&1u32.to_be_bytes()[..], b"base:allocation"].concat()));
        }
        let replies = ask(&mut stream, 7, &[counted(name), vec![0, 0]].concat());
        let (kind, info) = &replies[0];
        assert_eq!((*kind, u16_at(info, 0)), (3, 0), "{replies:?}");
        let (size, flags) = (u64_at(info, 2), u16_at(info, 10));
        Client { stream, style, size, flags, cookie: 0 }
    }

    fn send(&mut self, flags: u16, command: u16, offset: u64, length: u64, data: &[u8]) -> u64 {
        self.cookie += 1;
        let extended = self.style == Style::Extended;
        let flags = if extended && command == 1 { flags | 32 } else { flags };
        let magic: u32 = if extended { 0x21e4_1c71 } else { 0x2560_9513 };
        let mut out = magic.to_be_bytes().to_vec();
        out.extend(flags.to_be_bytes());
        out.extend(command.to_be_bytes());
        out.extend(self.cookie.to_be_bytes());
        out.extend(offset.to_be_bytes());
        match extended {
            true => out.extend(length.to_be_bytes()),
            false => out.extend((length as u32).to_be_bytes()),
        }
        out.extend(data);
        self.stream.write_all(&out).unwrap();
        self.cookie
    }

    /// A reply: its cookie, the error, and the data. `length` is that of the read whose
    /// simple reply is expected.
    fn receive(&mut self, length: u64) -> (u64, u32, Vec<u8>) {
        if self.style == Style::Simple {
            let head: [u8; 16] = take(&mut self.stream);
            assert_eq!(u32_at(&head, 0), 0x6744_6698);
            let error = u32_at(&head, 4);
            let mut data = vec![0; if error == 0 { length as usize } else { 0 }];
            self.stream.read_exact(&mut data).unwrap();
            return (u64_at(&head, 8), error, data);
        }
        let extended = self.style == Style::Extended;
        let mut head = vec![0; if extended { 32 } else { 20 }];
        self.stream.read_exact(&mut head).unwrap();
        assert_eq!(u32_at(&head, 0), if extended { 0x6e8a_278c } else { 0x668e_33ef });
        assert_eq!(u16_at(&head, 4), 1, "one chunk");
        let len = if extended { u64_at(&head, 24) } else { u64::from(u32_at(&head, 16)) };
        let mut data = vec![0; len as usize];
        self.stream.read_exact(&mut data).unwrap();
        let cookie = u64_at(&head, 8);
        match u16_at(&head, 6) {
            0 => (cookie, 0, data),
            1 => (cookie, 0, data[8..].to_vec()),
            5 | 6 => (cookie, 0, data),
            0x8001 => (cookie, u32_at(&data, 0), Vec::new()),
            other => panic!("chunk of type {other}"),
        }
    }

    fn call(&mut self, flags: u16, command: u16, offset: u64, length: u64, data: &[u8]) -> u32 {
        let cookie = self.send(flags, command, offset, length, data);
        let (of, error, _) = self.receive(0);
        assert_eq!(of, cookie);
        error
    }

    fn read(&mut self, offset: u64, length: u64) -> std::result::Result<Vec<u8>, u32> {
        let cookie = self.send(0, 0, offset, length, &[]);
        let (of, error, data) = self.receive(length);
        assert_eq!(of, cookie);
        if error == 0 { Ok(data) } else { Err(error) }
    }

    fn status(&mut self, flags: u16, offset: u64, length: u64) -> Vec<(u64, u64)> {
        self.send(flags, 7, offset, length, &[]);
        let (_, error, data) = self.receive(0);
        assert_eq!((error, u32_at(&data, 0)), (0, 1));
        match self.style {
            Style::Extended => {
                let count = u32_at(&data, 4) as usize;
                let one = |i: usize| (u64_at(&data, 8 + 16 * i), u64_at(&data, 16 + 16 * i));
                (0..count).map(one).collect()
            }
            _ => {
                let one = |i: usize| (u32_at(&data, 4 + 8 * i), u32_at(&data, 8 + 8 * i));
                let all = (0..(data.len() - 4) / 8).map(one);
                all.map(|(len, state)| (u64::from(len), u64::from(state))).collect()
            }
        }
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.below(256) as u8).collect()
}

const STYLES: [Style; 3] = [Style::Simple, Style::Structured, Style::Extended];

#[test]
fn every_command_in_every_style() {
    let rig = NbdRig::new("commands", Limits::default());
    for (round, style) in STYLES.into_iter().enumerate() {
        let volume = rig.volume();
        volume.zero(0, SIZE).unwrap();
        let mut c = Client::new(&rig, "tank/vol", style);
        assert_eq!(c.size, SIZE);
        // Flags: flush, FUA, trim, zeroes, many connections, cache, fast zero; not read-only.
        assert_eq!(c.flags & !(1 << 7), 0b1101_0110_1101, "{style:?}");
        assert_eq!(c.flags & 1 << 7 != 0, style != Style::Simple);
        let data = noise(round as u64, 100_000);
        assert_eq!(c.call(0, 1, 5_000, 100_000, &data), 0);
        assert_eq!(c.read(5_000, 100_000), Ok(data.clone()));
        assert_eq!(c.call(1, 1, SIZE - 3, 3, b"end"), 0, "FUA");
        assert_eq!(c.call(0, 3, 0, 0, &[]), 0, "flush");
        assert_eq!(c.call(0, 5, 0, SIZE, &[]), 0, "cache");
        assert_eq!(c.call(0, 4, 20_000, 40_000, &[]), 0, "trim");
        let mut model = vec![0; 120_000];
        model[5_000..105_000].copy_from_slice(&data);
        model[32 << 10..48 << 10].fill(0);
        assert_eq!(c.read(0, 120_000), Ok(model.clone()));
        assert_eq!(c.call(0, 6, 60_001, 30_000, &[]), 0, "zeroes");
        assert_eq!(c.call(16, 6, 90_001, 10, &[]), 0, "fast zeroes");
        assert_eq!(c.call(2, 6, 100_001, 10, &[]), 0, "zeroes without a hole");
        assert_eq!(c.call(2 | 16, 6, 0, 10, &[]), 95, "fast zeroes without a hole");
        model[60_001..90_011].fill(0);
        model[100_001..100_011].fill(0);
        assert_eq!(c.read(0, 120_000), Ok(model));
        // Errors.
        assert_eq!(c.read(SIZE - 1, 2), Err(22));
        assert_eq!(c.read(u64::MAX, 2), Err(22));
        assert_eq!(c.call(0, 1, SIZE - 1, 2, b"xy"), 28);
        assert_eq!(c.call(0, 4, SIZE, 1, &[]), 28);
        assert_eq!(c.call(0, 99, 0, 1, &[]), 22);
        assert_eq!(c.call(8, 1, 0, 2, b"xy"), 22, "unknown flag");
        assert_eq!(c.call(0, 3, 1, 0, &[]), 22);
        assert_eq!(c.read(0, 1), Ok(vec![0]));
        if style == Style::Simple {
            assert_eq!(c.call(0, 7, 0, 100, &[]), 22, "no context");
        } else {
            let list = c.status(0, 0, SIZE);
            assert_eq!(list.iter().map(|e| e.0).sum::<u64>(), SIZE, "{list:?}");
            assert_eq!(list[0], (32 << 10, 0), "{list:?}");
            assert_eq!(list[1], (16 << 10, 3), "{list:?}");
            assert!(list.windows(2).all(|w| w[0].1 != w[1].1), "{list:?}");
            assert_eq!(c.status(8, 0, SIZE), vec![(32 << 10, 0)]);
        }
        // The end.
        c.send(0, 2, 0, 0, &[]);
        assert_eq!(c.stream.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn extended_lengths_and_snapshots() {
    let rig = NbdRig::new("extended", Limits::default());
    rig.pool
        .set_props("tank/vol", &[("volsize".into(), cenote::PropData::Num(1 << 40))], None)
        .unwrap();
    let volume = rig.volume();
    volume.write(1 << 39, b"middle").unwrap();
    let mut c = Client::new(&rig, "tank/vol", Style::Extended);
    assert_eq!(c.size, 1 << 40, "the new size");
    let list = c.status(0, 0, 1 << 40);
    assert_eq!(list, vec![(1 << 39, 3), (16 << 10, 0), ((1 << 39) - (16 << 10), 3)]);
    assert_eq!(c.call(0, 6, 0, 1 << 40, &[]), 0, "zeroes of a TiB");
    assert_eq!(c.read(0, 33 << 20), Err(75));
    let mut s = Client::new(&rig, "tank/vol", Style::Structured);
    let list = s.status(0, 0, u64::from(u32::MAX));
    assert_eq!(
        list,
        vec![(u64::from(u32::MAX) & !0xffff, 3)]
            .into_iter()
            .chain([(0xffff, 3)])
            .collect::<Vec<_>>()
    );
    // A snapshot is read-only.
    let mut r = Client::new(&rig, "tank/vol@s", Style::Simple);
    assert_eq!((r.size, r.flags & 2), (SIZE, 2));
    assert_eq!(r.call(0, 1, 0, 1, b"x"), 1);
    assert_eq!(r.call(0, 4, 0, SIZE, &[]), 1);
    assert_eq!(r.call(0, 3, 0, 0, &[]), 0);
    assert_eq!(r.read(0, 4), Ok(vec![0; 4]));
}

fn resize(rig: &NbdRig, size: u64) {
    let size = [("volsize".to_owned(), cenote::PropData::Num(size))];
    rig.pool.set_props("tank/vol", &size, None).unwrap();
}

/// A volume grows and shrinks under its clients. Each request is judged by the size at that
/// moment; new handshakes tell the new one.
#[test]
fn sizes_change_under_clients() {
    let rig = NbdRig::new("sizes", Limits::default());
    let told = || {
        let mut s = rig.raw();
        hello(&mut s);
        let info = ask(&mut s, 6, &[counted("tank/vol"), vec![0, 0]].concat());
        u64_at(&info[0].1, 2)
    };
    let mut clients = STYLES.map(|style| Client::new(&rig, "tank/vol", style));
    rig.volume().write(SIZE - 4, b"tail").unwrap();
    resize(&rig, 2 * SIZE);
    assert_eq!(told(), 2 * SIZE);
    for c in &mut clients {
        assert_eq!(c.size, SIZE);
        assert_eq!(c.read(SIZE - 4, 8), Ok(b"tail\0\0\0\0".to_vec()));
        assert_eq!(c.call(0, 1, 2 * SIZE - 4, 4, b"more"), 0);
        assert_eq!(c.read(2 * SIZE - 4, 4), Ok(b"more".to_vec()));
        assert_eq!(c.call(0, 1, 2 * SIZE - 1, 2, b"xy"), 28);
        if c.style != Style::Simple {
            let list = c.status(0, 0, 2 * SIZE);
            assert_eq!(list.iter().map(|e| e.0).sum::<u64>(), 2 * SIZE, "{list:?}");
        }
    }
    resize(&rig, SIZE / 2);
    assert_eq!(told(), SIZE / 2);
    for c in &mut clients {
        assert_eq!(c.read(SIZE / 2 - 4, 4), Ok(vec![0; 4]));
        assert_eq!(c.read(SIZE / 2 - 1, 2), Err(22));
        assert_eq!(c.read(SIZE - 4, 4), Err(22));
        assert_eq!(c.call(0, 1, SIZE - 4, 4, b"gone"), 28);
        assert_eq!(c.call(0, 4, SIZE - 4, 4, &[]), 28, "trim");
        assert_eq!(c.call(0, 6, SIZE - 4, 4, &[]), 28, "zeroes");
        assert_eq!(c.call(0, 5, SIZE - 4, 4, &[]), 22, "cache");
        assert_eq!(c.call(0, 7, SIZE - 4, 4, &[]), 22, "block status");
        assert_eq!(c.call(0, 3, 0, 0, &[]), 0, "flush");
    }
    resize(&rig, SIZE);
    for c in &mut clients {
        assert_eq!(c.read(SIZE - 4, 4), Ok(vec![0; 4]), "what was cut off comes back");
    }
}

/// Requests that race with a new size succeed or are refused, and nothing else.
#[test]
fn requests_race_with_new_sizes() {
    let rig = NbdRig::new("races", Limits::default());
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (n, style) in STYLES.into_iter().enumerate() {
            let (rig, done) = (&rig, &done);
            scope.spawn(move || {
                let mut c = Client::new(rig, "tank/vol", style);
                // Ranges that end at the larger end, across the smaller one and inside it.
                let (at, len) = [(SIZE - 9000, 9000), (SIZE / 2 - 50_000, 100_000), (0, 70_000)][n];
                let data = vec![n as u8 + 1; len as usize];
                let mut refused = 0;
                while !done.load(std::sync::atomic::Ordering::SeqCst) {
                    let wrote = c.call(0, 1, at, len, &data);
                    let read = c.read(at, len);
                    let zeroed = c.call(0, 6, at, len, &[]);
                    assert!([0, 28].contains(&wrote) && [0, 28].contains(&zeroed));
                    match read {
                        Ok(seen) => assert!(seen.iter().all(|b| [0, n as u8 + 1].contains(b))),
                        Err(e) => assert_eq!(e, 22),
                    }
                    refused += u32::from(wrote != 0) + u32::from(zeroed != 0);
                }
                assert!(n < 2 || refused == 0, "{refused} refused inside both sizes");
            });
        }
        for _ in 0..20 {
            resize(&rig, SIZE / 2);
            resize(&rig, SIZE);
        }
        done.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    assert_eq!(rig.volume().size(), SIZE);
}

#[test]
fn options() {
    let rig = NbdRig::new("options", Limits::default());
    let mut s = rig.raw();
    hello(&mut s);
    let names: Vec<Vec<u8>> =
        ask(&mut s, 3, &[]).into_iter().filter(|r| r.0 == 2).map(|r| r.1).collect();
    let entry = |name: &str| [counted(name), b"d".to_vec()].concat();
    assert_eq!(names, vec![entry("tank/vol"), entry("tank/vol@s")]);
    let last = |replies: Vec<(u32, Vec<u8>)>| replies.last().unwrap().0;
    let error = |n: u32| 1 << 31 | n;
    assert_eq!(last(ask(&mut s, 3, b"x")), error(3));
    assert_eq!(last(ask(&mut s, 77, b"what")), error(1));
    assert_eq!(last(ask(&mut s, 5, &[])), error(2), "no TLS");
    for name in ["tank/none", "", "tank/vol@none"] {
        assert_eq!(last(ask(&mut s, 6, &[counted(name), vec![0, 0]].concat())), error(6));
    }
    assert_eq!(last(ask(&mut s, 6, b"short")), error(3));
    assert_eq!(last(ask(&mut s, 6, &[counted("tank/vol"), vec![0, 9]].concat())), error(3));
    assert_eq!(last(ask(&mut s, 10, &[])), error(3), "contexts without structured replies");
    let info = ask(&mut s, 6, &[counted("tank/vol"), vec![0, 2, 0, 1, 0, 3]].concat());
    let kinds: Vec<u16> = info.iter().filter(|r| r.0 == 3).map(|r| u16_at(&r.1, 0)).collect();
    assert_eq!(kinds, [0, 1, 3]);
    let block = &info.iter().find(|r| r.0 == 3 && u16_at(&r.1, 0) == 3).unwrap().1;
    assert_eq!((u32_at(block, 2), u32_at(block, 6), u32_at(block, 10)), (1, 16 << 10, 32 << 20));
    assert_eq!(last(ask(&mut s, 8, &[])), 1);
    let all = ask(&mut s, 9, &[counted("tank/vol"), 0u32.to_be_bytes().to_vec()].concat());
    assert_eq!(all.iter().filter(|r| r.0 == 4).count(), 1);
    let huge = [counted("tank/vol"), u32::MAX.to_be_bytes().to_vec()].concat();
    assert_eq!(last(ask(&mut s, 10, &huge)), error(3));
    assert_eq!(last(ask(&mut s, 11, &[])), 1);
    assert_eq!(last(ask(&mut s, 8, &[])), error(10));
    assert_eq!(last(ask(&mut s, 2, &[])), 1);
    assert_eq!(s.read(&mut [0]).unwrap(), 0, "the end after an abort");
    // The old way, with and without its zeros.
    for (flags, zeros) in [(3u32, 0), (1, 124)] {
        let mut s = rig.raw();
        let _: [u8; 18] = take(&mut s);
        s.write_all(&flags.to_be_bytes()).unwrap();
        send_option(&mut s, 1, b"tank/vol");
        let mut reply = vec![0; 10 + zeros];
        s.read_exact(&mut reply).unwrap();
        assert_eq!(u64_at(&reply, 0), SIZE);
        let mut c = Client { stream: s, style: Style::Simple, size: SIZE, flags: 0, cookie: 0 };
        assert_eq!(c.read(0, 2), Ok(vec![0, 0]));
    }
    let mut s = rig.raw();
    hello(&mut s);
    send_option(&mut s, 1, b"tank/none");
    assert_eq!(s.read(&mut [0]).unwrap(), 0);
}

#[test]
fn many_requests_of_many_connections_share_one_cache() {
    let rig = NbdRig::new("many", Limits::default());
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let rig = &rig;
            scope.spawn(move || {
                let mut c = Client::new(rig, "tank/vol", STYLES[thread as usize % 3]);
                for round in 0..20u64 {
                    // 16 writes and 16 reads are in flight together.
                    let at = |i: u64| (thread * 16 + i) * 8192 + 1;
                    let data = |i: u64| vec![(thread * 50 + round + i) as u8; 8190];
                    for i in 0..16 {
                        c.send(0, 1, at(i), 8190, &data(i));
                    }
                    (0..16).for_each(|_| assert_eq!(c.receive(0).1, 0));
                    let first = c.cookie + 1;
                    for i in 0..16 {
                        c.send(0, 0, at(i), 8190, &[]);
                    }
                    for _ in 0..16 {
                        let (cookie, error, seen) = c.receive(8190);
                        assert_eq!(error, 0);
                        assert!(seen == data(cookie - first), "thread {thread}, round {round}");
                    }
                    if round % 7 == thread {
                        assert_eq!(c.call(0, 3, 0, 0, &[]), 0);
                    }
                }
            });
        }
    });
    let seen = rig.volume().read(1, 8190, Io::WAIT).unwrap();
    assert!(seen.iter().all(|b| b.iter().all(|x| *x == 19)));
}

/// Whether the server closes the connection.
fn is_closed(stream: &mut UnixStream) -> bool {
    let mut room = [0; 65536];
    loop {
        match stream.read(&mut room) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(e) => return e.kind() == ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn hostile_clients_harm_no_other() {
    let limits = Limits {
        connections: 8,
        connection_bytes: 1 << 20,
        threads: 4,
        patience: Duration::from_millis(500),
    };
    let rig = NbdRig::new("hostile", limits);
    let content = noise(1, 4 << 20);
    rig.volume().write(0, &content).unwrap();
    let mut good = Client::new(&rig, "tank/vol", Style::Simple);
    // Does not speak the protocol.
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], &[0, 0, 0, 0]] {
        let mut s = rig.raw();
        s.write_all(bytes).unwrap();
        assert!(is_closed(&mut s));
    }
    // An option that is too long, and a write that is too long.
    let mut s = rig.raw();
    hello(&mut s);
    s.write_all(&[&b"IHAVEOPT"[..], &3u32.to_be_bytes(), &u32::MAX.to_be_bytes()].concat())
        .unwrap();
    assert!(is_closed(&mut s));
    let mut c = Client::new(&rig, "tank/vol", Style::Simple);
    c.send(0, 1, 0, u64::from(u32::MAX), &[]);
    assert!(is_closed(&mut c.stream));
    // Gone in the middle of a write: nothing is written.
    let mut c = Client::new(&rig, "tank/vol", Style::Simple);
    c.send(0, 1, 0, 4096, &[9; 1000]);
    drop(c);
    // Requests without end whose replies are never read.
    let mut greedy = Client::new(&rig, "tank/vol", Style::Simple);
    greedy.stream.set_nonblocking(true).unwrap();
    let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
    request.extend([0; 4]);
    request.extend([7; 8]);
    request.extend(0u64.to_be_bytes());
    request.extend((4u32 << 20).to_be_bytes());
    let mut refused = false;
    for _ in 0..100_000 {
        refused |= greedy.stream.write(&request).is_err();
    }
    assert!(refused, "the server takes requests without end");
    // Others are served meanwhile.
    for _ in 0..100 {
        assert_eq!(good.read(0, 4096).unwrap(), content[..4096]);
    }
    // Handshakes that are never ended fill the server; then there is room again.
    let silent: Vec<UnixStream> = (0..8).map(|_| rig.raw()).collect();
    assert_eq!(good.read(0, 1).unwrap().len(), 1);
    eventually("the silent and the greedy are disconnected", || rig.server.clients().len() == 1);
    drop((silent, greedy));
    let mut again = Client::new(&rig, "tank/vol", Style::Extended);
    assert_eq!(again.read(0, 4096).unwrap(), content[..4096]);
    // Disconnected by the owner.
    rig.server.disconnect(|name| name == "tank/vol");
    assert!(is_closed(&mut again.stream) && is_closed(&mut good.stream));
    assert!(rig.server.clients().is_empty());
}
