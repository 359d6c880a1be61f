use std::path::PathBuf;

use super::*;
use crate::{execute, read_blocking, submit_and_wait};

/// A file that is removed when the value is dropped.
struct Temp(PathBuf);

impl Temp {
    fn new(name: &str, bytes: &[u8]) -> Temp {
        let path =
            std::env::temp_dir().join(format!("cenote-device-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Temp(path)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7 * 31 + i) as u8).collect()
}

fn options(write: bool, direct: bool) -> OpenOptions {
    OpenOptions { write, direct, min_size: 0, ..OpenOptions::default() }
}

fn kind_of(result: Result<FileDevice>) -> ErrorKind {
    result.err().unwrap().kind()
}

#[test]
fn refusals_name_the_path_and_the_reason() {
    let open = |path: &Path| FileDevice::open(path, &OpenOptions::default());
    let dir = std::env::temp_dir();
    assert_eq!(kind_of(open(&dir.join("cenote-no-such-file"))), ErrorKind::NotFound);
    assert_eq!(kind_of(open(&dir)), ErrorKind::IsDir);
    assert_eq!(kind_of(open(Path::new("/dev/null"))), ErrorKind::Invalid);
    let small = Temp::new("small", &[0; 4096]);
    let error = open(&small.0).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let text = error.to_string();
    assert!(text.contains("too small") && text.contains("small)"), "{text}");
}

#[test]
fn nothing_is_opened_twice() {
    let file = Temp::new("lock", &[0; 8192]);
    let reader = FileDevice::open(&file.0, &options(false, true)).unwrap();
    let second = FileDevice::open(&file.0, &options(false, true)).unwrap();
    assert_eq!(kind_of(FileDevice::open(&file.0, &options(true, true))), ErrorKind::Busy);
    drop((reader, second));
    let writer = FileDevice::open(&file.0, &options(true, true)).unwrap();
    assert_eq!(kind_of(FileDevice::open(&file.0, &options(true, true))), ErrorKind::Busy);
    assert_eq!(kind_of(FileDevice::open(&file.0, &options(false, true))), ErrorKind::Busy);
    let unlocked = OpenOptions { lock: Lock::None, ..options(false, true) };
    FileDevice::open(&file.0, &unlocked).unwrap();
    drop(writer);
    FileDevice::open(&file.0, &options(true, true)).unwrap();
}

/// A pool was closed when its last operation had ended, and opened again: "locked by another
/// process". The thread that had ended the operation was waiting for a core, and still had
/// the file.
#[test]
fn an_operation_lets_go_of_the_file_before_its_completion() {
    for kind in [EngineKind::Threads, EngineKind::Auto] {
        let file = Temp::new("release", &[7; 8192]);
        let engine = Engine::new(kind, 4).unwrap();
        let with_engine = OpenOptions { engine: Some(engine), ..options(true, true) };
        let device = FileDevice::open(&file.0, &with_engine).unwrap();
        let (ended, reopened) = (Arc::new(rt::OneShot::new()), Arc::new(rt::OneShot::new()));
        let (set, wait) = (Arc::clone(&ended), Arc::clone(&reopened));
        let op = Op::new(Io::read(0, 4096), move |completion| {
            set.set(completion.result.is_ok());
            // As a thread that gets no core: the completion does not return yet.
            wait.wait();
        });
        device.submit(vec![op]);
        assert!(ended.wait());
        drop(device);
        let again = FileDevice::open(&file.0, &options(true, true)).map(drop);
        reopened.set(());
        again.unwrap();
    }
}

#[test]
fn unaligned_reads_work_and_unaligned_writes_do_not() {
    let bytes = pattern(65536 + 100);
    let file = Temp::new("unaligned", &bytes);
    for direct in [true, false] {
        let device = FileDevice::open(&file.0, &options(true, direct)).unwrap();
        assert_eq!(device.size(), bytes.len() as u64);
        for (offset, len) in [(0, 512), (1, 1), (511, 2), (4095, 8194), (65536, 100), (60000, 5636)]
        {
            let run = read_blocking(&device, offset, len).unwrap();
            let sent = submit_and_wait(&device, vec![Io::read(offset, len), Io::read(0, 512)]);
            let at = offset as usize;
            assert_eq!(&run[..], &bytes[at..at + len], "{offset} {len} direct {direct}");
            let sent = sent.into_iter().next().unwrap().into_read().unwrap();
            assert_eq!(&sent[..], &bytes[at..at + len]);
        }
        assert!(read_blocking(&device, 65536, 101).is_err());
        assert!(read_blocking(&device, u64::MAX, 2).is_err());
        if device.caps().direct {
            let write = Io::Write { offset: 100, bufs: vec![Buf::zeros(512)] };
            assert_eq!(device.run(write).result.unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}

#[test]
fn gathered_writes_need_no_aligned_memory() {
    let file = Temp::new("gather", &[0; 65536]);
    let bytes = pattern(9000);
    let whole = Buf::copy_of(&bytes);
    for direct in [true, false] {
        let device = FileDevice::open(&file.0, &options(true, direct)).unwrap();
        let bufs = vec![whole.slice(3..100), whole.slice(100..515), whole.slice(515..515 + 3584)];
        let done = device.run(Io::Write { offset: 8192, bufs });
        assert_eq!(done.result.unwrap(), 4096);
        assert!(matches!(&done.io, Io::Write { bufs, .. } if bufs.len() == 3), "own buffers back");
        device.run(Io::Flush).result.unwrap();
        assert_eq!(&read_blocking(&device, 8192, 4096).unwrap()[..], &bytes[3..4099]);
        device.run(Io::Trim { offset: 8192, len: 4096 }).result.unwrap();
        assert!(read_blocking(&device, 8192, 4096).unwrap().iter().all(|&b| b == 0));
    }
}

#[test]
fn a_read_only_device_is_not_written() {
    let file = Temp::new("read-only", &[0; 8192]);
    let device = FileDevice::open(&file.0, &options(false, true)).unwrap();
    let write = Io::Write { offset: 0, bufs: vec![Buf::zeros(4096)] };
    assert_eq!(device.run(write).result.unwrap_err().kind(), ErrorKind::ReadOnly);
    let trim = Io::Trim { offset: 0, len: 4096 };
    assert_eq!(device.run(trim).result.unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(device.stats().snapshot().errors, 2);
}

#[test]
fn one_batch_spans_devices() {
    let (a, b) = (Temp::new("span-a", &pattern(8192)), Temp::new("span-b", &[7; 8192]));
    let open = |t: &Temp| -> Arc<dyn Device> {
        Arc::new(FileDevice::open(&t.0, &options(false, true)).unwrap())
    };
    let (a, b) = (open(&a), open(&b));
    let batch = vec![
        (a.clone(), Io::read(0, 4096)),
        (b.clone(), Io::read(4096, 4096)),
        (a.clone(), Io::read(8000, 1000)),
        (b.clone(), Io::read(1, 1)),
    ];
    let results: Vec<_> = execute(batch).into_iter().map(|(done, _)| done.into_read()).collect();
    assert_eq!(&results[0].as_ref().unwrap()[..], &pattern(8192)[..4096]);
    assert!(results[1].as_ref().unwrap().iter().all(|&x| x == 7));
    assert_eq!(results[2].as_ref().unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(&results[3].as_ref().unwrap()[..], &[7]);
    let (a, b) = (a.stats().snapshot(), b.stats().snapshot());
    assert_eq!((a.reads, a.errors, b.reads, b.errors), (1, 1, 2, 0));
    assert!(b.bytes_read >= 4097);
}
